"""Embodied-Lift-Cube-Franka-v0 against the numbers of Isaac Lab's Isaac-Lift-Cube-Franka-v0."""

import gymnasium
import numpy as np
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.registry import load_cfg_from_registry, parse_env_cfg

TASK = "Embodied-Lift-Cube-Franka-v0"
DEFAULT = [0.0, -0.569, 0.0, -2.81, 0.0, 3.037, 0.741, 0.04, 0.04]
N = 32


def make(num_envs: int = N, **changes: object) -> ManagerBasedRLEnv:
    cfg = parse_env_cfg(TASK, num_envs=num_envs)
    cfg.seed = 5
    for name, value in changes.items():
        setattr(cfg, name, value)
    return gymnasium.make(TASK, cfg=cfg).unwrapped  # type: ignore[return-value]


@pytest.fixture
def env() -> ManagerBasedRLEnv:
    made = make()
    made.reset()
    return made


def actions(seed: int, scale: float = 0.3) -> torch.Tensor:
    return scale * torch.randn(N, 8, generator=torch.Generator().manual_seed(seed))


def put_object(env: ManagerBasedRLEnv, pos: np.ndarray) -> None:
    """Hold the cube still at `pos` [N, 3]."""
    cube = env.scene["object"]
    pose = torch.cat([torch.from_numpy(pos).float(), torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(len(pos), 4)], dim=1)
    cube.write_root_pose_to_sim(pose)
    cube.write_root_velocity_to_sim(torch.zeros(len(pos), 6))


def cube_pos(env: ManagerBasedRLEnv) -> np.ndarray:
    return env.sim.batch.bind("xpos")[:, env.sim.model.body("object").id].copy()


def tip(env: ManagerBasedRLEnv) -> np.ndarray:
    """Position of the end effector, 0.1034 m in front of the hand, computed by hand."""
    body = env.sim.model.body("hand").id
    rotation = env.sim.batch.bind("xmat")[:, body].reshape(-1, 3, 3)
    return env.sim.batch.bind("xpos")[:, body] + rotation @ np.array([0.0, 0.0, 0.1034])


def test_step_and_episode_lengths_are_isaac_labs(env: ManagerBasedRLEnv) -> None:
    assert env.physics_dt == 0.01 and env.cfg.decimation == 2
    assert env.step_dt == 0.02 and env.max_episode_length == 250
    before = env.sim.batch.bind("time").copy()
    env.step(actions(0))
    assert np.allclose(env.sim.batch.bind("time") - before, 0.02)


def test_observations_are_laid_out_as_isaac_labs_without_noise(env: ManagerBasedRLEnv) -> None:
    terms = ["joint_pos", "joint_vel", "object_position", "target_object_position", "actions"]
    assert env.observation_manager.active_terms == {"policy": terms}
    assert env.observation_manager.group_obs_term_dim["policy"] == [(9,), (9,), (3,), (7,), (8,)]
    given = actions(1)
    seen = env.step(given)[0]["policy"]
    assert seen.shape == (N, 36) and seen.dtype == torch.float32
    batch, command = env.sim.batch, env.command_manager.get_command("object_pose")
    state = [batch.bind("qpos")[:, :9] - DEFAULT, batch.bind("qvel")[:, :9], cube_pos(env)]
    wanted = np.concatenate([*state, command.numpy(), given.numpy()], axis=1)
    assert np.allclose(seen.numpy(), wanted, atol=1e-6)


def test_arm_action_and_binary_gripper(env: ManagerBasedRLEnv) -> None:
    assert env.action_manager.active_terms == ["arm_action", "gripper_action"]
    assert env.action_manager.action_term_dim == [7, 1]
    given = actions(2)
    given[:4, 7] = torch.tensor([-1e-6, 0.0, 1e-6, -5.0])
    env.step(given)
    target = env.scene["robot"].data.joint_pos_target
    assert torch.allclose(target[:, :7], torch.tensor(DEFAULT[:7]) + 0.5 * given[:, :7])
    assert torch.equal(target[:, 7], target[:, 8])
    assert torch.allclose(target[:4, 7], torch.tensor([0.0, 0.04, 0.04, 0.0]))
    assert torch.equal(target[:, 7] == 0.0, given[:, 7] < 0)


