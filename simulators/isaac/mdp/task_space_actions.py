"""Action terms that command the pose of a body, turned into joint targets by the robot's kinematics."""

import numpy as np
import torch

from robots.kinematics.forward import forward
from robots.kinematics.inverse import damped_step
from simulators.isaac.cfg import ActionTermCfg
from simulators.isaac.chains import chain_of
from simulators.isaac.checks import check_poses
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.managers import ActionTerm
from simulators.isaac.math import matrix_from_quat, quat_from_angle_axis
from simulators.isaac.simulation import EnvIds

COMMAND_TYPES = ("position", "pose")
DAMPING = 0.01


class DifferentialInverseKinematicsAction(ActionTerm):
    """Pose in the robot's root frame: position (m) or position and orientation, absolute or relative to the present.

    D is 3 for positions, 6 for relative poses (m, and a rotation vector in rad), 7 for absolute ones (quaternion in the
    environment's order). A commanded position keeps the orientation. The targets are damped least-squares steps, taken
    anew before each physics step.

    Attributes:
        processed_actions: [N, D] raw actions times the scale.

    Raises:
        ConfigError: A word of the controller is unknown, or the joints are not those that move the body.
    """

    cfg: "DifferentialInverseKinematicsActionCfg"

    def __init__(self, cfg: "DifferentialInverseKinematicsActionCfg", env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        controller = cfg.controller
        if controller.command_type not in COMMAND_TYPES:
            what = f"command type {controller.command_type!r} is unknown"
            raise ConfigError(what, "controller", nearest(controller.command_type, COMMAND_TYPES))
        if controller.ik_method != "dls":
            raise ConfigError(f"method {controller.ik_method!r} is unknown", "controller", "use dls")
        self._damping = float((controller.ik_params or {}).get("lambda_val", DAMPING))
        self._with_rotation = controller.command_type == "pose"
        self._relative = controller.use_relative_mode
        robot, spawn, offset = self._asset, self._asset.cfg.spawn, cfg.body_offset
        tip_pos, tip_rot = np.zeros(3), np.eye(3)
        if offset is not None:
            check_poses(offset, "body_offset")
            tip_pos = np.array(offset.pos, np.float64)
            if offset.rot is not None:
                tip_rot = matrix_from_quat(torch.tensor(offset.rot)).double().numpy()
        root = robot.inner_body(robot.body_names[0])
        self._chain = chain_of(env.sim.model, root, robot.inner_body(self._body_name(cfg)), tip_pos, tip_rot)
        prefix = root[: root.rfind("/") + 1]
        names = [spawn.renamed(name.removeprefix(prefix), "joints") for name in self._chain.joints]
        if sorted(names) != sorted(robot.find_joints(cfg.joint_names)[1]):
            raise ConfigError(f"{cfg.joint_names} are not the joints that move it", cfg.body_name, f"name {names}")
        self._joint_ids = [robot.joint_names.index(name) for name in names]
        self._raw = torch.zeros(self.num_envs, self.action_dim)
        self._scale = torch.as_tensor(cfg.scale, dtype=torch.float32).expand(self.action_dim)
        self._processed = torch.zeros_like(self._raw)
        self._target_pos, self._target_rot = forward(self._chain, self._joints())

    @property
    def action_dim(self) -> int:
        if not self._with_rotation:
            return 3
        return 6 if self._relative else 7

    @property
    def raw_actions(self) -> torch.Tensor:
        return self._raw

    @property
    def processed_actions(self) -> torch.Tensor:
        return self._processed

    def process_actions(self, actions: torch.Tensor) -> None:
        self._raw[:] = actions
        torch.mul(self._raw, self._scale, out=self._processed)
        moved = self._processed[:, :3].double().numpy()
        pos, rot = forward(self._chain, self._joints())
        self._target_pos, self._target_rot = pos + moved if self._relative else moved, rot
        if self._with_rotation:
            turn = self._processed[:, 3:]
            if self._relative:
                turn = quat_from_angle_axis(torch.linalg.vector_norm(turn, dim=1), turn)
            matrix = matrix_from_quat(turn).double().numpy()
            self._target_rot = matrix @ rot if self._relative else matrix

    def apply_actions(self) -> None:
        targets = damped_step(self._chain, self._joints(), self._target_pos, self._target_rot, self._damping, 0.0)
        self._asset.set_joint_position_target(torch.from_numpy(targets).float(), joint_ids=self._joint_ids)

    def reset(self, env_ids: EnvIds = None) -> None:
        self._raw[slice(None) if env_ids is None else env_ids] = 0.0

    def _joints(self) -> np.ndarray:
        """[N, J] rad, of the chain."""
        return self._asset.data.joint_pos[:, self._joint_ids].double().numpy()

    def _body_name(self, cfg: "DifferentialInverseKinematicsActionCfg") -> str:
        found = self._asset.find_bodies(cfg.body_name)[1]
        if len(found) != 1:
            raise ConfigError(f"{cfg.body_name!r} matches {len(found)} bodies", "body_name", "name one")
        return found[0]


@configclass
class DifferentialIKControllerCfg:
    """Inverse kinematics from poses to joint targets.

    Attributes:
        command_type: `position` (3 numbers, or deltas) or `pose` (position and quaternion, or deltas and a rotation
            vector).
        use_relative_mode: Whether commands are deltas from the present pose.
        ik_method: `dls`, damped least squares, only.
        ik_params: `lambda_val`, the damping.
    """

    command_type: str = MISSING
    use_relative_mode: bool = False
    ik_method: str = "dls"
    ik_params: dict[str, float] | None = None


@configclass
class DifferentialInverseKinematicsActionCfg(ActionTermCfg):
    """Poses, or deltas, of a body (and an offset in its frame), in the robot's root frame."""

    @configclass
    class OffsetCfg:
        """The frame that is commanded, in the body's: m, and a quaternion in the environment's order."""

        pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
        rot: tuple[float, float, float, float] | None = None

    class_type: type[ActionTerm] = DifferentialInverseKinematicsAction
    joint_names: list[str] = MISSING
    body_name: str = MISSING
    body_offset: OffsetCfg | None = None
    scale: float | tuple[float, ...] = 1.0
    controller: DifferentialIKControllerCfg = MISSING
