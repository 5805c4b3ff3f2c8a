"""The remote client against a server in another process: JPEG, several questions at once, deadlines, restarts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.client import RemoteClient
from embodied.data import ActionChunk, Observation
from embodied.errors import DeadlineExceeded, MessageError, SpecMismatch, UserError
from tests.client.camera_server import PICTURE, SPEC, checksums, kill, observation, start


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"ipc://{tmp_path_factory.mktemp('server')}/policy"
    process = start(address)
    yield address
    kill(process)


def act(client: RemoteClient, seen: Observation, deadline_s: float | None = None) -> ActionChunk:
    return client.act(seen, seen.rows.noise_keys(0), "mean", deadline_s)


def test_the_policy_decides_on_the_pixels_left_in_the_observation(address: str) -> None:
    client = RemoteClient(address, 20.0, jpeg={"front": 80})
    for greeted in (False, True):
        if greeted:
            assert client.hello() == SPEC and client.served_as == "looker"
        seen = observation(3, step=5)
        raw = seen.streams["front"]
        before = raw.copy()
        chunk = act(client, seen)
        np.testing.assert_array_equal(chunk.actions[:, 0, 0], checksums(seen.streams["front"]))
        assert (seen.streams["front"] != raw).any() and (raw == before).all()
        nobody = act(client, seen.take(np.zeros(0, np.int64)))
        assert nobody.actions.shape == (0, 2, 1)
    client.close()


def test_what_is_no_picture_is_not_sent_as_one(address: str) -> None:
    with pytest.raises(UserError, match=r"takes no stream frnt.*did you mean front"):
        RemoteClient(address, 20.0, jpeg={"frnt": 90}).hello()
    with pytest.raises(SpecMismatch, match="only colour pictures"):
        RemoteClient(address, 20.0, jpeg={"takes": 90}).hello()
    for quality in (0, 101, True, 90.0):
        with pytest.raises(UserError, match="give 1 to 100"):
            RemoteClient(address, jpeg={"front": quality})  # type: ignore[dict-item]
    client, seen = RemoteClient(address, 20.0, jpeg={"front": 90}), observation(1)
    seen.streams["front"] = np.zeros((1, 12, 32, 3), np.uint8)
    with pytest.raises(MessageError, match=f"12 x 32 pixels, the policy takes {PICTURE[0]} x {PICTURE[1]}"):
        act(client, seen)


def test_several_questions_at_once(address: str) -> None:
    client = RemoteClient(address, 20.0, priority="robot")
    client.hello()
    asked = []
    for step in range(4):
        seen = observation(1, step)
        asked.append(client.submit(seen, seen.rows.noise_keys(0), "mean"))
    assert asked[2].result().rows.step.tolist() == [2]
    while not asked[0].done():
        pass
    assert asked[0].result(0.0).actions[0, 1, 0] == 0 and asked[0].result() is asked[0].result()
    asked[1].cancel()
    assert asked[1].done()
    with pytest.raises(ValueError, match="not in flight"):
        asked[1].result()
    assert asked[3].result().rows.step.tolist() == [3] and asked[3].done()


def test_an_answer_that_would_come_too_late(address: str) -> None:
    client, slow = RemoteClient(address, 20.0, priority="robot"), observation(1, 1, takes=0.4)
    client.hello()
    with pytest.raises(DeadlineExceeded):
        act(client, slow, deadline_s=0.1)
    pending = client.submit(slow, slow.rows.noise_keys(0), "mean")
    assert not pending.done()
    with pytest.raises(DeadlineExceeded) as caught:
        pending.result(0.01)
    assert caught.value.request is None
    assert pending.result().rows.step.tolist() == [1]
    assert act(client, observation(1, 2)).rows.step.tolist() == [2]  # not the late answer to another question


def test_questions_outlive_a_killed_server(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/policy"
    process = start(address)
    client = RemoteClient(address, 60.0, jpeg={"front": 80})
    client.hello()
    asked, seen = [], [observation(1, step, takes=0.3) for step in range(3)]
    for one in seen:
        asked.append(client.submit(one, one.rows.noise_keys(0), "mean"))
    kill(process)
    process = start(address)
    for one, pending in zip(seen, asked, strict=True):
        np.testing.assert_array_equal(pending.result().actions[:, 0, 0], checksums(one.streams["front"]))
    client.close()
    kill(process)


def test_what_the_server_says_of_itself(address: str) -> None:
    client = RemoteClient(address, 20.0, policy="looker")
    client.hello()
    assert client.status(follow={"name": "arm", "serving": ""})["policy"] == "looker" and client.build == {}
    with pytest.raises(UserError):
        client.set_active("held")
    with pytest.raises(UserError, match="another"):
        RemoteClient(address, 20.0, policy="another").hello()
