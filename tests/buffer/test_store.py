import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.buffer.recorder import recover
from embodied.buffer.retention import RULES
from embodied.buffer.shards import ShardWriter
from embodied.buffer.store import EpisodeStore
from embodied.buffer.summary import summarise
from embodied.data import Outcome
from embodied.errors import ConfigError, CorruptFile, DataError, InfrastructureError, UserError
from tests.buffer.samples import assert_same, make_episode, run_faults


def fill(store: EpisodeStore, mode: str, shards: int, each: int = 2, first: int = 0) -> list[str]:
    ids = []
    for shard in range(shards):
        for number in range(each):
            ids.append(f"sim-0/{mode}/0-{first + shard:04d}-{number:06d}")
            assert store.add(make_episode(len(ids), ids[-1], mode=mode))
        [path] = store.seal()
        os.utime(path, ns=(10**9 * (first + shard), 10**9 * (first + shard)))
    store.refresh()
    return ids


def test_what_is_sealed_is_read_listed_and_iterated(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "episodes", keep=["all"])
    assert (len(store), store.ids(), store.seal(), store.corrupt, list(store.iterate())) == (0, [], [], [], [])
    episodes = {
        "a": make_episode(1, "a", mode="evaluation", outcome=Outcome.SUCCESS),
        "b": make_episode(2, "b", mode="train"),
        "c": make_episode(3, "c", mode="evaluation"),
    }
    for episode in episodes.values():
        store.add(episode)
    assert len(EpisodeStore(tmp_path / "episodes")) == 0
    assert [path.name for path in store.seal()] == ["shard-0-000000.h5", "shard-0-000001.h5"]
    reader = EpisodeStore(tmp_path / "episodes")
    assert sorted(reader.ids()) == ["a", "b", "c"] and len(reader) == 3
    assert {s.id: s for s in reader.summary()} == {id: summarise(e) for id, e in episodes.items()}
    for id, episode in episodes.items():
        assert_same(reader.read(id), episode)
    assert [e.id for e in reader.iterate(mode="evaluation")] == ["a", "c"]
    assert [e.id for e in reader.iterate(outcome="success")] == ["a"]
    assert reader.verify() == []
    with pytest.raises(UserError, match="did you mean") as caught:
        reader.read("aa")
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ([], ""),
        (["evaluation"], "eE"),
        (["demonstration"], "dD"),
        (["failure"], "etd"),
        (["success"], "ETD"),
        (["evaluation", "failure"], "eEtd"),
        (["all"], "eEtTdD"),
    ],
)
def test_rules_say_what_is_kept(tmp_path: Path, keep: list[str], kept: str) -> None:
    store = EpisodeStore(tmp_path, keep=keep)
    for name in "eEtTdD":
        mode = {"e": "evaluation", "t": "train", "d": "demonstration"}[name.lower()]
        outcome = Outcome.SUCCESS if name.isupper() else Outcome.TIME_LIMIT
        assert store.add(make_episode(0, name, mode=mode, outcome=outcome)) == (name in kept)
    store.seal()
    assert set(store.ids()) == set(kept)


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean evaluation"):
        EpisodeStore("nowhere", keep=["evalution"])
    assert not Path("nowhere").exists() and len(RULES) == 5


def test_shards_fill_by_count_and_by_bytes(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 7, max_episodes=2)
    assert writer.add(make_episode(0, "a")) is None
    assert writer.add(make_episode(0, "b")) == tmp_path / "shard-7-000000.h5"
    assert ShardWriter(tmp_path, 7, max_bytes=1).add(make_episode(0, "c")) == tmp_path / "shard-7-000001.h5"
    assert EpisodeStore(tmp_path).ids() == ["a", "b", "c"]


def test_an_episode_that_is_sent_again_is_acknowledged_and_another_of_its_id_refused(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, keep=["all"])
    store.add(make_episode(0, "a"))
    for _ in range(2):
        assert store.add(make_episode(0, "a"))
        with pytest.raises(DataError, match="another episode is stored as a"):
            store.add(make_episode(1, "a"))
        store.seal()
    assert EpisodeStore(tmp_path, keep=["all"]).add(make_episode(0, "a"))
    with pytest.raises(DataError, match="another episode"):
        EpisodeStore(tmp_path, keep=["all"]).add(make_episode(1, "a"))
    assert store.ids() == ["a"]


