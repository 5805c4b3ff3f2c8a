"""Actions to joint targets, batched, in plain numpy: the same on a robot as in simulation."""

from robots.control.control import Control
from robots.control.end_effector import LEASH_M, STEP_M, EndEffector
from robots.control.joint import Joint
from robots.control.make import CONTROLS, make_control

__all__ = ["CONTROLS", "LEASH_M", "STEP_M", "Control", "EndEffector", "Joint", "make_control"]
