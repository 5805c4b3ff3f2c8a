"""Importance weights against numpy, and against what they are for: expectations under another policy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.learning.importance import diagnose, importance_weights
from embodied.learning.losses import masked_mean

ALL = torch.ones(6, 1, dtype=torch.bool)
RHO = torch.tensor([[0.4], [0.5], [1.0], [2.0], [5.0], [5.1]])


def test_truncated_and_masked_by_hand() -> None:
    def weights(correction: str) -> list[float]:
        return importance_weights(torch.log(RHO), ALL, correction).flatten().tolist()  # type: ignore[arg-type]

    assert weights("none") == [1.0] * 6
    assert weights("truncated") == pytest.approx([0.4, 0.5, 1.0, 2.0, 2.0, 2.0])
    assert weights("masked") == pytest.approx([0.0, 0.5, 1.0, 2.0, 5.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_one_impossible_number_drops_its_decision_and_no_other(correction: str) -> None:
    log_ratio = torch.zeros(2, 3)
    log_ratio[0, 1], log_ratio[1, 2] = math.log(0.9e-4), math.log(1.1e-4)
    mask = torch.ones(2, 3, dtype=torch.bool)
    weights = importance_weights(log_ratio, mask, correction, band=(0.0, 5.0))  # type: ignore[arg-type]
    assert weights[0].tolist() == [0.0, 0.0, 0.0]
    assert weights[1].tolist() == pytest.approx([1.0, 1.0, 1.1e-4])
    mask[0, 1] = False  # never executed: no reason to drop anything
    weights = importance_weights(log_ratio, mask, correction)  # type: ignore[arg-type]
    assert weights[0].tolist() == [1.0, 0.0, 1.0]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32), n=st.integers(1, 5), k=st.integers(1, 4), spread=st.sampled_from([0.0, 0.5, 6.0]),
    correction=st.sampled_from(["truncated", "masked"]),
)  # fmt: skip
def test_equal_loops(seed, n, k, spread, correction) -> None:
    rng = np.random.default_rng(seed)
    log_ratio, mask = spread * rng.normal(size=(n, k)), rng.random((n, k)) < 0.7
    mask[0, 0] = True
    found = importance_weights(torch.from_numpy(log_ratio), torch.from_numpy(mask), correction)
    expected, counted = np.zeros((n, k)), []
    for i in range(n):
        dropped = any(math.exp(log_ratio[i, j]) < 1e-4 for j in range(k) if mask[i, j])
        for j in range(k):
            if mask[i, j]:
                rho = math.exp(log_ratio[i, j])
                kept = min(rho, 2.0) if correction == "truncated" else rho * (0.5 <= rho <= 5.0)
                expected[i, j] = 0.0 if dropped else kept
                counted.append((rho, expected[i, j]))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    rho, weight = (np.array(column) for column in zip(*counted, strict=True))
    said = diagnose(torch.from_numpy(log_ratio), torch.from_numpy(mask), found)
    mean, chi2 = rho.mean(), (rho**2).mean() - 1.0
    ess, kl = rho.sum() ** 2 / (len(rho) * (rho**2).sum()), -np.log(rho).mean()
    wanted = {"ratio": mean, "ess": ess, "kl": kl, "chi2": chi2, "masked": (weight == 0).mean()}
    assert {name: said[name] for name in wanted} == pytest.approx(wanted, rel=1e-9, abs=1e-6)
    assert said["alerts"] == sum(map(bool, (not 0.5 <= mean <= 2.0, ess < 0.3, abs(kl) > 0.1, chi2 > 1.0)))


def test_diagnoses_agree_with_two_gaussians() -> None:
    """Means 0 and m, deviation 1: KL is m^2 / 2, chi-squared exp(m^2) - 1, the share of effective samples exp(-m^2)."""
    m, generator = 0.4, torch.Generator().manual_seed(0)
    x = torch.randn(400_000, 1, generator=generator, dtype=torch.float64)
    log_ratio = m * x - m**2 / 2
    mask = torch.ones_like(x, dtype=torch.bool)
    said = diagnose(log_ratio, mask, torch.exp(log_ratio))
    assert said["ratio"] == pytest.approx(1.0, abs=0.005)
    assert said["kl"] == pytest.approx(m**2 / 2, rel=0.03)
    assert said["chi2"] == pytest.approx(math.exp(m**2) - 1, rel=0.03)
    assert said["ess"] == pytest.approx(math.exp(-(m**2)), rel=0.01)
    assert said["alerts"] == 0 and said["masked"] == 0
    assert masked_mean(torch.exp(log_ratio) * x, mask).item() == pytest.approx(m, abs=0.01)


def test_weights_carry_no_gradient_and_meet_no_nan() -> None:
    log_ratio = torch.tensor([[0.1, 0.0], [0.2, 0.3]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, True]])
    weights = importance_weights(log_ratio + torch.tensor([[0.0, torch.nan], [0.0, 0.0]]), mask, "truncated")
    assert not weights.requires_grad
    assert weights.isfinite().all() and weights[0, 1] == 0.0
