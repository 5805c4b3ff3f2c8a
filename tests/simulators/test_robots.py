import mujoco
import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError
from robots.descriptions import arms, descriptions
from robots.kinematics.forward import forward
from simulators.arm import Arm
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.scene import add_cube, table_scene


def at_home(robot):
    """Model, data and arms of a robot that stands at its table with open grippers."""
    model = table_scene(robot).compile()
    data, parts = mujoco.MjData(model), [Arm(model, robot, prefix) for prefix in arms(robot)]
    for part in parts:
        part.place(data.qpos[None], data.ctrl[None], part.chain.home)
    mujoco.mj_forward(model, data)
    return model, data, parts


@pytest.mark.parametrize("robot", descriptions())
def test_a_robot_holds_its_home_and_touches_nothing_there(robot):
    model, data, _ = at_home(robot)
    assert data.ncon == 0
    home = data.qpos.copy()
    mujoco.mj_step(model, data, nstep=400)
    assert np.abs(data.qpos - home).max() < 1e-4


@pytest.mark.parametrize("robot", descriptions())
def test_joint_targets_are_tracked(robot):
    model, data, parts = at_home(robot)
    for part in parts:
        data.ctrl[part.arm_ctrl] = part.chain.home + 0.2
    mujoco.mj_step(model, data, nstep=400)
    for part in parts:
        assert np.abs(data.qpos[part.arm_qpos] - part.chain.home - 0.2).max() < 1e-3


@pytest.mark.parametrize("robot", descriptions())
def test_no_armature_is_less_than_its_damping_takes_in_a_step(robot):
    model = table_scene(robot).compile()
    for i in range(model.nu):
        kv = -model.actuator_biasprm[i, 2]
        assert model.dof_armature[model.jnt_dofadr[model.actuator_trnid[i, 0]]] >= kv * model.opt.timestep


@pytest.mark.parametrize("robot", descriptions())
def test_arms_hit_each_other_but_not_themselves(robot):
    model, data, parts = at_home(robot)
    root = [model.body_rootid[model.geom_bodyid[i]] for i in range(model.ngeom)]
    rng, met = np.random.default_rng(0), 0
    for _ in range(300):
        for part in parts:
            data.qpos[part.arm_qpos] = rng.uniform(part.chain.lower, part.chain.upper)
        mujoco.mj_forward(model, data)
        for contact in data.contact:
            assert root[contact.geom1] != root[contact.geom2]
            met += "table" not in (model.geom(contact.geom1).name, model.geom(contact.geom2).name)
    assert (met > 0) == (len(parts) > 1)


def test_the_pair_has_the_kinematics_of_its_arms():
    model, data, parts = at_home("panda_pair")
    fields = {"qpos": data.qpos[None], "site_xpos": data.site_xpos[None]}
    rng = np.random.default_rng(0)
    for _ in range(20):
        for part in parts:
            data.qpos[part.arm_qpos] = rng.uniform(part.chain.lower, part.chain.upper)
        mujoco.mj_forward(model, data)
        for part in parts:
            base = model.body(f"{part.prefix}link0")
            rot = data.xmat[base.id].reshape(3, 3)
            pos, _ = forward(part.chain, part.q(fields))
            np.testing.assert_allclose(rot @ pos[0] + data.xpos[base.id], part.ee_pos(fields)[0], atol=1e-6)


def test_the_hands_of_the_pair_go_where_they_are_sent_in_the_worlds_frame():
    model, data, parts = at_home("panda_pair")
    goals = [np.array([[0.45, side, 0.2]]) for side in (0.2, -0.15)]
    for _ in range(60):
        fields = {"qpos": data.qpos[None], "site_xpos": data.site_xpos[None]}
        for part, goal in zip(parts, goals, strict=True):
            data.ctrl[part.arm_ctrl] = part.reach_for(part.q(fields), part.within_workspace(goal))[0]
        mujoco.mj_step(model, data, nstep=10)
    for part, goal in zip(parts, goals, strict=True):
        assert np.linalg.norm(data.site_xpos[part.ee] - goal) < 5e-3
        far = part.within_workspace(goal + np.array([0.0, 0.0, 9.0]))
        np.testing.assert_allclose(far[0], [*goal[0, :2], part.facts.workspace[1, 2]], atol=1e-9)


def test_the_so101_lifts_cubes():
    env = make_env("lift_cube", 200, robot="so101")
    env.autoreset = False
    OneAgentEnv(env).reset(np.arange(200))
    outcomes = np.zeros(200)
    for _ in range(env.spec.episode_steps):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        outcomes[result.ended] = result.outcomes[result.ended]
    assert (outcomes == Outcome.SUCCESS).mean() >= 0.95


@pytest.mark.parametrize(("half", "mass"), [(0.0125, 0.03), (0.015, 0.05)])
def test_the_so101_holds_what_it_grasped(half, mass):
    scene = table_scene("so101")
    add_cube(scene, "cube", (0.195, 0.0, half), half=half, mass=mass)
    model = scene.compile()
    arm, data, cube = Arm(model, "so101"), mujoco.MjData(model), model.joint("cube").qposadr[0] + 2
    arm.place(data.qpos[None], data.ctrl[None], arm.chain.home)
    mujoco.mj_forward(model, data)
    for step in range(60):
        height = max(0.10 - 0.01 * step, half) if step < 25 else min(half + 0.005 * (step - 25), half + 0.08)
        fields = {"qpos": data.qpos[None], "site_xpos": data.site_xpos[None]}
        data.ctrl[arm.arm_ctrl] = arm.reach_for(arm.q(fields), np.array([[0.195, 0.0, height]]))[0]
        data.ctrl[arm.gripper_ctrl] = arm.gripper_targets(np.array([1.0 if step < 15 else -1.0]))[0]
        mujoco.mj_step(model, data, nstep=10)
    assert data.qpos[cube] > half + 0.07
    mujoco.mj_step(model, data, nstep=400)
    assert data.qpos[cube] > half + 0.07


def test_a_pair_is_no_single_arm():
    with pytest.raises(ConfigError, match=r"panda_pair\.xml"):
        make_env("lift_cube", 1, robot="panda_pair")
