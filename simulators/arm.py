"""What tasks share about a Panda in a scene: where its numbers lie, its streams, and Cartesian control."""

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.spec import Stream, Streams
from robots.descriptions import description_path
from robots.kinematics.chain import load_chain
from robots.kinematics.forward import forward
from robots.kinematics.inverse import damped_step
from simulators.task import Array, Fields

OPEN = 0.04
"""Position of each finger of an open gripper, m; closed is 0."""


class Panda:
    """Addresses and kinematics of the arm in one model, its base at the world's origin.

    Attributes:
        chain: Kinematics of the seven joints up to the site `ee`.
        down: [3, 3] rotation of the end effector at home, where the hand points down.
    """

    streams: Streams = (
        Stream("joint_pos", (7,), unit="rad"),
        Stream("joint_vel", (7,), unit="rad/s"),
        Stream("ee_pos", (3,), unit="m", frame="base"),
    )
    fields: tuple[str, ...] = ("qpos", "qvel", "site_xpos")

    def __init__(self, model: mujoco.MjModel) -> None:
        self.chain = load_chain(description_path("panda"))
        self.ee = model.site("ee").id
        first, fingers = model.joint(self.chain.joints[0]), model.joint("finger_joint1")
        self.arm_qpos = slice(first.qposadr[0], first.qposadr[0] + 7)
        self.arm_qvel = slice(first.dofadr[0], first.dofadr[0] + 7)
        self.finger_qpos = slice(fingers.qposadr[0], fingers.qposadr[0] + 2)
        self.finger_qvel = slice(fingers.dofadr[0], fingers.dofadr[0] + 2)
        self.down = forward(self.chain, self.chain.home[None])[1][0]

    def q(self, fields: Fields) -> Array:
        """[B, 7] rad."""
        return fields["qpos"][:, self.arm_qpos]

    def ee_pos(self, fields: Fields) -> Array:
        """[B, 3] m."""
        return fields["site_xpos"][:, self.ee]

    def gripper_width(self, fields: Fields) -> Array:
        """[B] m between the pads."""
        return fields["qpos"][:, self.finger_qpos].sum(axis=1)

    def observe(self, fields: Fields) -> dict[str, NDArray[np.float32]]:
        """The arm's streams."""
        return {
            "joint_pos": self.q(fields).astype(np.float32),
            "joint_vel": fields["qvel"][:, self.arm_qvel].astype(np.float32),
            "ee_pos": self.ee_pos(fields).astype(np.float32),
        }

    def place(self, qpos: Array, joints: Array) -> None:
        """Write arm `joints` [M, 7] and open fingers into `qpos` [M, nq]."""
        qpos[:, self.arm_qpos] = joints
        qpos[:, self.finger_qpos] = OPEN

    def reach_for(self, fields: Fields, target: Array) -> Array:
        """[B, 7] joint targets that bring the end effector towards `target` [B, 3] m, the hand pointing down."""
        q = self.q(fields)
        return damped_step(self.chain, q, target, np.broadcast_to(self.down, (len(q), 3, 3)))
