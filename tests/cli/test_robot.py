import json

from tests.cli.command import embodied, one_line
from tests.simulators.meshed_arm import write_arm, write_gripper


def test_an_imported_robot_is_a_choice_of_the_group_robot(tmp_path):
    write_arm(tmp_path / "arm"), write_gripper(tmp_path / "hand")
    words = ["robot", "import", "arm/arm.xml", "gripper=hand/hand.xml", "out=lab"]
    result = embodied(*words, "name=mine", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "robot=mine" in result.stdout and "end effector" in result.stdout and "home" in result.stdout
    lab = ["--config-dir", "lab"]
    shown = embodied(*lab, "tasks", "task=press_button", "robot=mine", "episodes=5", "--json", folder=tmp_path)
    found = json.loads(shown.stdout)
    assert found["success_rate"] == 1.0 and found["robot"].startswith("mine"), found
    told = json.loads(embodied(*words, "--json", folder=tmp_path).stdout)
    assert {"thing": "flange", "value": "attachment_site", "origin": "carries hand.xml"} in told


def test_a_robot_is_chosen_for_a_task(tmp_path):
    shown = embodied("tasks", "task=lift_cube", "robot=so101", "episodes=2", "--json", folder=tmp_path)
    assert json.loads(shown.stdout)["robot"].startswith("so101")
    for words, said in (
        (["tasks", "task=lift_cube", "robot=so100"], "unknown robot 'so100' (robot=so100): did you mean so101?"),
        (["tasks", "task=open_drawer", "robot=so101", "episodes=2"], "task open_drawer has no option 'robot'"),
        (["tasks", "task=lift_cube", "robot=none.xml", "episodes=2"], "no robot is called 'none.xml'"),
    ):
        assert said in one_line(embodied(*words, folder=tmp_path))


def test_a_wrong_import_is_one_line(tmp_path):
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody>")
    write_arm(tmp_path / "arm")
    for words, said in (
        (["import"], "0 files"),
        (["export", "x.xml"], "did you mean import?"),
        (["import", "none.xml"], "no such file"),
        (["import", "broken.xml"], "MuJoCo cannot read it"),
        (["import", "arm/arm.xml"], "give gripper=FILE"),
        (["import", "arm/arm.xml", "gripper=broken.xml"], "broken.xml"),
        (["import", "arm/arm.xml", "griper=x"], "did you mean gripper?"),
        (["import", "arm/arm.xml", "home=[a]"], "'a', which is no number"),
        (["import", "arm/arm.xml", "velocity=-1"], "velocity must be above 0"),
    ):
        assert said in one_line(embodied("robot", *words, folder=tmp_path)), words
