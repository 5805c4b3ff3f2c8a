"""Replay of an episode from its initial state and applied controls, bit for bit."""

import functools
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied.errors import DataError
from simulators.randomise.apply import randomised_model


def replay(
    model: mujoco.MjModel,
    initial_state: NDArray[np.float64],
    applied: NDArray[np.float64],
    substeps: int,
    drawn: Mapping[str, NDArray[Any]] | None = None,
) -> NDArray[np.float64]:
    """Run an episode again.

    Args:
        model: The task's model.
        initial_state: [S] full simulator state at the start, `Resets.state`.
        applied: [L, U] controls of each control step, `EnvStep.applied`.
        substeps: Physics steps per control step.
        drawn: What was randomised, `Episode.drawn`; its physics is applied to a copy of the model.

    Returns:
        [L + 1, S] states, the initial one first; equal to the original ones on the same build of MuJoCo and processor.

    Raises:
        DataError: The sizes are those of another model.
    """
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    size = mujoco.mj_stateSize(model, spec)
    if initial_state.shape != (size,) or applied.ndim != 2 or applied.shape[1] != model.nu:
        raise DataError(
            f"state {initial_state.shape} and controls {applied.shape} are not of this model",
            "replay",
            f"it has {size} state numbers and {model.nu} controls: use the task that was recorded",
        )
    model = randomised_model(model, drawn or {})
    data = mujoco.MjData(model)
    states = np.empty((len(applied) + 1, size))
    states[0] = initial_state
    mujoco.mj_setState(model, data, states[0], spec)
    for step, control in enumerate(applied):
        data.ctrl[:] = control
        mujoco.mj_step(model, data, nstep=substeps)
        mujoco.mj_getState(model, data, states[step + 1], spec)
    return states


def state_hash(states: NDArray[np.float64]) -> NDArray[np.uint64]:
    """[B] checksums of states [B, S], C-contiguous; docs/episode-format.md has the formula.

    A change of one number always shows, others go unseen once in 2^64.
    """
    return _checksums(states.view(np.uint64), _factors(states.shape[1]))


@njit(cache=True)
def _checksums(bits: NDArray[np.uint64], factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    out = np.zeros(len(bits), np.uint64)
    for b in range(len(bits)):
        for k in range(len(factors)):
            out[b] += (bits[b, k] ^ (bits[b, k] >> np.uint64(32))) * factors[k]
    return out


@functools.cache
def _factors(count: int) -> NDArray[np.uint64]:
    """Odd numbers of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)
