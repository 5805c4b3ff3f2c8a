"""Robot descriptions made from the MJCF or URDF files of others, meshes included.

A description needs more than such a file has: an end effector between the fingers, a gripper with two ends, gains for
20 Hz, a home where the hand points down, and a region that it reaches so. All of them are measured or chosen here, and
every choice is told.
"""

from simulators.robot_import.description import Chosen, import_robot

__all__ = ["Chosen", "import_robot"]
