"""Random numbers keyed by what they are for, not by when they are drawn.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), vectorised in numpy. Each row
has a key of five integers, (seed, env, agent, episode, step), so the same row gets the same numbers however requests
are batched, ordered or repeated. Agent 0 has the numbers of the four-integer keys before there were agents.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = np.array([[0xCD9E8D57], [0xD2511F53]], np.uint64)  # of words 2 and 0
_WEYL = np.arange(10, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_MASK, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Philox-4x32-10.

    Args:
        counter: [N, 4].
        key: [N, 2].

    Returns:
        [N, 4] random words.
    """
    words = counter.T.astype(np.uint64)
    # Words 2 and 0, and 1 and 3, side by side: the two halves of a round in one call each, for few rows cost calls.
    even, odd = np.ascontiguousarray(words[[2, 0]]), np.ascontiguousarray(words[[1, 3]])
    for keys in (key.T.astype(np.uint64) + _WEYL) & _MASK:
        product = even * _MULTIPLIERS
        high = (product >> _SHIFT) ^ odd
        high ^= keys
        product &= _MASK
        even, odd = high[::-1], product
    return np.stack([even[1], odd[0], even[0], odd[1]], axis=1).astype(np.uint32)


def _words(keys: ArrayLike, count: int, purpose: int) -> NDArray[np.uint32]:
    """`count` words per row of `keys` [N, 5] (seed, env, agent, episode, step), distinct per `purpose`."""
    rows = np.atleast_2d(np.asarray(keys, dtype=np.int64)).astype(np.uint64)
    n, blocks = len(rows), -(-count // 4)
    seed, env, agent, episode, step = rows.T
    key = np.stack([seed & _MASK, (seed >> _SHIFT) ^ np.uint64(purpose)], axis=1).astype(np.uint32)
    base = np.stack([env & _MASK, episode & _MASK, step & _MASK], axis=1).astype(np.uint32)
    counter = np.empty((n, blocks, 4), np.uint32)
    counter[:, :, :3] = base[:, None]
    # Blocks of one key number far below 2**20, so the upper bits of their count are free for the agent.
    counter[:, :, 3] = np.arange(blocks, dtype=np.uint32) | (agent.astype(np.uint32) << np.uint32(20))[:, None]
    words = philox(counter.reshape(-1, 4), np.repeat(key, blocks, axis=0))
    return words.reshape(n, blocks * 4)[:, :count]


def uniform(keys: ArrayLike, count: int, purpose: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1).

    Args:
        keys: [N, 5] integers (seed, env, agent, episode, step); agent is below 4096.
        count: Numbers per row.
        purpose: Separates uses of one key, so that resets and actions never share numbers.

    Returns:
        [N, count] float64.
    """
    return (_words(keys, count, purpose).astype(np.float64) + 0.5) * 2.0**-32


def normal(keys: ArrayLike, count: int, purpose: int = 0) -> NDArray[np.float32]:
    """Standard normal numbers [N, count] float32, by the Box-Muller transform of `uniform`."""
    pairs = -(-count // 2)
    u = uniform(keys, 2 * pairs, purpose)
    radius, angle = np.sqrt(-2.0 * np.log(u[:, :pairs])), 2.0 * np.pi * u[:, pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return both[:, :count].astype(np.float32)


def integers(keys: ArrayLike, purpose: int = 0) -> NDArray[np.int64]:
    """One integer in [0, 2**62) per row of keys, [N] int64: a seed derived from a key."""
    words = _words(keys, 2, purpose).astype(np.uint64)
    return ((words[:, 0] << np.uint64(30)) ^ words[:, 1]).astype(np.int64) & np.int64(2**62 - 1)