def test_the_oldest_training_shards_make_room(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, keep=["all"])
    fill(store, "evaluation", 1)
    training = fill(store, "train", 3, first=1)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.h5"))
    limited = EpisodeStore(tmp_path, keep=["all"], quota_bytes=size + 400)
    fill(limited, "train", 1, first=9)
    assert training[0] not in limited.ids() and training[2] in limited.ids()
    fill(limited, "demonstration", 3, first=10)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.h5")) <= size + 400
    assert {summary.mode for summary in limited.summary()} == {"evaluation", "demonstration"}


def test_eviction_takes_training_then_evaluations_then_demonstrations_and_never_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = EpisodeStore(tmp_path, keep=["all"])
    shown, evaluated = fill(store, "demonstration", 1), fill(store, "evaluation", 2, first=1)
    training = fill(store, "train", 1, first=3)
    recording = tmp_path / "robot~train~0-0000-000000.h5"
    recorded = ShardWriter(tmp_path, 9, max_episodes=1).add(make_episode(0, "r"))
    assert recorded is not None
    recorded.rename(recording)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.h5"))
    limited = EpisodeStore(tmp_path, keep=["all"], quota_bytes=size + 400)

    def stored_after(mode: str, name: str) -> set[str]:
        for number in range(2):
            assert limited.add(make_episode(number, f"{name}{number}", mode=mode))
        limited.seal()
        return set(limited.ids())

    shown.append("r")  # a recording stays
    assert stored_after("evaluation", "a") == {*shown, *evaluated, "a0", "a1"}
    assert stored_after("train", "b") == {*shown, *evaluated, "a0", "a1"}  # training never evicts evaluations
    assert "episodes of mode train are not stored" in caplog.text and training[0] not in limited.ids()
    assert stored_after("evaluation", "c") == {*shown, *evaluated[2:], "a0", "a1", "c0", "c1"}
    for name in "def":
        stored_after("demonstration", name)
    assert stored_after("demonstration", "g") == {"r", "d0", "d1", "e0", "e1", "f0", "f1", "g0", "g1"}
    assert stored_after("evaluation", "h") == set(limited.ids()) and "h0" not in limited.ids()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.h5")) <= size + 400


def test_shards_are_small_beside_the_quota(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, keep=["all"], quota_bytes=100_000)
    for number in range(60):
        store.add(make_episode(number, f"e{number}", mode="evaluation"))
    store.seal()
    assert "e59" in store.ids() and "e0" not in store.ids()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.h5")) <= 100_000


def test_what_is_corrupt_is_reported_and_hides_nothing_else(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, keep=["all"])
    ids = fill(store, "train", 4)
    head, env, stays, gone = sorted(tmp_path.glob("*.h5"))
    head.write_bytes(head.read_bytes()[:1000])
    data = bytearray(env.read_bytes())
    data[-200] ^= 1
    env.write_bytes(bytes(data))
    (tmp_path / "other.h5").write_bytes(b"no HDF5")
    gone.unlink()
    reader = EpisodeStore(tmp_path)
    assert [path for path, _ in reader.corrupt] == [tmp_path / "other.h5", head]
    assert [e.id for e in reader.iterate()] == ids[4:6]
    assert {path for path, _ in reader.corrupt} == {head, tmp_path / "other.h5", env}
    assert reader.ids() == ids[4:6]
    other = EpisodeStore(tmp_path)
    with pytest.raises(CorruptFile, match=env.name):
        other.read(ids[2])
    assert {path for path, _ in other.verify()} == {head, tmp_path / "other.h5", env}
    # Unreadable files are never deleted to make room.
    tight = EpisodeStore(tmp_path, keep=["all"], quota_bytes=1)
    assert tight.add(make_episode(0, "x")) and not tight.seal()
    assert head.exists() and stays.exists()


