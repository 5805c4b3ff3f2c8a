"""Rigid objects: one body, free or moved by writes."""

from collections.abc import Sequence
from typing import Any, ClassVar

import mujoco
import torch

from simulators.isaac.asset import Asset, to_wxyz
from simulators.isaac.body_state import BodyState
from simulators.isaac.configclass import MISSING, Config, configclass
from simulators.isaac.names import resolve_matching_names
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import Simulation
from simulators.isaac.spawn import LightCfg, RigidBodyPropertiesCfg, ShapeCfg


class RigidObjectData(BodyState):
    """State of a rigid object; see `BodyState`. B is 1.

    Attributes:
        default_root_state: [N, 13] pose of the link and velocity of the centre of mass.
        default_mass: [N, 1] kg.
        body_names: Its name.
    """

    default_root_state: torch.Tensor
    default_mass: torch.Tensor
    body_names: list[str]

    default_root_pose = property(lambda self: self.default_root_state[:, :7])
    default_root_vel = property(lambda self: self.default_root_state[:, 7:])


class RigidObject(Asset):
    """One free body, or a kinematic one, moved by writes only; called as its prim path ends, else as the entity."""

    data: RigidObjectData
    num_bodies = 1

    @property
    def body_names(self) -> list[str]:
        return [self.cfg.prim_path.rsplit("/", 1)[-1] if self.cfg.prim_path else self._name]

    def inner_body(self, name: str) -> str:
        """The MJCF name of its body."""
        return self._name

    def find_bodies(self, name_keys: str | Sequence[str], preserve_order: bool = False) -> tuple[list[int], list[str]]:
        """Index and name; raises `ConfigError` if nothing matches."""
        return resolve_matching_names(name_keys, self.body_names, preserve_order, f"rigid object {self._name}")

    def _build(self, spec: mujoco.MjSpec, name: str, order: Order, dt: float) -> None:
        self._name = name
        init, props = self.cfg.init_state, self.cfg.spawn.rigid_props or RigidBodyPropertiesCfg()
        body = spec.worldbody.add_body(name=name, pos=list(init.pos), mocap=props.kinematic_enabled)
        if init.rot is not None:
            body.quat = to_wxyz(torch.tensor([init.rot]), order)[0].tolist()
        if not props.kinematic_enabled:
            body.add_freejoint(name=name)
        body.gravcomp = float(props.disable_gravity)
        self.cfg.spawn.add_to(body, name)

    def _bind(self, sim: Simulation, order: Order) -> None:
        body = sim.model.body(self._name).id
        self._bind_root(sim, body, order)
        self.data = RigidObjectData(sim, [body], order)
        self.data.default_root_state = self._default_root_state()
        self.data.default_mass = torch.full((sim.num_envs, 1), float(sim.model.body_mass[body]))
        self.data.body_names = self.body_names
        self._write_defaults()


@configclass
class RigidObjectCfg(Config):
    """A rigid object.

    Attributes:
        prim_path: `{ENV_REGEX_NS}/Name`, for the references of sensors; by default the entity's name.
        spawn: Its shape.
        init_state: Pose (m; quaternion in the environment's order, None for no rotation), velocity (m/s, rad/s).
    """

    @configclass
    class InitialStateCfg:
        pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
        rot: tuple[float, float, float, float] | None = None
        lin_vel: tuple[float, float, float] = (0.0, 0.0, 0.0)
        ang_vel: tuple[float, float, float] = (0.0, 0.0, 0.0)

    _ignored: ClassVar[tuple[str, ...]] = ("debug_vis",)
    class_type: Any = RigidObject
    prim_path: str | None = None
    spawn: ShapeCfg = MISSING
    init_state: InitialStateCfg = InitialStateCfg()
    debug_vis: bool = False


@configclass
class AssetBaseCfg(Config):
    """Fixed asset: a geom of the world, or with `spawn` None one that the robot's scene has already."""

    @configclass
    class InitialStateCfg:
        pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
        rot: tuple[float, float, float, float] | None = None

    prim_path: str | None = None
    spawn: ShapeCfg | None = None
    init_state: InitialStateCfg = InitialStateCfg()


def add_static(spec: mujoco.MjSpec, name: str, cfg: AssetBaseCfg, order: Order) -> None:
    """Add the geom of `cfg` to the world, in place of a geom of its name; lights are left out."""
    if cfg.spawn is None or isinstance(cfg.spawn, LightCfg):
        return
    if (own := spec.geom(name)) is not None:
        spec.delete(own)
    body = spec.worldbody.add_body(name=name, pos=list(cfg.init_state.pos))
    if cfg.init_state.rot is not None:
        body.quat = to_wxyz(torch.tensor([cfg.init_state.rot]), order)[0].tolist()
    cfg.spawn.add_to(body, name)
