"""Environments in workers, made from a configuration. Environments of one process at one address share its workers."""

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.settings import AtLeastOne, Seconds, Threads, require, validated
from simulators.remote.env import RemoteEnv
from simulators.remote.spawn import Spawner
from simulators.remote.worker_pool import Wanted, WorkerPool
from simulators.worker.core import MAX_ENVS

ADDRESS = "ipc://worker"


@dataclass
class _Shared:
    pool: WorkerPool
    envs: int = 0
    folder: Path | None = None  # of a private socket


_pools: dict[str, _Shared] = {}


@validated("env", "num_envs", "num_workers", "timeout_s")
def make_env(
    task: str,
    num_envs: AtLeastOne,
    seed: int = 0,
    env: str = "",
    address: str | None = None,
    spawn: str | None = None,
    num_workers: Threads = 1,
    timeout_s: Seconds = 60.0,
    credentials: str | None = None,
    options: dict[str, Any] | None = None,
    pixels: int = 0,
    success_ends: bool = False,
    instruction: str = "",
    reward: str = "",
    first: int = 0,
) -> RemoteEnv:
    """Make `num_envs` environments that run in workers.

    Args:
        task: Name of the task in the run.
        num_envs: B.
        seed: Draws the episode seeds that are not given.
        env: Environment of the workers, such as `gymnasium:FetchPush-v4`.
        address: Address that they call; None for `ipc://worker`, or for a socket of its own where they
            are spawned.
        spawn: A Python interpreter to start them with; None where others start them.
        num_workers: Workers that share the environments.
        timeout_s: Seconds to wait for an answer, and for workers to come.
        credentials: Folder of CURVE credentials, needed beyond this machine.
        options: Of the environment.
        pixels: Edge of a square `rgb` stream; 0 for none.
        success_ends: Whether success ends an episode at once, or counts only where it ends anyway.
        instruction: The task in words.
        reward: Name of the environment's own reward in episodes; nothing else depends on it.
        first: Global index of the first environment.

    Raises:
        ConfigError: A value is out of range, the interpreter is missing, or a worker ended with a user's mistake.
        UserError: The address is malformed, in use, or open to others without credentials.
        SpecMismatch: A worker runs something else.
        InfrastructureError: Too few workers came.
    """
    if not env:
        raise ConfigError("environments in workers need a name", "task.env", "such as gymnasium:FetchPush-v4")
    most = MAX_ENVS * num_workers
    require(num_envs <= most, "env.num_envs", num_envs, f"choose 1 to {most}")
    folder = Path(credentials) if credentials else None
    if address is None and spawn is None:
        address = ADDRESS
    key = address or str(spawn)
    wanted = Wanted(env, dict(options or {}), pixels)
    shared = _pools.get(key)
    if shared is None:
        spawner = Spawner(spawn, num_workers, env, wanted.options, pixels, folder) if spawn else None
        shared = _pools[key] = _opened(address, wanted, folder, spawner)
    if shared.pool.wanted != wanted:
        what = f"the workers at {shared.pool.address} already run {shared.pool.wanted.env} for this process"
        raise ConfigError(what, "env.address", "give the same task and options, or another address")
    shared.envs += 1

    def release() -> None:
        shared.envs -= 1
        if not shared.envs:
            _close(key)

    try:
        return RemoteEnv(
            shared.pool, num_envs, num_workers, timeout_s, success_ends, seed, task, instruction, release, first
        )
    except BaseException:
        release()
        raise


def _opened(address: str | None, wanted: Wanted, credentials: Path | None, spawner: Spawner | None) -> _Shared:
    private = Path(tempfile.mkdtemp(prefix="embodied-")) if address is None else None
    try:
        pool = WorkerPool(address or f"ipc://{private}/worker", wanted, credentials, spawner)
    except BaseException:
        if private:
            shutil.rmtree(private)
        raise
    if spawner is not None:
        spawner.start(pool.address)
    return _Shared(pool, folder=private)


def _close(key: str) -> None:
    shared = _pools.pop(key)
    shared.pool.close()
    if shared.folder:
        shutil.rmtree(shared.folder, ignore_errors=True)


def _close_all(owner: int = os.getpid()) -> None:
    """Close what was left open at exit; a fork leaves its parent's alone."""
    for key in list(_pools) if os.getpid() == owner else ():
        _close(key)


atexit.register(_close_all)
