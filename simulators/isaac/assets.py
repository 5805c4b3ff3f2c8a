"""Isaac Lab's `assets`."""

from simulators.isaac.articulation import Articulation, ArticulationCfg
from simulators.isaac.articulation_data import ArticulationData
from simulators.isaac.rigid_object import AssetBaseCfg, RigidObject, RigidObjectCfg, RigidObjectData

__all__ = [
    "Articulation",
    "ArticulationCfg",
    "ArticulationData",
    "AssetBaseCfg",
    "RigidObject",
    "RigidObjectCfg",
    "RigidObjectData",
]
