"""Two agents with different streams, policies, chunks and ends: simulator, segments, disk and back."""

import json
from pathlib import Path

import numpy as np
import pytest

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.store import EpisodeStore
from embodied.cli.episodes import main
from embodied.data import ActionChunk, Observation, Outcome, Segment
from embodied.episode import Episode
from embodied.errors import UserError
from embodied.evaluate.replay import compare
from embodied.monitor.timing import Stopwatch
from embodied.rollout.collector import Assignment, Collector
from embodied.spec import PolicySpec
from simulators.randomise.ranges import Ranges
from tests.buffer.samples import assert_same
from tests.simulators.two_agents import AGENTS, make

COUNT, LIMIT, FIRST = 6, 20, 10
CHUNKS = {"slider": 3, "crane": 4}
EXECUTE = {"slider": 2, "crane": 4}
RANGES = {"action_latency": (0, 2), "observation_latency": (0, 1)}


class WavesClient:
    """A policy of waves, beyond the actions' limits at times; `version` counts its answers."""

    def __init__(self, policy: PolicySpec) -> None:
        self.policy, self.version = policy, 0
        self.ended: list[Outcome] = []

    def act(self, seen: Observation, keys: np.ndarray, mode: str) -> ActionChunk:
        self.version += 1
        count, (k, d) = len(seen.rows), (self.policy.chunk, self.policy.agent.action_dim)
        phase = (
            (seen.rows.env % 5)[:, None, None] + seen.rows.step[:, None, None] + np.arange(k)[:, None] + np.arange(d)
        )
        slope = np.where(seen.rows.env % 3 == 0, 1.0, 0.1)[:, None, None]
        actions = (2.5 * np.sin(phase / 9) * slope + slope).astype(np.float32)
        versions = np.full(count, self.version, np.int64)
        return ActionChunk(seen.rows, actions, -actions, actions[:, 0, 0].copy(), versions, self.policy.name)

    def outcome(self, rows: object, outcomes: np.ndarray, versions: object) -> None:
        self.ended += outcomes.tolist()


def collect(randomised: bool, segments: int = 6) -> tuple[list[Segment], dict[str, WavesClient]]:
    env = make(COUNT, seed=4, limit=LIMIT, first=FIRST, randomise=Ranges(**RANGES) if randomised else None)
    clients = {
        name: WavesClient(PolicySpec(f"{name}-policy", AGENTS[name], CHUNKS[name], EXECUTE[name])) for name in AGENTS
    }
    assigned = [Assignment(client, client.policy, [name]) for name, client in clients.items()]
    collector = Collector(env, assigned, 7, seed=0, attempt=2, watch=Stopwatch(), origin="sim-1")
    return [segment for _ in range(segments) for segment in collector.collect()], clients


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "randomised"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path, list[Episode]]:
    """Whether it is randomised, the run's folder, and its episodes as they were assembled."""
    sent, clients = collect(request.param)
    assert any(segment.carried is not None for segment in sent)
    assembler, episodes = EpisodeAssembler(make(1).spec, 0), list[Episode]()
    # The crane's segments come one behind the slider's, each of them twice.
    slider, crane = sent[::2], sent[1::2]
    order = [slider[0], *(each for pair in zip(slider[1:], crane[:-1], strict=True) for each in pair), crane[-1]]
    for segment in (each for each in order for _ in range(2)):
        episodes += assembler.add(segment)
    assert assembler.dropped == 0
    for name, client in clients.items():
        ended = [episode.agents[name].outcome for episode in episodes]
        assert len(set(ended)) > 1 and not set(ended) - set(client.ended)
    run = tmp_path_factory.mktemp("two") / "run"
    store = EpisodeStore(run / "episodes", keep=["all"])
    for episode in episodes:
        assert store.add(episode) and store.add(episode)
    store.seal()
    (run / "attempt.json").write_text('{"attempts": 1}')
    return request.param, run, episodes


def test_every_track_comes_back_from_disk_equal(world: tuple[bool, Path, list[Episode]]) -> None:
    _, run, episodes = world
    store = EpisodeStore(run / "episodes")
    assert len(store) == len(episodes) > COUNT
    lengths = set()
    for episode in episodes:
        origin, mode, name = episode.id.split("/")
        attempt, env, _ = map(int, name.split("-"))
        assert (origin, mode, attempt) == ("sim-1", "train", 2) and FIRST <= env < FIRST + COUNT
        assert_same(store.read(episode.id), episode)
        assert list(episode.agents) == ["slider", "crane"]
        for name, track in episode.agents.items():
            assert track.policy == f"{name}-policy" and track.outcome != Outcome.RUNNING
            assert track.observations.keys() == {stream.name for stream in AGENTS[name].observations}
            # A decision every EXECUTE steps, whatever the ends of segments: none is doubled or cut.
            np.testing.assert_array_equal(track.step, np.arange(0, len(track), EXECUTE[name]))
            np.testing.assert_array_equal(track.k, np.arange(len(track)) % EXECUTE[name])
            np.testing.assert_array_equal(track.log_probs, -track.actions)
        lengths.add(tuple(len(track) for track in episode.agents.values()))
    assert any(slider != crane for slider, crane in lengths)


def test_every_track_replays_exactly(world: tuple[bool, Path, list[Episode]]) -> None:
    randomised, run, _ = world
    env = make(1, limit=LIMIT, first=3, randomise=Ranges(**RANGES) if randomised else None)
    env.autoreset = False
    changed = 0
    for episode in EpisodeStore(run / "episodes").iterate():
        found = compare(env, episode)
        assert found.identical and found.hashed, (episode.id, found.lines())
        assert found.steps == len(episode) and found.agents == ["slider", "crane"] and len(found.streams) == 5
        changed += sum(track.action_executed is not None for track in episode.agents.values())
    assert changed, "no action was clipped"
    other = next(EpisodeStore(run / "episodes").iterate())
    other.agents["crane"].observations["position"][3] += 1
    found = compare(env, other)
    assert (found.step, found.differs) == (2, ["crane: position differs by 1 m"])
    del other.agents["slider"]
    with pytest.raises(UserError, match="has the agents crane, the task slider, crane"):
        compare(env, other)


def test_commands_show_both_tracks(world: tuple[bool, Path, list[Episode]], capsys: pytest.CaptureFixture[str]) -> None:
    _, run, episodes = world
    assert main(["show", episodes[0].id, f"run={run}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["agents"]
    for name, track in episodes[0].agents.items():
        assert shown[name]["steps"] == len(track) and shown[name]["policy"] == f"{name}-policy"
        assert shown[name]["outcome"] == track.outcome.name.lower()
        assert set(shown[name]["observations"]) == {stream.name for stream in AGENTS[name].observations}
        assert shown[name]["times"].endswith("20 steps per second")
    assert main(["ls", f"run={run}", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all([t["agent"] for t in line["tracks"]] == ["slider", "crane"] for line in listed)
