"""Addresses of an arm in a MuJoCo model: its joints, actuators and end effector in the fields of `MjData`."""

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from embodied.spec import Stream, Streams
from robots.kinematics.arm import ArmKinematics, ArmState
from simulators.task import Array, Fields


class Arm(ArmKinematics):
    """One arm of N joints in a model; its cell's frame is the world's.

    Args:
        model: The compiled scene.
        robot: Name of the description that the scene holds.
        prefix: Prefix of the arm's names, where the description holds several arms.

    Attributes:
        streams: Streams that `observe` gives.
        arm_qpos, arm_qvel, arm_ctrl: Slices of the arm's joints in `qpos`, `qvel` and `ctrl`.
        gripper_qpos, gripper_qvel, gripper_ctrl: Slices of the gripper's joints, likewise.
        ee: Id of the end effector's site.

    Raises:
        ConfigError: There is no such arm, or its joints do not follow each other in the model.
    """

    fields: tuple[str, ...] = ("qpos", "qvel", "site_xpos")

    def __init__(self, model: mujoco.MjModel, robot: str = "panda", prefix: str = "") -> None:
        super().__init__(robot, prefix)
        self.arm_qpos, self.arm_qvel, self.arm_ctrl = self._slices(model, self.chain.joints)
        self.gripper_qpos, self.gripper_qvel, self.gripper_ctrl = self._slices(model, self.facts.gripper)
        self._linkage = [int(model.joint(f"{prefix}{name}").qposadr[0]) for name in self.facts.linkage]
        self.ee = model.site(f"{prefix}ee").id
        count = len(self.chain)
        self.streams: Streams = (
            Stream(f"{prefix}joint_pos", (count,), unit="rad"),
            Stream(f"{prefix}joint_vel", (count,), unit="rad/s"),
            Stream(f"{prefix}ee_pos", (3,), unit="m", frame="base"),
        )

    def _slices(self, model: mujoco.MjModel, joints: tuple[str, ...]) -> tuple[slice, slice, slice]:
        """Slices of joints in qpos, qvel and ctrl."""
        names = [f"{self.prefix}{name}" for name in joints]
        qpos = [int(model.joint(name).qposadr[0]) for name in names]
        qvel = [int(model.joint(name).dofadr[0]) for name in names]
        ctrl = [model.actuator(name).id for name in names]
        for places in (qpos, qvel, ctrl):
            if places != list(range(places[0], places[0] + len(joints))):
                what = f"joints {', '.join(names)} or their actuators do not follow each other"
                raise ConfigError(what, f"robot {self.robot}", "order them in the description as its chain and gripper")
        size = len(joints)
        return slice(qpos[0], qpos[0] + size), slice(qvel[0], qvel[0] + size), slice(ctrl[0], ctrl[0] + size)

    def measured(self, fields: Fields) -> ArmState:
        """Joint positions and end effector as the simulator has them."""
        return ArmState(self.q(fields), self.ee_pos(fields))

    def q(self, fields: Fields) -> Array:
        """[B, N] rad."""
        return fields["qpos"][:, self.arm_qpos]

    def ee_pos(self, fields: Fields) -> Array:
        """[B, 3] m."""
        return fields["site_xpos"][:, self.ee]

    def gripper_width(self, fields: Fields) -> Array:
        """[B] m between the pads."""
        return self.pad_distance(fields["qpos"][:, self.gripper_qpos])

    def gripper_speed(self, fields: Fields) -> Array:
        """[B] m/s, growth of the width."""
        return self.pad_speed(fields["qvel"][:, self.gripper_qvel])

    def observe(self, fields: Fields) -> dict[str, NDArray[np.float32]]:
        """Values [B, ...] of `streams`."""
        return {
            self.streams[0].name: self.q(fields).astype(np.float32),
            self.streams[1].name: fields["qvel"][:, self.arm_qvel].astype(np.float32),
            self.streams[2].name: self.ee_pos(fields).astype(np.float32),
        }

    def place(self, qpos: Array, ctrl: Array, joints: Array, command: float = 1.0) -> None:
        """Write a posture to `qpos` [M, nq], and the controls that hold it to `ctrl` [M, nu].

        Args:
            qpos, ctrl: Written in place.
            joints: [M, N] rad.
            command: The gripper's, from -1, closed, to 1, open.
        """
        qpos[:, self.arm_qpos] = ctrl[:, self.arm_ctrl] = joints
        qpos[:, self.gripper_qpos] = ctrl[:, self.gripper_ctrl] = self.gripper_targets(np.array([command]))
        share = 0.5 * (1.0 + command)
        qpos[:, self._linkage] = share * self.facts.linkage_open + (1.0 - share) * self.facts.linkage_closed
