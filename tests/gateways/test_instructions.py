"""Instructions of clients: what means nothing is refused with its own request, and nobody else's suffers."""

from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from embodied.client import RemoteClient
from embodied.data import Observation, Rows
from embodied.errors import DataError
from embodied.runtime.slots import push_slot, push_slots
from embodied.serving.core import LOCAL, ServerCore
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, Stream
from embodied.wire.codecs import observation_to_arrays
from embodied.wire.message import Message, decode, encode
from policies.film import FiLMPolicy
from tests.serving.tiny import kill, start_server

AGENT = AgentSpec(
    (Stream("front", (16, 16, 3), "uint8"), Stream("instruction", (64,), "uint8")), (Stream("delta", (2,), limit=0.1),)
)
WRONG = {
    "zeros": b"", "blanks": b"  \t ", "signs": b"...", "no UTF-8": b"\xff\xfe reach",
    "cut": ("x" * 63 + "\u00e9").encode()[:64],
}  # fmt: skip


def make_host() -> VersionedPolicy:
    return VersionedPolicy(FiLMPolicy("film", AGENT, chunk=2, channels=(4, 8), width=8, hidden=16, critic_hidden=(8,)))


def observation(*texts: bytes) -> Observation:
    said = np.stack([np.frombuffer(text.ljust(64, b"\0"), np.uint8) for text in texts])
    pictures = np.full((len(texts), 16, 16, 3), 99, np.uint8)
    return Observation(Rows.of_envs(len(texts)), {"front": pictures, "instruction": said}, np.zeros(len(texts)))


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_requests_of_the_same_batch_are_answered_at_once(wrong: bytes) -> None:
    now = 100.0
    core = ServerCore({"film": push_slot(make_host())}, max_wait_s=0.5, clock=lambda: now)
    for id, texts in enumerate([(b"go", b"reach"), (b"go", wrong), (b"x" * 64,)], start=1):
        seen = observation(*texts)
        arrays = {**observation_to_arrays(seen), "noise_keys": seen.rows.noise_keys(0)}
        frames = [bytes(f) for f in encode(Message("act", id, f"s{id}", body={"mode": "mean"}, arrays=arrays))]
        core.handle(f"s{id}".encode(), frames, LOCAL, 0.0)
    now += 1.0
    said = [decode([bytes(f) for f in frames]) for _, frames in core.tick()]
    answers = {message.id: message for message in said if message.kind != "heartbeat"}
    assert {id: message.kind for id, message in answers.items()} == {1: "act", 2: "error", 3: "act"}
    assert answers[2].body["code"] == "data" and "row 1, stream instruction" in answers[2].body["where"]
    assert core.counts.batches == 1, "the others' batch was not computed twice"
    assert core.counts.errors == 1


def _serve(address: str, pipe: Connection) -> None:
    serve(push_slots(make_host()), address, announce=lambda line: pipe.send(line.rpartition(" at ")[2]))


def test_a_server_goes_on_after_empty_instructions(tmp_path: Path) -> None:
    process, _, address = start_server(f"ipc://{tmp_path}/s", _serve)
    try:
        careless, careful = (RemoteClient(address, timeout_s=60) for _ in range(2))
        good, keys = observation(b"reach"), np.zeros((1, 5), np.int64)
        careless.hello()
        first = careful.act(good, keys, "mean")
        for text in WRONG.values():
            with pytest.raises(DataError, match="instruction") as error:
                careless.act(observation(text), keys, "mean")
            assert "\n" not in error.value.line()
            np.testing.assert_array_equal(careful.act(good, keys, "mean").actions, first.actions)
        np.testing.assert_array_equal(careless.act(good, keys, "mean").actions, first.actions)
        careless.close()
        careful.close()
    finally:
        kill(process)
