"""Refusals, in one line, of wrong configurations, parameters of terms, writes and actions."""

import numpy as np
import pytest
import torch

import simulators.isaac.tasks  # noqa: F401 -- registers the tasks
from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac import mdp
from simulators.isaac.cfg import SceneEntityCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.managers import CurriculumTermCfg, EventTermCfg, RewardTermCfg
from simulators.isaac.registry import parse_env_cfg
from tests.simulators.isaac.toys import SwingCfg, SwingEnv

NAN, INF = float("nan"), float("inf")


def lift(**changes):
    """The Lift task of three environments, `a__b=value` set as `cfg.a.b`."""
    cfg = parse_env_cfg("Embodied-Lift-Cube-Franka-v0", num_envs=3)
    cfg.seed = 1
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = cfg
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return ManagerBasedRLEnv(cfg)


def reward(**given):
    return RewardTermCfg(func=mdp.joint_vel_l2, weight=1.0, **given)


def curriculum(weight):
    params = {"term_name": "joint_vel", "weight": weight, "num_steps": 0}
    return CurriculumTermCfg(func=mdp.modify_reward_weight, params=params)


def cube(func, mode="startup", **params):
    return EventTermCfg(func=func, mode=mode, params={"asset_cfg": SceneEntityCfg("object"), **params})


def mass(low, high):
    return cube(mdp.randomize_rigid_body_mass, mass_distribution_params=(low, high), operation="abs")


def friction(*pair):
    ranges = {"dynamic_friction_range": (1.0, 1.0), "restitution_range": (0.0, 0.0)}
    return cube(mdp.randomize_rigid_body_material, static_friction_range=pair, num_buckets=1, **ranges)


def placed(**pose):
    return cube(mdp.reset_root_state_uniform, "reset", pose_range=pose, velocity_range={})


def pulse(interval, mode="interval"):
    return EventTermCfg(func=mdp.reset_scene_to_default, mode=mode, interval_range_s=interval)


