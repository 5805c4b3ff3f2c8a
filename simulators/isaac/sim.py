"""Isaac Lab's `sim`: configurations of the physics, and of shapes and files of assets."""

from simulators.isaac.cfg import SimulationCfg
from simulators.isaac.simulation import Simulation
from simulators.isaac.spawn import (
    CapsuleCfg,
    CollisionPropertiesCfg,
    CuboidCfg,
    CylinderCfg,
    DistantLightCfg,
    DomeLightCfg,
    GroundPlaneCfg,
    MassPropertiesCfg,
    MjcfSpawnCfg,
    PreviewSurfaceCfg,
    RigidBodyMaterialCfg,
    RigidBodyPropertiesCfg,
    SphereCfg,
)

__all__ = [
    "CapsuleCfg",
    "CollisionPropertiesCfg",
    "CuboidCfg",
    "CylinderCfg",
    "DistantLightCfg",
    "DomeLightCfg",
    "GroundPlaneCfg",
    "MassPropertiesCfg",
    "MjcfSpawnCfg",
    "PreviewSurfaceCfg",
    "RigidBodyMaterialCfg",
    "RigidBodyPropertiesCfg",
    "Simulation",
    "SimulationCfg",
    "SphereCfg",
]
