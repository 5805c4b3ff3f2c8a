"""The physics of all environments: MuJoCo's batch as live torch tensors."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import DATA_FIELDS, Batch, SimulationError
from numpy.typing import NDArray

from embodied.errors import InfrastructureError
from simulators.isaac.cfg import SimulationCfg
from simulators.isaac.errors import ConfigError, SpecMismatch, nearest
from simulators.isaac.kernels import outside, total
from simulators.physics import STAGE

EnvIds = torch.Tensor | Sequence[int] | slice | None


def rows(env_ids: EnvIds) -> Any:
    """A numpy index of all environments, or of those named."""
    if env_ids is None:
        return slice(None)
    return env_ids.numpy() if isinstance(env_ids, torch.Tensor) else env_ids


def checked_rows(env_ids: EnvIds, count: int) -> Any:
    """As `rows`, for writes to one of `count` environments.

    Raises:
        ConfigError: One of them is no environment.
    """
    if env_ids is None or isinstance(env_ids, slice):
        return slice(None) if env_ids is None else env_ids
    which = env_ids.numpy() if isinstance(env_ids, torch.Tensor) else np.atleast_1d(np.asarray(env_ids))
    if which.dtype == bool and which.shape == (count,):
        return np.flatnonzero(which)
    if not which.size:
        return which.astype(np.int64)
    if which.dtype.kind not in "iu" or which.ndim != 1 or outside(which, count):
        raise ConfigError(f"env_ids {which.tolist()}"[:100], "env_ids", f"choose 0 to {count - 1}")
    return which


def numbers(value: torch.Tensor) -> NDArray[Any]:
    """A tensor in numpy, without a copy if numpy has its type."""
    try:
        return value.numpy()
    except (RuntimeError, TypeError):  # Requires a gradient, or is bfloat16.
        return value.detach().float().numpy()


def returned(value: torch.Tensor, count: int, where: str, truths: bool = False) -> NDArray[Any]:
    """Result of a term or hook, checked, in numpy.

    Raises:
        SpecMismatch: It is not [count], or not bool if `truths` is set; the error names `where`.
    """
    if not isinstance(value, torch.Tensor) or value.ndim != 1 or len(value) != count:
        found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"type {type(value).__name__}"
        raise SpecMismatch(f"the result has {found}", where, f"return a tensor of shape ({count},)")
    if value.dtype.is_complex:
        raise SpecMismatch(f"the result has dtype {value.dtype}", where, "return real numbers")
    if truths and value.dtype is not torch.bool:
        raise SpecMismatch(f"the result has dtype {value.dtype}", where, "return a tensor of bool")
    return numbers(value)


def as_action(action: Any, where: str) -> torch.Tensor:
    """An action given as an array or nested lists.

    Raises:
        SpecMismatch: It is no tensor, or complex.
    """
    try:
        tensor = torch.as_tensor(action)
    except (TypeError, ValueError, RuntimeError):
        raise SpecMismatch(f"an action of type {type(action).__name__}", where, "give a tensor [N, D]") from None
    if tensor.dtype.is_complex:
        raise SpecMismatch(f"an action of dtype {tensor.dtype}", where, "give real numbers")
    return tensor.float()


class Simulation:
    """`num_envs` worlds of one model.

    Attributes:
        cfg, model, num_envs: As given.
        batch: MuJoCo's batch.
        physics_dt: `cfg.dt`, s.
        stamp: Counter of changes of state, for readers' caches.
        faults: [N] bool, environments that diverged since `clear_faults`; they stand in the model's default state.
        any_fault: Whether there is one.
    """

    device = "cpu"

    def __init__(self, model: mujoco.MjModel, num_envs: int, cfg: SimulationCfg) -> None:
        self.cfg, self.model, self.num_envs = cfg, model, num_envs
        self.physics_dt = cfg.dt
        self.batch = Batch(model, num_envs, cfg.num_threads, persistent=True)
        self._time, self._warmstart = self.batch.bind("time"), self.batch.bind("qacc_warmstart")
        self.stamp = 0
        self.faults, self.any_fault = np.zeros(num_envs, bool), False
        self._arrays: dict[str, NDArray[Any]] = {}
        self._fields: dict[str, torch.Tensor] = {}
        self._changed: NDArray[np.bool_] = np.zeros(num_envs, bool)
        self.dirty = False
        self._blank = self.batch.state[0].copy()
        # Counts, zeroed once read: MuJoCo resets a diverged environment with its counts, and would show the same again.
        self._warning = self.batch.warning[:, :, 1]
        # A number that is not finite shows in the physical state, or in the pose written to a mocap body.
        physical = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_PHYSICS) + 1
        self._checked = self.batch.state if model.nmocap else self.batch.state[:, :physical]

    def field(self, name: str) -> torch.Tensor:
        """The live [N, ...] tensor of an MjData field, float64 for real numbers. After writing a state field, `touch`.

        Raises:
            ConfigError: MjData has no such field.
        """
        if name not in self._fields:
            with warnings.catch_warnings():
                # Outputs are read-only in numpy; torch knows no read-only tensors and warns.
                warnings.simplefilter("ignore", UserWarning)
                self._fields[name] = torch.from_numpy(self.array(name))
        return self._fields[name]

    def array(self, name: str) -> NDArray[Any]:
        """Memory of `field` in numpy, with less overhead on few numbers than torch."""
        if name not in self._arrays:
            if name not in DATA_FIELDS:
                raise ConfigError(f"MjData has no field {name!r}", "sim.field", nearest(name, DATA_FIELDS))
            self._arrays[name] = self.batch.bind(name)
            self._forward(None)
        return self._arrays[name]

    def touch(self, env_ids: EnvIds = None) -> None:
        """Mark the state of `env_ids` as written; derived quantities are computed on the next access."""
        self.stamp += 1
        self._changed[rows(env_ids)] = True
        self.dirty = True

    def begin(self, env_ids: EnvIds) -> None:
        """Set time and the solver's warm start of `env_ids` to zero, so that an episode does not depend on the last."""
        which = rows(env_ids)
        self._time[which] = 0.0
        self._warmstart[which] = 0.0
        self.touch(env_ids)

    def forward(self) -> None:
        """Compute quantities derived from written states."""
        if not self.dirty:
            return
        ids = None if self._changed.all() else np.flatnonzero(self._changed).astype(np.int32)
        self._changed[:] = False
        self.dirty = False
        self._forward(ids)

    def step(self, count: int = 1) -> None:
        """Advance every environment by `count` times `physics_dt`, controls held; faults are noted in `faults`."""
        self.forward()
        faulty: NDArray[Any] | None = None
        try:
            self.batch.step(None, count * self.cfg.substeps, STAGE)
        except SimulationError as error:
            faulty = np.zeros(self.num_envs, bool)
            faulty[error.ids] = True
        if total(self._warning):
            warned = self._warning.any(axis=1)
            faulty = warned if faulty is None else faulty | warned
            self._warning[:] = 0
        if not math.isfinite(total(self._checked)):
            infinite = ~np.isfinite(self.batch.state).all(axis=1)
            faulty = infinite if faulty is None else faulty | infinite
        if faulty is not None and faulty.any():
            self.faults |= faulty
            self.any_fault = True
            ids = np.flatnonzero(faulty).astype(np.int32)
            self.batch.state[ids] = self._blank
            self._forward(ids)
        self.stamp += 1

    def keep_as_blank(self) -> None:
        """Remember the first environment's state as the one that diverged environments are put into."""
        self.forward()
        self._blank = self.batch.state[0].copy()

    def clear_faults(self) -> None:
        self.faults[:] = False
        self._warning[:] = 0
        self.any_fault = False

    def get_physics_dt(self) -> float:
        """`physics_dt`."""
        return self.physics_dt

    def has_gui(self) -> bool:
        """False."""
        return False

    def _forward(self, ids: NDArray[np.int32] | None) -> None:
        try:
            self.batch.forward(ids, STAGE)
        except SimulationError as error:
            raise InfrastructureError(f"MuJoCo cannot start: {error}", "reset", "check the reset events") from None
        self.stamp += 1


class fresh:
    """A property of an object with `_sim` and `_cache`, computed at most once for each state of the simulation.

    Values are new tensors, so a reader may keep them.
    """

    def __init__(self, compute: Any) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        if obj is None:
            return self
        sim, cache = obj._sim, obj._cache
        if sim.dirty:
            sim.forward()
        if cache.get("stamp") != sim.stamp:
            cache.clear()
            cache["stamp"] = sim.stamp
        value = cache.get(self.name)
        if value is None:
            value = cache[self.name] = self.compute(obj)
        return value
