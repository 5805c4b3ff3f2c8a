"""Ranges of randomisation, values drawn from an episode's seed, and their effect on a model."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import ConfigError, DataError
from simulators.make import make_task
from simulators.randomise.apply import physics_fields, randomised_model, rotate
from simulators.randomise.draw import damping_room, draw
from simulators.randomise.ranges import Ranges

ALL = {
    "friction": [0.7, 1.3],
    "mass": [0.8, 1.2],
    "gains": [0.9, 1.1],
    "colour": 0.1,
    "light": [0.7, 1.3],
    "light_dir": 0.3,
    "camera_pos": 0.01,
    "camera_rot": 0.02,
    "sensor_noise": {"joint_pos": 0.005},
    "action_latency": [0, 2],
    "observation_latency": [1, 3],
}
MODEL = make_task("lift_cube").model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fricton": [0.7, 1.3]}, "did you mean friction"),
        ({"friction": 0.7}, "lowest and highest"),
        ({"friction": [1.3, 0.7]}, "lowest and highest"),
        ({"mass": [0, 1]}, "lowest and highest"),
        ({"gains": [0.9, float("nan")]}, "lowest and highest"),
        ({"colour": 2.0}, "from 0 to 1"),
        ({"camera_pos": "far"}, "from 0 to 1"),
        ({"action_latency": [0, 1.5]}, "control steps"),
        ({"observation_latency": [0, 21]}, "control steps"),
        ({"sensor_noise": -1.0}, "one share"),
        ({"sensor_noise": {"joint_pos": "much"}}, "one share"),
        ("all", "give a mapping"),
    ],
)
def test_a_wrong_range_is_one_line_that_names_it(settings, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Ranges.read(settings)
    assert caught.value.where.startswith("randomise") and "\n" not in caught.value.line()


def test_noise_on_an_unknown_stream_names_the_nearest():
    streams = make_task("reach").spec.agents["robot"].observations
    for name in ("joint_po", "instruction"):
        with pytest.raises(ConfigError, match="joint_pos"):
            Ranges.read({"sensor_noise": {name: 0.1}}).check_streams(streams)


def test_omitted_and_null_values_are_not_randomised():
    assert not Ranges.read(None).any and not Ranges.read({"mass": None, "colour": 0}).any
    assert Ranges.read({"mass": [1, 1]}).any
    assert draw(Ranges(), MODEL, np.arange(3), images=True) == {}
    assert set(draw(Ranges.read(ALL), MODEL, np.arange(3), images=False)) == {
        "friction", "mass", "gains", "action_latency", "observation_latency",
    }  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=6), st.sets(st.sampled_from(sorted(ALL)), min_size=1))
def test_an_episodes_seed_alone_decides_each_value(seeds, chosen):
    every = draw(Ranges.read(ALL), MODEL, np.array(seeds), images=True)
    some = draw(Ranges.read({name: ALL[name] for name in chosen}), MODEL, np.array(seeds[-1:]), images=True)
    for name, values in some.items():
        assert np.array_equal(values[0], every[name][-1]), name


def test_values_lie_in_their_ranges_and_fill_them():
    drawn = draw(Ranges.read(ALL), MODEL, np.arange(400), images=True)
    for name, values in drawn.items():
        low, high = ALL[name] if isinstance(ALL[name], list) else (-ALL[name], ALL[name])
        assert low <= values.min() and values.max() <= high
        if name != "gains":
            assert values.min() < low + 0.05 * (high - low) and values.max() > high - 0.05 * (high - low), name
    assert sorted(set(drawn["action_latency"].tolist())) == [0, 1, 2]
    assert sorted(set(drawn["observation_latency"].tolist())) == [1, 2, 3]


def test_damping_never_outgrows_the_armature():
    drawn = draw(Ranges.read({"gains": [0.2, 5.0]}), MODEL, np.arange(200), images=False)
    damping = -physics_fields(MODEL, drawn)["actuator_biasprm"][:, :, 2]
    joints = MODEL.actuator_trnid[:, 0]
    armature = MODEL.dof_armature[MODEL.jnt_dofadr[joints]]
    nominal = -MODEL.actuator_biasprm[:, 2] * MODEL.opt.timestep
    assert (damping * MODEL.opt.timestep <= np.maximum(armature, nominal) + 1e-12).all()
    assert (damping_room(MODEL) >= 1).all() and drawn["gains"][:, :, 0].max() > 4.9


def test_only_the_physics_of_a_copy_is_changed():
    before = MODEL.body_mass.copy()
    drawn = {name: values[0] for name, values in draw(Ranges.read(ALL), MODEL, np.arange(1), images=True).items()}
    made = randomised_model(MODEL, drawn | {"cube_xy": np.zeros(2)})
    assert np.array_equal(MODEL.body_mass, before)
    np.testing.assert_allclose(made.body_mass, before * drawn["mass"])
    np.testing.assert_allclose(made.geom_friction, MODEL.geom_friction * drawn["friction"])
    assert made.body_subtreemass[0] == pytest.approx(made.body_mass.sum())
    assert np.array_equal(made.geom_rgba, MODEL.geom_rgba) and made.opt.timestep == MODEL.opt.timestep
    assert randomised_model(MODEL, {"cube_xy": np.zeros(2)}) is MODEL


def test_drawn_values_of_another_model_are_refused():
    with pytest.raises(DataError, match="not of this model"):
        randomised_model(MODEL, {"mass": np.ones(3)})


def test_rotate_is_a_rotation():
    rng = np.random.default_rng(0)
    turn, vector = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    turned = rotate(turn, vector)
    for t, v, found in zip(turn, vector, turned, strict=True):
        quat, wanted = np.empty(4), np.empty(3)
        mujoco.mju_axisAngle2Quat(quat, t / np.linalg.norm(t), np.linalg.norm(t))
        mujoco.mju_rotVecQuat(wanted, v, quat)
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_array_equal(rotate(np.zeros((2, 3)), vector[:2]), vector[:2])
