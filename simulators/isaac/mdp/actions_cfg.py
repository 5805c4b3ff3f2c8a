"""Configurations of action terms, with Isaac Lab's names and defaults."""

from simulators.isaac.cfg import ActionTermCfg
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.managers import ActionTerm
from simulators.isaac.mdp import joint_actions
from simulators.isaac.mdp.task_space_actions import DifferentialInverseKinematicsAction


@configclass
class JointActionCfg(ActionTermCfg):
    """Joints by names or regular expressions; `scale` and `offset` as numbers or by joint."""

    joint_names: list[str] = MISSING
    scale: float | dict[str, float] = 1.0
    offset: float | dict[str, float] = 0.0
    preserve_order: bool = False


@configclass
class JointPositionActionCfg(JointActionCfg):
    """Position targets; by default around the default positions, which then replace `offset`."""

    class_type: type[ActionTerm] = joint_actions.JointPositionAction
    use_default_offset: bool = True


@configclass
class RelativeJointPositionActionCfg(JointActionCfg):
    """Position targets around the present positions; by default without `offset`."""

    class_type: type[ActionTerm] = joint_actions.RelativeJointPositionAction
    use_zero_offset: bool = True


@configclass
class JointVelocityActionCfg(JointActionCfg):
    """Velocity targets; by default around the default velocities, which then replace `offset`."""

    class_type: type[ActionTerm] = joint_actions.JointVelocityAction
    use_default_offset: bool = True


@configclass
class JointEffortActionCfg(JointActionCfg):
    """Torques or forces."""

    class_type: type[ActionTerm] = joint_actions.JointEffortAction


@configclass
class BinaryJointPositionActionCfg(ActionTermCfg):
    """Position targets of an open or a closed gripper, by regular expressions of joint names."""

    class_type: type[ActionTerm] = joint_actions.BinaryJointPositionAction
    joint_names: list[str] = MISSING
    open_command_expr: dict[str, float] = MISSING
    close_command_expr: dict[str, float] = MISSING


@configclass
class DifferentialIKControllerCfg:
    """How poses become joint targets.

    Attributes:
        command_type: `position` (3 numbers, or deltas) or `pose` (position and quaternion, or deltas and a rotation
            vector).
        use_relative_mode: Whether commands are deltas from the present pose.
        ik_method: `dls`, damped least squares, is what there is.
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
