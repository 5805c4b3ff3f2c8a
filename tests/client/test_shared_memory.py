"""Pictures in memory shared with a server on this machine, and what becomes of requests that name none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.client import RemoteClient
from embodied.client.shared_memory import SharedMemoryWriter
from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import MessageError, NotShared
from embodied.noise import normal
from embodied.runtime.slots import push_slots
from embodied.serving.core import ServerCore
from embodied.serving.shared_memory import SharedMemoryReader
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, PolicySpec, Stream
from embodied.wire import shared_memory as lent
from embodied.wire.codecs import chunk_from_message, observation_to_arrays
from embodied.wire.message import Message, decode, encode
from tests.serving.tiny import server

AGENT = AgentSpec(
    (Stream("front", (48, 64, 3), "uint8"), Stream("wrist", (40, 40, 3), "uint8"), Stream("joint_pos", (4,))),
    (Stream("joint_vel", (2,)),),
)
SHAPES = st.dictionaries(
    st.text("abc/_", min_size=1, max_size=6),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    max_size=4,
    min_size=1,
)


class Sums:
    """Answers with the sums of its pictures."""

    spec = PolicySpec("sums", AGENT)

    def act(self, observation: Observation, noise_keys: np.ndarray, mode: str) -> ActionChunk:
        count = len(observation.rows)
        sums = [observation.streams[name].reshape(count, -1).sum(1, dtype=np.float32) for name in ("front", "wrist")]
        actions = np.stack(sums, 1)[:, None] + 0 * normal(noise_keys, 2)[:, None]
        return ActionChunk(
            observation.rows, actions, actions.copy(), np.zeros(count, np.float32), np.zeros(count, np.int64), ""
        )

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, tensors: object) -> None:
        pass


def seen(rows: int, seed: int = 0) -> Observation:
    draw = np.random.default_rng(seed)
    streams = {s.name: draw.integers(0, 200, (rows, *s.shape)).astype(s.dtype) for s in AGENT.observations}
    return Observation(Rows.of_envs(rows), streams, np.zeros(rows))


def asked(observation: Observation) -> dict[str, np.ndarray]:
    return {**observation_to_arrays(observation), "noise_keys": observation.rows.noise_keys(0)}


@given(SHAPES)
def test_announcements_are_read_as_they_were_written(shapes: dict[str, list[int]]) -> None:
    arrays = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    entries, starts, end = lent.read(lent.write(arrays))
    assert entries == tuple((name, "uint8", array.shape) for name, array in arrays.items())
    assert all(start % 64 == 0 for start in starts) and end == sum(lent.aligned(a.nbytes) for a in arrays.values())


def test_a_station_answers_from_shared_memory_and_from_frames_alike() -> None:
    host = VersionedPolicy(Sums())
    core = ServerCore(push_slots(host))
    lender, answers = SharedMemoryWriter(), []
    for number, (rows, seed) in enumerate([(1, 0), (1, 1), (3, 2), (1, 3), (5, 4)], 1):
        arrays = asked(seen(rows, seed))
        said, rest = lender.write(arrays)
        assert set(arrays) - set(rest) == {"stream/front", "stream/wrist"}
        for body, sent in ((said, rest), ({}, arrays)):
            message = Message("act", number, "me", body={"mode": "mean", **body}, arrays=sent)
            core.handle(b"me", [bytes(frame) for frame in encode(message)])
            ((_, frames),) = core.tick(draining=True)
            answers.append(decode([bytes(frame) for frame in frames]))
        lend, raw = (chunk_from_message(answer.body, answer.arrays) for answer in answers[-2:])
        np.testing.assert_array_equal(lend.actions, raw.actions)
    lender.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": "1-2-" + "a" * 32}, "not_shared"),
        ({"block": "../../etc/passwd"}, "not_shared"),
        ({"block": 3}, "not fully named"),
        ({"block_bytes": 10}, "not_shared"),
        ({"block_bytes": 1 << 62}, "not_shared"),
        ({"at": -64}, "not fully named"),
        ({"at": 1 << 40}, "of "),
        ({"arrays": "stream/front|9,9999999"}, "of "),
        ({"arrays": "stream/front|1,48,64,3;stream/front|1,48,64,3"}, "twice"),
        ({"arrays": "stream/front|-1"}, "shape"),
        ({"arrays": "rows|4,1"}, "sent and in shared memory"),
        ({"arrays": "x"}, "announcement"),
        ({"arrays": ";".join(f"a{i}|999999999" for i in range(3))}, "at most"),
    ],
)
def test_whatever_is_named_only_named_errors_come_out(change: dict[str, object], words: str) -> None:
    lender = SharedMemoryWriter()
    said, rest = lender.write(asked(seen(1)))
    with pytest.raises((MessageError, NotShared)) as caught:
        SharedMemoryReader().fill(Message("act", 1, "me", body={**said, **change}, arrays=rest))
    assert words in f"{caught.value.code} {caught.value.line()}"
    lender.close()


def test_a_client_that_shares_nothing_sends_its_pictures(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    with server(f"ipc://{tmp_path}/policy") as address:
        client = RemoteClient(address, timeout_s=20)
        client.hello()
        assert client._shared_memory is not None
        rows = Rows.of_envs(300)  # for the small picture of this policy to be large
        streams = {"joint_pos": np.zeros((300, 4), np.float32), "camera": np.ones((300, 3, 3, 3), np.uint8)}
        here = client.act(Observation(rows, streams, np.zeros(300)), rows.noise_keys(0), "mean")
        assert client._shared_memory is not None
        monkeypatch.setattr(client._shared_memory._block, "_name", "1-1-" + "0" * 32)
        sent = client.act(Observation(rows, streams, np.zeros(300)), rows.noise_keys(0), "mean")
        assert client._shared_memory is None
        np.testing.assert_array_equal(here.actions, sent.actions)
        client.close()
