import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.journal import JournalWriter
from embodied.buffer.recorder import EpisodeRecorder, recover
from embodied.buffer.store import EpisodeStore
from embodied.data import Episode, Outcome, RewardStatus, Source
from embodied.errors import DataError, InfrastructureError
from tests.buffer.samples import SPEC, STREAMS, assert_same, make_episode, run_faults


def start(folder: Path, episode: Episode) -> EpisodeRecorder:
    return EpisodeRecorder(
        folder, SPEC, episode.id, mode=episode.mode, policy="mlp", reward_version="sparse-1", seed=episode.seed,
        state=episode.initial_state, drawn=episode.drawn,
    )  # fmt: skip


def play(recorder: EpisodeRecorder, episode: Episode) -> Iterator[int]:
    """Record all steps; yields each once it is acknowledged."""
    track = episode.agents["robot"]
    for t in range(len(track)):
        d = track.decision[t]
        if track.k[t] == 0:
            recorder.decide(track.actions[d], track.log_probs[d], track.values[d], track.versions[d])
        recorder.step(
            {name: value[t] for name, value in track.observations.items()},
            int(track.k[t]),
            track.applied[t],
            reward=track.rewards[t],
            reward_status=RewardStatus(track.reward_status[t]),
            terminated=track.terminated[t],
            truncated=track.truncated[t],
            source=Source(track.source[t]),
            trainable=track.trainable[t],
            segment=episode.segments[track.segment[t]],
        )
        yield t


def play_all(recorder: EpisodeRecorder, episode: Episode) -> None:
    assert list(play(recorder, episode)) == list(range(len(episode)))


def final(episode: Episode) -> dict[str, np.ndarray]:
    return {name: value[-1] for name, value in episode.agents["robot"].observations.items()}


def assert_prefix(read: Episode, episode: Episode, steps: int) -> None:
    """The episode's first steps, ended by a fault."""
    mine, theirs = read.agents["robot"], episode.agents["robot"]
    assert read.outcome == Outcome.INFRASTRUCTURE_FAULT and len(read) == steps
    assert mine.truncated[-1] and not mine.trainable[-1]
    np.testing.assert_array_equal(mine.trainable[:-1], theirs.trainable[: steps - 1])
    for name in ("decision", "k", "rewards", "reward_status", "applied", "source"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name)[:steps])
    np.testing.assert_array_equal(
        mine.actions[mine.decision, mine.k], theirs.actions[theirs.decision, theirs.k][:steps]
    )
    for spec in STREAMS:
        np.testing.assert_array_equal(mine.observations[spec.name][:-1], theirs.observations[spec.name][:steps])
        np.testing.assert_array_equal(mine.observations[spec.name][-1], theirs.observations[spec.name][steps - 1])


def test_a_closed_episode_is_one_file_and_no_journal(tmp_path: Path) -> None:
    episode = make_episode(0, "demonstration-0-0000-000000", mode="demonstration", outcome=Outcome.SUCCESS)
    recorder = start(tmp_path, episode)
    assert recover(tmp_path).episodes == []  # it is alive
    play_all(recorder, episode)
    assert recorder.close(Outcome.SUCCESS, final(episode)) == tmp_path / f"{episode.id}.h5"
    assert [path.name for path in tmp_path.iterdir()] == [f"{episode.id}.h5"]
    assert_same(EpisodeStore(tmp_path).read(episode.id), episode)
    with pytest.raises(DataError, match="stored already"):
        start(tmp_path, episode)