def test_rewards_equal_hand_computed_ones(env: ManagerBasedRLEnv) -> None:
    weights = {name: env.reward_manager.get_term_cfg(name).weight for name in env.reward_manager.active_terms}
    assert weights == {
        "reaching_object": 1.0,
        "lifting_object": 15.0,
        "object_goal_tracking": 16.0,
        "object_goal_tracking_fine_grained": 5.0,
        "action_rate": -1e-4,
        "joint_vel": -1e-4,
    }
    env.step(actions(3))
    command = env.command_manager.get_command("object_pose").double().numpy().copy()
    # Near the tip, near the goal, on the table, and just above and below the mark of 4 cm.
    pos = np.where(np.arange(N)[:, None] % 2 == 0, tip(env) + 0.03, command[:, :3] + 0.02)
    pos[-3:, 2] = [0.05, 0.0405, 0.0395]
    put_object(env, pos)
    reward = env.step(actions(4))[1].numpy()
    cube = cube_pos(env)
    reach = np.linalg.norm(cube - tip(env), axis=1)
    goal = np.linalg.norm(cube - command[:, :3], axis=1)
    lifted = cube[:, 2] > 0.04
    assert lifted.any() and not lifted.all()
    rate = ((actions(4) - actions(3)).double().numpy() ** 2).sum(axis=1)
    speed = (env.sim.batch.bind("qvel")[:, :9] ** 2).sum(axis=1)
    wanted = (
        (1 - np.tanh(reach / 0.1))
        + 15 * lifted
        + 16 * lifted * (1 - np.tanh(goal / 0.3))
        + 5 * lifted * (1 - np.tanh(goal / 0.05))
        - 1e-4 * rate
        - 1e-4 * speed
    )
    assert np.allclose(reward, 0.02 * wanted, atol=2e-6)


def test_the_end_effector_frame_lies_at_the_tip(env: ManagerBasedRLEnv) -> None:
    env.step(actions(5))
    frame = env.scene["ee_frame"]
    assert frame.data.target_frame_names == ["end_effector"]
    assert frame.data.target_pos_w.shape == (N, 1, 3)
    assert np.allclose(frame.data.target_pos_w[:, 0].numpy(), tip(env), atol=1e-6)


def test_curriculum_changes_two_weights_after_10000_steps(env: ManagerBasedRLEnv) -> None:
    def weights() -> list[float]:
        return [env.reward_manager.get_term_cfg(name).weight for name in ("action_rate", "joint_vel")]

    env.common_step_counter = 10_000
    env.reset()
    assert weights() == [-1e-4, -1e-4]
    env.common_step_counter = 10_001
    env.reset()
    assert weights() == [-0.1, -0.1]


def test_commands_and_resets_fill_their_ranges() -> None:
    env = make(num_envs=512)
    env.reset()
    command = env.command_manager.get_command("object_pose").numpy()
    for axis, (low, high) in enumerate([(0.4, 0.6), (-0.25, 0.25), (0.25, 0.5)]):
        drawn, margin = command[:, axis], 0.02 * (high - low)
        assert low - 1e-6 <= drawn.min() < low + margin and high - margin < drawn.max() <= high + 1e-6
    assert np.array_equal(command[:, 3:], np.tile([0.0, 0.0, 0.0, 1.0], (512, 1)))
    qpos, qvel = env.sim.batch.bind("qpos"), env.sim.batch.bind("qvel")
    cube = qpos[:, 9:12]
    for axis, (low, high) in enumerate([(0.4, 0.6), (-0.25, 0.25)]):
        drawn, margin = cube[:, axis], 0.02 * (high - low)
        assert low - 1e-6 <= drawn.min() < low + margin and high - margin < drawn.max() <= high + 1e-6
    assert np.allclose(cube[:, 2], 0.055) and np.allclose(qpos[:, 12:16], [1.0, 0.0, 0.0, 0.0])
    assert np.allclose(qpos[:, :9], DEFAULT) and not qvel.any()


