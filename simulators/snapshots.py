"""Checks of snapshots, and of the environments that they are of."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.errors import ConfigError, SpecMismatch
from embodied.spec import EnvSpec


def index_of(ids: ArrayLike | None, count: int) -> NDArray[np.int32]:
    """Environments `ids`, counted from 0, checked; all `count` for None.

    Raises:
        ConfigError: They are no ascending integers below `count`.
    """
    index = np.arange(count) if ids is None else np.atleast_1d(np.asarray(ids))
    valid = index.ndim == 1 and np.issubdtype(index.dtype, np.integer) and (np.diff(index) > 0).all()
    if not valid or (len(index) and not 0 <= index[0] <= index[-1] < count):
        raise ConfigError(f"environments {index}", "ids", f"give ascending integers below {count}")
    return index.astype(np.int32)


def kind_of(spec: EnvSpec) -> int:
    """Number that differs between specs whose snapshots do not fit each other."""
    hashes = [agent.hash for agent in spec.agents.values()]
    joined = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()[:12]
    return int(joined, 16)


def check_snapshot(
    snapshot: Mapping[str, NDArray[Any]], parts: Mapping[str, NDArray[Any]], index: NDArray[np.int32], spec: EnvSpec
) -> None:
    """Check a snapshot of `BatchEnv` against the live arrays `parts` [B, ...] that it is to be written to.

    Raises:
        SpecMismatch: It has other sizes than `index` and these arrays, or is of environments with other streams or
            other randomisation.
    """
    for name in sorted(parts.keys() | snapshot.keys()):
        wanted = (len(index), *parts[name].shape[1:]) if name in parts else None
        if name not in snapshot or np.shape(snapshot[name]) != wanted:
            fix = f"its shape must be {wanted}" if wanted else "use environments with the same randomisation"
            raise SpecMismatch("a snapshot of another task or count", f"snapshot {name}", fix)
        if not np.can_cast(np.asarray(snapshot[name]).dtype, parts[name].dtype, "same_kind"):
            raise SpecMismatch(f"{name} is not {parts[name].dtype}", f"snapshot {name}", "restore what snapshot() gave")
    if (np.asarray(snapshot["kind"]) != parts["kind"][index]).any():
        fix = "use the same task, robot and control"
        raise SpecMismatch("a snapshot of an environment with other streams", f"task {spec.task}", fix)
    if not np.isfinite(snapshot["state"]).all() or np.min(snapshot["step"], initial=0) < 0:
        raise SpecMismatch("a snapshot that no environment was ever in", "snapshot", "restore what snapshot() gave")


def check_replay(
    snapshot: Mapping[str, NDArray[Any]],
    last: Mapping[str, NDArray[Any]],
    count: int,
    agents: int,
    spec: EnvSpec,
) -> None:
    """Check a snapshot of `RemoteEnv`: `count` rows of seeds, counters and the actions to take again.

    Args:
        snapshot: As `RemoteEnv.snapshot` gives it.
        last: Stream name to the last observations [B, ...] of the environments that it is to be written to.
        count: Environments restored.
        agents: Agents of each.
        spec: Of the environments.

    Raises:
        SpecMismatch: It is of another task or count.
    """
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(("seed", "episode", "step"), (count,))
    wanted |= dict.fromkeys(("agent_step", "active"), (count, agents))
    wanted |= {f"last/{name}": (count, *values.shape[1:]) for name, values in last.items()}
    for name, shape in wanted.items():
        if name not in snapshot or snapshot[name].shape != shape:
            fix = f"its shape must be {shape}"
            raise SpecMismatch("a snapshot of another task or count", f"snapshot {name}", fix)
    actions = snapshot.get("actions", np.zeros(0))
    longest = int(snapshot["step"].max(initial=0))
    fits = actions.ndim == 3 and actions.shape[::2] == (count, spec.control_size)
    if not fits or not longest <= actions.shape[1] <= spec.episode_steps:
        raise SpecMismatch("a snapshot of another task or count", "snapshot actions", "use one of this task")
