import numpy as np
import pytest

from embodied.errors import ConfigError
from robots.control import CONTROLS, LEASH_M, make_control
from robots.control.control import STEP_RAD
from robots.kinematics.arm import ArmKinematics
from robots.kinematics.rotations import rotvec_to_matrix

ARM = ArmKinematics("panda")


@pytest.mark.parametrize("kind", sorted(CONTROLS))
def test_targets_stay_within_joint_limits_steps_and_workspace(kind):
    control, rng = make_control(kind, ARM), np.random.default_rng(0)
    q = ARM.chain.home + rng.uniform(-0.3, 0.3, (50, len(ARM.chain)))
    state, memory = ARM.state(q), np.zeros((50, control.memory_size))
    control.begin(state, memory)
    limits = np.concatenate([np.full(stream.size, stream.limit) for stream in control.actions])
    actions = (rng.choice([-1.0, 1.0], (50, len(limits))) * limits).astype(np.float32)
    targets = control.targets(state, memory, actions)
    assert (targets >= ARM.chain.lower).all() and (targets <= ARM.chain.upper).all()
    if kind.startswith("joint"):
        assert np.abs(targets - q).max() <= STEP_RAD + 1e-6
    else:
        low, high = ARM.facts.workspace
        assert (memory[:, :3] >= low).all() and (memory[:, :3] <= high).all()


@pytest.mark.parametrize("kind", sorted(CONTROLS))
def test_the_scripted_action_reaches_a_goal(kind):
    control, goal = make_control(kind, ARM), np.array([[0.5, 0.1, 0.2]])
    q = ARM.chain.home[None].copy()
    memory = np.zeros((1, control.memory_size))
    control.begin(ARM.state(q), memory)
    for _ in range(40):
        state = ARM.state(q)
        q = control.targets(state, memory, control.towards(state, memory, goal))
    assert np.linalg.norm(ARM.state(q).ee_pos - goal) < 5e-3


def test_memory_is_shown_as_the_offset_of_the_target():
    control = make_control("ee_delta", ARM)
    state, memory = ARM.state(ARM.chain.home[None]), np.zeros((1, 3))
    control.begin(state, memory)
    control.targets(state, memory, np.float32([[0.04, 0.0, 0.0]]))
    shown = control.observe(state, memory)["ee_target_offset"]
    np.testing.assert_allclose(shown, [[0.04, 0.0, 0.0]], atol=1e-6)
    assert np.linalg.norm(shown) <= LEASH_M


def test_an_unknown_control_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean ee_delta"):
        make_control("ee_delt", ARM)


def test_an_unknown_arm_of_a_pair_is_refused():
    with pytest.raises(ConfigError, match="no arm of panda_pair has the prefix 'middle_'"):
        ArmKinematics("panda_pair", "middle_")


def test_rotation_vectors_turn_by_their_length():
    x = rotvec_to_matrix(np.array([[0, 0, np.pi / 2], [0, 0, 0], [np.pi, 0, 0]]))
    assert np.allclose(x[0] @ [1, 0, 0], [0, 1, 0]) and np.allclose(x[1], np.eye(3))
    assert np.allclose(x[2] @ [0, 1, 0], [0, -1, 0])
