"""Advantages of steps, as pure functions of arrays."""

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


def gae(
    rewards: Floats, values: Floats, after: Floats, ended: Bools, valid: Bools, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation: Schulman et al. 2016 (arXiv:1506.02438), equations 11, 12 and 16.

    delta_t = r_t + gamma V(s'_t) - V(s_t);  A_t = delta_t + gamma lam A_{t+1}, where the recursion starts anew behind
    an episode's end, and where step t + 1 is not valid: its predecessor then trusts the value of where it arrived.

    Args:
        rewards, values: [T, B].
        after: [T, B] of `next_values`.
        ended: [T, B] steps that ended an episode, in whatever way.
        valid: [T, B] steps that may train; the others get advantage 0 and a return equal to their value.
        gamma: Discount per step. lam: Decay of the estimator.

    Returns:
        Advantages and returns (advantage + value), [T, B] float32.
    """
    deltas = np.where(valid, rewards + gamma * after - values, 0.0).astype(np.float64)
    advantages = np.zeros(values.shape)
    carry = np.zeros(values.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        carry = np.where(valid[t], deltas[t] + gamma * lam * np.where(ended[t], 0.0, carry), 0.0)
        advantages[t] = carry
    return advantages.astype(np.float32), (advantages + values).astype(np.float32)
