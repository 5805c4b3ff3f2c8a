"""An environment's streams as gymnasium's spaces, and actions as environments take them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from embodied.errors import ConfigError, SpecMismatch
from embodied.spec import AgentSpec, Stream


def observation_space(agent: AgentSpec) -> spaces.Dict:
    """The streams by name; bounds are those of their dtype, float32 has none."""
    return spaces.Dict({stream.name: _box(stream) for stream in agent.observations})


def _box(stream: Stream) -> spaces.Box:
    dtype = np.dtype(stream.dtype)
    if np.issubdtype(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, stream.shape, np.float32)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, stream.shape, dtype.type)


def action_space(agent: AgentSpec) -> spaces.Box:
    """[D] the action streams one after the other, in physical units, within the limits that are obeyed."""
    limit = agent.action_limits
    return spaces.Box(-limit, limit, dtype=np.float32)


def checked_actions(actions: ArrayLike, shape: tuple[int, ...], task: str) -> NDArray[np.float32]:
    """Actions as float32 of `shape`; what is out of range stays, for the environment clips it.

    Raises:
        SpecMismatch: They are no numbers, have another shape, or hold NaN.
    """
    where = f"task {task}, actions"
    try:
        values = np.asarray(actions, np.float32)
    except (TypeError, ValueError):
        raise SpecMismatch(f"actions cannot be {type(actions).__name__}", where, f"give numbers {shape}") from None
    if values.shape != shape:
        raise SpecMismatch(f"actions of shape {values.shape}", where, f"give {shape}")
    if np.isnan(values).any():
        raise SpecMismatch("actions hold NaN", where, "look at what computed them")
    return values


def checked_seed(seed: Any, task: str, count: int = 1) -> int:
    """A seed as Python's integer; with it, the `count - 1` that follow must be seeds too.

    Raises:
        ConfigError: It is no such integer.
    """
    most = 2**63 - count
    if not isinstance(seed, int | np.integer) or not 0 <= int(seed) <= most:
        raise ConfigError(f"the seed cannot be {str(seed)[:40]!r}", f"task {task}, reset", f"give 0 to {most}")
    return int(seed)


def checked_mask(mask: Any, count: int, task: str) -> NDArray[np.bool_]:
    """A `reset_mask` [B] bool with at least one True.

    Raises:
        ConfigError: It is something else.
    """
    fine = isinstance(mask, np.ndarray) and mask.shape == (count,) and mask.dtype == np.bool_
    if not fine or not mask.any():
        what = f"reset_mask cannot be {str(mask)[:40]}"
        raise ConfigError(what, f"task {task}, reset", f"give a numpy array of {count} bool, at least one True")
    return np.asarray(mask)


def check_options(options: dict[str, Any] | None, task: str) -> None:
    """Raise `ConfigError` if a reset is given options, of which there are none."""
    if options:
        what = f"reset takes no option {next(iter(options))!r}"
        raise ConfigError(what, f"task {task}", "give options, such as reward=, when the environment is made")
