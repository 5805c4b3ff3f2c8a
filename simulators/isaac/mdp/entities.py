"""Default entities of terms, under Isaac Lab's names."""

from simulators.isaac.cfg import SceneEntityCfg

ROBOT = SceneEntityCfg("robot")
OBJECT = SceneEntityCfg("object")
EE_FRAME = SceneEntityCfg("ee_frame")