def test_a_reader_beside_a_writer_sees_whole_shards_only(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, __file__, str(tmp_path), "30"], stdout=subprocess.PIPE, text=True)
    reader = EpisodeStore(tmp_path)
    seen = 0
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        ids = reader.ids()
        assert len(ids) >= seen and len(ids) % 3 == 0
        assert [episode.id for episode in reader.iterate()][: len(ids)] == ids
        seen = len(ids)
        assert reader.corrupt == []
    assert process.wait(10) == 0
    assert process.stdout is not None and reader.ids() == process.stdout.read().split()


# Work and checks for tests/faults.py, which runs them in processes that die.


def work(folder: Path) -> None:
    recover(folder / "episodes")
    store = EpisodeStore(folder / "episodes", keep=["all"])
    first = len(store)
    for number in range(first, first + 3):
        store.add(make_episode(number, f"e-{number}", steps=3))
        store.seal()
        with (folder / "acknowledged").open("a") as file:
            file.write(f"e-{number}\n")


def check(folder: Path, outcome: str) -> None:
    done = folder / "acknowledged"
    acknowledged = done.read_text().split() if done.exists() else []
    store = EpisodeStore(folder / "episodes")
    assert store.verify() == []
    ids = store.ids()
    assert set(acknowledged) <= set(ids) and len(set(ids)) == len(ids)
    for id in ids:
        assert_same(store.read(id), make_episode(int(id[2:]), id, steps=3))
    if outcome not in ("done", "killed"):
        assert "InfrastructureError: no disk space" in outcome
        assert not ids and not list((folder / "episodes").iterdir())


def test_killed_before_every_file_operation(tmp_path: Path) -> None:
    assert run_faults(__file__, "calls", tmp_path) >= 10


def test_killed_at_random_moments(tmp_path: Path) -> None:
    assert run_faults(__file__, "random", tmp_path, "10") > 0


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    run_faults(__file__, "limited", tmp_path, "0", "100", "600", "9000")


def test_on_a_full_file_system_episodes_wait_until_there_is_room(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount a small file system")
    try:
        ballast = tmp_path / "ballast"
        ballast.write_bytes(b"x" * 250_000)
        store = EpisodeStore(tmp_path / "episodes", keep=["all"])
        store.add(make_episode(1, "a"))
        with pytest.raises(InfrastructureError, match="no disk space") as caught:
            store.seal()
        assert "\n" not in caught.value.line() and list((tmp_path / "episodes").iterdir()) == []
        ballast.unlink()
        store.seal()
        assert_same(EpisodeStore(tmp_path / "episodes").read("a"), make_episode(1, "a"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


if __name__ == "__main__":
    written = EpisodeStore(sys.argv[1], keep=["all"], max_episodes=3)
    for n in range(int(sys.argv[2])):
        written.add(make_episode(n, f"e-{n:02d}"))
        print(f"e-{n:02d}")


@pytest.mark.parametrize("share", [0.3, 0.73, 0.99])
def test_a_truncated_shard_gives_the_episodes_before_the_cut(tmp_path: Path, share: float) -> None:
    store = EpisodeStore(tmp_path, keep=["all"])
    episodes = [make_episode(n, f"sim-0/train/0-{n:04d}-000000", steps=40) for n in range(20)]
    for episode in episodes:
        store.add(episode)
    [path] = store.seal()
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    reader = EpisodeStore(tmp_path)
    [(_, reason)] = reader.corrupt
    count = len(reader)
    assert 20 * share - 6 < count < 20 and f"{count} of 20 episodes are whole" in reason
    assert reader.ids() == [episode.id for episode in episodes[:count]]
    for read, episode in zip(reader.iterate(), episodes, strict=False):
        assert_same(read, episode)
    assert_same(reader.read(episodes[0].id), episodes[0])
    with pytest.raises(CorruptFile, match=rf"{episodes[-1].id} is not whole.*{path.name}"):
        reader.read(episodes[-1].id)


def test_order_depends_on_names_alone(tmp_path: Path) -> None:
    for attempt in (10, 2):
        ShardWriter(tmp_path, attempt, max_episodes=1).add(make_episode(0, f"a{attempt}"))
    assert EpisodeStore(tmp_path).ids() == ["a2", "a10"]
