"""Embodied-Reach-Franka-v0 against the numbers of Isaac Lab's Isaac-Reach-Franka-v0."""

import gymnasium
import numpy as np
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.registry import load_cfg_from_registry, parse_env_cfg

TASK = "Embodied-Reach-Franka-v0"
DEFAULT = [0.0, -0.569, 0.0, -2.81, 0.0, 3.037, 0.741, 0.04, 0.04]
N = 64


def make(task: str = TASK, num_envs: int = N, **changes: object) -> ManagerBasedRLEnv:
    cfg = parse_env_cfg(task, num_envs=num_envs)
    cfg.seed = 5
    for name, value in changes.items():
        setattr(cfg, name, value)
    return gymnasium.make(task, cfg=cfg).unwrapped  # type: ignore[return-value]


@pytest.fixture
def env() -> ManagerBasedRLEnv:
    made = make()
    made.reset()
    return made


def actions(seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(N, 7, generator=torch.Generator().manual_seed(seed))


def hand(env: ManagerBasedRLEnv) -> tuple[np.ndarray, np.ndarray]:
    """Position and quaternion (wxyz) of the hand, straight from MuJoCo."""
    body = env.sim.model.body("hand").id
    return env.sim.batch.bind("xpos")[:, body].copy(), env.sim.batch.bind("xquat")[:, body].copy()


def test_step_and_episode_lengths_are_isaac_labs(env: ManagerBasedRLEnv) -> None:
    assert env.physics_dt == pytest.approx(1 / 60) and env.cfg.decimation == 2
    assert env.step_dt == pytest.approx(1 / 30) and env.max_episode_length == 360
    before = env.sim.batch.bind("time").copy()
    env.step(actions(0))
    assert np.allclose(env.sim.batch.bind("time") - before, 1 / 30)


def test_observations_are_laid_out_as_isaac_labs() -> None:
    env = make("Embodied-Reach-Franka-Play-v0")
    assert env.observation_manager.active_terms == {"policy": ["joint_pos", "joint_vel", "pose_command", "actions"]}
    assert env.observation_manager.group_obs_term_dim["policy"] == [(9,), (9,), (7,), (7,)]
    env.reset()
    given = actions(1)
    seen = env.step(given)[0]["policy"]
    assert seen.shape == (N, 32) and seen.dtype == torch.float32
    batch, command = env.sim.batch, env.command_manager.get_command("ee_pose")
    truth = [batch.bind("qpos") - DEFAULT, batch.bind("qvel"), command.numpy(), given.numpy()]
    assert np.allclose(seen.numpy(), np.concatenate(truth, axis=1), atol=1e-6)


def test_noise_is_uniform_within_a_hundredth(env: ManagerBasedRLEnv) -> None:
    noise = []
    for step in range(10):
        seen = env.step(actions(step))[0]["policy"].numpy()
        state = np.concatenate([env.sim.batch.bind("qpos") - DEFAULT, env.sim.batch.bind("qvel")], axis=1)
        noise.append(seen[:, :18] - state)
        assert np.array_equal(seen[:, 18:25], env.command_manager.get_command("ee_pose").numpy())
        assert np.array_equal(seen[:, 25:], actions(step).numpy())
    drawn = np.stack(noise)
    assert np.abs(drawn).max() <= 0.01 + 1e-6
    assert (drawn.min(axis=(0, 1)) < -0.0095).all() and (drawn.max(axis=(0, 1)) > 0.0095).all()
    assert np.abs(drawn.mean()) < 2e-4 and drawn.std() == pytest.approx(0.02 / np.sqrt(12), rel=0.02)


def test_action_is_half_of_it_around_the_default_pose(env: ManagerBasedRLEnv) -> None:
    assert env.action_manager.action_term_dim == [7]
    given = actions(2)
    env.step(given)
    term = env.action_manager.get_term("arm_action")
    wanted = torch.tensor(DEFAULT[:7]) + 0.5 * given
    assert torch.equal(term.raw_actions, given) and torch.allclose(term.processed_actions, wanted)
    target = env.scene["robot"].data.joint_pos_target
    assert torch.allclose(target[:, :7], wanted) and torch.allclose(target[:, 7:], torch.tensor(0.04))


def test_the_robot_has_isaac_labs_joints_and_gains() -> None:
    env = make(num_envs=1)
    robot, model = env.scene["robot"], env.sim.model
    joints = [*(f"panda_joint{i}" for i in range(1, 8)), "panda_finger_joint1", "panda_finger_joint2"]
    assert robot.joint_names == joints
    assert torch.allclose(robot.data.default_joint_pos, torch.tensor([DEFAULT]))
    assert np.allclose(-model.actuator_biasprm[:, 1], [80.0] * 7 + [2000.0] * 2)
    assert np.allclose(-model.actuator_biasprm[:, 2], [4.0] * 7 + [100.0] * 2)
    assert np.allclose(model.actuator_forcerange[:, 1], [87.0] * 4 + [12.0] * 3 + [200.0] * 2)
    assert np.allclose(model.actuator_forcerange[:, 0], -model.actuator_forcerange[:, 1])


def test_rewards_equal_hand_computed_ones(env: ManagerBasedRLEnv) -> None:
    weights = {name: env.reward_manager.get_term_cfg(name).weight for name in env.reward_manager.active_terms}
    assert weights == {
        "end_effector_position_tracking": -0.2,
        "end_effector_position_tracking_fine_grained": 0.1,
        "end_effector_orientation_tracking": -0.1,
        "action_rate": -0.0001,
        "joint_vel": -0.0001,
    }
    env.step(actions(3))
    command = env.command_manager.get_command("ee_pose").double().numpy().copy()
    reward = env.step(actions(4))[1].numpy()
    pos, quat = hand(env)
    distance = np.linalg.norm(pos - command[:, :3], axis=1)
    w = np.abs((quat * np.roll(command[:, 3:], 1, axis=1)).sum(axis=1))
    angle = 2 * np.arccos(np.clip(w, 0, 1))
    rate = ((actions(4) - actions(3)).double().numpy() ** 2).sum(axis=1)
    speed = (env.sim.batch.bind("qvel") ** 2).sum(axis=1)
    wanted = -0.2 * distance + 0.1 * (1 - np.tanh(distance / 0.1)) - 0.1 * angle - 1e-4 * rate - 1e-4 * speed
    assert np.allclose(reward, wanted / 30, atol=1e-6)
    metrics = env.command_manager.get_term("ee_pose").metrics
    assert np.allclose(metrics["position_error"], distance, atol=1e-5)
    assert np.allclose(metrics["orientation_error"], angle, atol=1e-3)


def test_curriculum_changes_two_weights_after_4500_steps(env: ManagerBasedRLEnv) -> None:
    def weights() -> list[float]:
        return [env.reward_manager.get_term_cfg(name).weight for name in ("action_rate", "joint_vel")]

    env.common_step_counter = 4500
    env.reset()
    assert weights() == [-0.0001, -0.0001]
    env.common_step_counter = 4501
    env.reset()
    assert weights() == [-0.005, -0.001]


def test_commands_are_drawn_from_their_ranges_every_four_seconds() -> None:
    env = make(num_envs=512)
    env.reset()
    command = env.command_manager.get_command("ee_pose").double().numpy()
    assert env.command_manager.get_term("ee_pose").cfg.body_name == "panda_hand"
    for axis, (low, high) in enumerate([(0.35, 0.65), (-0.2, 0.2), (0.15, 0.5)]):
        drawn, width = command[:, axis], high - low
        assert low - 1e-6 <= drawn.min() < low + 0.02 * width and high - 0.02 * width < drawn.max() <= high + 1e-6
    x, y, z, w = command[:, 3:].T
    assert np.allclose(x * x + y * y + z * z + w * w, 1.0)
    # Pitch pi, roll 0: the hand's z axis points down, and yaw alone is left.
    assert np.allclose(1 - 2 * (x * x + y * y), -1.0, atol=1e-6)
    yaw = np.arctan2(-2 * (x * y + z * w), -(1 - 2 * (y * y + z * z)))
    assert -3.14 - 1e-4 <= yaw.min() < -3.0 and 3.0 < yaw.max() <= 3.14 + 1e-4


def test_a_command_lasts_120_steps(env: ManagerBasedRLEnv) -> None:
    first = env.command_manager.get_command("ee_pose").clone()
    for _ in range(119):
        env.step(torch.zeros(N, 7))
    assert torch.equal(env.command_manager.get_command("ee_pose"), first)
    env.step(torch.zeros(N, 7))
    assert (env.command_manager.get_command("ee_pose") != first).any(dim=1).all()


def test_resets_scale_the_default_pose_by_a_half_to_one_and_a_half() -> None:
    env = make(num_envs=512)
    env.reset()
    pos, limits = env.sim.batch.bind("qpos"), env.scene["robot"].data.soft_joint_pos_limits[0].double().numpy()
    assert not env.sim.batch.bind("qvel").any()
    for joint, default in enumerate(DEFAULT):
        low, high = np.clip(sorted((0.5 * default, 1.5 * default)), *limits[joint])
        assert low - 1e-6 <= pos[:, joint].min() <= low + 0.02 * abs(default)
        assert high - 0.02 * abs(default) <= pos[:, joint].max() <= high + 1e-6


def test_only_time_ends_an_episode(env: ManagerBasedRLEnv) -> None:
    assert env.termination_manager.active_terms == ["time_out"]
    env.episode_length_buf = torch.full((N,), 358)
    _, _, terminated, truncated, _ = env.step(actions(0))
    assert not terminated.any() and not truncated.any()
    _, _, terminated, truncated, extras = env.step(actions(1))
    assert not terminated.any() and truncated.all() and extras["time_outs"].all()
    assert not env.episode_length_buf.any() and not env.action_manager.action.any()
    assert extras["final_obs"]["policy"].shape == (N, 32)


def test_quaternions_of_commands_follow_the_configuration() -> None:
    seen = {}
    for order in ("xyzw", "wxyz"):
        env = make("Embodied-Reach-Franka-Play-v0", quaternion=order)
        env.reset()
        env.step(actions(0))
        seen[order] = env.step(actions(1))[:2]
    xyzw, wxyz = seen["xyzw"][0]["policy"], seen["wxyz"][0]["policy"]
    assert torch.allclose(xyzw[:, :21], wxyz[:, :21], atol=1e-6)
    assert torch.allclose(xyzw[:, 21:25].roll(1, 1), wxyz[:, 21:25], atol=1e-6)
    assert torch.allclose(seen["xyzw"][1], seen["wxyz"][1], atol=1e-6)


def test_the_arm_holds_and_tracks_with_the_soft_gains() -> None:
    """Gravity is compensated: at rest on its target, and within a degree of another one after three seconds."""
    env = make(num_envs=4, events=None)
    env.reset()
    robot = env.scene["robot"]
    for _ in range(30):
        env.step(torch.zeros(4, 7))
    assert (robot.data.joint_pos - robot.data.default_joint_pos).abs().max() < 1e-3
    given = 0.4 * torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0]).expand(4, 7)
    for _ in range(90):
        env.step(given)
    assert (robot.data.joint_pos - robot.data.joint_pos_target)[:, :7].abs().max() < 0.0175


def test_runner_configuration_is_isaac_labs() -> None:
    agent = load_cfg_from_registry(TASK, "rsl_rl_cfg_entry_point").to_dict()
    assert (agent["num_steps_per_env"], agent["max_iterations"]) == (24, 1000)
    assert agent["actor"]["hidden_dims"] == agent["critic"]["hidden_dims"] == [64, 64]
    assert agent["actor"]["distribution_cfg"]["init_std"] == 1.0 and agent["critic"]["distribution_cfg"] is None
    ppo = agent["algorithm"]
    assert (ppo["num_learning_epochs"], ppo["num_mini_batches"], ppo["learning_rate"]) == (8, 4, 1e-3)
    assert (ppo["gamma"], ppo["lam"], ppo["entropy_coef"], ppo["desired_kl"]) == (0.99, 0.95, 0.001, 0.01)
