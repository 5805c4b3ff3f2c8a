"""Manager-based environments: order of a step, resets, faults, seeds, wrong actions."""

import numpy as np
import pytest
import torch

from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac.envs import ManagerBasedRLEnv
from simulators.isaac.managers import (
    CommandTerm,
    CommandTermCfg,
    CurriculumTermCfg,
    EventTermCfg,
    RewardTermCfg,
    TerminationTermCfg,
)
from simulators.isaac.quaternion import present_order
from tests.simulators.isaac.toys import HeldTargets, ToyCfg, note, swung


class Goal(CommandTerm):
    @property
    def command(self):
        return self.metrics["age"][:, None]

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.metrics["age"] = torch.zeros(self.num_envs)

    def _update_metrics(self):
        note(self._env, "command")
        self.metrics["age"] += 1

    def _resample_command(self, env_ids):
        note(self._env, f"resample {len(env_ids)}")

    def _update_command(self):
        pass


def pulse(env, env_ids):
    note(env, f"interval {'all' if env_ids is None else len(env_ids)}")


def toy(**changes) -> ManagerBasedRLEnv:
    cfg = ToyCfg()
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = cfg
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    env = ManagerBasedRLEnv(cfg)
    env.seen = []
    return env


def still(env) -> torch.Tensor:
    return torch.zeros(env.num_envs, env.action_manager.total_action_dim)


def test_a_step_keeps_the_order():
    env = toy(
        commands={"goal": CommandTermCfg(class_type=Goal, resampling_time_range=(9.0, 9.0))},
        events__pulse=EventTermCfg(func=pulse, mode="interval", interval_range_s=(0.08, 0.08), is_global_time=True),
        curriculum={"stage": CurriculumTermCfg(func=lambda env, env_ids: note(env, "curriculum") or 0.5)},
        episode_length_s=0.08,
    )
    env.reset()
    assert env.seen == ["curriculum", "reset", "resample 3", "observe"]
    step = ["process action", *["apply action"] * 2, "terminate", "reward"]
    env.seen.clear()
    env.step(still(env))
    assert env.seen == [*step, "command", "observe"]
    env.seen.clear()
    *_, extras = env.step(still(env))
    end = ["observe", "curriculum", "reset", "resample 3", "command", "interval all", "observe"]
    assert env.seen == [*step, *end]
    assert extras["log"]["Metrics/goal/age"] == 1.0 and extras["log"]["Curriculum/stage"] == 0.5


def test_ended_episodes_are_logged_and_begin_anew():
    env = toy(rewards__more=RewardTermCfg(func=lambda env: env.episode_length_buf.float(), weight=-1.0))
    env.reset()
    env.episode_length_buf = torch.tensor([0, 4, 9])
    observations, reward, terminated, truncated, extras = env.step(still(env))
    assert truncated.tolist() == [False, False, True] == extras["time_outs"].tolist() and not terminated.any()
    assert env.reset_buf.tolist() == truncated.tolist() and env.episode_length_buf.tolist() == [1, 5, 0]
    assert torch.allclose(reward, torch.tensor([2.0 - 1.0, 2.0 - 5.0, 2.0 - 10.0]) * 0.04)
    final = extras["final_obs"]["policy"]
    assert torch.equal(final[:2], observations["policy"][:2])
    assert not torch.allclose(final[2], observations["policy"][2])
    default = env.scene["robot"].data.default_joint_pos[2]
    assert ((observations["policy"][2] >= default) & (observations["policy"][2] <= default + 0.1)).all()
    log = extras["log"]
    assert log["Episode_Termination/time_out"] == 1
    assert log["Episode_Reward/alive"] == pytest.approx(2.0 * 0.04 / 0.4)
    assert log["Episode_Reward/more"] == pytest.approx(-10.0 * 0.04 / 0.4)
    *_, extras = env.step(still(env))
    assert extras["final_obs"] is env.obs_buf


def test_terminated_is_not_a_time_out():
    env = toy(terminations__swung=TerminationTermCfg(func=swung, params={"limit": 0.0}))
    env.reset()
    _, _, terminated, truncated, extras = env.step(still(env))
    assert terminated.all() and not truncated.any() and not extras["time_outs"].any()
    assert env.termination_manager.get_term("swung").all()
    assert toy(is_finite_horizon=True).is_finite_horizon


def test_constant_targets_run_through_the_decimation():
    each, once = toy(), toy(actions__joints__class_type=HeldTargets)
    for env in (each, once):
        env.reset()
        env.seen = []
    for _ in range(12):
        a = each.step(torch.full((3, 2), 0.4))
        b = once.step(torch.full((3, 2), 0.4))
        assert torch.equal(a[0]["policy"], b[0]["policy"]) and torch.equal(a[1], b[1])
    assert each.seen.count("apply action") == 24 and once.seen.count("apply action") == 12
    assert once.sim.batch.model.opt.timestep == pytest.approx(0.005) and once.step_dt == pytest.approx(0.04)


def run(seed: int, steps: int = 25) -> list[torch.Tensor]:
    env = toy(seed=seed, events__pulse=EventTermCfg(func=pulse, mode="interval", interval_range_s=(0.05, 0.3)))
    found = [env.reset()[0]["policy"]]
    for step in range(steps):
        observations, reward, *_ = env.step(torch.full((3, 2), 0.1 * step))
        found += [observations["policy"], reward]
    return [*found, torch.tensor([env.seen.count(f"interval {n}") for n in (1, 2, 3)])]