WRONG = [
    *[("rewards__x", reward(params={"asset_cfg": e}), "asset_cfg of reward x") for e in ("robot", None, 3)],
    ("rewards__x", reward(params={"asset_cfg": SceneEntityCfg("object")}), "object has no joints.*robot"),
    ("rewards__x", reward(params=None), "params is None.*reward x"),
    ("rewards__reaching_object__params", {"std": None}, "std of reward reaching_object"),
    ("rewards__joint_vel__weight", NAN, "weight is nan.*reward joint_vel"),
    ("curriculum__x", curriculum(None), "weight of curriculum x"),
    ("curriculum__x", curriculum(NAN), "weight of curriculum x"),
    ("observations__policy__joint_pos__noise", 3, "noise is 3.*observation joint_pos"),
    ("observations__policy__joint_pos__clip", 3, "clip of observation joint_pos"),
    ("observations__policy__joint_pos__clip", (1, -1), "clip of observation joint_pos"),
    ("observations__policy__joint_pos__scale", "x", "scale is 'x'.*observation joint_pos"),
    ("observations__policy__joint_pos__history_length", -1, "history_length is -1.*observation joint_pos"),
    ("observations__policy__history_length", 1.5, "history_length is 1.5"),
    ("actions__arm_action__joint_names", None, "None is no list of names.*action arm_action"),
    ("actions__arm_action__joint_names", [], "no joint is named.*action arm_action, joint_names"),
    ("actions__arm_action__class_type", None, "class_type is None.*action arm_action"),
    ("actions__arm_action__scale", "x", "action arm_action, scale"),
    ("actions__arm_action__scale", {"panda_joint9": 1.0}, r"panda_joint9.*\(action arm_action, scale\)"),
    ("actions__arm_action__clip", {"foo": (-1, 1)}, r"foo.*\(action arm_action, clip\)"),
    ("actions__arm_action__clip", {"panda_joint1": (1, -1)}, "action arm_action, clip"),
    ("actions__gripper_action__open_command_expr", 0.04, "action gripper_action, open_command_expr"),
    ("commands__object_pose__class_type", None, "class_type is None.*command object_pose"),
    *[
        ("commands__object_pose__resampling_time_range", r, "resampling_time_range of command object_pose")
        for r in ((5, 1), (-1, -1), (NAN, 1), 3, None)
    ],
    ("commands__object_pose__ranges__pos_x", (NAN, 1), "command object_pose, ranges.pos_x"),
    *[("events__x", pulse(r), "interval_range_s of event x") for r in ((2, 1), (-1, -1), (NAN, 1.0), (1, INF), 3)],
    ("events__reset_object_position__mode", "rest", "'rest'.*reset_object_position.*did you mean reset"),
    *[("events__x", placed(x=r), "x of pose_range of event x") for r in ((NAN, 1), (1, -1), 3, None)],
    *[("events__x", mass(*r), "mass of object") for r in ((NAN, 1.0), (2.0, 1.0), (-1.0, -1.0))],
    *[("events__x", friction(*r), "static_friction_range") for r in ((NAN, 1.0), (2.0, 1.0), (-1.0, -1.0))],
    *[("scene__num_envs", n, "num_envs is") for n in (0, 1.5, "4", None, True)],
    *[("decimation", n, "decimation is") for n in (0, 1.5, None)],
    *[("sim__dt", x, "sim.dt is") for x in (0, NAN, "x")],
    *[("episode_length_s", x, "episode_length_s is") for x in (None, INF, True)],
    *[("sim__gravity", g, "sim.gravity") for g in ((0, 0), (0, 0, NAN), None, -9.81)],
    *[("seed", s, "seed is") for s in ("x", 1.5, 2**65, True)],
    *[("scene__robot__init_state__rot", q, "rot of scene.robot") for q in ((0, 0, 0, 0), (1.0, 0.0, 0.0), (NAN,) * 4)],
    ("scene__object__init_state__pos", (NAN, 0, 0), "pos of scene.object.init_state"),
    ("scene__object__init_state__lin_vel", (0, 0), "lin_vel of scene.object.init_state"),
    ("scene__robot__init_state__joint_vel", {".*": NAN}, "init_state of robot"),
    ("scene__robot__spawn", None, "spawn is None.*scene.robot"),
    ("scene__object__spawn", None, "spawn is None.*scene.object"),
    ("scene__robot__class_type", None, "class_type is None.*scene.robot"),
]


@pytest.mark.parametrize(("path", "value", "match"), WRONG, ids=[f"{i}-{path}" for i, (path, _, _) in enumerate(WRONG)])
def test_a_wrong_field_is_one_line_that_names_it(path, value, match):
    with pytest.raises(ConfigError, match=match) as raised:
        lift(**{path: value})
    assert "\n" not in str(raised.value)


def test_valid_configurations_are_accepted():
    env = lift(
        events__mine=pulse(None, mode="on_request"),
        events__often=pulse((0, 0)),
        observations__policy__joint_pos__clip=(-INF, INF),
        scene__num_envs=np.int64(3),
        seed=-5,
    )
    first = env.reset(seed=np.int64(3))[0]["policy"]
    assert torch.equal(env.reset(seed=3)[0]["policy"], first)
    with pytest.raises(ConfigError, match="seed is 'x'"):
        env.reset(seed="x")


def test_a_weight_changed_to_no_number_is_named():
    env = lift()
    env.reset()
    env.reward_manager.get_term_cfg("joint_vel").weight = NAN
    with pytest.raises(ConfigError, match=r"weight is nan.*reward joint_vel"):
        env.step(torch.zeros(3, 8))


