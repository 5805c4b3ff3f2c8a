import json
from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.consumed import NAME, Consumed, read_consumed, record_consumed
from embodied.buffer.store import EpisodeStore
from embodied.buffer.trace import trace
from embodied.errors import UserError
from tests.buffer.samples import make_episode


def test_updates_are_read_back_and_torn_lines_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    assert read_consumed(folder) == []
    record_consumed(folder, 1, 2, ["0-000001"])
    with (folder / NAME).open("ab") as file:
        file.write(b'{"update": 2, "versi')
    assert [entry.update for entry in read_consumed(folder)] == [1]
    record_consumed(folder, 2, 3, ["0-000002", "0-000003"])
    assert read_consumed(folder) == [Consumed(1, 2, ("0-000001",)), Consumed(2, 3, ("0-000002", "0-000003"))]


@pytest.mark.parametrize("line", ["[]", "{}", "7", '{"update": "x", "version": 1, "segments": []}', "\x00\xff"])
def test_lines_that_are_no_updates_are_skipped(tmp_path: Path, line: str) -> None:
    (tmp_path / NAME).write_text(line + "\n")
    record_consumed(tmp_path, 1, 2, [])
    assert read_consumed(tmp_path) == [Consumed(1, 2, ())]


def test_an_episode_is_traced_to_its_versions_and_updates(tmp_path: Path) -> None:
    episode = make_episode(0, "a", steps=6, chunk=2)
    track = episode.agents["robot"]
    track.versions[:] = [3, 3, 5]
    track.reward_status[:] = [0, 0, 0, 0, 1, 2]
    track.source[:] = [0, 0, 0, 0, 1, 1]
    track.trainable[:] = [1, 1, 1, 1, 0, 0]
    track.log_probs[:] = 0
    track.log_probs[0, 0] = np.nan
    store = EpisodeStore(tmp_path, keep=["all"])
    store.add(episode)
    store.seal()
    for update, segments in enumerate((["0-000000"], ["0-000001", "other"], ["0-000002"])):
        record_consumed(tmp_path, update, update + 10, segments)
    traced = trace(store, "a")
    assert json.loads(json.dumps(traced)) == traced
    assert traced["updates"] == [
        {"update": 1, "version": 11, "segments": ["0-000001"]},
        {"update": 2, "version": 12, "segments": ["0-000002"]},
    ]
    robot = traced["agents"]["robot"]
    assert robot["versions"] == [
        {"version": 3, "decisions": 2, "steps": 4},
        {"version": 5, "decisions": 1, "steps": 2},
    ]
    assert robot["reward"]["status"] == {"scored": 4, "pending": 1, "failed": 1}
    assert robot["reward"]["version"] == "sparse-1"
    assert robot["reward"]["sum"] == pytest.approx(float(track.rewards[:4].sum()), rel=1e-6)
    assert robot["sources"] == {"policy": 4, "human": 2}
    assert robot["log_probs"] == {"policy": "mlp", "finite_share": pytest.approx(5 / 6)}
    assert robot["trainable_steps"] == 4
    assert (traced["seed"], traced["outcome"], traced["steps"]) == (episode.seed, "failure", 6)


def test_an_unknown_episode_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no episode a"):
        trace(EpisodeStore(tmp_path), "a")
