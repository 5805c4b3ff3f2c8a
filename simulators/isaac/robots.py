"""Robots under the joint and body names of Isaac Lab, with its default postures and gains."""

from simulators.isaac.actuators import ImplicitActuatorCfg
from simulators.isaac.articulation import ArticulationCfg
from simulators.isaac.spawn import MjcfSpawnCfg

FRANKA_PANDA_CFG = ArticulationCfg(
    spawn=MjcfSpawnCfg(
        robot="panda",
        rename={
            r"(joint\d|finger_joint\d|link\d|hand)": r"panda_\1",
            "left_finger": "panda_leftfinger",
            "right_finger": "panda_rightfinger",
        },
    ),
    init_state=ArticulationCfg.InitialStateCfg(
        joint_pos={
            "panda_joint1": 0.0,
            "panda_joint2": -0.569,
            "panda_joint3": 0.0,
            "panda_joint4": -2.810,
            "panda_joint5": 0.0,
            "panda_joint6": 3.037,
            "panda_joint7": 0.741,
            "panda_finger_joint.*": 0.04,
        }
    ),
    actuators={
        "panda_shoulder": ImplicitActuatorCfg(
            joint_names_expr=["panda_joint[1-4]"], effort_limit_sim=87.0, stiffness=80.0, damping=4.0, armature=0.1
        ),
        "panda_forearm": ImplicitActuatorCfg(
            joint_names_expr=["panda_joint[5-7]"], effort_limit_sim=12.0, stiffness=80.0, damping=4.0, armature=0.1
        ),
        "panda_hand": ImplicitActuatorCfg(
            joint_names_expr=["panda_finger_joint.*"], effort_limit_sim=200.0, stiffness=2e3, damping=1e2
        ),
    },
    soft_joint_pos_limit_factor=1.0,
)
"""The Panda with its hand. Its description compensates gravity, as the real arm's controller does, so the soft gains
hold a posture without sagging; Isaac Lab's `FRANKA_PANDA_CFG` leaves gravity to them. The armature is chosen here."""

FRANKA_PANDA_HIGH_PD_CFG = FRANKA_PANDA_CFG.copy()
for _group in ("panda_shoulder", "panda_forearm"):
    FRANKA_PANDA_HIGH_PD_CFG.actuators[_group].stiffness = 400.0
    FRANKA_PANDA_HIGH_PD_CFG.actuators[_group].damping = 80.0
