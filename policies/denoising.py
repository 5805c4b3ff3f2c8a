"""Denoising of flow matching as pure functions: times, steps without and with noise, the density of a path.

Time runs from 1, where there is noise alone, to 0, where the actions are: x_t = (1 - t) a + t e with e ~ N(0, I), whose
velocity is e - a (the direction of openpi's code; the paper of pi0, Black et al. 2024, arXiv:2410.24164, counts from 0
to 1). `steps` equal steps lead from 1 to 0.
"""

import torch
from torch import Tensor

from policies.nn import gaussian_entropy, gaussian_log_prob

BETA, LEAST_TIME = 1.5, 0.001


def denoising_times(steps: int) -> Tensor:
    """[steps + 1] from 1 to 0."""
    return torch.linspace(1.0, 0.0, steps + 1)


def noise_levels(times: Tensor, noise: float) -> Tensor:
    """[steps] sigma_t = a sqrt(t / (1 - t)) of the stochastic equation at each step's first time; a is `noise`.

    Flow-GRPO (Liu et al. 2025, arXiv:2505.05470, section 4, at equation 9); Flow-SDE of pi_RL (Chen et al. 2025,
    arXiv:2510.25889) takes it over. It is infinite at t = 1, where the code of both divides by 1 - t of the second step
    instead. No step is free of noise, so that every step has a density.
    """
    first = times[:-1]
    return noise * torch.sqrt(first / (1.0 - torch.where(first == 1.0, times[1], first)))


def interpolate(actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """x_t on the straight way between noise and actions; `time` broadcasts to both."""
    return (1.0 - time) * actions + time * noise


def draw_times(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Times to learn velocities at: 0.001 + 0.999 B with B ~ Beta(1.5, 1), more of them near noise.

    Black et al. 2024, arXiv:2410.24164, appendix B, whose tau is 1 - t and s is 0.999. The distribution function of
    Beta(a, 1) is b^a, which inverts to u^(1/a).
    """
    uniform = torch.rand(shape, generator=generator)
    return LEAST_TIME + (1.0 - LEAST_TIME) * uniform.pow(1.0 / BETA)


def ode_step(x: Tensor, velocity: Tensor, time: Tensor, following: Tensor) -> Tensor:
    """One Euler step of dx = v dt."""
    return x + (following - time) * velocity


def sde_step(x: Tensor, velocity: Tensor, time: Tensor, following: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Mean, and logarithm of the standard deviation, of one Euler-Maruyama step of the stochastic equation

    dx = [v + sigma^2 / (2 t) (x + (1 - t) v)] dt + sigma dw,

    whose marginals are those of dx = v dt (Flow-GRPO, arXiv:2505.05470, equation 8, its step equation 9;
    x + (1 - t) v is the noise that the velocity foretells). All but `x` and `velocity` broadcast to them.
    """
    step = time - following
    foretold = x + (1.0 - time) * velocity
    mean = x - step * (velocity + level.square() / (2.0 * time) * foretold)
    return mean, torch.log(level * torch.sqrt(step))


def path_log_prob(path: Tensor, velocities: Tensor, times: Tensor, levels: Tensor) -> Tensor:
    """Log density of a path given its start, number by number: the sum over its steps.

    The start is drawn from N(0, I) whatever the weights are, and so is left out.

    Args:
        path: [N, steps + 1, K, D]. velocities: [N, steps, K, D] at all its places but the last.
        times: [steps + 1]. levels: [steps].

    Returns:
        [N, K, D].
    """
    time, following, level = (t[:, None, None] for t in (times[:-1], times[1:], levels))
    mean, log_std = sde_step(path[:, :-1], velocities, time, following, level)
    return gaussian_log_prob(path[:, 1:], mean, log_std).sum(1)


def path_entropy(times: Tensor, levels: Tensor) -> Tensor:
    """[] nats of one number's path given its start; no weight changes it."""
    return gaussian_entropy(torch.log(levels * torch.sqrt(times[:-1] - times[1:]))).sum()
