"""A stored episode repeats bit for bit, and a changed option or code is named with the step where it shows."""

import dataclasses

import numpy as np
import pytest

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.store import EpisodeStore
from embodied.cli.compose import compose_config
from embodied.data import Outcome, Source
from embodied.errors import UserError
from embodied.evaluate.replay import replay_episode
from embodied.rewards.stage import TaskReward
from embodied.rollout.play import by_expert, play
from embodied.runs.parts import make_env
from embodied.runs.settings import Settings, typed
from embodied.spec import PolicySpec
from simulators.tasks.reach import Reach

RANDOMISED = [
    "randomise=default", "env.cameras=[wrist]", "env.pixels=16", "render=ray", "env.randomise.action_latency=[1,2]",
    "env.randomise.observation_latency=[0,2]",
]  # fmt: skip


def settings_of(*words):
    return typed(Settings, compose_config("train", ["task=reach", "env.num_threads=1", *words]))


def episodes_of(settings, folder, count=3):
    """Episodes of the expert, stored and read back."""
    env = make_env(settings.task, settings.env, count, settings.seed, autoreset=False)
    policy = PolicySpec("expert", env.spec.agents["robot"])
    played = play(
        env, by_expert(env, policy), np.arange(40, 40 + count), policy, id="0", mode="demonstration",
        source=Source.SCRIPT,
    )  # fmt: skip
    store = EpisodeStore(folder, keep=["all"])
    for episode in EpisodeAssembler(env.spec, 0).add(TaskReward("reach", "dense").score(played.segment)):
        store.add(episode)
    store.seal()
    return list(store.iterate())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return episodes_of(settings_of(), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def randomised(tmp_path_factory):
    return episodes_of(settings_of(*RANDOMISED), tmp_path_factory.mktemp("randomised"))


def test_episodes_repeat_bit_for_bit(plain, randomised):
    for episode in plain:
        assert episode.outcome == Outcome.SUCCESS
        found = replay_episode(settings_of(), episode)
        assert found.identical and found.hashed and (found.steps, len(found.streams)) == (len(episode), 7)
        assert found.lines() == [f"identical: {len(episode)} steps, 7 streams"]
    for episode in randomised:
        assert {"friction", "mass", "gains", "action_latency", "colour"} <= set(episode.drawn)
        found = replay_episode(settings_of(*RANDOMISED), episode)
        assert found.identical and "wrist_rgb" in found.streams, found.lines()


def test_an_episode_without_checksums_is_compared_by_its_streams(plain):
    track = dataclasses.replace(plain[0].agents["robot"], state_hash=None)
    found = replay_episode(settings_of(), dataclasses.replace(plain[0], agents={"robot": track}))
    assert found.identical and not found.hashed and "no checksums" in found.lines()[0]


def test_another_reward_is_named(plain):
    found = replay_episode(settings_of("task.reward=sparse"), plain[0])
    assert not found.identical and found.step == 0 and found.differs[0].startswith("the reward differs by")


def test_other_physics_is_named_with_its_step_and_streams(plain):
    found = replay_episode(settings_of("env.randomise.mass=[1.3,1.3]"), plain[0])
    assert found.start == ["mass was not drawn"] and found.step == 0
    assert any(what.startswith("joint_pos differs by") and what.endswith(" rad") for what in found.differs)
    assert found.lines()[1].startswith("diverges at step 0: ")


def test_other_looks_are_named_and_other_drawn_values(randomised):
    found = replay_episode(settings_of(*RANDOMISED, "env.randomise.colour=0.3"), randomised[0])
    assert found.start[0].startswith("colour differs by") and found.step == 0
    assert found.differs == [what for what in found.differs if what.startswith("wrist_rgb")]


@pytest.mark.parametrize("step", [0, 4])
def test_a_changed_state_is_found_in_the_step_it_changes(plain, step, monkeypatch):
    calls, update = [], Reach.update

    def changed(self, fields, memory):
        calls.append(1)
        if len(calls) == step + 1:
            fields["qpos"][:, 0] += 1e-12
        update(self, fields, memory)

    # A change too small for float32 streams shows in the checksum one step later, where the state went on from it.
    monkeypatch.setattr(Reach, "update", changed)
    found = replay_episode(settings_of(), plain[0])
    assert found.step == step + 1 and found.differs[0] in ("the state differs", "the applied control differs by 1e-12")
    assert found.lines()[0].startswith(f"diverges at step {step + 1}: ")


def test_an_episode_that_ends_otherwise_is_named(plain, monkeypatch):
    monkeypatch.setattr(Reach, "done", lambda self, fields, own: np.zeros(len(own), bool))
    found = replay_episode(settings_of("task.reward=sparse"), plain[0])
    assert found.step == 0
    sparse = dataclasses.replace(plain[0].agents["robot"], rewards=np.zeros(len(plain[0]), np.float32))
    found = replay_episode(settings_of("task.reward=sparse"), dataclasses.replace(plain[0], agents={"robot": sparse}))
    assert found.step == len(plain[0]) - 1 and found.differs == ["the outcome is running, was success"]


def test_a_start_that_differs_is_said_and_the_stored_one_used(plain):
    episode = dataclasses.replace(plain[0], seed=plain[0].seed + 1)
    found = replay_episode(settings_of(), episode)
    assert any(what.startswith("mocap_pos differs by") for what in found.start)
    assert found.step is None and found.lines()[1].startswith("identical: ")


def test_what_cannot_be_replayed_is_one_line(plain):
    robot = dataclasses.replace(plain[0], initial_state=np.zeros(0))
    with pytest.raises(UserError, match="no simulator state"):
        replay_episode(settings_of(), robot)
    with pytest.raises(UserError, match="state numbers"):
        replay_episode(settings_of("task=lift_cube"), plain[0])
    with pytest.raises(UserError, match="have 7 numbers, the task takes 3"):
        replay_episode(settings_of("task.control=ee_delta"), plain[0])
