"""Policies too large for the memory are refused before they are allocated."""

import pytest
import torch

from embodied.errors import ConfigError
from policies.memory import MemoryLimit
from policies.nn import orthogonal_linear


def test_weights_up_to_the_limit_are_made_and_counted() -> None:
    with MemoryLimit(4 * (12 + 4 + 30), "policy") as limit:
        torch.nn.Linear(3, 4)
        torch.nn.Embedding(5, 6)
    assert limit.bytes == limit.limit


@pytest.mark.parametrize("outputs", [10**9, 10**17])
def test_a_layer_beyond_the_limit_is_refused_before_it_is_allocated(outputs: int) -> None:
    with MemoryLimit(1e9, "policy"), pytest.raises(ConfigError, match=r"and 1\.0 GB of memory are free \(policy\)"):
        orthogonal_linear(1000, outputs, 1.0, torch.Generator())


def test_tensors_without_memory_are_not_counted() -> None:
    with MemoryLimit(1, "policy") as limit:
        torch.nn.Linear(3, 4, device="meta")
    assert limit.bytes == 0
