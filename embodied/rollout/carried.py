"""Decisions that were taken before a segment, found by their row and step while the segment is recorded."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, CarriedDecisions, Observation


class Carried:
    """Decisions taken before a segment's first step.

    Args:
        decisions: Those known when the segment begins; nothing of them counts as executed yet.
    """

    def __init__(self, decisions: CarriedDecisions | None = None) -> None:
        self._decisions = decisions
        if decisions is not None:
            decisions.executed[:] = False

    def add(self, row: NDArray[np.intp], t: NDArray[np.int32], chunk: ActionChunk, answered: Observation) -> None:
        """Take in the decisions of rows [N] on the observations of steps `t` [N] below 0."""
        made = CarriedDecisions(
            row=row.astype(np.int32),
            t=t.astype(np.int32),
            observations=answered.streams,
            actions=chunk.actions,
            log_probs=chunk.log_probs,
            executed=np.zeros(chunk.actions.shape[:2], bool),
            values=chunk.values,
            versions=chunk.versions,
            stored=chunk.stored,
        )
        self._decisions = made if self._decisions is None else join_carried([self._decisions, made])

    def execute(self, row: NDArray[np.intp], t: NDArray[np.int32], k: NDArray[np.int32]) -> None:
        """Mark action `k` [N] of each row's decision of step `t` [N] as executed.

        Raises:
            ValueError: A row has no such decision.
        """
        if not len(row):
            return
        decisions = self._decisions
        keys = _keys(decisions.row, decisions.t) if decisions is not None else np.zeros(0, np.int64)
        wanted = _keys(row, t)
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        if decisions is None or (keys[at] != wanted).any():
            missing = 0 if decisions is None else int(np.flatnonzero(keys[at] != wanted)[0])
            raise ValueError(f"row {row[missing]} executes a decision of step {t[missing]} that was not recorded")
        decisions.executed[at, k] = True

    def executed(self) -> CarriedDecisions | None:
        """The decisions of which something was executed; None where there are none."""
        if self._decisions is None or not (some := self._decisions.executed.any(axis=1)).any():
            return None
        return self._decisions.take(some)

    def of(self, row: NDArray[np.intp], t: NDArray[np.int32]) -> CarriedDecisions | None:
        """The decisions of rows at steps `t`, one each; None for no rows."""
        if self._decisions is None or not len(row):
            return None
        return self._decisions.take(np.searchsorted(_keys(self._decisions.row, self._decisions.t), _keys(row, t)))


def join_carried(parts: list[CarriedDecisions]) -> CarriedDecisions:
    """Several groups of decisions as one, ordered by row, then step."""

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], dict):
            return {key: np.concatenate([value[key] for value in values]) for key in values[0]}
        return np.concatenate(values)

    whole = CarriedDecisions(**{name: joined(name) for name in CarriedDecisions.__dataclass_fields__})
    return whole.take(np.argsort(_keys(whole.row, whole.t), kind="stable"))


def _keys(row: NDArray[Any], t: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers in the order of row, then step."""
    return (row.astype(np.int64) << np.int64(32)) + t.astype(np.int64)
