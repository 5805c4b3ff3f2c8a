import numpy as np
import pytest

from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import EmbodiedError, InfrastructureError, MessageError, SpecMismatch, WeightsRefused
from embodied.wire.codecs import (
    chunk_from_message,
    chunk_to_message,
    error_from_body,
    observation_from_arrays,
    observation_to_arrays,
)
from embodied.wire.message import Message, decode, encode


def observation() -> Observation:
    rows = Rows.of_envs(3)
    rows.episode[:] = (2**40, 1, 0)
    rows.step[:] = (4, 5, 6)
    streams = {"joint_pos": np.ones((3, 7), np.float32), "camera": np.zeros((3, 2, 2, 3), np.uint8)}
    return Observation(rows, streams, np.array([0.1, 0.2, 0.3]))


def chunk() -> ActionChunk:
    actions = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    return ActionChunk(Rows.of_envs(3), actions, -actions, np.full(3, np.nan, np.float32), np.array([7, 7, 8]), "lift")


def test_observation_round_trip() -> None:
    seen = observation()
    got = observation_from_arrays(decode(encode(Message("act", arrays=observation_to_arrays(seen)))).arrays)
    for name, array in {**seen.rows.arrays(), **seen.streams, "time": seen.time}.items():
        back = {**got.rows.arrays(), **got.streams, "time": got.time}[name]
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_chunk_round_trip() -> None:
    body, arrays = chunk_to_message(chunk())
    message = decode(encode(Message("act", body=body, arrays=arrays)))
    got = chunk_from_message(message.body, message.arrays)
    assert (got.policy, got.valid_s) == ("lift", float("inf"))
    for name in ("actions", "log_probs", "values", "versions"):
        np.testing.assert_array_equal(getattr(got, name), getattr(chunk(), name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", None),
        ("rows", np.zeros((2, 3), np.int32)),
        ("rows", np.zeros((3, 3), np.int64)),
        ("rows", np.zeros((4, 2), np.int32)),
        ("episode", np.zeros(3, np.int32)),
        ("time", np.zeros((3, 1))),
        ("stream/joint_pos", np.zeros((2, 7), np.float32)),
        ("stream/joint_pos", np.zeros((), np.float32)),
    ],
)
def test_observations_whose_rows_differ(name: str, value: np.ndarray | None) -> None:
    arrays = {**observation_to_arrays(observation()), name: value}
    with pytest.raises(MessageError):
        observation_from_arrays({k: v for k, v in arrays.items() if v is not None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actions", np.zeros((3, 8), np.float32)),
        ("actions", np.zeros((2, 2, 4), np.float32)),
        ("log_probs", np.zeros((3, 2, 5), np.float32)),
        ("values", np.zeros(3)),
        ("versions", np.zeros(3, np.int32)),
        ("valid_s", float("nan")),
        ("policy", 3),
    ],
)
def test_chunks_that_do_not_hold_together(name: str, value: object) -> None:
    body, arrays = chunk_to_message(chunk())
    with pytest.raises(MessageError):
        chunk_from_message({**body, name: value}, {**arrays, name: value})  # type: ignore[dict-item]


def test_errors_keep_their_class() -> None:
    for error in (SpecMismatch("a", "b", "c"), WeightsRefused("d"), EmbodiedError("e"), MessageError("f", "g")):
        back = error_from_body(error.to_dict())
        assert type(back) is type(error) and back.line() == error.line()
    assert type(error_from_body({"code": "news", "what": 3})) is InfrastructureError


def test_capture_times_of_streams_travel_with_their_stream() -> None:
    seen = observation()
    seen.times = {"joint_pos": np.array([0.5, 0.25, -1.0])}
    arrays = observation_to_arrays(seen)
    back = observation_from_arrays(arrays)
    assert back.times.keys() == {"joint_pos"} and back.times["joint_pos"].tolist() == [0.5, 0.25, -1.0]
    for name, value in (
        ("times/joint_pos", np.zeros(2)),
        ("times/joint_pos", np.zeros(3, np.float32)),
        ("times/nothing", np.zeros(3)),
    ):
        with pytest.raises(MessageError):
            observation_from_arrays({**arrays, name: value})
