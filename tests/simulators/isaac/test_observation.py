"""Observation terms: noise, then clip, then scale, then history; groups."""

import pytest
import torch

from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac.cfg import ModifierCfg
from simulators.isaac.configclass import configclass
from simulators.isaac.envs import ManagerBasedRLEnv
from simulators.isaac.managers import ManagerTermBase, ObservationGroupCfg, ObservationTermCfg
from simulators.isaac.utils.noise import (
    AdditiveGaussianNoiseCfg,
    AdditiveUniformNoiseCfg,
    ConstantNoiseCfg,
    Gnoise,
    NoiseCfg,
    Unoise,
)
from tests.simulators.isaac.toys import ToyCfg, joint_pos


def count(env) -> torch.Tensor:
    return env.episode_length_buf[:, None].float().expand(-1, 2)


def group(corrupt: bool = True, cls=ObservationGroupCfg, **terms):
    made = type("Group", (cls,), {"__annotations__": {}, **terms})
    made = configclass(made)()
    made.enable_corruption = corrupt
    return made


def observe(groups: dict, steps: int = 0, **changes):
    cfg = ToyCfg(observations=groups)
    for name, value in changes.items():
        setattr(cfg, name, value)
    env = ManagerBasedRLEnv(cfg)
    found = [env.reset()[0]]
    for _ in range(steps):
        found.append(env.step(torch.zeros(3, 2))[0])
    return env, found


def test_noise_comes_before_clip_and_clip_before_scale():
    term = ObservationTermCfg(
        func=count,
        modifiers=[ModifierCfg(func=lambda data, by: data + by, params={"by": 1.0})],
        noise=ConstantNoiseCfg(bias=5.0),
        clip=(0.0, 3.0),
        scale=(2.0, 10.0),
    )
    plain = ObservationTermCfg(func=count, clip=(0.5, 3.0))
    _, found = observe({"policy": group(x=term, y=plain), "critic": group(False, x=term)})
    assert found[0]["policy"][0].tolist() == [6.0, 30.0, 0.5, 0.5]
    assert found[0]["critic"][0].tolist() == [2.0, 10.0]


def test_noise_adds_scales_or_replaces():
    terms = {
        "a": ObservationTermCfg(func=count, noise=Unoise(n_min=-0.1, n_max=0.3)),
        "b": ObservationTermCfg(func=count, noise=Gnoise(mean=4.0, std=0.5)),
        "c": ObservationTermCfg(func=count, noise=ConstantNoiseCfg(bias=2.0, operation="abs")),
        "d": ObservationTermCfg(func=count, noise=ConstantNoiseCfg(bias=3.0, operation="scale")),
        "e": ObservationTermCfg(func=count, noise=NoiseCfg(func=lambda data, cfg: data - 7.0)),
    }
    assert Unoise is AdditiveUniformNoiseCfg and Gnoise is AdditiveGaussianNoiseCfg
    env, _ = observe({"policy": group(**terms)})
    env.episode_length_buf = torch.ones(3, dtype=torch.long)
    drawn = torch.stack([env.observation_manager.compute()["policy"] for _ in range(300)]).flatten(0, 1)
    assert 0.9 <= drawn[:, :2].min() < 0.95 and 1.25 < drawn[:, :2].max() < 1.3
    assert drawn[:, 2:4].mean() == pytest.approx(5.0, abs=0.1) and drawn[:, 2:4].std() == pytest.approx(0.5, abs=0.05)
    assert (drawn[:, 4:6] == 2.0).all() and (drawn[:, 6:8] == 3.0).all() and (drawn[:, 8:] == -6.0).all()


def test_history_is_filled_at_a_reset_and_ends_with_the_newest():
    terms = {
        "flat": ObservationTermCfg(func=count, history_length=3),
        "now": ObservationTermCfg(func=count),
    }
    env, found = observe({"policy": group(False, **terms)}, steps=4)
    assert env.observation_manager.group_obs_dim["policy"] == (8,)
    rows = [step["policy"][0].tolist() for step in found]
    assert rows[0] == [0.0] * 8
    assert rows[2] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    env.episode_length_buf = torch.tensor([4, 9, 4])
    observations, *_, extras = env.step(torch.zeros(3, 2))
    assert extras["final_obs"]["policy"][1].tolist() == [3.0, 3.0, 4.0, 4.0, 10.0, 10.0, 10.0, 10.0]
    assert observations["policy"][0].tolist() == [3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    assert observations["policy"][1].tolist() == [0.0] * 8


def test_a_group_s_history_replaces_its_terms():
    groups = {
        "policy": group(False, x=ObservationTermCfg(func=count, history_length=7), y=ObservationTermCfg(func=count))
    }
    groups["policy"].history_length, groups["policy"].flatten_history_dim = 2, False
    groups["policy"].concatenate_dim = 0
    env, found = observe(groups)
    assert found[0]["policy"].shape == (3, 4, 2) and env.single_observation_space["policy"].shape == (4, 2)


def test_a_group_may_keep_its_terms_apart():
    groups = {"policy": group(False, x=ObservationTermCfg(func=count), q=ObservationTermCfg(func=joint_pos))}
    groups["policy"].concatenate_terms = False
    env, found = observe(groups, steps=1)
    assert found[0]["policy"].keys() == {"x", "q"} == set(env.single_observation_space["policy"])
    kept = found[1]["policy"]["q"].clone()
    env.step(torch.ones(3, 2))
    assert torch.equal(found[1]["policy"]["q"], kept)
    assert env.observation_manager.group_obs_dim["policy"] == [(2,), (2,)]


class Sum(ManagerTermBase):
    """A term with a memory."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.total = torch.zeros(self.num_envs, 1)

    def reset(self, env_ids=None):
        self.total[env_ids] = 0.0

    def __call__(self, env, gain: float) -> torch.Tensor:
        self.total += gain
        return self.total


def test_a_term_may_be_a_class():
    env, found = observe({"policy": group(x=ObservationTermCfg(func=Sum, params={"gain": 1.0}))}, steps=2)
    assert [step["policy"][0, 0].item() for step in found] == [1.0, 2.0, 3.0]
    assert isinstance(env.observation_manager.get_term_cfg("policy", "x").func, Sum)


@pytest.mark.parametrize(
    ("term", "error", "match"),
    [
        (
            ObservationTermCfg(func=lambda env: torch.zeros(4)),
            SpecMismatch,
            r"observation x of group policy.*\[3, ...\]",
        ),
        (ObservationTermCfg(func=count, scale=(1.0, 2.0, 3.0)), ConfigError, "one per element"),
        (ObservationTermCfg(func=Sum, params={"gian": 1.0}), ConfigError, "'gian'.*observation x.*did you mean gain"),
        (ObservationTermCfg(func=Sum), ConfigError, "'gain' is missing"),
        (ObservationTermCfg(), ConfigError, r"policy.x.func is missing"),
        (3, ConfigError, "a int is no ObservationTermCfg"),
    ],
)
def test_wrong_terms_are_named(term, error, match):
    with pytest.raises(error, match=match):
        observe({"policy": group(x=term)})


def test_terms_of_unequal_shapes_in_one_group_are_named():
    terms = {"x": ObservationTermCfg(func=lambda env: torch.zeros(3, 2, 2)), "y": ObservationTermCfg(func=count)}
    with pytest.raises(ConfigError, match=r"observation group policy.*concatenate_terms"):
        observe({"policy": group(**terms)})
