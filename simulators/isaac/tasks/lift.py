"""Lift: grasp a cube and carry it to a point, as Isaac Lab's `Isaac-Lift-Cube-Franka-v0` has it, to the number."""

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
from simulators.isaac.frame_transformer import FrameTransformerCfg, OffsetCfg
from simulators.isaac.rigid_object import AssetBaseCfg, RigidObjectCfg
from simulators.isaac.robots import FRANKA_PANDA_CFG
from simulators.isaac.rsl_rl import RslRlMLPModelCfg, RslRlOnPolicyRunnerCfg, RslRlPpoAlgorithmCfg
from simulators.isaac.scene import InteractiveSceneCfg
from simulators.isaac.spawn import CuboidCfg, MassPropertiesCfg, PreviewSurfaceCfg

GOAL = {"minimal_height": 0.04, "command_name": "object_pose"}


@configclass
class ObjectTableSceneCfg(InteractiveSceneCfg):
    """The arm at a table with a cube; `ee_frame` lies between the fingers' pads."""

    robot: ArticulationCfg = FRANKA_PANDA_CFG.replace(prim_path="{ENV_REGEX_NS}/Robot")
    ee_frame: FrameTransformerCfg = FrameTransformerCfg(
        prim_path="{ENV_REGEX_NS}/Robot/panda_link0",
        target_frames=[
            FrameTransformerCfg.FrameCfg(
                prim_path="{ENV_REGEX_NS}/Robot/panda_hand",
                name="end_effector",
                offset=OffsetCfg(pos=(0.0, 0.0, 0.1034)),
            )
        ],
    )
    object: RigidObjectCfg = RigidObjectCfg(
        prim_path="{ENV_REGEX_NS}/Object",
        init_state=RigidObjectCfg.InitialStateCfg(pos=(0.5, 0.0, 0.055)),
        spawn=CuboidCfg(
            size=(0.048, 0.048, 0.048),
            mass_props=MassPropertiesCfg(mass=0.1),
            visual_material=PreviewSurfaceCfg(diffuse_color=(0.85, 0.2, 0.15)),
        ),
    )
    table: AssetBaseCfg = AssetBaseCfg(prim_path="{ENV_REGEX_NS}/Table")


@configclass
class CommandsCfg:
    object_pose = mdp.UniformPoseCommandCfg(
        asset_name="robot",
        body_name="panda_hand",
        resampling_time_range=(5.0, 5.0),
        ranges=mdp.UniformPoseCommandCfg.Ranges(
            pos_x=(0.4, 0.6),
            pos_y=(-0.25, 0.25),
            pos_z=(0.25, 0.5),
            roll=(0.0, 0.0),
            pitch=(0.0, 0.0),
            yaw=(0.0, 0.0),
        ),
    )


@configclass
class ActionsCfg:
    arm_action = mdp.JointPositionActionCfg(
        asset_name="robot", joint_names=["panda_joint.*"], scale=0.5, use_default_offset=True
    )
    gripper_action = mdp.BinaryJointPositionActionCfg(
        asset_name="robot",
        joint_names=["panda_finger.*"],
        open_command_expr={"panda_finger_.*": 0.04},
        close_command_expr={"panda_finger_.*": 0.0},
    )


@configclass
class ObservationsCfg:
    @configclass
    class PolicyCfg(ObservationGroupCfg):
        joint_pos = ObservationTermCfg(func=mdp.joint_pos_rel)
        joint_vel = ObservationTermCfg(func=mdp.joint_vel_rel)
        object_position = ObservationTermCfg(func=mdp.object_position_in_robot_root_frame)
        target_object_position = ObservationTermCfg(func=mdp.generated_commands, params={"command_name": "object_pose"})
        actions = ObservationTermCfg(func=mdp.last_action)

        def __post_init__(self) -> None:
            self.enable_corruption = True
            self.concatenate_terms = True

    policy: PolicyCfg = PolicyCfg()


