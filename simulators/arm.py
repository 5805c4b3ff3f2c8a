"""An arm in a scene: where its numbers lie, its streams, and Cartesian targets turned into joint targets."""

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from embodied.spec import Stream, Streams
from robots.descriptions import description_path
from robots.kinematics.chain import load_chain, quat_to_matrix
from robots.kinematics.facts import load_facts
from robots.kinematics.forward import forward
from robots.kinematics.inverse import damped_step
from simulators.task import Array, Fields


class Arm:
    """Addresses and kinematics of one arm of N joints in a model; positions are in the world's frame.

    Args:
        model: The scene.
        robot: Whose description the arm is made of.
        prefix: What the scene puts before the description's names, where it holds several arms.

    Attributes:
        robot, prefix: As given.
        chain: Kinematics of the joints up to the site `ee`, from the arm's base.
        facts: The gripper, the workspace, where objects are put.
        down: [3, 3] rotation of the end effector at home, where the hand points down.
        streams: What `observe` gives.
    """

    fields: tuple[str, ...] = ("qpos", "qvel", "site_xpos")

    def __init__(self, model: mujoco.MjModel, robot: str = "panda", prefix: str = "") -> None:
        path = description_path(robot)
        self.robot, self.prefix = robot, prefix
        self.chain, self.facts = load_chain(path), load_facts(path)
        self.arm_qpos, self.arm_qvel, self.arm_ctrl = self._places(model, self.chain.joints)
        self.gripper_qpos, self.gripper_qvel, self.gripper_ctrl = self._places(model, self.facts.gripper)
        self.ee = model.site(f"{prefix}ee").id
        root = model.body_rootid[model.site_bodyid[self.ee]]
        base_rot = quat_to_matrix(model.body_quat[root])
        self._base = None if np.array_equal(base_rot, np.eye(3)) else base_rot
        self._base_pos = model.body_pos[root].copy()
        self.down = base_rot @ forward(self.chain, self.chain.home[None])[1][0]
        closed, wide = self.facts.gripper_width
        travel = self.facts.gripper_open - self.facts.gripper_closed
        self._width_per_q = (wide - closed) / (travel * len(travel))
        self._width_at_zero = closed - self._width_per_q @ self.facts.gripper_closed
        count = len(self.chain)
        self.streams: Streams = (
            Stream(f"{prefix}joint_pos", (count,), unit="rad"),
            Stream(f"{prefix}joint_vel", (count,), unit="rad/s"),
            Stream(f"{prefix}ee_pos", (3,), unit="m", frame="base"),
        )

    def _places(self, model: mujoco.MjModel, joints: tuple[str, ...]) -> tuple[slice, slice, slice]:
        """Where joints lie in qpos, qvel and ctrl."""
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

    def q(self, fields: Fields) -> Array:
        """[B, N] rad."""
        return fields["qpos"][:, self.arm_qpos]

    def ee_pos(self, fields: Fields) -> Array:
        """[B, 3] m."""
        return fields["site_xpos"][:, self.ee]

    def gripper_width(self, fields: Fields) -> Array:
        """[B] m between the pads."""
        return fields["qpos"][:, self.gripper_qpos] @ self._width_per_q + self._width_at_zero

    def gripper_speed(self, fields: Fields) -> Array:
        """[B] m/s at which the width grows."""
        return fields["qvel"][:, self.gripper_qvel] @ self._width_per_q

    def gripper_targets(self, command: Array) -> Array:
        """[B, G] joint targets of `command` [B] from -1, closed, to 1, open."""
        share = 0.5 * (1.0 + command[:, None])
        return self.facts.gripper_closed + share * (self.facts.gripper_open - self.facts.gripper_closed)

    def observe(self, fields: Fields) -> dict[str, NDArray[np.float32]]:
        """The arm's streams."""
        return {
            self.streams[0].name: self.q(fields).astype(np.float32),
            self.streams[1].name: fields["qvel"][:, self.arm_qvel].astype(np.float32),
            self.streams[2].name: self.ee_pos(fields).astype(np.float32),
        }

    def place(self, qpos: Array, ctrl: Array, joints: Array, command: float = 1.0) -> None:
        """Write `joints` [M, N] and a gripper at `command` into `qpos` [M, nq], what holds them into `ctrl` [M, nu]."""
        qpos[:, self.arm_qpos] = ctrl[:, self.arm_ctrl] = joints
        qpos[:, self.gripper_qpos] = ctrl[:, self.gripper_ctrl] = self.gripper_targets(np.array([command]))

    def within_workspace(self, target: Array) -> Array:
        """[B, 3] the positions of the workspace that are nearest to `target` [B, 3] m, axis by axis of the base."""
        low, high = self.facts.workspace
        pos = target - self._base_pos
        if self._base is None:
            return np.minimum(np.maximum(pos, low), high) + self._base_pos
        return np.minimum(np.maximum(pos @ self._base, low), high) @ self._base.T + self._base_pos

    def reach_for(self, fields: Fields, target: Array, rotation: Array | None = None) -> Array:
        """[B, N] joint targets that bring the end effector towards a pose.

        Args:
            fields: B rows.
            target: [B, 3] m.
            rotation: [B, 3, 3]; as at home, where the hand points down, if not given.
        """
        q = self.q(fields)
        rot = np.broadcast_to(self.down, (len(q), 3, 3)) if rotation is None else rotation
        pos = target - self._base_pos
        if self._base is not None:
            pos, rot = pos @ self._base, self._base.T @ rot
        return damped_step(self.chain, q, pos, rot)
