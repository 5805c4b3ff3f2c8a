"""A policy server in a process of its own, whose policy looks at one camera and takes as long as it is told to."""

import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.runtime.slots import push_slots
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, PolicySpec, Stream

SPAWN = multiprocessing.get_context("spawn")
PICTURE = (24, 32, 3)
SPEC = PolicySpec(
    "looker", AgentSpec((Stream("front", PICTURE, "uint8"), Stream("takes", (1,), unit="s")), (Stream("a", (1,)),)), 2
)


class Looker:
    """Its actions are a checksum of the pixels, and the step."""

    spec = SPEC

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        time.sleep(float(observation.streams["takes"].max()))
        count = len(observation.rows)
        actions = np.stack([checksums(observation.streams["front"]), observation.rows.step], axis=1)
        actions = actions.astype(np.float32)[:, :, None]
        none = np.full(actions.shape, np.nan, np.float32)
        return ActionChunk(observation.rows, actions, none, none[:, 0, 0], np.zeros(count, np.int64), "")

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        pass


def checksums(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    weights = np.arange(images[0].size).reshape(images.shape[1:]) % 251
    return (images * weights).sum(axis=(1, 2, 3)) % 65521


def observation(count: int, step: int = 0, takes: float = 0.0) -> Observation:
    rows = Rows.of_envs(count)
    rows.step[:] = step
    front = np.random.default_rng(step).integers(0, 256, (count, *PICTURE), dtype=np.uint8)
    return Observation(rows, {"front": front, "takes": np.full((count, 1), takes, np.float32)}, np.zeros(count))


def _serve(address: str, pipe: Connection) -> None:
    serve(push_slots(VersionedPolicy(Looker())), address, announce=pipe.send)


def start(address: str) -> BaseProcess:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(address, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60), "the server did not start"
    return process


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join(10)
