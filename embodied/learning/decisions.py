"""Decisions of a segment that may train, each with the steps of the segment that execute it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Segment, Source
from embodied.errors import DataError
from embodied.learning.advantages import follows, next_values

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Decisions:
    """N parts of decisions, each executed in consecutive steps of one row, ordered by first step, then row.

    A decision that was taken before the segment, or whose answer came late, begins here with the first of its actions
    that the segment executes.

    Attributes:
        t, b: [N] first step and row.
        answered: [N] step whose observation the decision answers; below 0 in `Segment.carried`.
        executed: [N, K] bool, actions that were executed and may train: those before the first step that may not.
        carried: Index in `Segment.carried` of each decision with `answered` below 0; None where there is none.
    """

    t: NDArray[np.intp]
    b: NDArray[np.intp]
    answered: NDArray[np.intp]
    executed: Bools
    carried: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.t)

    def take(self, array: NDArray[Any], carried: NDArray[Any] | None = None) -> NDArray[Any]:
        """Entries [N, ...] of a decision array [T, B, ...]; those of earlier decisions from `carried` [M, ...]."""
        if self.carried is None or carried is None:
            return array[self.answered, self.b]
        taken = array[np.maximum(self.answered, 0), self.b]
        taken[self.answered < 0] = carried[self.carried]
        return taken


def on_policy(segment: Segment) -> Bools:
    """[T, B] steps an on-policy loss may use: they train, and executed an action that the policy chose."""
    return segment.trainable & (segment.source == Source.POLICY) & (segment.k >= 0)


def decisions(segment: Segment, valid: Bools) -> Decisions:
    """The decisions whose first step in the segment is `valid` [T, B], with the valid steps that follow it.

    Raises:
        DataError: A decision was taken before the segment, which does not carry it.
    """
    steps, rows = valid.shape
    chunk = segment.actions.shape[2]
    if not (segment.k > 0).any():
        t, b = np.nonzero(valid)
        executed = np.zeros((len(t), chunk), bool)
        executed[:, 0] = True
        return Decisions(t, b, t, executed)
    on = follows(segment.k, segment.terminated | segment.truncated)
    mask = np.zeros((steps, rows, chunk), bool)
    alive, first, every = np.zeros(rows, bool), np.zeros(rows, np.intp), np.arange(rows)
    for i, k in enumerate(segment.k):
        goes_on = on[i - 1] if i else alive
        first = np.where(goes_on, first, i)
        alive = valid[i] & (alive | ~goes_on)
        mask[first[alive], every[alive], k[alive]] = True
    t, b = np.nonzero(mask.any(axis=2))
    answered = t - segment.k[t, b]
    return Decisions(t, b, answered, mask[t, b], _carried(segment, b, answered))


def _carried(segment: Segment, b: NDArray[np.intp], answered: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Index in `segment.carried` of the decisions of rows `b` at steps `answered` that are below 0."""
    before = np.flatnonzero(answered < 0)
    if not len(before):
        return None
    known: dict[tuple[int, int], int] = {}
    if (found := segment.carried) is not None:
        known = {place: i for i, place in enumerate(zip(found.row.tolist(), found.t.tolist(), strict=True))}
    try:
        return np.array([known[place] for place in zip(b[before].tolist(), answered[before].tolist(), strict=True)])
    except KeyError as error:
        row, step = error.args[0]
        raise DataError(
            f"row {row} executes a decision of step {step}, which the segment does not carry",
            f"segment {segment.id}",
            "record the decisions that are open when a segment begins",
        ) from None


def without_unseen(
    segment: Segment, valid: Bools, numbers: Sequence[NDArray[np.float32]], carried: NDArray[np.float32] | None
) -> Bools:
    """[T, B] the steps of `valid` that may still train where observations hold NaN, as one beside a fault may.

    A decision on such an observation, or first executed at one, is left out with its actions. So is the last step that
    a decision executed, where the observation after it is unknown: the decision then ends a step sooner, and trusts the
    value of the state that it arrived at.

    Args:
        numbers: Observed at the steps, after the last step and at the ends of episodes, [*, F + C] each.
        carried: Those of the carried decisions; None where there are none.
    """
    at, behind, final = (np.where(np.isnan(part).any(axis=-1), 1, 0).astype(np.float32) for part in numbers)
    before = np.zeros(0, bool) if carried is None else np.isnan(carried).any(axis=-1)
    if not (at.any() or behind.any() or final.any() or before.any()):
        return valid
    at, ended = at.reshape(valid.shape), segment.terminated | segment.truncated
    led = next_values(at, behind, segment.final_at, final, segment.terminated, segment.truncated)
    on = follows(segment.k, ended)
    first = np.ones(valid.shape, bool)
    first[1:] = ~on[:-1]
    t, b = np.nonzero(first & (segment.k >= 0))
    answered = t - segment.k[t, b]
    unknown = (at[t, b] > 0) | ((answered >= 0) & (at[np.maximum(answered, 0), b] > 0))
    if before.any() and segment.carried is not None:
        gone = set(zip(segment.carried.row[before].tolist(), segment.carried.t[before].tolist(), strict=True))
        unknown |= [place in gone for place in zip(b.tolist(), answered.tolist(), strict=True)]
    result = valid.copy()
    result[t[unknown], b[unknown]] = False
    following = np.zeros(valid.shape[1], bool)  # whether the step behind executes the same decision and may train
    for i in range(len(valid) - 1, -1, -1):
        result[i] &= following | (led[i] == 0)
        following = on[i - 1] & result[i]
    return result
