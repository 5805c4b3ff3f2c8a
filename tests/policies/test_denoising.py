"""Denoising: the schedule by hand, densities against numpy, and marginals that noise on the way leaves as they are."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.denoising import (
    denoising_times,
    draw_times,
    interpolate,
    noise_levels,
    ode_step,
    path_entropy,
    path_log_prob,
    sde_step,
)


def test_the_schedule_is_the_papers():
    times = denoising_times(4)
    np.testing.assert_allclose(times, [1.0, 0.75, 0.5, 0.25, 0.0])
    # 0.5 sqrt(t / (1 - t)); at t = 1 the divisor is 1 - 0.75.
    expected = [0.5 * math.sqrt(1 / 0.25), 0.5 * math.sqrt(3), 0.5 * 1.0, 0.5 * math.sqrt(1 / 3)]
    np.testing.assert_allclose(noise_levels(times, 0.5), expected, rtol=1e-6)


def test_steps_by_hand():
    x, v, t, s = (torch.tensor(value, dtype=torch.float64) for value in (2.0, -1.0, 0.5, 0.25))
    assert ode_step(x, v, t, s).item() == 2.25
    mean, log_std = sde_step(x, v, t, s, torch.tensor(0.4, dtype=torch.float64))
    # The noise foretold is 2 - 0.5 = 1.5; the drift -1 + 0.16 / 1 * 1.5 = -0.76.
    assert mean.item() == pytest.approx(2.0 + 0.25 * 0.76)
    assert math.exp(log_std.item()) == pytest.approx(0.4 * 0.5)


@given(
    t=st.floats(0.05, 1.0), share=st.floats(0.0, 0.9), action=st.floats(-3, 3), noise=st.floats(-3, 3),
    level=st.floats(0.01, 2.0),
)  # fmt: skip
def test_the_mean_of_a_step_takes_noise_away_that_the_step_puts_back(
    t: float, share: float, action: float, noise: float, level: float
):
    """In pi_RL's form: weights of the action and of the noise that x and v foretell."""
    following, step = t * share, t - t * share
    a, e, time, after = (torch.tensor(value, dtype=torch.float64) for value in (action, noise, t, following))
    x = interpolate(a, e, time)
    mean, _ = sde_step(x, e - a, time, after, torch.tensor(level, dtype=torch.float64))
    expected = (1 - following) * action + (following - level**2 * step / (2 * t)) * noise
    assert mean.item() == pytest.approx(expected, abs=1e-9)


def test_log_probabilities_of_a_path_are_those_of_its_steps():
    rng, n, steps, k, d = np.random.default_rng(0), 3, 5, 2, 4
    path, velocities = rng.normal(size=(n, steps + 1, k, d)), rng.normal(size=(n, steps, k, d))
    a, expected = 0.7, np.zeros((n, k, d))
    for i in range(steps):
        t, delta = 1 - i / steps, 1 / steps
        sigma = a * np.sqrt(t / (1 - t if i else delta))
        x, v = path[:, i], velocities[:, i]
        clean, pure = x - t * v, x + (1 - t) * v
        mean = clean * (1 - (t - delta)) + pure * (t - delta - sigma**2 * delta / (2 * t))
        variance = sigma**2 * delta
        expected += -((path[:, i + 1] - mean) ** 2) / (2 * variance) - 0.5 * np.log(2 * np.pi * variance)
    times = denoising_times(steps)
    found = path_log_prob(torch.from_numpy(path), torch.from_numpy(velocities), times, noise_levels(times, a))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_entropy_is_the_mean_surprise():
    times = denoising_times(4)
    levels = noise_levels(times, 0.5)
    rng = np.random.default_rng(0)
    path, velocities = np.zeros((40_000, 5, 1, 1)), np.zeros((40_000, 4, 1, 1))
    for i in range(4):
        mean, log_std = sde_step(torch.from_numpy(path[:, i]), torch.zeros(1), times[i], times[i + 1], levels[i])
        path[:, i + 1] = mean.numpy() + math.exp(log_std) * rng.normal(size=(40_000, 1, 1))
    found = -path_log_prob(torch.from_numpy(path), torch.from_numpy(velocities), times, levels).mean()
    assert found.item() == pytest.approx(path_entropy(times, levels).item(), abs=0.02)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_noise_on_the_way_leaves_the_distribution_as_it_is(noise: float):
    """Of Gaussian data the velocity is known: E[e - a | x_t]; each step of 400 then begins with the right moments."""
    mu, std, steps, n = 1.5, 0.5, 400, 20_000
    times = denoising_times(steps).double()
    levels = noise_levels(times, noise)
    rng = np.random.default_rng(0)
    ode = sde = torch.from_numpy(rng.normal(size=n))

    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        variance = (1 - t) ** 2 * std**2 + t**2
        return -mu + (t - (1 - t) * std**2) / variance * (x - (1 - t) * mu)

    for i, (t, following) in enumerate(pairwise(times)):
        if i % 80 == 0:
            for x in (ode, sde):
                assert x.mean().item() == pytest.approx((1 - t.item()) * mu, abs=0.03)
                assert x.std().item() == pytest.approx(math.sqrt(((1 - t.item()) * std) ** 2 + t.item() ** 2), abs=0.03)
        ode = ode_step(ode, velocity(ode, t), t, following)
        mean, log_std = sde_step(sde, velocity(sde, t), t, following, levels[i])
        sde = mean + log_std.exp() * torch.from_numpy(rng.normal(size=n))
    for x in (ode, sde):
        assert x.mean().item() == pytest.approx(mu, abs=0.02)
        assert x.std().item() == pytest.approx(std, abs=0.02)


def test_times_to_learn_at_follow_the_beta_distribution():
    times = draw_times((100_000,), torch.Generator().manual_seed(0)).numpy()
    assert times.min() >= 0.001 and times.max() <= 1.0
    # Beta(1.5, 1): mean 1.5 / 2.5, variance 1.5 / (2.5^2 * 3.5).
    assert times.mean() == pytest.approx(0.001 + 0.999 * 0.6, abs=0.005)
    assert times.var() == pytest.approx(0.999**2 * 1.5 / (6.25 * 3.5), abs=0.002)
