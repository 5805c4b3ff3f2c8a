"""Demonstrations from a store: the same weights as from the expert, and one line for whatever does not fit."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied.buffer.consumed import read_consumed
from embodied.buffer.recorder import EpisodeRecorder
from embodied.buffer.store import EpisodeStore
from embodied.cli.compose import compose_config
from embodied.data import Outcome, Source
from embodied.errors import ConfigError, DataError, EmbodiedError, SpecMismatch, UserError
from embodied.learning.bc import BCConfig, BehaviourCloning
from embodied.monitor.summary import read_summary
from embodied.runtime.train import train
from embodied.spec import AgentSpec, EnvSpec, Stream
from embodied.train.demonstrations import stored
from embodied.weights.registry import Registry
from policies.base import Policy
from policies.film import FiLMPolicy
from policies.mlp import MLPPolicy

QUICK = [
    "evaluate.episodes=2", "evaluate.final_episodes=2", "render.episodes=0", "env.num_threads=1",
    "rollout.num_envs=2", "budget.env_steps=0", "warm_start.clone.steps=20",
]  # fmt: skip
AGENT = AgentSpec(
    (Stream("joint_pos", (3,), unit="rad"), Stream("front", (16, 16, 3), "uint8"),
     Stream("instruction", (16,), "uint8")),
    (Stream("delta", (2,), unit="m"),),
)  # fmt: skip


def run(*words: str) -> None:
    given = list(words)
    assert train(compose_config("train", given), given).is_dir()


def first_version(name: str) -> str:
    registry = Registry(Path("runs", name, "weights"))
    return registry.find(registry.policies()[0], 1).label


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `a` that cloned three demonstrations of the expert."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("task=reach", *QUICK, "warm_start.demonstrations=3", "name=a")
    return folder


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def test_the_store_gives_the_weights_that_the_expert_gave(at_home: Path) -> None:
    run("task=reach", *QUICK, "warm_start.episodes=a", "name=b")
    assert first_version("b") == first_version("a")
    folder = (at_home / "runs" / "a" / "episodes").resolve()
    shown = [s.id for s in EpisodeStore(folder).summary() if s.mode == "demonstration"]
    assert read_consumed(Path("runs/b/episodes"))[0].segments == tuple(f"{folder}/{id}" for id in shown)
    assert read_summary(Path("runs/b"))["origin"] == {"demonstrations": str(folder), "episodes": 3}
    assert read_summary(Path("runs/a"))["origin"] == {"demonstrations": "expert", "episodes": 3}


def test_a_folder_and_a_number_clone_alone(at_home: Path) -> None:
    shutil.copytree("runs/a/episodes", "copied", copy_function=shutil.copy)
    words = ["task=reach", "algo=bc", *QUICK[:-1], "algo.steps=20"]
    run(*words, "warm_start.episodes=copied", "warm_start.demonstrations=2", "name=c")
    run(*words, "warm_start.demonstrations=2", "name=d")
    assert first_version("c") == first_version("d") != first_version("a")
    assert len(read_consumed(Path("runs/c/episodes"))[0].segments) == 2


def test_latest_is_the_run_before_and_stays_so_when_resumed(at_home: Path) -> None:
    run("task=reach", *QUICK, "warm_start.demonstrations=2", "name=e")
    run("task=reach", *QUICK, "warm_start.episodes=latest", "name=f")
    assert first_version("f") == first_version("e")
    run("resume=f")
    assert read_summary(Path("runs/f"))["origin"]["demonstrations"] == str(Path("runs/e/episodes").resolve())


def test_pictures_and_words_come_from_the_store_too(at_home: Path) -> None:
    small = [
        "policy=film", "policy.channels=[4,8]", "policy.width=8", "policy.hidden=16", "policy.chunk=2",
        "env.cameras=[front]", "env.pixels=16", "warm_start.clone.steps=3", "warm_start.clone.batch=16",
    ]  # fmt: skip
    words = ["task=reach_color", *QUICK[:-1], *small]
    run(*words, "warm_start.demonstrations=2", "name=g")
    run(*words, "warm_start.episodes=g", "name=h")
    assert first_version("g") == first_version("h")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["warm_start.episodes=nothing"], "no run nothing"),
        (["warm_start.episodes=low_dim.hdf5"], "is no folder of episodes.*embodied-episodes-2 and embodied-episodes-1"),
        (["warm_start.episodes=lerobot"], r"holds no episodes \(\*\.h5\)"),
        (["algo=bc", "warm_start.episodes=a", "warm_start.clone.stepz=3"], "no setting stepz .*did you mean steps"),
        (["warm_start.clone.steps=many"], "steps cannot be 'many' .warm_start.clone.steps."),
        (["warm_start.episodes=a", "warm_start.demonstrations=4"], "3 successful episodes.*not 4.*demonstrations=3"),
        (["warm_start.episodes=a", "warm_start.memory_gb=1e-6"], "memory_gb"),
        (["warm_start.episodes=a", "warm_start.memory_gb=0"], "memory_gb"),
        (
            ["warm_start.episodes=a", "task=lift_cube"],
            r"needs stream \w+, which episode sim-0/demonstration/0-0001-5",
        ),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_no_run(at_home: Path, words: list[str], said: str) -> None:
    Path("low_dim.hdf5").write_bytes(b"\x89HDF")
    Path("lerobot").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=said) as error:
        run("task=reach", *QUICK, *words, "name=x")
    assert "\n" not in error.value.line()
    assert not Path("runs/x").exists()


def record(
    folder: Path,
    id: str,
    agent: AgentSpec = AGENT,
    source: Source = Source.HUMAN,
    outcome: Outcome = Outcome.SUCCESS,
    steps: int = 5,
    change: Callable[[dict[str, Any]], None] = lambda seen: None,
) -> None:
    """A robot's episode, in chunks of 3 of which 2 are executed."""
    rng = np.random.default_rng(len(id))
    recorder = EpisodeRecorder(
        folder, EnvSpec("robot_task", {"robot": agent}, 20.0), id, mode="train", policies={"robot": "human"}
    )  # fmt: skip
    text = np.frombuffer(b"reach".ljust(16, b"\0"), np.uint8)

    def look() -> dict[str, Any]:
        seen = {s.name: rng.integers(0, 200, s.shape).astype(s.dtype) for s in agent.observations}
        if "instruction" in seen:
            seen["instruction"] = text.copy()
        change(seen)
        return seen

    for t in range(steps):
        if t % 2 == 0:
            actions = rng.normal(size=(3, 2)).astype(np.float32)
            recorder.decide(actions, np.full((3, 2), np.nan, np.float32), float("nan"), 0)
        recorder.step(look(), t // 2, t % 2, np.zeros(0), source=source, terminated=t == steps - 1)
    recorder.close(outcome, look())


def film(**options: Any) -> FiLMPolicy:
    small = {"chunk": 2, "channels": (4, 8), "width": 8, "hidden": 16, "critic_hidden": (8,), "state": ["joint_pos"]}
    offered = AgentSpec((*AGENT.observations, Stream("object_pos", (3,))), AGENT.actions)
    return FiLMPolicy("film", offered, **(small | options))


def read(folder: Path, policy: Policy, count: int = 0, gb: float = 1.0, said: list[str] | None = None) -> list[str]:
    return [e.id for e in stored(folder, policy, count, gb * 1e9, (said if said is not None else []).append, "robot")]


def test_a_robots_recordings_are_learned_from_whatever_their_task_and_chunks(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        record(tmp_path, name)
    record(tmp_path, "by-policy", source=Source.POLICY)
    record(tmp_path, "failed", outcome=Outcome.FAILURE)
    policy = film(chunk=4)
    assert read(tmp_path, policy) == ["one", "three", "two"]
    assert read(tmp_path, policy, 2) == ["one", "three"]
    learner = BehaviourCloning(policy, BCConfig(steps=2, batch=8))
    metrics = learner.fit(stored(tmp_path, policy, 0, 1e9, print, "robot"))
    assert metrics["learner/samples"] == 3 * (4 + 4 + 3 + 2 + 1)


def test_episodes_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        record(tmp_path, name)
    opened: list[str] = []

    def noted(store: EpisodeStore, id: str) -> Any:
        opened.append(id)
        return real(store, id)

    real = EpisodeStore.read
    monkeypatch.setattr(EpisodeStore, "read", noted)
    episodes = stored(tmp_path, film(), 2, 1e9, print, "robot")
    assert opened == []
    next(episodes)
    assert opened == ["a"]
    assert [e.id for e in episodes] == ["b"] and opened == ["a", "b"]


def test_what_is_kept_is_bounded_and_how_many_fit_is_said(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        record(tmp_path, name)
    policy = film()
    each = 5 * (3 * 4 + 16 * 16 * 3 + 16 + 2 * (2 * 4 + 1))
    assert read(tmp_path, policy, gb=3 * each / 1e9) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match=r"2 demonstrations fit.*warm_start\.demonstrations=2"):
        read(tmp_path, policy, gb=(3 * each - 1) / 1e9)
    assert read(tmp_path, policy, 2, gb=2 * each / 1e9) == ["a", "b"]


def test_a_damaged_file_is_left_out_and_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path, name)
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data[:-9] + b"123456789")
    said: list[str] = []
    assert read(tmp_path, film(), said=said) == ["b"]
    assert len(said) == 1 and "a.h5" in said[0]


