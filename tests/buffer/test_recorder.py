import dataclasses
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
from embodied.buffer.layout import flat_name
from embodied.buffer.recorder import EpisodeRecorder, recover
from embodied.buffer.store import EpisodeStore
from embodied.data import Outcome, RewardStatus, Rule, Source
from embodied.episode import Episode
from embodied.errors import DataError, InfrastructureError
from embodied.spec import EnvSpec
from tests.buffer.samples import SPEC, STREAMS, assert_same, make_episode, run_faults


def start(folder: Path, episode: Episode) -> EpisodeRecorder:
    return EpisodeRecorder(
        folder, spec_of(episode), episode.id, mode=episode.mode, reward_version="sparse-1", seed=episode.seed,
        policies={name: track.policy for name, track in episode.agents.items()}, state=episode.initial_state,
        drawn=episode.drawn,
    )  # fmt: skip


def spec_of(episode: Episode) -> EnvSpec:
    return dataclasses.replace(SPEC, agents=dict.fromkeys(episode.agents, SPEC.agents["robot"]))


def play(recorder: EpisodeRecorder, episode: Episode, agent: str = "robot") -> Iterator[int]:
    """Record all steps of an agent; yields each once it is acknowledged."""
    track = episode.agents[agent]
    decided, executed = track.decided, track.action_executed
    requested = track.requested
    for t in range(len(track)):
        d = int(track.decision[t])
        while recorder.decisions[agent] <= d:
            n = recorder.decisions[agent]
            recorder.decide(
                track.actions[n], track.log_probs[n], track.values[n], track.versions[n], step=int(track.step[n]),
                agent=agent,
            )  # fmt: skip
        recorder.step(
            {name: value[t] for name, value in track.observations.items()},
            d,
            int(track.k[t]),
            track.applied[t],
            agent=agent,
            time=float("nan") if track.time is None else track.time[t],
            times={name: value[t] for name, value in track.times.items()},
            requested=None if np.array_equal(requested[t], decided[t], equal_nan=True) else requested[t],
            executed=None if executed is None or np.array_equal(executed[t], requested[t]) else executed[t],
            rule=Rule.NONE if track.action_rule is None else Rule(track.action_rule[t]),
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


def final(episode: Episode, agent: str = "robot") -> dict[str, np.ndarray]:
    return {name: value[-1] for name, value in episode.agents[agent].observations.items()}


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
    id = "arm-1/demonstration/0-0000-000000"
    episode = make_episode(0, id, mode="demonstration", outcome=Outcome.SUCCESS)
    recorder = start(tmp_path, episode)
    assert recover(tmp_path).episodes == []  # it is alive
    play_all(recorder, episode)
    assert recorder.close(Outcome.SUCCESS, final(episode)) == tmp_path / f"{flat_name(id)}.h5"
    assert [path.name for path in tmp_path.iterdir()] == ["arm-1~demonstration~0-0000-000000.h5"]
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
        recorder.step({}, 0, 0, np.zeros(3))
    recorder.abandon()
    with pytest.raises(DataError, match="no name"):
        EpisodeRecorder(tmp_path, SPEC, "../a", mode="train", policies={"robot": "mlp"})
    with pytest.raises(DataError, match="did you mean robot"):
        EpisodeRecorder(tmp_path, SPEC, "b", mode="train", policies={"robo": "mlp"})


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


def end(recorder: EpisodeRecorder, episode: Episode, agent: str) -> Path | None:
    track = episode.agents[agent]
    time = float("nan") if track.time is None else track.time[-1]
    times = {name: float(value[-1]) for name, value in track.times.items()}
    return recorder.close(track.outcome, final(episode, agent), time=time, times=times, agent=agent)


def two_arms() -> Episode:
    """Two agents of different lengths, outcomes and policies, with times and changed actions."""
    episode = make_episode(0, "cell-1/train/0-0000-000000", steps=8, agents=("left", "right"), timed=True, changed=True)
    short = make_episode(1, steps=5, timed=True, changed=True, outcome=Outcome.SUCCESS).agents["robot"]
    short.policy = "other"
    spec = spec_of(episode).to_dict()
    return dataclasses.replace(episode, agents={"left": episode.agents["left"], "right": short}, spec=spec)


def test_agents_end_at_different_steps_and_become_one_file(tmp_path: Path) -> None:
    episode = two_arms()
    recorder = start(tmp_path, episode)
    left, right = (play(recorder, episode, agent) for agent in ("left", "right"))
    for _ in zip(left, right, strict=False):
        pass
    assert end(recorder, episode, "right") is None
    with pytest.raises(DataError, match="not recorded, or has ended"):
        recorder.step({}, -1, -1, np.zeros(3), agent="right")
    with pytest.raises(DataError, match="no agent named"):
        recorder.step({}, -1, -1, np.zeros(3))
    list(left)
    path = end(recorder, episode, "left")
    assert path == tmp_path / "cell-1~train~0-0000-000000.h5"
    assert_same(EpisodeStore(tmp_path).read(episode.id), episode)


def test_an_agent_that_ended_before_a_kill_keeps_its_outcome(tmp_path: Path) -> None:
    episode = two_arms()
    recorder = start(tmp_path, episode)
    for agent in ("left", "right"):
        list(play(recorder, episode, agent))
    end(recorder, episode, "right")
    recorder.abandon()
    recover(tmp_path)
    read = EpisodeStore(tmp_path).read(episode.id)
    assert_same(read.agents["right"], episode.agents["right"])
    left = read.agents["left"]
    assert left.outcome == read.outcome == Outcome.INFRASTRUCTURE_FAULT and not left.trainable[-1]
    assert left.time is not None and np.isnan(left.time[-1]) and left.times["camera"][-2] < left.time[-2]


def test_an_answer_that_comes_late_is_the_decision_of_its_observation(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(tmp_path, SPEC, "a", mode="train", policies={"robot": "mlp"})
    seen = {name: value[0] for name, value in make_episode(0).agents["robot"].observations.items()}
    recorder.step(seen, -1, -1, np.zeros(3), executed=np.zeros(2, np.float32), rule=Rule.HOLD)
    recorder.step(seen, -1, -1, np.zeros(3), executed=np.zeros(2, np.float32), rule=Rule.HOLD)
    actions = np.arange(6, dtype=np.float32).reshape(3, 2)
    decision = recorder.decide(actions, np.zeros((3, 2), np.float32), 0.5, 7, step=0)
    recorder.step(seen, decision, 2, np.zeros(3))
    with pytest.raises(DataError, match="without a decision"):
        recorder.step(seen, 0, -1, np.zeros(3))
    recorder.close(Outcome.TIME_LIMIT, seen)
    track = EpisodeStore(tmp_path).read("a").agents["robot"]
    assert (track.decision.tolist(), track.k.tolist(), track.step.tolist()) == ([-1, -1, 0], [-1, -1, 2], [0])
    assert track.executed.tolist() == [[False, False, True]] and track.time is None
    np.testing.assert_array_equal(track.requested, [[np.nan] * 2, [np.nan] * 2, [4, 5]])
    assert track.action_rule is not None and track.action_rule.tolist() == [Rule.HOLD, Rule.HOLD, Rule.NONE]


def test_a_person_is_recorded_without_decisions(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(tmp_path, SPEC, "a", mode="demonstration", policies={"robot": "human"})
    seen = {name: value[0] for name, value in make_episode(0).agents["robot"].observations.items()}
    for n in range(3):
        asked = np.full(2, n, np.float32)
        recorder.step(seen, -1, -1, np.zeros(3), requested=asked, source=Source.HUMAN)
    recorder.close(Outcome.SUCCESS, seen)
    track = EpisodeStore(tmp_path).read("a").agents["robot"]
    assert track.actions.shape == (0, 1, 2) and track.requested.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_pictures_are_recorded_as_the_jpeg_files_that_came(tmp_path: Path) -> None:
    codec = pytest.importorskip("simplejpeg")
    pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    files = [codec.encode_jpeg(picture, 80) for picture in pictures]
    recorder = EpisodeRecorder(tmp_path, SPEC, "a", mode="train", policies={"robot": "mlp"})
    decision = recorder.decide(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32), 0.0, 1)
    for k in range(2):
        recorder.step({"camera": files[k]}, decision, k, np.zeros(3))
    recorder.close(Outcome.SUCCESS, {"camera": files[2]})
    track = EpisodeStore(tmp_path).read("a").agents["robot"]
    assert track.jpeg == {"camera": files} and track.observations["camera"].shape == (3, 16, 16, 3)


def test_a_journal_of_format_1_is_recovered(tmp_path: Path) -> None:
    episode = make_episode(0, "a", steps=3, chunk=3)
    track = episode.agents["robot"]
    writer = JournalWriter(tmp_path / "a.journal")
    meta = {"id": "a", "mode": "train", "policy": "mlp", "agent": "robot", "task": "reach", "seed": 1}
    writer.append("episode", meta | {"reward_version": "", "spec": SPEC.to_dict()}, {"state": np.zeros(0)})
    asked = {"value": 0.0, "version": 1, "seq": 0}
    writer.append("decision", asked, {"actions": track.actions[0], "log_probs": track.log_probs[0]})
    for k in range(3):
        meta = {"k": k, "decision": 0, "reward": 0.0, "reward_status": 0, "terminated": False, "truncated": False}
        meta |= {"source": 0, "trainable": True, "segment": ""}
        arrays = {f"obs/{name}": value[k] for name, value in track.observations.items()}
        writer.append("step", meta, arrays | {"applied": track.applied[k]})
    writer.close()
    assert recover(tmp_path).corrupt == []
    read = EpisodeStore(tmp_path).read("a").agents["robot"]
    assert (read.step.tolist(), read.policy, read.outcome) == ([0], "mlp", Outcome.INFRASTRUCTURE_FAULT)
    np.testing.assert_array_equal(read.applied, track.applied)


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
