import mujoco
import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError
from robots.descriptions import description_path
from robots.kinematics.chain import load_chain
from robots.kinematics.facts import load_facts
from robots.kinematics.forward import forward
from simulators.arm import Arm
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.robot_import import import_robot
from simulators.scene import table_scene
from tests.simulators.meshed_arm import write_arm, write_gripper, write_urdf


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Descriptions of an arm with a gripper of another file, and of a URDF, and what was told of each."""
    folder = tmp_path_factory.mktemp("robots")
    arm, gripper = write_arm(folder / "arm"), write_gripper(folder / "hand")
    told = {
        "arm": import_robot(arm, folder / "lab", gripper=gripper),
        "lab_arm": import_robot(write_urdf(folder), folder / "lab"),
    }
    return {name: (folder / f"lab/robot/{name}/{name}.xml", {c.thing: c for c in told[name]}) for name in told}


def outcomes_of(task, robot, count=20):
    env = make_env(task, count, robot=str(robot))
    env.autoreset = False
    OneAgentEnv(env).reset(np.arange(count))
    outcomes = np.zeros(count)
    for _ in range(env.spec.episode_steps):
        result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
        outcomes[result.ended] = result.outcomes[result.ended]
    return outcomes


@pytest.mark.parametrize("name", ["arm", "lab_arm"])
@pytest.mark.parametrize("task", ["lift_cube", "press_button"])
def test_experts_work_with_an_imported_robot(imported, name, task):
    assert (outcomes_of(task, imported[name][0]) == Outcome.SUCCESS).mean() >= 0.95


@pytest.mark.parametrize("name", ["arm", "lab_arm"])
def test_an_imported_robot_holds_its_home_pointing_down_and_touches_nothing(imported, name):
    path = str(imported[name][0])
    model = table_scene(path).compile()
    data, arm = mujoco.MjData(model), Arm(model, path)
    for command in (1.0, -1.0):
        arm.place(data.qpos[None], data.ctrl[None], arm.chain.home, command)
        mujoco.mj_forward(model, data)
        start = data.qpos.copy()
        assert data.ncon == 0 or command < 0
        mujoco.mj_step(model, data, nstep=200)
        assert np.abs(data.qpos - start)[: len(arm.chain)].max() < 1e-3
        assert np.abs(data.qpos - start).max() < 3e-3, "the linkage starts where it belongs"
    rotation = forward(arm.chain, arm.chain.home[None])[1][0]
    assert rotation[2, 2] < -0.98 and abs(rotation[1, 1]) > 0.98
    assert model.nmesh and (model.body_gravcomp[1:] == 1).all()


def test_what_is_measured_of_the_gripper_is_so(imported):
    facts = load_facts(imported["arm"][0])
    assert facts.gripper == ("hand_left",) and facts.linkage == ("hand_right",)
    np.testing.assert_allclose(facts.gripper_width, [0.0, 0.08], atol=2e-3)
    np.testing.assert_allclose([facts.linkage_open[0], facts.linkage_closed[0]], [0.04, 0.0], atol=2e-3)
    facts = load_facts(imported["lab_arm"][0])
    assert facts.gripper == ("left", "right") and not facts.linkage
    np.testing.assert_allclose(facts.gripper_width, [0.0, 0.076], atol=2e-3)


@pytest.mark.parametrize(("robot", "success"), [("panda", 1.0), ("so101", 0.95)])
def test_an_import_of_our_own_robots_finds_what_their_descriptions_say(tmp_path, robot, success):
    ours = description_path(robot)
    import_robot(ours, tmp_path, name="again")
    path = tmp_path / "robot/again/again.xml"
    facts, known = load_facts(path), load_facts(ours)
    assert facts.gripper == known.gripper and facts.workspace[0, 2] == pytest.approx(known.workspace[0, 2], abs=2e-3)
    np.testing.assert_allclose(facts.gripper_width, known.gripper_width, atol=6e-3)
    np.testing.assert_allclose(facts.gripper_closed, known.gripper_closed, atol=6e-3)
    chain, own = load_chain(path), load_chain(ours)
    assert chain.joints == own.joints
    np.testing.assert_allclose(chain.tip_pos, own.tip_pos, atol=1e-5)
    assert (outcomes_of("lift_cube", path) == Outcome.SUCCESS).mean() >= success


def test_what_was_chosen_is_told(imported):
    _, told = imported["arm"]
    assert told["joints"].value == "j0 j1 j2 j3 j4 j5"
    assert told["flange"].value == "attachment_site" and "follow" in told["gripper"].origin
    assert (
        "velocity=" in told["velocity limits"].origin
        and told["force limits"].origin == "of the file's actuators and joints"
    )
    path, told = imported["lab_arm"]
    assert told["velocity limits"].origin == "of the URDF"
    assert (load_chain(path).velocity_limit == 2.5).all()
    assert "j0 150" in told["force limits"].value


def test_what_cannot_be_imported_is_one_line(tmp_path):
    arm, gripper = write_arm(tmp_path / "arm"), write_gripper(tmp_path / "hand")
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody><body><joint/></body>")
    (tmp_path / "odd.xml").write_text(
        "<mujoco><worldbody><body><joint axis='0 0 0'/><geom size='1'/></body></worldbody></mujoco>"
    )
    slide = write_arm(tmp_path / "slide", 'type="slide"')
    bare = write_arm(tmp_path / "bare")
    (tmp_path / "bare/assets/hub.obj").unlink()
    for file, options, said in (
        (tmp_path / "none.xml", {}, "no such file"),
        (tmp_path / "broken.xml", {}, "MuJoCo cannot read it"),
        (tmp_path / "odd.xml", {"gripper": gripper}, "cannot"),
        (arm, {}, "no two fingers branch"),
        (arm, {"gripper": gripper, "flange": "wrist"}, "the flange is unknown: its sites are attachment_site"),
        (arm, {"gripper": gripper, "ee": "pich"}, "no site is called 'pich'"),
        (arm, {"gripper": gripper, "home": [0.0]}, "home has 1 numbers"),
        (arm, {"gripper": gripper, "name": "panda"}, "cannot be called 'panda'"),
        (slide, {"gripper": gripper}, "joint j2 of the arm: no hinge"),
        (bare, {"gripper": gripper}, r"its file hub\.obj is missing"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            import_robot(file, tmp_path / "lab", **options)
        assert "\n" not in caught.value.line(), file
    assert not list((tmp_path / "lab").rglob("*.yaml"))
