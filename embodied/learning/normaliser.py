"""Running mean and standard deviation of observations."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EVER = 10**15
"""Count that outweighs the observations of any run."""


class Normaliser:
    """Mean and variance of F numbers over everything seen, in float64.

    Batches are merged by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979. A policy uses a frozen copy (`mean`, `std`) within its version.

    Args:
        size: F.
        floor: Least standard deviation, in physical units; a stream that hardly moves would otherwise become noise.
    """

    def __init__(self, size: int, floor: float = 1e-2) -> None:
        self.floor = floor
        self.count = 0
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def update(self, batch: NDArray[Any]) -> None:
        """Merge a batch [N, F]; rows that are not finite are left out."""
        rows = batch[np.isfinite(batch).all(axis=1)].astype(np.float64)
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        total = self.count + len(rows)
        shift = mean - self.mean
        self.m2 += ((rows - mean) ** 2).sum(axis=0) + shift**2 * (self.count * len(rows) / total)
        self.mean += shift * (len(rows) / total)
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        """[F] standard deviations of at least `floor`; ones before anything was seen."""
        if not self.count:
            return np.ones_like(self.m2)
        return np.maximum(np.sqrt(self.m2 / self.count), self.floor)

    def hold(self, mean: Tensor, std: Tensor) -> None:
        """Fix the mean and standard deviation [F] that weights were trained with; observations hardly move them."""
        self.count = EVER
        self.mean = mean.double().cpu().numpy().copy()
        self.m2 = std.double().cpu().numpy() ** 2 * EVER

    def frozen(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [F] float32, as a version keeps them."""
        return torch.from_numpy(self.mean.astype(np.float32)), torch.from_numpy(self.std.astype(np.float32))

    def state(self) -> dict[str, Any]:
        arrays = {"mean": torch.from_numpy(self.mean.copy()), "m2": torch.from_numpy(self.m2.copy())}
        return {"count": self.count, "floor": self.floor, **arrays}

    def load(self, state: dict[str, Any]) -> None:
        self.count, self.floor = int(state["count"]), float(state["floor"])
        self.mean, self.m2 = state["mean"].numpy().copy(), state["m2"].numpy().copy()
