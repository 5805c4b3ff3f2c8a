"""Wrong results of terms and hooks are refused; every divergence of an environment is a fault."""

import numpy as np
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.errors import SpecMismatch
from simulators.isaac.assets import AssetBaseCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.registry import parse_env_cfg
from simulators.isaac.sim import CuboidCfg, DomeLightCfg

TASK = "Embodied-Lift-Cube-Franka-v0"


def lift(**actions):
    cfg = parse_env_cfg(TASK, num_envs=3)
    cfg.seed = 1
    for name, value in actions.items():
        setattr(cfg.actions.arm_action, name, value)
    env = ManagerBasedRLEnv(cfg)
    env.reset()
    return env


def test_every_divergence_is_a_fault():
    env = lift()
    cube, robot = env.scene["object"], env.scene["robot"]
    one, nan = torch.tensor([1]), float("nan")
    for what in ("pose", "pose", "joints", "joints", "velocity", "velocity", "action", "action"):
        action = torch.zeros(3, 8)
        if what == "pose":
            cube.write_root_pose_to_sim(torch.full((1, 7), nan), env_ids=one)
        elif what == "joints":
            robot.write_joint_state_to_sim(torch.full((1, 9), nan), torch.zeros(1, 9), env_ids=one)
        elif what == "velocity":
            cube.write_root_velocity_to_sim(torch.full((1, 6), 1e30), env_ids=one)
        else:
            action[1] = 1e30
        _, reward, _, truncated, extras = env.step(action)
        assert extras["faults"].tolist() == truncated.tolist() == [False, True, False], what
        assert reward[1] == 0 and torch.isfinite(reward).all()
        assert np.isfinite(extras["log"]["Episode_Reward/action_rate"])
        env.step(torch.zeros(3, 8))
        assert not env.extras["faults"].any()


def test_a_fault_overwritten_by_a_reset_does_not_end_the_next_episode():
    env = lift()
    cube = env.scene["object"]
    cube.write_root_pose_to_sim(torch.full((3, 7), float("nan")))
    _ = cube.data.root_pos_w
    env.reset()
    env.step(torch.zeros(3, 8))
    assert not env.extras["faults"].any()


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda n: torch.zeros(n, 1), "shape"),
        (lambda n: torch.zeros(()), "shape"),
        (lambda n: 1.0, "type float"),
        (lambda n: None, "type NoneType"),
        (lambda n: torch.full((n,), float("nan")), "not finite"),
    ],
)
def test_a_reward_is_one_finite_number_per_environment(returned, named):
    env = lift()
    env.reward_manager.get_term_cfg("lifting_object").func = lambda env, **_: returned(env.num_envs)
    with pytest.raises(SpecMismatch, match=rf"{named}.*reward lifting_object"):
        env.step(torch.zeros(3, 8))


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda n: torch.zeros(n, 1, dtype=torch.bool), "shape"),
        (lambda n: torch.zeros(n, n, dtype=torch.bool), "shape"),
        (lambda n: torch.zeros(n), "dtype torch.float32"),
        (lambda n: True, "type bool"),
    ],
)
def test_a_termination_is_one_truth_per_environment(returned, named):
    env = lift()
    env.termination_manager.get_term_cfg("object_dropping").func = lambda env, **_: returned(env.num_envs)
    with pytest.raises(SpecMismatch, match=rf"{named}.*termination object_dropping"):
        env.step(torch.zeros(3, 8))


def test_whole_numbers_in_dictionaries_of_actions_are_taken():
    cfg = parse_env_cfg(TASK, num_envs=1)
    cfg.actions.arm_action.scale = {"panda_joint.*": 1}
    cfg.actions.arm_action.offset = {"panda_joint.*": 0}
    cfg.actions.arm_action.clip = {"panda_joint.*": (-1, 1)}
    cfg.actions.gripper_action.close_command_expr = {"panda_finger_.*": 0}
    env = ManagerBasedRLEnv(cfg)
    env.reset()
    assert torch.isfinite(env.step(torch.ones(1, 8))[1]).all()


def test_ids_changed_in_place_between_two_writes_are_both_written():
    env = lift()
    cube = env.scene["object"]
    ids, pose = torch.tensor([0]), torch.tensor([[0.5, 0.1, 0.3, 0.0, 0.0, 0.0, 1.0]])
    cube.write_root_pose_to_sim(pose, env_ids=ids)
    ids[0] = 2
    cube.write_root_pose_to_sim(pose, env_ids=ids)
    assert torch.allclose(cube.data.root_pos_w[[0, 2]], pose[:, :3].expand(2, 3), atol=1e-6)


def test_lights_tables_and_window_settings_of_isaac_lab_are_accepted():
    cfg = parse_env_cfg(TASK, num_envs=1)
    cfg.scene.light = AssetBaseCfg(prim_path="/World/light", spawn=DomeLightCfg(intensity=3000.0))
    cfg.scene.table = AssetBaseCfg(
        prim_path="{ENV_REGEX_NS}/Table",
        init_state=AssetBaseCfg.InitialStateCfg(pos=(0.5, 0.0, -0.05)),
        spawn=CuboidCfg(size=(0.8, 1.2, 0.1)),
    )
    cfg.sim.physx.bounce_threshold_velocity = 0.2
    cfg.viewer.eye = (1.5, 1.5, 1.5)
    env = ManagerBasedRLEnv(cfg)
    env.reset()
    env.step(torch.zeros(1, 8))
    assert env.sim.model.geom_size[env.sim.model.geom("table").id].tolist() == [0.4, 0.6, 0.05]
