"""Configurations: copies, members without annotation, attributes that no field has, settings that change nothing."""

import copy
import logging

import pytest

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.errors import ConfigError
from simulators.isaac import mdp
from simulators.isaac.articulation import ArticulationCfg
from simulators.isaac.cfg import SceneEntityCfg
from simulators.isaac.configclass import MISSING, configclass, missing
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.managers import EventTermCfg, RewardTermCfg
from simulators.isaac.noise import NoiseCfg, UniformNoiseCfg
from simulators.isaac.registry import parse_env_cfg
from simulators.isaac.robots import FRANKA_PANDA_CFG
from simulators.isaac.sim import CuboidCfg, MassPropertiesCfg
from tests.simulators.isaac.toys import PENDULUM, ToyCfg


def halved(data, cfg):
    return 0.5 * data


class Special(mdp.JointPositionAction):
    pass


@configclass
class HalvedCfg(NoiseCfg):
    func = halved


@configclass
class SpecialCfg(mdp.JointPositionActionCfg):
    class_type = Special


@configclass
class ListedCfg:
    first: int = 1
    function = halved
    Alias = UniformNoiseCfg

    class Nested:
        pass

    def method(self):
        return self.first


def toy(**changes):
    cfg = ToyCfg()
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = cfg
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return ManagerBasedRLEnv(cfg)


def test_replaced_and_given_values_are_owned():
    mine = FRANKA_PANDA_CFG.replace(prim_path="/Robot")
    mine.actuators["panda_shoulder"].stiffness = 0.0
    mine.init_state.joint_pos["panda_joint1"] = 1.0
    assert FRANKA_PANDA_CFG.actuators["panda_shoulder"].stiffness == 80.0
    assert FRANKA_PANDA_CFG.init_state.joint_pos["panda_joint1"] == 0.0
    params = {"asset_cfg": SceneEntityCfg("robot")}
    terms = [RewardTermCfg(func=mdp.joint_vel_l2, weight=1.0, params=params) for _ in range(2)]
    terms[0].params["asset_cfg"].name = "other"
    assert terms[1].params["asset_cfg"].name == params["asset_cfg"].name == "robot"


def test_missing_survives_copies_and_is_found_in_containers():
    cfg = ArticulationCfg()
    for one in (cfg.copy(), cfg.replace(), copy.copy(cfg)):
        assert one.spawn is MISSING and list(missing(one)) == ["spawn"]
    cfg.actuators["arm"] = type(PENDULUM.actuators["all"])()
    assert list(missing(cfg)) == ["spawn", "actuators.arm.joint_names_expr"]


def test_functions_and_classes_without_annotation_are_fields_where_a_base_has_them():
    assert HalvedCfg().func is halved and SpecialCfg(asset_name="robot").class_type is Special
    assert HalvedCfg(operation="abs").to_dict()["func"].endswith(":halved")
    assert list(ListedCfg.__dataclass_fields__) == ["first", "function"] and ListedCfg().method() == 1


@pytest.mark.parametrize(
    ("owner", "name", "value", "match"),
    [
        (ToyCfg(), "decimaton", 4, "ToyCfg has no field 'decimaton'.*decimation"),
        (ToyCfg().sim, "physics_material", 1, "SimulationCfg has no field 'physics_material'"),
        (PENDULUM, "soft_limit", 0.9, "ArticulationCfg has no field"),
        (ToyCfg().rewards, "unknown", None, "has no field 'unknown'"),
        (ToyCfg().scene, "bal", None, "has no field 'bal'.*ball"),
        (HalvedCfg(), "func_", halved, "HalvedCfg has no field"),
    ],
)
def test_an_attribute_that_changes_nothing_is_refused(owner, name, value, match):
    with pytest.raises(ConfigError, match=match):
        setattr(owner, name, value)


def test_groups_take_terms_and_environments_attributes_of_their_own():
    cfg = ToyCfg()
    cfg.rewards.more, cfg.my_marker = RewardTermCfg(func=mdp.is_alive, weight=1.0), 3
    assert "more" in ManagerBasedRLEnv(cfg).reward_manager.active_terms


def test_a_position_is_that_in_the_environment():
    """A file's own position counts only where none is given."""
    assert toy().scene["robot"].data.root_pos_w[0].tolist() == [0.0, 0.0, 1.0]
    env = toy(scene__robot__init_state__pos=(0.5, 0.0, 0.25))
    assert env.scene["robot"].data.root_pos_w[0].tolist() == [0.5, 0.0, 0.25]
    assert env.scene["robot"].data.default_root_state[0, :3].tolist() == [0.5, 0.0, 0.25]


def test_a_quaternion_needs_its_order():
    with pytest.raises(ConfigError, match=r"scene.ball.init_state.rot is a quaternion of unknown order.*set"):
        toy(scene__ball__init_state__rot=(1.0, 0.0, 0.0, 0.0))
    for order, up in (("wxyz", 1.0), ("xyzw", -1.0)):
        env = toy(scene__ball__init_state__rot=(1.0, 0.0, 0.0, 0.0), quaternion=order)
        matrix = env.sim.batch.bind("xmat").reshape(env.num_envs, -1, 3, 3)
        assert matrix[0, env.sim.model.body("ball").id, 2, 2] == up
    assert toy(scene__ball__init_state__rot=(0.5, 0.5, 0.5, 0.5)).quaternion == "xyzw"


def test_ignored_settings_are_said_in_one_line(caplog):
    with caplog.at_level(logging.WARNING):
        toy()
        assert not caplog.messages
        toy(scene__env_spacing=2.5, sim__physx__gpu=1, viewer__eye=(1, 1, 1), scene__robot__debug_vis=True)
    assert len(caplog.messages) == 1
    names = "scene.env_spacing, scene.robot.debug_vis, sim.physx.gpu, viewer.eye"
    assert caplog.messages[0] == f"ToyCfg: these settings change nothing here: {names}"
    cfg = parse_env_cfg("Embodied-Lift-Cube-Franka-v0", num_envs=1)
    cfg.scene.table.init_state.pos = (0.5, 0.0, 0.0)
    with caplog.at_level(logging.WARNING):
        ManagerBasedRLEnv(cfg, render_mode="rgb_array")
    assert caplog.messages[1].endswith("here: scene.table.init_state, render_mode")


def test_settings_that_exclude_each_other_are_refused():
    weighed = MassPropertiesCfg(mass=1.0, density=2.0)
    with pytest.raises(ConfigError, match="mass and density are both given"):
        toy(scene__ball__spawn=CuboidCfg(size=(0.1, 0.1, 0.1), mass_props=weighed))
    drive = PENDULUM.actuators["all"].replace(effort_limit_sim=3.0)
    with pytest.raises(ConfigError, match="effort_limit and effort_limit_sim differ"):
        toy(scene__robot__actuators={"all": drive})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"mode": "reset", "interval_range_s": (1.0, 2.0)}, "interval_range_s means nothing in mode reset"),
        ({"mode": "startup", "min_step_count_between_reset": 3}, "min_step_count_between_reset means nothing"),
    ],
)
def test_settings_of_another_mode_are_refused(given, match):
    with pytest.raises(ConfigError, match=match):
        toy(events__extra=EventTermCfg(func=mdp.reset_scene_to_default, **given))


def test_an_unknown_argument_of_an_environment_is_refused():
    with pytest.raises(ConfigError, match=r"no argument is called .decimation.*set it in cfg"):
        ManagerBasedRLEnv(ToyCfg(), decimation=3)
