"""Chunks kept of B rows, N each, and the indices of their actions for the present step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Kept:
    """Chunks seen from one step, slots in no order.

    Attributes:
        actions: [B, N, K, D] float32.
        index: [B, N] int32 of the action that is for this step, the step minus the one whose observation was answered.
        valid: [B, N] bool, whether there is such an action: of this episode, within the chunk, and not expired.
    """

    actions: Floats
    index: NDArray[np.int32]
    valid: NDArray[np.bool_]

    @property
    def any(self) -> NDArray[np.bool_]:
        """[B] whether any chunk has an action for this step."""
        return self.valid[:, 0] if self.valid.shape[1] == 1 else np.asarray(self.valid.any(axis=1))

    def present(self) -> Floats:
        """[B, N, D] the actions for this step; zeros where not valid."""
        k = np.where(self.valid, self.index, 0)
        chosen = np.take_along_axis(self.actions, k[:, :, None, None], axis=2)[:, :, 0]
        return np.where(self.valid[:, :, None], chosen, np.float32(0))

    def youngest(self) -> NDArray[np.intp]:
        """[B] the valid slot whose observation is the newest; any slot where none is valid."""
        if self.valid.shape[1] == 1:
            return np.zeros(len(self.valid), np.intp)
        return np.where(self.valid, self.index, np.iinfo(np.int32).max).argmin(axis=1)


def newest(kept: Kept) -> Floats:
    """[B, D] the action of the newest valid chunk, owned by the caller; NaN where there is none."""
    rows, slot = np.arange(len(kept.index)), kept.youngest()
    some, k = kept.valid[rows, slot], kept.index[rows, slot]
    if some.all():
        return kept.actions[rows, slot, k]
    return np.where(some[:, None], kept.actions[rows, slot, np.where(some, k, 0)], np.float32(np.nan))
