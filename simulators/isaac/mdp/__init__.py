"""Terms of environments, under the names and with the signatures of Isaac Lab's `mdp`."""

from simulators.isaac.mdp.commands import *  # noqa: F403
from simulators.isaac.mdp.curriculums import *  # noqa: F403
from simulators.isaac.mdp.events import *  # noqa: F403
from simulators.isaac.mdp.joint_actions import *  # noqa: F403
from simulators.isaac.mdp.observations import *  # noqa: F403
from simulators.isaac.mdp.randomization import *  # noqa: F403
from simulators.isaac.mdp.rewards import *  # noqa: F403
from simulators.isaac.mdp.task_space_actions import *  # noqa: F403
from simulators.isaac.mdp.terminations import *  # noqa: F403