WIDER = AgentSpec(AGENT.observations, (Stream("delta", (3,), unit="m"),))


def changed(stream: str, **fields: Any) -> AgentSpec:
    return AgentSpec(
        tuple(replace(s, **fields) if s.name == stream else s for s in AGENT.observations), AGENT.actions
    )  # fmt: skip


def spoil(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(seen: dict[str, Any]) -> None:
        seen[name][...] = value

    return change


@pytest.mark.parametrize(
    ("recorded", "options", "error", "said"),
    [
        ({"agent": changed("front", name="wrist")}, {}, SpecMismatch, "needs stream front, which episode odd of "),
        ({"agent": changed("front", shape=(8, 8, 3))}, {}, SpecMismatch, r"front with shape.*episode odd"),
        ({"agent": changed("joint_pos", unit="deg")}, {}, SpecMismatch, r"joint_pos with unit.*episode odd"),
        (
            {"agent": AgentSpec(AGENT.observations, (Stream("delta", (3,), unit="m"),))},
            {},
            SpecMismatch,
            "episode odd.*delta",
        ),
        ({"change": spoil("joint_pos", np.nan)}, {}, DataError, "joint_pos of episode odd is not finite"),
        ({"change": spoil("instruction", 0)}, {}, DataError, "episode odd: the instruction holds no word"),
        ({}, {"critic": ["object_pos"]}, SpecMismatch, r"object_pos, which only the critic.*policy\.critic=\[\]"),
    ],
)
def test_an_episode_that_does_not_fit_is_named_with_its_stream(
    tmp_path: Path, recorded: dict, options: dict, error: type[EmbodiedError], said: str
) -> None:
    record(tmp_path, "odd", **recorded)
    with pytest.raises(error, match=said) as raised:
        read(tmp_path, film(**options))
    assert "\n" not in raised.value.line() and str(tmp_path) in raised.value.line()


def test_nothing_demonstrated_is_said(tmp_path: Path) -> None:
    record(tmp_path, "by-policy", source=Source.POLICY)
    with pytest.raises(UserError, match="no successful episodes were demonstrated"):
        read(tmp_path, MLPPolicy("mlp", AGENT))