@configclass
class EventCfg:
    reset_all = EventTermCfg(func=mdp.reset_scene_to_default, mode="reset")
    reset_object_position = EventTermCfg(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={
            "pose_range": {"x": (-0.1, 0.1), "y": (-0.25, 0.25), "z": (0.0, 0.0)},
            "velocity_range": {},
            "asset_cfg": SceneEntityCfg("object"),
        },
    )


@configclass
class RewardsCfg:
    reaching_object = RewardTermCfg(func=mdp.object_ee_distance, params={"std": 0.1}, weight=1.0)
    lifting_object = RewardTermCfg(func=mdp.object_is_lifted, params={"minimal_height": 0.04}, weight=15.0)
    object_goal_tracking = RewardTermCfg(func=mdp.object_goal_distance, params={"std": 0.3, **GOAL}, weight=16.0)
    object_goal_tracking_fine_grained = RewardTermCfg(
        func=mdp.object_goal_distance, params={"std": 0.05, **GOAL}, weight=5.0
    )
    action_rate = RewardTermCfg(func=mdp.action_rate_l2, weight=-1e-4)
    joint_vel = RewardTermCfg(func=mdp.joint_vel_l2, weight=-1e-4, params={"asset_cfg": SceneEntityCfg("robot")})


@configclass
class TerminationsCfg:
    time_out = TerminationTermCfg(func=mdp.time_out, time_out=True)
    object_dropping = TerminationTermCfg(
        func=mdp.root_height_below_minimum, params={"minimum_height": -0.05, "asset_cfg": SceneEntityCfg("object")}
    )


@configclass
class CurriculumCfg:
    action_rate = CurriculumTermCfg(
        func=mdp.modify_reward_weight, params={"term_name": "action_rate", "weight": -1e-1, "num_steps": 10000}
    )
    joint_vel = CurriculumTermCfg(
        func=mdp.modify_reward_weight, params={"term_name": "joint_vel", "weight": -1e-1, "num_steps": 10000}
    )


@configclass
class FrankaCubeLiftEnvCfg(ManagerBasedRLEnvCfg):
    """`Embodied-Lift-Cube-Franka-v0`: 50 Hz, 5 s."""

    scene: ObjectTableSceneCfg = ObjectTableSceneCfg(num_envs=64)
    observations: ObservationsCfg = ObservationsCfg()
    actions: ActionsCfg = ActionsCfg()
    commands: CommandsCfg = CommandsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()
    events: EventCfg = EventCfg()
    curriculum: CurriculumCfg = CurriculumCfg()

    def __post_init__(self) -> None:
        self.decimation = 2
        self.episode_length_s = 5.0
        self.sim.dt = 0.01
        self.sim.substeps = 2


@configclass
class FrankaCubeLiftEnvCfg_PLAY(FrankaCubeLiftEnvCfg):
    """`Embodied-Lift-Cube-Franka-Play-v0`: few environments, no noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scene.num_envs = 16
        self.observations.policy.enable_corruption = False


@configclass
class LiftCubePPORunnerCfg(RslRlOnPolicyRunnerCfg):
    """Isaac Lab's settings for the task, in the form that rsl_rl 5 takes."""

    num_steps_per_env = 24
    max_iterations = 1500
    save_interval = 50
    experiment_name = "franka_lift"
    actor = RslRlMLPModelCfg(
        hidden_dims=[256, 128, 64],
        activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=1.0),
    )
    critic = RslRlMLPModelCfg(hidden_dims=[256, 128, 64], activation="elu")
    algorithm = RslRlPpoAlgorithmCfg(
        num_learning_epochs=5,
        num_mini_batches=4,
        learning_rate=1.0e-4,
        schedule="adaptive",
        gamma=0.98,
        lam=0.95,
        entropy_coef=0.006,
        desired_kl=0.01,
        max_grad_norm=1.0,
        value_loss_coef=1.0,
        use_clipped_value_loss=True,
        clip_param=0.2,
    )
