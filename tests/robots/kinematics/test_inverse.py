import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from robots.descriptions import description_path
from robots.kinematics.chain import load_chain
from robots.kinematics.facts import load_facts
from robots.kinematics.forward import forward
from robots.kinematics.inverse import damped_step, damped_step_numpy
from robots.kinematics.rotations import axis_rotation, rotation_error

CHAIN = load_chain(description_path("panda"))
unit = st.floats(0.0, 1.0, width=32)
postures = arrays(np.float64, (3, 7), elements=unit).map(lambda u: CHAIN.lower + u * (CHAIN.upper - CHAIN.lower))
targets = arrays(np.float64, (3, 3), elements=st.floats(-2.0, 2.0, width=32))


@settings(max_examples=100)
@given(postures, targets, st.floats(0.01, 0.5), st.floats(0.0, 1.0))
def test_a_step_never_leaves_the_joint_limits(q, target, damping, pull):
    rot = forward(CHAIN, q)[1][::-1].copy()
    step = damped_step(CHAIN, q, target, rot, damping, pull)
    assert np.isfinite(step).all()
    assert (step >= CHAIN.lower).all() and (step <= CHAIN.upper).all()


@settings(max_examples=100)
@given(postures, targets, st.floats(0.03, 0.5), st.floats(0.0, 1.0))
def test_compiled_and_numpy_agree_to_the_last_bit_for_any_number_of_rows(q, target, damping, pull):
    pytest.importorskip("numba")
    rot = forward(CHAIN, q)[1][::-1].copy()
    compiled = damped_step(CHAIN, q, target, rot, damping, pull)
    assert np.array_equal(compiled, damped_step_numpy(CHAIN, q, target, rot, damping, pull))
    for row in range(3):
        one = slice(row, row + 1)
        assert np.array_equal(compiled[one], damped_step_numpy(CHAIN, q[one], target[one], rot[one], damping, pull))


def test_steps_converge_to_a_pose():
    rng = np.random.default_rng(1)
    goal_pos, goal_rot = forward(CHAIN, CHAIN.home + rng.uniform(-0.3, 0.3, (20, 7)))
    q = np.tile(CHAIN.home, (20, 1))
    for _ in range(100):
        q = damped_step(CHAIN, q, goal_pos, goal_rot)
    pos, rot = forward(CHAIN, q)
    assert np.abs(pos - goal_pos).max() < 2e-3
    assert np.abs(rotation_error(rot, goal_rot)).max() < 5e-3


def test_five_joints_reach_the_workspace_with_the_hand_pointing_down():
    path = description_path("so101")
    chain, facts = load_chain(path), load_facts(path)
    _, down = forward(chain, chain.home[None])
    for low, high, near in ((*facts.workspace, 4e-3), ([*facts.spawn[0], 0.01], [*facts.spawn[1], 0.10], 2e-3)):
        sides = [np.linspace(a, b, 5) for a, b in zip(low, high, strict=True)]
        goal = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 3)
        q, rot = np.tile(chain.home, (len(goal), 1)), np.broadcast_to(down, (len(goal), 3, 3))
        for _ in range(20):
            q = damped_step(chain, q, goal, rot)
        pos, reached = forward(chain, q)
        assert np.linalg.norm(pos - goal, axis=1).max() < near
        assert np.abs(rotation_error(reached, rot)).max() < 0.02


def test_the_pull_towards_home_moves_the_elbow_and_not_the_hand():
    q = CHAIN.home[None] + np.array([[0.6, 0.1, -0.5, 0.2, 0.4, 0.1, -0.3]])
    pos, rot = forward(CHAIN, q)
    moved = q
    for _ in range(200):
        moved = damped_step(CHAIN, moved, pos, rot)
    assert np.linalg.norm(moved - CHAIN.home) < 0.8 * np.linalg.norm(q - CHAIN.home)
    assert np.abs(forward(CHAIN, moved)[0] - pos).max() < 5e-3


def test_rotation_error_turns_towards_the_target():
    eye = np.eye(3)[None]
    for axis in np.eye(3):
        error = rotation_error(eye, axis_rotation(axis, np.array([0.01])))
        np.testing.assert_allclose(error[0], 0.01 * axis, atol=1e-6)
