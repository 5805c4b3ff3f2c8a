"""Scene: assets by name, compiled to one MuJoCo model; every environment is a world of its own."""

from collections.abc import Iterator
from typing import Any, ClassVar

import mujoco
import torch

from simulators.isaac.articulation import Articulation, ArticulationCfg
from simulators.isaac.cfg import SimulationCfg
from simulators.isaac.checks import check_poses
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.frame_transformer import FrameTransformer, FrameTransformerCfg
from simulators.isaac.quaternion import Order
from simulators.isaac.rigid_object import AssetBaseCfg, RigidObject, RigidObjectCfg, add_static
from simulators.isaac.simulation import EnvIds, Simulation
from simulators.isaac.spawn import MjcfSpawnCfg, ShapeCfg


@configclass
class InteractiveSceneCfg:
    """Assets and sensors as members.

    Attributes:
        num_envs: N.
        env_spacing, replicate_physics, filter_collisions, lazy_sensor_update: Accepted; worlds do not see each other.
    """

    _open: ClassVar[bool] = True
    _ignored: ClassVar[tuple[str, ...]] = (
        "env_spacing", "replicate_physics", "filter_collisions", "lazy_sensor_update"
    )  # fmt: skip
    num_envs: int = MISSING
    env_spacing: float = 1.0
    replicate_physics: bool = True
    filter_collisions: bool = True
    lazy_sensor_update: bool = True