def test_a_command_lasts_250_steps(env: ManagerBasedRLEnv) -> None:
    term = env.command_manager.get_term("object_pose")
    assert torch.equal(term.time_left, torch.full((N,), 5.0))
    assert term.cfg.resampling_time_range == (5.0, 5.0)


def test_an_episode_ends_by_time_or_by_the_cube_falling(env: ManagerBasedRLEnv) -> None:
    assert env.termination_manager.active_terms == ["time_out", "object_dropping"]
    pos = np.tile([0.5, 0.9, 0.1], (N, 1))
    pos[0, 2], pos[1, 2] = -0.045, -0.055
    put_object(env, pos)
    env.episode_length_buf = torch.cat([torch.zeros(N - 1, dtype=torch.long), torch.tensor([249])])
    _, _, terminated, truncated, extras = env.step(torch.zeros(N, 8))
    assert terminated.nonzero().flatten().tolist() == [1]
    assert truncated.nonzero().flatten().tolist() == [N - 1]
    assert env.episode_length_buf.nonzero().flatten().tolist() == [i for i in range(N) if i not in (1, N - 1)]
    assert extras["log"]["Episode_Termination/object_dropping"] == 1


def test_the_cube_can_be_grasped_and_lifted() -> None:
    """By joint targets found with the robot's kinematics: above the cube, around it, close, up."""
    from robots.kinematics.forward import forward
    from robots.kinematics.inverse import damped_step
    from simulators.isaac.chains import chain_of

    env = make(num_envs=4, episode_length_s=20.0)
    env.reset()
    chain = chain_of(env.sim.model, "link0", "hand", np.array([0.0, 0.0, 0.1034]), np.eye(3))
    default = torch.tensor(DEFAULT[:7])
    q = default.double().numpy()[None].repeat(4, axis=0)
    down = np.broadcast_to(np.diag([1.0, -1.0, -1.0]), (4, 3, 3))

    def go(height: float, grip: float, steps: int) -> torch.Tensor:
        nonlocal q
        target = start + np.array([0.0, 0.0, height])
        for _ in range(40):
            q = damped_step(chain, q, target, down, 0.03, 0.0)
        assert np.allclose(forward(chain, q)[0], target, atol=5e-3)
        action = torch.cat([(torch.from_numpy(q).float() - default) / 0.5, torch.full((4, 1), grip)], dim=1)
        for _ in range(steps):
            reward = env.step(action)[1]
        return reward

    for _ in range(10):
        env.step(torch.cat([torch.zeros(4, 7), torch.ones(4, 1)], dim=1))
    start = cube_pos(env)
    go(0.1, 1.0, 150)
    go(0.0, 1.0, 100)
    go(0.0, -1.0, 30)
    reward = go(0.25, -1.0, 80)
    assert (cube_pos(env)[:, 2] > 0.15).all() and (reward > 0.02 * 15).all()


def test_runner_configuration_is_isaac_labs() -> None:
    agent = load_cfg_from_registry(TASK, "rsl_rl_cfg_entry_point").to_dict()
    assert (agent["num_steps_per_env"], agent["max_iterations"]) == (24, 1500)
    assert agent["actor"]["hidden_dims"] == agent["critic"]["hidden_dims"] == [256, 128, 64]
    ppo = agent["algorithm"]
    assert (ppo["num_learning_epochs"], ppo["num_mini_batches"], ppo["learning_rate"]) == (5, 4, 1e-4)
    assert (ppo["gamma"], ppo["lam"], ppo["entropy_coef"], ppo["desired_kl"]) == (0.98, 0.95, 0.006, 0.01)
