"""Isaac Lab's `utils.math`; see `simulators.isaac.math`."""

from simulators.isaac.math import *  # noqa: F403