def test_an_episode_without_steps_leaves_nothing(tmp_path: Path) -> None:
    episode = make_episode(0, "a")
    assert start(tmp_path, episode).close(Outcome.HUMAN_STOP, final(episode)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_step_needs_a_decision_and_ids_are_names(tmp_path: Path) -> None:
    recorder = start(tmp_path, make_episode(0, "a"))
    with pytest.raises(DataError, match="without a decision"):
        recorder.step({}, 0, np.zeros(3))
    recorder.abandon()
    with pytest.raises(DataError, match="no name"):
        EpisodeRecorder(tmp_path, SPEC, "../a", mode="train", policy="mlp")


def test_a_journal_cut_anywhere_becomes_the_steps_before(tmp_path: Path) -> None:
    episode = make_episode(0, "a", steps=5, chunk=2)
    recorder = start(tmp_path / "whole", episode)
    play_all(recorder, episode)
    recorder.abandon()
    whole = tmp_path / "whole" / "a.journal"
    data = whole.read_bytes()
    lengths = []
    for size in [*range(0, len(data), 97), len(data) - 1, len(data)]:
        folder = tmp_path / "cut"
        folder.mkdir()
        (folder / "a.journal").write_bytes(data[:size])
        found = recover(folder)
        assert found.corrupt == []
        store = EpisodeStore(folder)
        lengths.append(0)
        if found.episodes:
            read = store.read("a")
            lengths[-1] = len(read)
            assert_prefix(read, episode, len(read))
        assert {path.suffix for path in folder.iterdir()} <= {".h5"}
        shutil.rmtree(folder)
    assert lengths == sorted(lengths) and set(lengths) == set(range(6))


def test_a_kill_between_the_end_and_the_file_keeps_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = make_episode(0, "a", outcome=Outcome.SAFETY_STOP)
    recorder = start(tmp_path, episode)
    play_all(recorder, episode)

    def full(*_: object) -> None:
        raise InfrastructureError("no disk space")

    monkeypatch.setattr("embodied.buffer.recorder.write_sealed", full)
    with pytest.raises(InfrastructureError):
        recorder.close(Outcome.SAFETY_STOP, final(episode))
    monkeypatch.undo()
    journal = (tmp_path / "a.journal").read_bytes()
    assert recover(tmp_path).episodes == [tmp_path / "a.h5"]
    assert_same(EpisodeStore(tmp_path).read("a"), episode)
    (tmp_path / "a.journal").write_bytes(journal)  # killed before the journal was removed
    assert recover(tmp_path).removed == [tmp_path / "a.journal"]
    assert_same(EpisodeStore(tmp_path).read("a"), episode)


def test_a_decision_that_no_step_executed_is_left_out(tmp_path: Path) -> None:
    episode = make_episode(0, "a", steps=3, chunk=3)
    recorder = start(tmp_path, episode)
    play_all(recorder, episode)
    recorder.decide(np.ones((3, 2), np.float32), np.ones((3, 2), np.float32), 0.0, 1)
    recorder.abandon()
    recover(tmp_path)
    assert len(EpisodeStore(tmp_path).read("a").agents["robot"].step) == 1


def test_journals_that_cannot_be_read_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(b"something else")
    writer = JournalWriter(tmp_path / "b.journal")
    writer.append("step", {}, {})
    writer.close()
    (tmp_path / ".tmp-c.h5.123").write_bytes(b"half")
    found = recover(tmp_path)
    assert [path.name for path, _ in found.corrupt] == ["a.journal.corrupt", "b.journal.corrupt"]
    assert found.removed == [tmp_path / ".tmp-c.h5.123"] and found.episodes == []
    assert all(reason and "\n" not in reason for _, reason in found.corrupt)
    assert recover(tmp_path).corrupt == [] and recover(tmp_path / "none").episodes == []


@pytest.mark.parametrize("moment", [1, 4, 9])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, moment: int) -> None:
    process = subprocess.Popen([sys.executable, __file__, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(moment)]
    time.sleep(0.003 * moment)
    process.send_signal(signal.SIGKILL)
    lines += [line.split() for line in process.stdout.read().splitlines() if line.endswith(".")]
    assert process.wait(10) == -signal.SIGKILL
    assert recover(tmp_path).corrupt == []
    store = EpisodeStore(tmp_path)
    assert store.verify() == []
    for id in {id for id, _, _ in lines}:
        acknowledged = max(int(steps) for other, steps, _ in lines if other == id)
        episode, read = make_episode(int(id[1:]), id, steps=6), store.read(id)
        if read.outcome == Outcome.INFRASTRUCTURE_FAULT:
            assert len(read) >= acknowledged
            assert_prefix(read, episode, len(read))
        else:
            assert_same(read, episode)


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    recover(folder / "episodes")
    number = len(list((folder / "episodes").glob("*.h5"))) if (folder / "episodes").exists() else 0
    episode = make_episode(number, f"e{number}", steps=3)
    recorder = start(folder / "episodes", episode)
    play_all(recorder, episode)
    recorder.close(episode.outcome, final(episode))


def check(folder: Path, outcome: str) -> None:
    store = EpisodeStore(folder / "episodes")
    assert store.verify() == []
    found = recover(folder / "episodes")
    assert found.corrupt == [] and store.verify() == []
    for read in store.iterate():
        episode = make_episode(int(read.id[1:]), read.id, steps=3)
        if read.outcome == Outcome.INFRASTRUCTURE_FAULT:
            assert_prefix(read, episode, len(read))
        else:
            assert_same(read, episode)
    if outcome not in ("done", "killed"):
        assert "InfrastructureError: no disk space" in outcome
    elif outcome == "done":
        assert store.summary()[-1].outcome == "failure"


def test_killed_before_every_file_operation(tmp_path: Path) -> None:
    assert run_faults(__file__, "calls", tmp_path) >= 10


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    run_faults(__file__, "limited", tmp_path, "0", "100", "2000", "3000")


if __name__ == "__main__":
    for n in range(1000):
        one = make_episode(n, f"e{n}", steps=6)
        recording = start(Path(sys.argv[1]), one)
        for step in play(recording, one):
            print(one.id, step + 1, ".", flush=True)
        recording.close(one.outcome, final(one))
