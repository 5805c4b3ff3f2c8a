"""Staleness filter: drop steps decided by versions too many updates behind the newest."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied.data import Segment

Lag = Callable[[int], int | None]
"""Updates along the lineage from a version to the newest; None for a version that is no ancestor of it."""


def version_lags(segment: Segment, lag: Lag) -> NDArray[np.float64]:
    """[T, B] updates that each step's decision is behind the newest version; infinite for another lineage's.

    Steps without a decision, such as those of a parked agent, have version -1 and lag 0: they never train.
    """
    versions, index = np.unique(segment.versions, return_inverse=True)
    found = [lag(int(version)) if version >= 0 else 0 for version in versions]
    lags = np.array([math.inf if updates is None else updates for updates in found], np.float64)
    return lags[index.reshape(segment.versions.shape)]


def drop_stale(segment: Segment, lags: NDArray[np.float64], max_lag: int, corrected: bool = False) -> Segment:
    """The segment, in which steps with [T, B] lags above `max_lag` do not train.

    Args:
        corrected: Whether the algorithm corrects for the version that decided, as `Learner.has_ratio` says. Steps of
            carried decisions may then lag one update more, since an update lies between their segment and the one in
            which they were decided.
    """
    carried = segment.k > np.arange(len(segment.k))[:, None]
    stale = (lags > max_lag + (corrected & carried)) & segment.trainable
    return replace(segment, trainable=segment.trainable & ~stale) if stale.any() else segment
