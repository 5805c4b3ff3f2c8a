"""A core on a fake clock, without sockets, and what it said to whom."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.serving.answer import Caller
from embodied.serving.core import LOCAL, ServerCore
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.codecs import observation_to_arrays
from embodied.wire.message import Message, decode, encode
from tests.serving.tiny import TinyPolicy, observation, whole_slot


class Timed(TinyPolicy):
    """Takes as long as it is told, on the world's clock."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world, self.seconds = world, 0.0

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: str) -> ActionChunk:
        self._world.now += self.seconds
        return super().act(observation, noise_keys, mode)


class World:
    """A core, its clock, and what it said to whom."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.policy = Timed(self)
        self.host = VersionedPolicy(self.policy)
        self.slot = whole_slot(self.host)
        self.core = ServerCore({"tiny": self.slot}, max_wait_s=0.5, clock=lambda: self.now, **options)

    def say(
        self, session: str, kind: str, id: int = 1, caller: Caller | None = LOCAL, peer: str = "",
        waited: float = 0.0, **fields: Any,
    ) -> None:  # fmt: skip
        frames = [bytes(f) for f in encode(Message(kind, id, session, **fields))]
        self.core.handle((peer or session).encode(), frames, caller, waited)

    def ask(
        self, session: str, id: int = 1, rows: int = 2, mode: str = "sample", priority: str | None = None,
        agent: int = 0, **fields: Any,
    ) -> None:  # fmt: skip
        seen = observation(rows, id)
        seen.rows.agent[:] = agent
        arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
        body = {"mode": mode} if priority is None else {"mode": mode, "priority": priority}
        self.say(session, "act", id, body=body, arrays=arrays, **fields)

    def until(self, ids: set[int]) -> dict[int, Message]:
        """Answers to these, however long a version takes to load."""
        said: dict[int, Message] = {}
        limit = time.monotonic() + 30
        while not ids <= said.keys():
            assert time.monotonic() < limit, f"only {sorted(said)} were answered"
            said |= {message.id: message for _, message in self.hear()}
            time.sleep(0.001)
        return said

    def hear(self, **options: Any) -> list[tuple[str, Message]]:
        said = [(peer.decode(), decode([bytes(f) for f in frames])) for peer, frames in self.core.tick(**options)]
        return [(peer, message) for peer, message in said if message.kind != "heartbeat"]


def codes(answers: list[tuple[str, Message]]) -> dict[int, str]:
    """Id of each answer to its error's code, empty for none."""
    return {answer.id: answer.body.get("code", "") if answer.kind == "error" else "" for _, answer in answers}