def test_a_seed_repeats_bit_for_bit():
    assert all(torch.equal(a, b) for a, b in zip(run(3), run(3), strict=True))
    assert not torch.equal(run(3)[0], run(4)[0])
    env = toy()
    first = env.reset(seed=11)[0]["policy"]
    trace = [env.step(still(env))[0]["policy"] for _ in range(3)]
    assert torch.equal(env.reset(seed=11)[0]["policy"], first)
    assert all(torch.equal(env.step(still(env))[0]["policy"], old) for old in trace)


def test_returned_tensors_may_be_kept():
    env = toy()
    observations, _ = env.reset()
    kept = observations["policy"].clone()
    data = env.scene["robot"].data.joint_pos
    _, reward, terminated, *_ = env.step(still(env))
    copies = data.clone(), reward.clone(), terminated.clone()
    env.step(torch.ones(3, 2))
    assert torch.equal(observations["policy"], kept)
    assert all(torch.equal(a, b) for a, b in zip((data, reward, terminated), copies, strict=True))


def test_physics_that_diverges_is_truncated_and_reported():
    env = toy()
    env.reset()
    env.step(still(env))
    before = env.obs_buf["policy"].clone()
    env.sim.batch.bind("qpos")[1, 0] = np.nan
    observations, reward, terminated, truncated, extras = env.step(still(env))
    assert extras["faults"].tolist() == truncated.tolist() == [False, True, False] and not terminated.any()
    assert extras["log"]["infrastructure_faults"] == 1 and extras["log"]["Episode_Termination/time_out"] == 0
    assert reward[1] == 0.0 and (reward[[0, 2]] > 0).all()
    assert torch.equal(extras["final_obs"]["policy"][1], before[1])
    assert torch.isfinite(observations["policy"]).all()
    *_, extras = env.step(still(env))
    assert not extras["faults"].any() and not env.reset_time_outs.any()


def test_wrong_actions_are_refused_by_the_terms_name():
    env = toy()
    with pytest.raises(ConfigError, match="call reset"):
        env.step(still(env))
    env.reset()
    with pytest.raises(SpecMismatch, match=r"actions: joints 2\): give \(3, 2\)"):
        env.step(torch.zeros(3, 4))
    for wrong in (torch.nan, torch.inf):
        action = still(env)
        action[1, 1] = wrong
        with pytest.raises(SpecMismatch, match=r"action 1 of environment 1 is (nan|inf) \(action joints\)"):
            env.step(action)
    assert env.common_step_counter == 0
    env.step(torch.full((3, 2), 3e38))


def test_weights_change_during_a_run():
    env = toy(rewards__none=RewardTermCfg(func=lambda env: 1 / 0, weight=0.0))
    env.reset()
    term = env.reward_manager.get_term_cfg("alive")
    term.weight = -1.0
    env.reward_manager.set_term_cfg("alive", term)
    assert torch.allclose(env.step(still(env))[1], torch.full((3,), -0.04))
    with pytest.raises(ConfigError, match="did you mean alive"):
        env.reward_manager.get_term_cfg("alife")


def test_attributes_read_by_isaac_lab_scripts_exist():
    env = toy()
    assert env.single_observation_space["policy"].shape == (2,) and env.observation_space["policy"].shape == (3, 2)
    assert env.single_action_space.shape == (2,) and env.action_space.shape == (3, 2)
    assert env.num_envs == 3 and env.device == "cpu" and env.physics_dt == 0.02 and env.max_episode_length == 10
    assert env.metadata["quaternion"] == env.quaternion == "xyzw" and env.cfg.to_dict()["quaternion"] == "xyzw"
    assert env.observation_manager.group_obs_dim == {"policy": (2,)}
    assert env.observation_manager.active_terms == {"policy": ["joints"]}
    assert env.event_manager.available_modes == ["reset"] and not env.recorder_manager.active_terms
    assert env.scene.env_origins.tolist() == [[0.0] * 3] * 3 and env.unwrapped is env
    env.close()


def test_grad_modes_do_not_matter():
    env = toy()
    env.reset()
    with torch.inference_mode():
        for _ in range(11):
            env.step(still(env))
    env.reset()
    weight = torch.ones(2, 1, requires_grad=True)
    (env.step(still(env))[0]["policy"] @ weight).sum().backward()
    assert weight.grad is not None


def test_terms_take_the_quaternion_order_of_the_environment():
    seen = []

    def order(env):
        seen.append(present_order())
        return torch.ones(env.num_envs)

    env = toy(quaternion="wxyz", rewards__order=RewardTermCfg(func=order, weight=1.0))
    env.reset()
    env.step(still(env))
    assert seen == ["wxyz"] and present_order() == "xyzw" and env.metadata["quaternion"] == "wxyz"
    assert env.scene["ball"].data.default_root_state[0, 3:7].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_shared_quantities_are_computed_once_per_state():
    calls = []

    def shared(env):
        return env.once("q", lambda: calls.append(1) or env.scene["robot"].data.joint_pos[:, 0])

    env = toy(rewards={name: RewardTermCfg(func=shared, weight=1.0) for name in "ab"})
    env.reset()
    for _ in range(3):
        env.step(still(env))
    assert len(calls) == 3
