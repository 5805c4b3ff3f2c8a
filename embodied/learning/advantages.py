"""Advantages of decisions, as pure functions of arrays."""

import numpy as np
from numpy.typing import NDArray

from embodied.errors import DataError

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def next_values(
    values: Floats,
    bootstrap: Floats,
    final_at: NDArray[np.int32],
    final_values: Floats,
    terminated: Bools,
    truncated: Bools,
) -> Floats:
    """Value of the state each step led to, [T, B]: 0 after termination, that of the final observation after truncation.

    Args:
        values: [T, B] of the observations.
        bootstrap: [B] of the observations after the last step.
        final_at: [M, 2] (t, b) of steps that ended an episode.
        final_values: [M] of their final observations.
        terminated, truncated: [T, B]; a step that is both has terminated.

    Raises:
        DataError: A truncated step has no final observation.
    """
    result = np.concatenate([values[1:], bootstrap[None]])
    covered = np.zeros(values.shape, bool)
    t, b = final_at[:, 0], final_at[:, 1]
    result[t, b], covered[t, b] = final_values, True
    if (truncated & ~terminated & ~covered).any():
        raise DataError("a truncated step has no final observation", "segment", "give the last observation in `final`")
    result[terminated] = 0.0
    return result


def follows(k: NDArray[np.int32], ended: Bools) -> Bools:
    """[T, B] whether the step after executes the next action of the same decision in the same episode."""
    result = np.zeros(k.shape, bool)
    result[:-1] = (k[1:] > 0) & (k[1:] == k[:-1] + 1) & ~ended[:-1]
    return result


def goes_on(k: NDArray[np.int32], ended: Bools, valid: Bools) -> Bools:
    """[T, B] whether the step after executes the same decision and may train, so that their rewards belong together."""
    result = follows(k, ended)
    result[:-1] &= valid[1:]
    return result


def gae(
    rewards: Floats,
    values: Floats,
    after: Floats,
    ended: Bools,
    valid: Bools,
    gamma: float,
    lam: float,
    k: NDArray[np.int32] | None = None,
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over decisions: Schulman et al. 2016 (arXiv:1506.02438), equations 11 and 16.

    delta_t = r_t + gamma V(s'_t) - V(s_t);  A_t = delta_t + gamma lam A_{t+1}, where the recursion starts anew behind
    an episode's end, and where step t + 1 is not valid: its predecessor then trusts the value of where it arrived.

    A decision that executes n actions is one of a semi-Markov process (Sutton, Precup and Singh 1999, section 3): its
    reward is r_t + gamma r_{t+1} + ... + gamma^(n-1) r_{t+n-1}, and gamma^n takes the place of gamma; lam counts
    decisions. With chunks of one action both are the same. A decision begins with the first step that executes it, also
    where that lies behind the observation that it answers; its value is that of the state at that step.

    Args:
        rewards, values: [T, B]; values are read at decisions, and `after` where a chunk's last valid step arrived.
        after: [T, B] of `next_values`.
        ended: [T, B] steps that ended an episode, in whatever way.
        valid: [T, B] steps that may train; the others get advantage 0 and a return equal to their value.
        gamma: Discount per step. lam: Decay of the estimator.
        k: [T, B] each step's index in its chunk, -1 where it executes no decision; None where every step is a decision.

    Returns:
        Advantages and returns (advantage + value), [T, B] float32; of steps that begin no decision they mean nothing.
    """
    steps, envs = values.shape
    same = goes_on(k, ended, valid) if k is not None else np.zeros(values.shape, bool)
    advantages = np.zeros(values.shape)
    # Of the step behind: rewards and discounted value to its chunk's end, gamma^n, and the next decision's advantage.
    gain, reach, behind = np.zeros(envs), np.ones(envs), np.zeros(envs)
    for t in range(steps - 1, -1, -1):
        following = advantages[t + 1] if t + 1 < steps else 0.0
        behind = np.where(same[t], behind, np.where(ended[t], 0.0, following))
        gain = rewards[t] + gamma * np.where(same[t], gain, after[t])
        reach = gamma * np.where(same[t], reach, 1.0)
        advantages[t] = np.where(valid[t], gain - values[t] + lam * reach * behind, 0.0)
    return advantages.astype(np.float32), (advantages + values).astype(np.float32)
