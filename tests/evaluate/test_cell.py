"""A cell of an evaluation: every seed once, however they are cut into batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied import noise
from embodied.client import LocalClient
from embodied.data import Outcome
from embodied.errors import ConfigError, SpecMismatch
from embodied.evaluate.cell import measure, split_names, split_of
from embodied.runs.parts import make_env, make_policy
from embodied.serving.versioned_policy import VersionedPolicy
from policies.mlp import MLPPolicy
from simulators.make import make_task
from simulators.randomise.ranges import Ranges
from simulators.replay import replay
from simulators.tabletop import decode_text

TASK = {"name": "reach_color", "reward": "sparse"}
BODY = {"_target_": "simulators.make.make_env", "num_threads": 1}
EYES = BODY | {"cameras": ["front"], "pixels": 16, "renderer": "ray"}
FILM = {"_target_": "policies.film.build", "name": "film", "channels": [8, 8], "width": 16, "hidden": 16}


class Noisy(MLPPolicy):
    """Its mode draws on its noise, as that of a policy that denoises its actions does."""

    def act(self, observation, noise_keys, mode):
        chunk = super().act(observation, noise_keys, mode)
        chunk.actions += 0.02 * noise.normal(noise_keys, chunk.actions[0].size).reshape(chunk.actions.shape)
        return chunk


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def noisy():
    policy = Noisy("noisy", make_task("reach_color").spec.agents["robot"], hidden=(8,))
    return LocalClient(VersionedPolicy(policy)), policy.spec


@pytest.fixture(scope="module")
def film():
    env = make_env(TASK, EYES, 1, 0)
    policy = make_policy(FILM, env.spec, 0)
    env.close()
    return LocalClient(VersionedPolicy(policy)), policy.spec


def same(a, b):
    assert a.actions_digest == b.actions_digest
    for name in ("seeds", "outcomes", "lengths", "returns"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_noise_follows_the_episode_not_the_batch(noisy):
    seeds = [7, 2**32 - 1, 2**32 + 7, 40, 41]
    whole = measure(*noisy, TASK, BODY, None, seeds, 3)
    assert whole.seeds.tolist() == seeds and whole.counted == 5
    same(whole, measure(*noisy, TASK, BODY, None, seeds, 3, batch=2))
    assert whole.actions_digest != measure(*noisy, TASK, BODY, None, seeds, 4).actions_digest
    backwards = measure(*noisy, TASK, BODY, None, seeds[::-1], 3, batch=3)
    assert np.array_equal(backwards.returns, whole.returns[::-1])


def test_pictures_of_what_is_randomised_follow_the_episode_too(film):
    env = EYES | {"randomise": {"friction": [0.7, 1.3], "sensor_noise": 0.01, "observation_latency": [0, 2]}}
    whole = measure(*film, TASK, env, "cameras", range(7), 0)
    same(whole, measure(*film, TASK, env, "cameras", range(7), 0, batch=3))
    assert whole.versions == [0]


def test_every_episode_has_an_outcome_and_failures_replay(noisy):
    cell = measure(*noisy, TASK, BODY, "wrong_instruction", range(100, 106), 0, batch=4, failures=5)
    assert sum(cell.counts.values()) == 6 and not (cell.outcomes == Outcome.RUNNING).any()
    failing = cell.seeds[cell.outcomes != Outcome.SUCCESS][:5]
    assert [failed.seed for failed in cell.failed] == failing.tolist()
    task = make_task("reach_color", said="other")
    for failed in cell.failed:
        states = replay(task.model, failed.initial_state, failed.applied, task.substeps, failed.drawn)
        assert len(states) == cell.lengths[cell.seeds == failed.seed][0] + 1
        start = task.initial_states(np.array([failed.seed]))
        assert failed.instruction == decode_text(task._sentences[start.drawn["sentence"][0]])


def test_what_cannot_be_measured_is_one_line(noisy, film):
    with pytest.raises(SpecMismatch, match="front_rgb"):
        measure(*film, TASK, BODY, None, [0], 0)
    with pytest.raises(SpecMismatch, match="red_pos"):
        measure(*noisy, {"name": "lift_cube"}, BODY, None, [0], 0)
    for seeds in ([], [1, 1]):
        with pytest.raises(ConfigError, match="each seed once"):
            measure(*noisy, TASK, BODY, None, seeds, 0)
    with pytest.raises(ConfigError, match="did you mean colours"):
        measure(*noisy, TASK, BODY, "colors", [0], 0)
    with pytest.raises(ConfigError, match=r"split wrong_instruction does not fit.* 'said' \(task.said\): leave"):
        measure(*noisy, {"name": "lift_cube"}, BODY, "wrong_instruction", [0], 0)
    with pytest.raises(ConfigError, match=r"^task reach_color has no option 'sed'"):
        measure(*noisy, TASK | {"sed": 1}, BODY, "wrong_instruction", [0], 0)


def test_splits_merge_into_task_and_body():
    assert set(split_names()) >= {"seen", "unseen_instructions", "wrong_instruction", "colours", "cameras"}
    env = BODY | {"randomise": {"friction": [0.7, 1.3], "colour": 0.05}}
    task, made = split_of("colours", TASK, env)
    assert task == TASK and made["randomise"]["friction"] == [0.7, 1.3]
    assert env["randomise"]["colour"] == 0.05 != made["randomise"]["colour"]
    assert split_of("colours", TASK, BODY | {"randomise": None})[1]["randomise"].keys() == {"colour"}
    assert split_of("wrong_instruction", TASK, BODY) == (TASK | {"said": "other"}, BODY)
    for name in ("seen", None):
        assert split_of(name, TASK, BODY) == (TASK, BODY)


def test_a_file_that_is_no_split_is_named(tmp_path, monkeypatch):
    (tmp_path / "split").mkdir()
    monkeypatch.setenv("EMBODIED_CONFIG_DIR", str(tmp_path))
    for text, said in (("policy: {a: 1}", "policy"), ("task: word", "task"), ("- a", "split"), ("a: [", "mend")):
        (tmp_path / "split" / "mine.yaml").write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            split_of("mine", TASK, BODY)
        assert "mine.yaml" in caught.value.line() and "\n" not in caught.value.line()


@settings(max_examples=20)
@given(st.sampled_from(["colours", "cameras"]), st.integers(0, 2**32))
def test_unseen_appearances_lie_outside_what_default_randomisation_draws(split, seed):
    from omegaconf import OmegaConf

    from embodied.search_path import CONFIGS
    from simulators.randomise.draw import draw

    trained = OmegaConf.load(CONFIGS / "randomise" / "default.yaml").randomise
    ranges = Ranges.read(split_of(split, TASK, BODY)[1]["randomise"])
    drawn = draw(ranges, make_task("reach_color").model, np.array([seed]), images=True)
    assert drawn
    for name, values in drawn.items():
        assert np.abs(values).min() >= trained[name]
