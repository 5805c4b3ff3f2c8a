"""Articulations: joints and bodies of a robot, their targets, and writes of their state."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch

from simulators.isaac.actuators import ImplicitActuatorCfg, drive_joints
from simulators.isaac.articulation_data import ArticulationData
from simulators.isaac.asset import Asset, put, to_wxyz
from simulators.isaac.checks import check_vector
from simulators.isaac.configclass import MISSING, Config, configclass
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.names import as_index, resolve_matching_names, resolve_matching_names_values
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import EnvIds, Simulation
from simulators.isaac.spawn import MjcfSpawnCfg

JointIds = list[int] | slice | torch.Tensor | None


class Articulation(Asset):
    """A robot. Targets are [n, j] for `env_ids` and `joint_ids`, or for all environments and joints.

    Attributes:
        joint_names, body_names: Names, as in configurations.
        is_fixed_base: Whether its root does not move.
    """

    data: ArticulationData
    joint_names: list[str]
    body_names: list[str]

    @property
    def num_joints(self) -> int:
        return len(self.joint_names)

    @property
    def num_bodies(self) -> int:
        return len(self.body_names)

    @property
    def is_fixed_base(self) -> bool:
        return self._free is None

    def find_joints(
        self, name_keys: str | Sequence[str], joint_subset: list[str] | None = None, preserve_order: bool = False
    ) -> tuple[list[int], list[str]]:
        """Indices and names of the joints (of `joint_subset`) that the names or expressions match.

        Raises:
            ConfigError: Nothing matches one of them.
        """
        known = self.joint_names if joint_subset is None else joint_subset
        return resolve_matching_names(name_keys, known, preserve_order, f"joints of {self._name}")

    def find_bodies(self, name_keys: str | Sequence[str], preserve_order: bool = False) -> tuple[list[int], list[str]]:
        """Indices and names of the bodies; raises `ConfigError` if nothing matches."""
        return resolve_matching_names(name_keys, self.body_names, preserve_order, f"bodies of {self._name}")

    def set_joint_position_target(
        self, target: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """rad or m."""
        put(self.data.joint_pos_target, target, env_ids, self._columns(joint_ids))

    def set_joint_velocity_target(
        self, target: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """rad/s or m/s."""
        put(self.data.joint_vel_target, target, env_ids, self._columns(joint_ids))
        self._only_positions = False

    def set_joint_effort_target(self, target: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None) -> None:
        """N m or N, added to the effort of stiffness and damping."""
        put(self.data.joint_effort_target, target, env_ids, self._columns(joint_ids))
        self._only_positions = False

    def write_data_to_sim(self) -> None:
        data = self.data
        if self._drives_all and self._only_positions:
            np.multiply(
                data.joint_pos_target.numpy(), data.joint_stiffness.numpy(), out=self._driven_ctrl, dtype=np.float64
            )
            return
        effort = data.joint_pos_target * data.joint_stiffness
        effort.addcmul_(data.joint_vel_target, data.joint_damping).add_(data.joint_effort_target)
        self._ctrl[:, self._actuators] = effort[:, self._driven].numpy()

    def write_joint_state_to_sim(
        self, position: torch.Tensor, velocity: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """[n, j] rad and rad/s, or m and m/s."""
        self.write_joint_position_to_sim(position, joint_ids, env_ids)
        self.write_joint_velocity_to_sim(velocity, joint_ids, env_ids)

    def write_joint_position_to_sim(
        self, position: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """[n, j] rad or m."""
        columns = self.data._qpos_index if joint_ids is None else self._address(self.data._qpos_ids, joint_ids)
        put(self._qpos, position, env_ids, columns)
        self._sim.touch(env_ids)

    def write_joint_velocity_to_sim(
        self, velocity: torch.Tensor, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """[n, j] rad/s or m/s."""
        columns = self.data._qvel_index if joint_ids is None else self._address(self.data._qvel_ids, joint_ids)
        put(self._qvel, velocity, env_ids, columns)
        self._sim.touch(env_ids)

    def write_joint_stiffness_to_sim(
        self, stiffness: torch.Tensor | float, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """[n, j] N m/rad or N/m, of joints with actuators."""
        put(self.data.joint_stiffness, stiffness, env_ids, self._columns(joint_ids))
        self._write_bias(1, self.data.joint_stiffness)

    def write_joint_damping_to_sim(
        self, damping: torch.Tensor | float, joint_ids: JointIds = None, env_ids: EnvIds = None
    ) -> None:
        """[n, j] N m s/rad or N s/m, of joints with actuators."""
        put(self.data.joint_damping, damping, env_ids, self._columns(joint_ids))
        self._write_bias(2, self.data.joint_damping)

    def reset(self, env_ids: EnvIds = None) -> None:
        if not self._only_positions:
            put(self.data.joint_vel_target, 0.0, env_ids, slice(None))
            put(self.data.joint_effort_target, 0.0, env_ids, slice(None))

    def _build(self, spec: mujoco.MjSpec | None, name: str, order: Order, dt: float) -> mujoco.MjSpec:
        """Add the robot to the scene; the file of the first robot is the scene."""
        self._name = name
        spawn, init = self.cfg.spawn, self.cfg.init_state
        own, root = spawn.load(with_table=spec is None)
        prefix = "" if spec is None else f"{name}/"
        own_root = own.body(root)
        bodies = [own_root.name, *(body.name for body in own_root.find_all("body"))]
        joints = [joint.name for joint in [*own_root.joints, *own_root.find_all("joint")]]
        joints = [joint for joint in dict.fromkeys(joints) if own.joint(joint).type != mujoco.mjtJoint.mjJNT_FREE]
        for joint in joints:
            if own.joint(joint).type == mujoco.mjtJoint.mjJNT_BALL:
                raise ConfigError(f"joint {joint} is a ball joint", f"articulation {name}", "use hinges and slides")
        if spec is None:
            spec = own
        else:
            spec.attach(own, prefix=prefix, frame=spec.worldbody.add_frame())
        body = spec.body(prefix + root)
        if (init.pos is not None or init.rot is not None) and body.parent.name != "world":
            raise ConfigError(f"its root is inside {body.parent.name}", f"init_state of {name}", "choose an outer root")
        if init.pos is not None:
            body.pos = list(init.pos)
        if init.rot is not None:
            body.quat = to_wxyz(torch.tensor([init.rot]), order)[0].tolist()
        spawn.check_renames(bodies, joints, f"articulation {name}")
        self._inner = {spawn.renamed(joint, "joints"): prefix + joint for joint in joints}
        self._root, self._prefix = prefix + root, prefix
        self._velocity_limits = drive_joints(spec, self._inner, self.cfg.actuators, f"articulation {name}", dt)
        return spec

    def inner_body(self, name: str) -> str:
        """The MJCF name of a body.

        Raises:
            ConfigError: The articulation has no such body.
        """
        if name not in self._inner_bodies:
            where = f"articulation {self._name}"
            raise ConfigError(f"no body is called {name!r}", where, nearest(name, self._inner_bodies))
        return self._inner_bodies[name]

    def _name_bodies(self, spec: mujoco.MjSpec) -> None:
        root = spec.body(self._root)
        bodies = [root, *root.find_all("body")]
        start = len(self._prefix)
        self._inner_bodies = {self.cfg.spawn.renamed(body.name[start:], "bodies"): body.name for body in bodies}

    def _bind(self, sim: Simulation, order: Order) -> None:
        model = sim.model
        inner = sorted(self._inner.items(), key=lambda pair: model.joint(pair[1]).id)
        bodies = sorted(self._inner_bodies.items(), key=lambda pair: model.body(pair[1]).id)
        self.joint_names, self.body_names = [name for name, _ in inner], [name for name, _ in bodies]
        joints = [model.joint(name).id for _, name in inner]
        self._bind_root(sim, model.body(self._root).id, order)
        self.data = ArticulationData(sim, [model.body(name).id for _, name in bodies], joints, order)
        data, self._only_positions = self.data, True
        data.joint_names, data.body_names = self.joint_names, self.body_names
        driver = {int(model.actuator_trnid[a, 0]): a for a in range(model.nu) if model.actuator_trntype[a] == 0}
        self._driven = [j for j, joint in enumerate(joints) if joint in driver]
        self._actuators = as_index([driver[joints[j]] for j in self._driven])
        self._drives_all = len(self._driven) == len(joints) > 0 and isinstance(self._actuators, slice)
        self._ctrl = sim.array("ctrl")
        self._driven_ctrl = self._ctrl[:, self._actuators]
        data.set_gains(self._driven, [driver[joints[j]] for j in self._driven])
        for name, limit in self._velocity_limits.items():
            data.joint_vel_limits[:, self.joint_names.index(name)] = limit
        data.soft_joint_pos_limits = data.soften(self.cfg.soft_joint_pos_limit_factor)
        self._set_defaults()
        self._write_defaults()
        self.write_joint_state_to_sim(data.default_joint_pos, data.default_joint_vel)
        self.write_data_to_sim()

    def _set_defaults(self) -> None:
        data, init, where = self.data, self.cfg.init_state, f"init_state of {self._name}"
        data.default_root_state = self._default_root_state()
        for target, given in ((data.default_joint_pos, init.joint_pos), (data.default_joint_vel, init.joint_vel)):
            ids, _, values = resolve_matching_names_values(given, self.joint_names, where=where)
            check_vector(values, len(values), where)
            target[:, ids] = torch.tensor(values, dtype=torch.float32)
        low, high = data.joint_pos_limits[0].unbind(-1)
        outside = (data.default_joint_pos[0] < low - 1e-6) | (data.default_joint_pos[0] > high + 1e-6)
        for j in outside.nonzero().flatten().tolist():
            raise ConfigError(
                f"{self.joint_names[j]} at {data.default_joint_pos[0, j]:.4g} is beyond its limits",
                where,
                f"choose {low[j]:.4g} to {high[j]:.4g}",
            )
        data.joint_pos_target.copy_(data.default_joint_pos)

    def _columns(self, joint_ids: JointIds) -> Any:
        if joint_ids is None or isinstance(joint_ids, slice):
            return slice(None) if joint_ids is None else joint_ids
        ids = joint_ids.tolist() if isinstance(joint_ids, torch.Tensor) else list(joint_ids)
        if ids and not 0 <= min(ids) <= max(ids) < self.num_joints:
            raise ConfigError(f"joint_ids {ids}", f"joints of {self._name}", f"choose 0 to {self.num_joints - 1}")
        return as_index(ids)

    def _address(self, addresses: list[int], joint_ids: list[int] | slice | torch.Tensor) -> Any:
        columns = self._columns(joint_ids)
        return as_index(addresses[columns] if isinstance(columns, slice) else [addresses[j] for j in columns])

    def _write_bias(self, column: int, numbers: torch.Tensor) -> None:
        bias = torch.from_numpy(self._sim.batch.expand("actuator_biasprm"))
        bias[:, self._actuators, column] = -numbers[:, self._driven].double()


@configclass
class ArticulationCfg(Config):
    """A robot of the scene.

    Attributes:
        prim_path: `{ENV_REGEX_NS}/Name`, for the references of sensors; by default the entity's name.
        spawn: Source of its MJCF.
        init_state: Root pose in the environment (m; quaternion in its order; None for that of the file) and velocity,
            joint positions and velocities by names or regular expressions.
        actuators: Drives by any name; a joint in none of them keeps the MJCF's.
        soft_joint_pos_limit_factor: `soft_joint_pos_limits` are this part of the limits' range about its middle.
    """

    @configclass
    class InitialStateCfg:
        pos: tuple[float, float, float] | None = None
        rot: tuple[float, float, float, float] | None = None
        lin_vel: tuple[float, float, float] = (0.0, 0.0, 0.0)
        ang_vel: tuple[float, float, float] = (0.0, 0.0, 0.0)
        joint_pos: dict[str, float] = field(default_factory=lambda: {".*": 0.0})
        joint_vel: dict[str, float] = field(default_factory=lambda: {".*": 0.0})

    _ignored: ClassVar[tuple[str, ...]] = ("debug_vis",)
    class_type: Any = Articulation
    prim_path: str | None = None
    spawn: MjcfSpawnCfg = MISSING
    init_state: InitialStateCfg = InitialStateCfg()
    actuators: dict[str, ImplicitActuatorCfg] = field(default_factory=dict)
    soft_joint_pos_limit_factor: float = 1.0
    debug_vis: bool = False
