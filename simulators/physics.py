"""Physics of a batch of environments: steps, divergence, and states."""

import time

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

from embodied.errors import InfrastructureError
from embodied.machine import usable_cores

# Position- and velocity-dependent fields are current after every call, and a persistent batch goes on from them.
STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)

# MuJoCo's warnings are counted here; by default it also prints them, and leaves a MUJOCO_LOG.TXT in the folder.
_log = mujoco.MjLogConfig.get()
_log.logto_file = _log.logto_console = False
_log.set()


class Physics:
    """B simulations of one model.

    Args:
        model: The model.
        count: B.
        num_threads: Threads; 0 for one per core that this process may use.
        substeps: Physics steps per control step.
        task: Name of the task, for errors.

    Attributes:
        batch: MuJoCo's batch; its arrays are live.
        seconds: Seconds spent in steps since construction.
    """

    def __init__(self, model: mujoco.MjModel, count: int, num_threads: int, substeps: int, task: str) -> None:
        self.batch = Batch(model, count, num_threads or usable_cores(), persistent=True)
        self.seconds = 0.0
        self._substeps, self._task = substeps, task
        self._blank = self.batch.state[0].copy()
        # MuJoCo's warnings (bad state, full buffers) as counts, [B, kinds]; zeroed once seen, for an environment that
        # diverges is reset by MuJoCo, its counts with it, and would show the same again.
        self._warning = self.batch.warning[:, :, 1]

    def step(self, ids: NDArray[np.int32] | None) -> NDArray[np.bool_]:
        """Take one control step of simulations `ids`, or of all; returns [B] whether each diverged."""
        diverged = np.zeros(self.batch.nsim, bool)
        begin = time.perf_counter()
        try:
            self.batch.step(ids, self._substeps, STAGE)
        except SimulationError as error:
            diverged[error.ids] = True
        self.seconds += time.perf_counter() - begin
        if self._warning.any():
            diverged |= self._warning.any(axis=1)
            self._warning[:] = 0
        if not np.isfinite(self.batch.state.sum()):
            diverged |= ~np.isfinite(self.batch.state).all(axis=1)
        return diverged

    def blank(self, ids: NDArray[np.int32]) -> None:
        """Write the model's default state into simulations `ids`; `forward` makes it act."""
        self.batch.state[ids] = self._blank

    def forward(self, ids: NDArray[np.int32]) -> None:
        """Compute the fields that depend on the states of simulations `ids`.

        Raises:
            InfrastructureError: MuJoCo cannot.
        """
        try:
            self.batch.forward(ids, STAGE)
        except SimulationError as error:
            raise InfrastructureError(
                f"MuJoCo cannot start: {error}", f"task {self._task}", "check its start"
            ) from None
