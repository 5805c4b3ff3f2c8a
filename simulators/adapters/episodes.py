"""Seeds, instructions and random draws of running episodes, as the infos of other interfaces."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Outcome, Resets
from simulators.tabletop import decode_text

NAMES = np.array([outcome.name.lower() for outcome in Outcome], object)
Info = dict[str, Any]


class Episodes:
    """Seeds, instructions and random draws of the episodes of B environments.

    Args:
        count: B.
        instruction: The task in words, of episodes that do not sense their own in a stream `instruction`.
        first: Index of the first environment.
    """

    def __init__(self, count: int, instruction: str, first: int = 0) -> None:
        self.count, self._first = count, first
        self._instruction = np.full(count, instruction, object)
        self._seeds = np.zeros(count, np.int64)
        self._drawn: dict[str, NDArray[Any]] = {}

    def begin(self, starts: Resets, streams: dict[str, NDArray[Any]]) -> None:
        """Record episodes that began, and their first observations among `streams` [B, ...]."""
        ids = starts.ids - self._first
        self._seeds[ids] = starts.seeds
        if "instruction" in streams:
            self._instruction[ids] = [decode_text(text) for text in streams["instruction"][ids]]
        for name, values in starts.drawn.items():
            if name not in self._drawn:
                self._drawn[name] = np.zeros((self.count, *values.shape[1:]), values.dtype)
            self._drawn[name][ids] = values

    def rows(self, outcomes: NDArray[np.uint8]) -> Info:
        """Infos of every environment, owned arrays [B, ...], after a step with `outcomes` [B].

        `outcome` is a name of `Outcome` in lower case, `episode_seed` alone decides the episode, and `drawn` holds what
        was randomised. An episode cut by `infrastructure_fault` says nothing about the policy.
        """
        return {
            "outcome": NAMES[outcomes],
            "is_success": outcomes == Outcome.SUCCESS,
            "infrastructure_fault": outcomes == Outcome.INFRASTRUCTURE_FAULT,
            "episode_seed": self._seeds.copy(),
            "instruction": self._instruction.copy(),
            "drawn": {name: values.copy() for name, values in self._drawn.items()},
        }


def row(infos: Info, env: int) -> Info:
    """One environment's part of `Episodes.rows`: Python's own numbers where they have the same type, else numpy's."""
    return {
        name: row(values, env) if isinstance(values, dict) else _value(values[env]) for name, values in infos.items()
    }


def _value(value: Any) -> Any:
    if isinstance(value, np.bool_ | np.int64 | np.float64):
        return value.item()
    return value.copy() if isinstance(value, np.ndarray) else value


def masked(infos: Info, where: NDArray[np.bool_]) -> Info:
    """Infos of the environments `where` [B] as gymnasium's vector environments lay them out.

    Each array is beside a mask of the environments that it describes, named with an underscore; the others hold zeros,
    or None among objects.
    """
    laid: Info = {}
    for name, values in infos.items():
        if isinstance(values, dict):
            laid[name] = masked(values, where)
        elif where.all():
            laid[name] = values
        else:
            laid[name] = np.full(values.shape, None if values.dtype == object else 0, values.dtype)
            laid[name][where] = values[where]
        laid[f"_{name}"] = where.copy()
    return laid
