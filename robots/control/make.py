"""Controls by name."""

from collections.abc import Callable

from embodied.errors import ConfigError, nearest
from robots.control.control import Control
from robots.control.end_effector import EndEffector
from robots.control.joint import Joint
from robots.kinematics.arm import ArmKinematics

CONTROLS: dict[str, Callable[[ArmKinematics], Control]] = {
    "ee_delta": lambda arm: EndEffector(arm),
    "ee_target": lambda arm: EndEffector(arm, absolute=True),
    "ee_pose_delta": lambda arm: EndEffector(arm, turn=True),
    "ee_pose": lambda arm: EndEffector(arm, absolute=True, turn=True),
    "joint_delta": lambda arm: Joint(arm),
    "joint_target": lambda arm: Joint(arm, absolute=True),
}


def make_control(kind: str, arm: ArmKinematics) -> Control:
    """The control of `CONTROLS` for an arm.

    Raises:
        ConfigError: No control has this name.
    """
    if not isinstance(kind, str) or kind not in CONTROLS:
        raise ConfigError(f"unknown control {kind!r}", "task.control", nearest(kind, CONTROLS))
    return CONTROLS[kind](arm)
