"""Isaac Lab's `utils.noise`; see `simulators.isaac.noise`."""

from simulators.isaac.noise import *  # noqa: F403