def test_wrong_indices_and_shapes_of_writes_are_refused():
    env = lift()
    env.reset()
    thing, robot = env.scene["object"], env.scene["robot"]
    pose, joints = torch.tensor([[0.5, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0]]), torch.zeros(1, 9)
    for ids in ([-1], [3], torch.tensor([-1]), torch.tensor([1.0]), 3, torch.ones(2, dtype=torch.bool)):
        for write in (
            lambda ids=ids: thing.write_root_pose_to_sim(pose, env_ids=ids),
            lambda ids=ids: thing.write_root_velocity_to_sim(pose[:, :6], env_ids=ids),
            lambda ids=ids: robot.write_joint_state_to_sim(joints, joints, env_ids=ids),
            lambda ids=ids: robot.set_joint_position_target(joints, env_ids=ids),
        ):
            with pytest.raises(ConfigError, match=r"env_ids.*choose 0 to 2"):
                write()
    for ids in ([99], [-1], torch.tensor([9])):
        for write in (
            lambda ids=ids: robot.set_joint_position_target(torch.zeros(3, 1), joint_ids=ids),
            lambda ids=ids: robot.write_joint_position_to_sim(torch.zeros(3, 1), joint_ids=ids),
        ):
            with pytest.raises(ConfigError, match=r"joint_ids.*choose 0 to 8"):
                write()
    with pytest.raises(SpecMismatch, match=r"\(3, 6\).*give a tensor \[n, 7\]"):
        thing.write_root_pose_to_sim(torch.zeros(3, 6))
    with pytest.raises(SpecMismatch, match=r"shape \(2, 9\).*give \(3, 9\)"):
        robot.set_joint_position_target(torch.zeros(2, 9))
    for ids in (0, [0, 2], range(2), slice(0, 2), torch.tensor([True, False, True]), [], None):
        thing.write_root_pose_to_sim(pose, env_ids=ids)
        robot.set_joint_position_target(joints, env_ids=ids)
        robot.set_joint_position_target(joints[:, :2], joint_ids=[0, 3], env_ids=ids)
    assert torch.allclose(thing.data.root_pos_w, pose[:, :3].expand(3, 3))


def test_an_action_may_be_an_array():
    def run(action):
        env = lift()
        env.reset()
        return env.step(action)[0]["policy"]

    wanted = run(torch.full((3, 8), 0.5))
    for action in (np.full((3, 8), 0.5), [[0.5] * 8] * 3, torch.full((3, 8), 0.5, dtype=torch.float64)):
        assert torch.equal(run(action), wanted)
    env, swing = lift(), SwingEnv(SwingCfg())
    env.reset()
    swing.reset()
    swing.step(np.zeros((4, 2)))
    for wrong in (None, "x", {}, torch.zeros(3, 8, dtype=torch.complex64), np.zeros((3, 7)), np.full((3, 8), 1e300)):
        with pytest.raises(SpecMismatch, match="action"):
            env.step(wrong)
        with pytest.raises(SpecMismatch, match="action"):
            swing.step(wrong)


@pytest.mark.parametrize(
    ("hook", "value", "match"),
    [
        (
            "_get_observations",
            {"policy": torch.zeros(4, 5)},
            r"shape \(4, 5\).*policy of .*observations.*\(4, 4\)",
        ),
        ("_get_observations", {"policy": torch.full((4, 4), NAN)}, "not finite.*_get_observations"),
        ("_get_observations", None, "no policy.*_get_observations"),
        ("_get_dones", torch.zeros(4, dtype=torch.bool), "Tensor.*_get_dones.*terminated"),
        ("_get_dones", None, "NoneType.*_get_dones"),
        ("_get_rewards", torch.ones(4, dtype=torch.complex64), "complex64.*_get_rewards"),
        ("_get_rewards", torch.ones(4, 1), r"shape \(4, 1\).*_get_rewards"),
        ("_get_rewards", torch.full((4,), INF), "not finite.*_get_rewards"),
    ],
)
def test_hooks_with_a_wrong_return_are_refused(hook, value, match):
    env = type("Wrong", (SwingEnv,), {hook: lambda self: value})(SwingCfg())
    with pytest.raises(SpecMismatch, match=match):
        env.reset()
        env.step(torch.zeros(4, 2))
