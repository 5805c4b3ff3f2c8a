"""What may train: data of versions too old for the learner is dropped, and counted."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from embodied.data import Segment


def version_lags(segment: Segment, newest: int) -> NDArray[np.int64]:
    """How many published versions each step's decision is behind `newest`, [T, B]."""
    return np.maximum(newest - segment.versions, 0)


def admit(segment: Segment, newest: int, max_lag: int) -> tuple[Segment, float]:
    """Steps more than `max_lag` versions behind `newest` no longer train.

    Returns:
        The segment, and the share of its trainable steps that was dropped.
    """
    stale = (version_lags(segment, newest) > max_lag) & segment.trainable
    before = int(segment.trainable.sum())
    if not stale.any():
        return segment, 0.0
    return dataclasses.replace(segment, trainable=segment.trainable & ~stale), float(stale.sum() / max(before, 1))
