import numpy as np
import pytest

from robots.control import CONTROLS, LEASH_M
from robots.control.control import STEP_RAD
from robots.kinematics.rotations import rotation_error, rotvec_to_matrix
from simulators.arm import Arm
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv

KINDS = sorted(CONTROLS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_lifts_with_every_control(kind):
    env = make_env("lift_cube", 16, control=kind)
    env.autoreset = False
    OneAgentEnv(env).reset(np.arange(16))
    outcomes = np.zeros(16)
    for _ in range(env.spec.episode_steps):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        outcomes[result.ended] = result.outcomes[result.ended]
    assert (outcomes == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_action_leads_out_of_the_limits(kind):
    env = make_env("lift_cube", 8, control=kind)
    OneAgentEnv(env).reset()
    arm = env.task.arm
    rng = np.random.default_rng(0)
    for _ in range(30):
        before = env._fields["qpos"][:, arm.arm_qpos].copy()
        result = OneAgentEnv(env).step(
            (rng.choice([-9.0, 9.0], (8, len(env.action_limit))) * env.action_limit).astype(np.float32)
        )
        going = ~np.isin(np.arange(8), result.ended)
        targets = result.applied[:, arm.arm_ctrl]
        assert (targets >= arm.chain.lower - 1e-9).all() and (targets <= arm.chain.upper + 1e-9).all()
        if kind.startswith("joint"):
            assert (np.abs(targets - before)[going] <= STEP_RAD + 1e-6).all()


def test_an_absolute_target_is_kept_on_its_leash_and_in_the_workspace():
    env = make_env("lift_cube", 2, control="ee_target")
    OneAgentEnv(env).reset()
    before = env.observe()["robot"].streams["ee_pos"]
    OneAgentEnv(env).step(np.tile(np.float32([-1.0, 0.0, 1.0, 1.0]), (2, 1)))
    target = env._memory[:, :3]
    assert (np.linalg.norm(target - before, axis=1) <= LEASH_M + 1e-6).all()
    low, high = env.task.arm.facts.workspace
    assert (target >= low).all() and (target <= high).all()


def test_a_turned_hand_follows():
    env = make_env("lift_cube", 1, control="ee_pose")
    OneAgentEnv(env).reset([3])
    arm: Arm = env.task.arm
    start = env.observe()["robot"].streams["ee_pos"][0]
    turn = np.float32([0.0, 0.0, 0.4])
    for _ in range(15):
        OneAgentEnv(env).step(np.concatenate([start, turn, [1.0]])[None].astype(np.float32))
    site = env.batch.bind("site_xmat")[:, arm.ee].reshape(1, 3, 3)
    wanted = rotvec_to_matrix(turn[None].astype(float)) @ arm.down
    assert np.linalg.norm(rotation_error(site, wanted)) < 0.05
