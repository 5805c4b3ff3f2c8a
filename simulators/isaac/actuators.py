"""Joint drives: Isaac Lab's implicit actuators as MuJoCo's, integrated with their stiffness and damping."""

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco

from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.errors import ConfigError
from simulators.isaac.names import resolve_matching_names_values

Numbers = float | dict[str, float] | None


@configclass
class ImplicitActuatorCfg:
    """A proportional-derivative drive of some joints; numbers, or by joint names. None keeps the model's.

    effort = stiffness * (position target - position) + damping * (velocity target - velocity) + effort target, limited
    to `effort_limit`. At the limit MuJoCo integrates the damping explicitly, and a joint with less armature than
    damping times the time step overshoots in every step: its `armature` is raised to that product. More `substeps`
    need less.

    Attributes:
        joint_names_expr: Names or regular expressions.
        stiffness: N m/rad or N/m.
        damping: N m s/rad or N s/m.
        effort_limit, effort_limit_sim: N m or N; either name.
        velocity_limit, velocity_limit_sim: rad/s or m/s; kept as `joint_vel_limits`, not enforced by the physics.
        armature: kg m² or kg, added to the joint's inertia.
        friction: N m or N, dry.
    """

    joint_names_expr: list[str] = MISSING
    stiffness: Numbers = None
    damping: Numbers = None
    effort_limit: Numbers = None
    effort_limit_sim: Numbers = None
    velocity_limit: Numbers = None
    velocity_limit_sim: Numbers = None
    armature: Numbers = None
    friction: Numbers = None


def per_joint(numbers: Numbers, joints: Sequence[str], where: str) -> dict[str, float]:
    """Joint name to its number, for the joints that have one."""
    if numbers is None:
        return {}
    if isinstance(numbers, (int, float)):
        return {joint: float(numbers) for joint in joints}
    _, names, values = resolve_matching_names_values(numbers, joints, where=where)
    return dict(zip(names, map(float, values), strict=True))


def drive_joints(
    spec: mujoco.MjSpec, joints: Mapping[str, str], actuators: Mapping[str, ImplicitActuatorCfg], where: str, dt: float
) -> dict[str, float]:
    """Make the actuators of an articulation in `spec` take efforts, their stiffness and damping as affine bias.

    Args:
        spec: Changed in place.
        joints: Names used in configurations to those in `spec`.
        actuators: By any name.
        where: Name of the articulation, for errors.
        dt: Physics step, s.

    Returns:
        Velocity limits by joint.

    Raises:
        ConfigError: A joint is driven twice or does not exist.
    """
    present = {
        actuator.target: actuator for actuator in spec.actuators if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT
    }
    velocity_limits: dict[str, float] = {}
    wanted: dict[str, dict[str, float]] = {}
    for group, cfg in actuators.items():
        place = f"actuators[{group!r}] of {where}"
        _, names, _ = resolve_matching_names_values(dict.fromkeys(cfg.joint_names_expr), list(joints), where=place)
        for limit in ("effort_limit", "velocity_limit"):
            pair = getattr(cfg, limit), getattr(cfg, f"{limit}_sim")
            if None not in pair and pair[0] != pair[1]:
                raise ConfigError(f"{limit} and {limit}_sim differ", place, "give one of them")
        for name in names:
            if name in wanted:
                raise ConfigError(f"{name} is driven twice", place, "let one actuator match it")
            wanted[name] = {}
        for key, numbers in (
            ("stiffness", cfg.stiffness),
            ("damping", cfg.damping),
            ("effort", cfg.effort_limit if cfg.effort_limit_sim is None else cfg.effort_limit_sim),
            ("velocity", cfg.velocity_limit if cfg.velocity_limit_sim is None else cfg.velocity_limit_sim),
            ("armature", cfg.armature),
            ("friction", cfg.friction),
        ):
            for name, number in per_joint(numbers, names, place).items():
                wanted[name][key] = number
    for name, inner in joints.items():
        numbers = wanted.get(name, {})
        if "velocity" in numbers:
            velocity_limits[name] = numbers["velocity"]
        actuator = present.get(inner)
        if actuator is None and name in wanted:
            actuator = spec.add_actuator(name=inner, target=inner, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        if actuator is not None:
            _as_effort(actuator, spec.joint(inner), numbers, dt)
    return velocity_limits


def _as_effort(actuator: Any, joint: Any, numbers: Mapping[str, float], dt: float) -> None:
    """Control is an effort; the bias holds stiffness and damping."""
    stiffness = numbers.get("stiffness", -actuator.biasprm[1])
    damping = numbers.get("damping", -actuator.biasprm[2])
    actuator.gaintype, actuator.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_AFFINE
    actuator.gainprm[:3], actuator.biasprm[:3] = [1.0, 0.0, 0.0], [0.0, -stiffness, -damping]
    actuator.inheritrange, actuator.ctrllimited = 0.0, mujoco.mjtLimited.mjLIMITED_FALSE
    if "effort" in numbers:
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [-numbers["effort"], numbers["effort"]]
    joint.frictionloss = numbers.get("friction", joint.frictionloss)
    limited = actuator.forcerange[0] < actuator.forcerange[1]
    joint.armature = max(numbers.get("armature", joint.armature), damping * dt if limited else 0.0)