class InteractiveScene:
    """Entities by name: `scene["robot"]`.

    Attributes:
        cfg: As given.
        articulations, rigid_objects, sensors: By name; more may be added until the scene is compiled.
        env_origins: [N, 3] zeros: each environment is a world of its own, so positions in the world are positions in
            the environment.
        sim: The physics, once compiled.

    Raises:
        ConfigError: A member is no asset or sensor.
    """

    sim: Simulation

    def __init__(self, cfg: InteractiveSceneCfg, quaternion: Order = "xyzw") -> None:
        self.cfg, self.quaternion = cfg, quaternion
        self.articulations: dict[str, Articulation] = {}
        self.rigid_objects: dict[str, RigidObject] = {}
        self.sensors: dict[str, FrameTransformer] = {}
        self._by_name: dict[str, Any] = {}
        self._statics: dict[str, AssetBaseCfg] = {}
        self.env_origins = torch.zeros(cfg.num_envs, 3)
        for name, member in vars(cfg).items():
            self._take(name, member)

    @property
    def num_envs(self) -> int:
        return self.cfg.num_envs

    @property
    def device(self) -> str:
        return "cpu"

    def __getitem__(self, name: str) -> Any:
        """The entity of this name.

        Raises:
            ConfigError: There is none.
        """
        if name in self._by_name:
            return self._by_name[name]
        for group in (self.articulations, self.rigid_objects, self.sensors):
            if name in group:
                return group[name]
        raise ConfigError(f"the scene has no {name!r}", "scene", nearest(name, self.keys()))

    def keys(self) -> list[str]:
        """Names of all entities."""
        return [*self.articulations, *self.rigid_objects, *self.sensors]

    def compile(self, sim: SimulationCfg) -> None:
        """Build the model and its N worlds, and give every entity its part of them.

        Raises:
            ConfigError: MuJoCo refuses the scene, or an entity names something unknown.
        """
        dt, order = sim.dt / sim.substeps, self.quaternion
        spec: mujoco.MjSpec | None = None
        for name, robot in self.articulations.items():
            spec = robot._build(spec, name, order, dt)
        spec = mujoco.MjSpec() if spec is None else spec
        spec.option.timestep, spec.option.gravity = dt, list(sim.gravity)
        # Implicit in the drives' damping, as in Isaac Lab; dense, since MuJoCo 4.0.0 gets the sparse Hessian wrong.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        spec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
        for robot in self.articulations.values():
            robot._name_bodies(spec)
        for name, static in self._statics.items():
            add_static(spec, name, static, order)
        for name, thing in self.rigid_objects.items():
            thing._build(spec, name, order, dt)
        for name, sensor in self.sensors.items():
            paths = [sensor.cfg.prim_path, *(frame.prim_path for frame in sensor.cfg.target_frames)]
            sensor._build(spec, name, [self._body_at(path, name) for path in paths], order)
        try:
            model = spec.compile()
        except ValueError as error:
            raise ConfigError("MuJoCo cannot compile the scene", "scene", str(error)) from None
        self.sim = Simulation(model, self.num_envs, sim)
        for entity in self._entities():
            entity._bind(self.sim, order)
        self._by_name = {**self.sensors, **self.rigid_objects, **self.articulations}
        self.sim.keep_as_blank()

    def write_data_to_sim(self) -> None:
        """Write every articulation's targets to the simulation."""
        for robot in self.articulations.values():
            robot.write_data_to_sim()

    def update(self, dt: float) -> None:
        """Do nothing: data is computed on access."""

    def reset(self, env_ids: EnvIds = None) -> None:
        """Clear every entity's state of the previous episode."""
        for entity in self._entities():
            entity.reset(env_ids)

    def filter_collisions(self, global_prim_paths: Any = None) -> None:
        """Do nothing: worlds do not meet."""

    def clone_environments(self, copy_from_source: bool = False) -> None:
        """Do nothing: environments are worlds of one model."""

    def _entities(self) -> Iterator[Any]:
        yield from self.articulations.values()
        yield from self.rigid_objects.values()
        yield from self.sensors.values()

    def _take(self, name: str, member: Any) -> None:
        where = f"scene.{name}"
        if isinstance(member, (ArticulationCfg, RigidObjectCfg)):
            source = MjcfSpawnCfg if isinstance(member, ArticulationCfg) else ShapeCfg
            if not isinstance(member.spawn, source):
                raise ConfigError(f"spawn is {member.spawn!r}"[:100], where, f"give a {source.__name__}")
        if isinstance(member, (ArticulationCfg, RigidObjectCfg, AssetBaseCfg)):
            check_poses(member.init_state, f"{where}.init_state")
        if isinstance(member, (ArticulationCfg, RigidObjectCfg, FrameTransformerCfg)) and not callable(
            member.class_type
        ):
            raise ConfigError(f"class_type is {member.class_type!r}", where, "leave it out, or give a class")
        if isinstance(member, ArticulationCfg):
            self.articulations[name] = member.class_type(member)
        elif isinstance(member, RigidObjectCfg):
            self.rigid_objects[name] = member.class_type(member)
        elif isinstance(member, FrameTransformerCfg):
            check_poses(member.source_frame_offset, f"{where}.source_frame_offset")
            for frame in member.target_frames:
                check_poses(frame.offset, f"{where}.target_frames")
            self.sensors[name] = member.class_type(member)
        elif isinstance(member, AssetBaseCfg):
            self._statics[name] = member
        elif member is not None and name not in InteractiveSceneCfg.__dataclass_fields__:
            kinds = "ArticulationCfg, RigidObjectCfg, AssetBaseCfg or FrameTransformerCfg"
            raise ConfigError(f"a {type(member).__name__} is nothing a scene holds", f"scene.{name}", f"use {kinds}")

    def _body_at(self, path: str, sensor: str) -> str:
        """The MJCF name of the body at a prim path."""
        parts = path.split("/")
        entities: list[tuple[str, Any]] = [*self.articulations.items(), *self.rigid_objects.items()]
        for name, entity in entities:
            prim = (entity.cfg.prim_path or f"{{ENV_REGEX_NS}}/{name}").split("/")
            if [part.lower() for part in parts[: len(prim)]] == [part.lower() for part in prim]:
                if isinstance(entity, RigidObject):
                    return name
                inner = parts[len(prim) :]
                return entity.inner_body(inner[-1]) if inner else entity._root
        known = [entity.cfg.prim_path or f"{{ENV_REGEX_NS}}/{name}" for name, entity in entities]
        raise ConfigError(f"nothing is at {path!r}", f"sensor {sensor}", nearest(path, known))
