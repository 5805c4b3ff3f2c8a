"""Reach: bring the Panda's hand to a pose, as Isaac Lab's `Isaac-Reach-Franka-v0` has it, to the number."""

import math

from simulators.isaac import mdp
from simulators.isaac.articulation import ArticulationCfg
from simulators.isaac.cfg import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRLEnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from simulators.isaac.configclass import configclass
from simulators.isaac.noise import AdditiveUniformNoiseCfg
from simulators.isaac.robots import FRANKA_PANDA_CFG
from simulators.isaac.rsl_rl import RslRlMLPModelCfg, RslRlOnPolicyRunnerCfg, RslRlPpoAlgorithmCfg
from simulators.isaac.scene import InteractiveSceneCfg

HAND = SceneEntityCfg("robot", body_names=["panda_hand"])
SENSOR_NOISE = AdditiveUniformNoiseCfg(n_min=-0.01, n_max=0.01)


@configclass
class ReachSceneCfg(InteractiveSceneCfg):
    """The arm alone, its base at the origin."""

    robot: ArticulationCfg = FRANKA_PANDA_CFG.replace(prim_path="{ENV_REGEX_NS}/Robot")


@configclass
class CommandsCfg:
    ee_pose = mdp.UniformPoseCommandCfg(
        asset_name="robot",
        body_name="panda_hand",
        resampling_time_range=(4.0, 4.0),
        ranges=mdp.UniformPoseCommandCfg.Ranges(
            pos_x=(0.35, 0.65),
            pos_y=(-0.2, 0.2),
            pos_z=(0.15, 0.5),
            roll=(0.0, 0.0),
            pitch=(math.pi, math.pi),
            yaw=(-3.14, 3.14),
        ),
    )


@configclass
class ActionsCfg:
    arm_action = mdp.JointPositionActionCfg(
        asset_name="robot", joint_names=["panda_joint.*"], scale=0.5, use_default_offset=True
    )


@configclass
class ObservationsCfg:
    @configclass
    class PolicyCfg(ObservationGroupCfg):
        joint_pos = ObservationTermCfg(func=mdp.joint_pos_rel, noise=SENSOR_NOISE)
        joint_vel = ObservationTermCfg(func=mdp.joint_vel_rel, noise=SENSOR_NOISE)
        pose_command = ObservationTermCfg(func=mdp.generated_commands, params={"command_name": "ee_pose"})
        actions = ObservationTermCfg(func=mdp.last_action)

        def __post_init__(self) -> None:
            self.enable_corruption = True
            self.concatenate_terms = True

    policy: PolicyCfg = PolicyCfg()


@configclass
class EventCfg:
    reset_robot_joints = EventTermCfg(
        func=mdp.reset_joints_by_scale,
        mode="reset",
        params={"position_range": (0.5, 1.5), "velocity_range": (0.0, 0.0)},
    )


@configclass
class RewardsCfg:
    end_effector_position_tracking = RewardTermCfg(
        func=mdp.position_command_error, weight=-0.2, params={"asset_cfg": HAND, "command_name": "ee_pose"}
    )
    end_effector_position_tracking_fine_grained = RewardTermCfg(
        func=mdp.position_command_error_tanh,
        weight=0.1,
        params={"asset_cfg": HAND, "std": 0.1, "command_name": "ee_pose"},
    )
    end_effector_orientation_tracking = RewardTermCfg(
        func=mdp.orientation_command_error, weight=-0.1, params={"asset_cfg": HAND, "command_name": "ee_pose"}
    )
    action_rate = RewardTermCfg(func=mdp.action_rate_l2, weight=-0.0001)
    joint_vel = RewardTermCfg(func=mdp.joint_vel_l2, weight=-0.0001, params={"asset_cfg": SceneEntityCfg("robot")})


@configclass
class TerminationsCfg:
    time_out = TerminationTermCfg(func=mdp.time_out, time_out=True)


@configclass
class CurriculumCfg:
    action_rate = CurriculumTermCfg(
        func=mdp.modify_reward_weight, params={"term_name": "action_rate", "weight": -0.005, "num_steps": 4500}
    )
    joint_vel = CurriculumTermCfg(
        func=mdp.modify_reward_weight, params={"term_name": "joint_vel", "weight": -0.001, "num_steps": 4500}
    )


@configclass
class FrankaReachEnvCfg(ManagerBasedRLEnvCfg):
    """`Embodied-Reach-Franka-v0`: 30 Hz, 12 s, a new pose every 4 s."""

    scene: ReachSceneCfg = ReachSceneCfg(num_envs=64)
    observations: ObservationsCfg = ObservationsCfg()
    actions: ActionsCfg = ActionsCfg()
    commands: CommandsCfg = CommandsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()
    events: EventCfg = EventCfg()
    curriculum: CurriculumCfg = CurriculumCfg()

    def __post_init__(self) -> None:
        self.decimation = 2
        self.episode_length_s = 12.0
        self.sim.dt = 1.0 / 60.0
        self.sim.substeps = 2


@configclass
class FrankaReachEnvCfg_PLAY(FrankaReachEnvCfg):
    """`Embodied-Reach-Franka-Play-v0`: few environments, no noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scene.num_envs = 16
        self.observations.policy.enable_corruption = False


@configclass
class FrankaReachPPORunnerCfg(RslRlOnPolicyRunnerCfg):
    """Isaac Lab's settings for the task, in the form that rsl_rl 5 takes."""

    num_steps_per_env = 24
    max_iterations = 1000
    save_interval = 50
    experiment_name = "franka_reach"
    actor = RslRlMLPModelCfg(
        hidden_dims=[64, 64],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=1.0),
    )
    critic = RslRlMLPModelCfg(hidden_dims=[64, 64], activation="elu")
    algorithm = RslRlPpoAlgorithmCfg(
        num_learning_epochs=8,
        num_mini_batches=4,
        learning_rate=1.0e-3,
        schedule="adaptive",
        gamma=0.99,
        lam=0.95,
        entropy_coef=0.001,
        desired_kl=0.01,
        max_grad_norm=1.0,
        value_loss_coef=1.0,
        use_clipped_value_loss=True,
        clip_param=0.2,
    )
