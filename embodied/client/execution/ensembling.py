"""Temporal ensembling: each step executes the weighted mean of what all recent chunks say of it."""

import numpy as np

from embodied.client.execution.kept import Floats, Kept
from embodied.settings import AtLeastOne, Weight, settings


@settings()
class Ensembling:
    """Temporal ensembling of Zhao et al. 2023, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware"
    (arXiv:2304.13705).

    Attributes:
        decay: The paper's m. The larger, the more the oldest chunks weigh; 0 for the plain mean.
        execute: Steps between two decisions; the paper decides at every one.
    """

    decay: Weight = 0.01
    execute: AtLeastOne = 1
    on_policy = False
    prefixed = False

    def kept(self, chunk: int) -> int:
        return -(-chunk // self.execute)

    def choose(self, kept: Kept) -> Floats:
        return ensemble(kept, self.decay)


def ensemble(kept: Kept, decay: float) -> Floats:
    """[B, D] weighted mean of the N chunks' actions for this step, per row; NaN where no chunk has one.

    The i-th oldest valid chunk weighs exp(-decay * i), i = 0 the oldest; weights are divided by their sum.
    """
    order = np.argsort(np.where(kept.valid, -kept.index, 1), axis=1, kind="stable")  # oldest first, invalid last
    rank = np.argsort(order, axis=1, kind="stable")
    weights = np.where(kept.valid, np.exp(-decay * rank), 0.0)
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = weights / total
    return np.einsum("bn,bnd->bd", shares, kept.present()).astype(np.float32)
