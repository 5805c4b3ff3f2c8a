"""Drift of data that all lag: measured against the weights of the version that made them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied.errors import EmbodiedError
from embodied.learning.batch import Batch
from embodied.learning.consistency import measure
from embodied.learning.losses import reduce_log_ratio
from embodied.learning.reference import Reference
from policies.torch_policy import TorchPolicy

Read = Callable[[int], Mapping[str, NDArray[Any]]]
"""Tensors of a version by its number; raises an `EmbodiedError` where it is gone."""

TRIED = 4
"""Versions that are asked for, newest first, until one can be read."""


class OlderVersions:
    """Weights of earlier versions, one at a time, in a copy of the policy made at the first use.

    Args:
        policy: The learner's.
        read: Reads a version, such as from the registry; None where versions cannot be read.
        say: Tells a user, once, that drift could not be checked.
    """

    def __init__(
        self, policy: TorchPolicy, read: Read | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._policy, self.read, self.say = policy, read, say
        self._copy: Reference | None = None
        self._said = False

    @torch.no_grad()
    def measure(self, batch: Batch, rows: int) -> tuple[int, dict[str, float]] | None:
        """The newest version that decided and can be read, and the drift of at most `rows` of its decisions.

        Returns:
            Its number and numbers as of `consistency.measure`; None, said once, where none can be read.
        """
        numbers = np.unique(batch.versions.cpu().numpy())[::-1][:TRIED].tolist()
        for number in numbers:
            if (copy := self._load(number)) is None:
                continue
            part = batch.take(torch.nonzero(batch.versions == number)[:rows, 0])
            theirs = copy.log_probs(part.numbers, part.inputs, part.actions, part.stored)
            return number, measure(*reduce_log_ratio(theirs - part.log_probs, part.executed, "token"))
        if not self._said:
            self._said = True
            self.say(f"drift is not checked: no version that decided can be read ({', '.join(map(str, numbers))})")
        return None

    def _load(self, number: int) -> Reference | None:
        """A copy of the policy with the weights of a version; None where it cannot be read."""
        if self.read is None:
            return None
        try:
            tensors = self.read(number)
            self._copy = self._copy or Reference(self._policy)
            self._copy.policy.load(tensors)
        except EmbodiedError:
            return None
        return self._copy
