"""Replay of an episode from its initial state and applied controls, bit for bit."""

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import DataError


def replay(
    model: mujoco.MjModel, initial_state: NDArray[np.float64], applied: NDArray[np.float64], substeps: int
) -> NDArray[np.float64]:
    """Run an episode again.

    Args:
        model: The task's model.
        initial_state: [S] full simulator state at the start, `Starts.state`.
        applied: [L, U] controls of each control step, `StepResult.applied`.
        substeps: Physics steps per control step.

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
    data = mujoco.MjData(model)
    states = np.empty((len(applied) + 1, size))
    states[0] = initial_state
    mujoco.mj_setState(model, data, states[0], spec)
    for step, control in enumerate(applied):
        data.ctrl[:] = control
        mujoco.mj_step(model, data, nstep=substeps)
        mujoco.mj_getState(model, data, states[step + 1], spec)
    return states
