"""The chunks a client keeps of B rows, N each, and which of their actions are for the present step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Kept:
    """Chunks seen from one step, slots in no order.

    Attributes:
        actions: [B, N, K, D] float32.
        index: [B, N] of the action that is for this step, the step minus the one whose observation was answered.
        valid: [B, N] bool, whether there is such an action: of this episode, within the chunk, and not expired.
    """

    actions: Floats
    index: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def present(self) -> Floats:
        """[B, N, D] the actions for this step; zeros where not valid."""
        k = np.where(self.valid, self.index, 0)
        chosen = np.take_along_axis(self.actions, k[:, :, None, None], axis=2)[:, :, 0]
        return np.where(self.valid[:, :, None], chosen, np.float32(0))

    def youngest(self) -> NDArray[np.intp]:
        """[B] the valid slot whose observation is the newest; any slot where none is valid."""
        return np.where(self.valid, self.index, np.iinfo(np.int64).max).argmin(axis=1)


def newest(kept: Kept) -> Floats:
    """[B, D] the action of the newest valid chunk; NaN where there is none."""
    rows, slot = np.arange(len(kept.index)), kept.youngest()
    return np.where(kept.valid[rows, slot, None], kept.present()[rows, slot], np.float32(np.nan))
