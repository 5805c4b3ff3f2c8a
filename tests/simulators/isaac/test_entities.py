"""Names of entities, joints, bodies, parameters and fields; a wrong one is refused in one line."""

import dataclasses

import pytest
import torch

from embodied.errors import ConfigError
from simulators.isaac.actuators import ImplicitActuatorCfg
from simulators.isaac.configclass import MISSING, configclass, missing
from simulators.isaac.envs import ManagerBasedRLEnv
from simulators.isaac.managers import EventTermCfg, ObservationTermCfg, RewardTermCfg, SceneEntityCfg
from simulators.isaac.scene import InteractiveScene
from simulators.isaac.sensors import FrameTransformerCfg, OffsetCfg
from simulators.isaac.utils.string import resolve_matching_names, resolve_matching_names_values
from tests.simulators.isaac.toys import PENDULUM, SceneCfg, ToyCfg, joint_pos, ones


def scene(**members) -> InteractiveScene:
    cfg = SceneCfg(num_envs=2)
    for name, member in members.items():
        setattr(cfg, name, member)
    made = InteractiveScene(cfg)
    made.compile(ToyCfg().sim)
    return made


@pytest.fixture(scope="module")
def built() -> InteractiveScene:
    return scene()


@pytest.mark.parametrize(
    ("entity", "joints", "bodies"),
    [
        (SceneEntityCfg("robot"), slice(None), slice(None)),
        (SceneEntityCfg("robot", joint_names=".*"), slice(None), slice(None)),
        (SceneEntityCfg("robot", joint_names=["lower_joint"], body_names="upper"), [1], [0]),
        (SceneEntityCfg("robot", joint_names=["lower_joint", "upper_joint"]), slice(None), slice(None)),
        (SceneEntityCfg("robot", joint_names=["lower.*", "upper.*"], preserve_order=True), [1, 0], slice(None)),
        (SceneEntityCfg("robot", joint_ids=[1]), [1], slice(None)),
        (SceneEntityCfg("ball", body_names="Ball"), slice(None), slice(None)),
    ],
)
def test_names_become_indices_once(built, entity, joints, bodies):
    entity.resolve(built)
    assert (entity.joint_ids, entity.body_ids) == (joints, bodies)


@pytest.mark.parametrize(
    ("entity", "match"),
    [
        (SceneEntityCfg("robbot"), "no 'robbot'.*did you mean robot"),
        (SceneEntityCfg("robot", joint_names=["uper_joint"]), "'uper_joint' .joint_names.*did you mean upper_joint"),
        (SceneEntityCfg("robot", body_names="lowr"), "'lowr' .body_names.*did you mean lower"),
        (SceneEntityCfg("robot", joint_names="(["), "no regular expression"),
        (SceneEntityCfg("robot", joint_ids=[7]), "choose 0 to 1"),
        (SceneEntityCfg("robot", joint_names="upper_joint", joint_ids=[1]), r"those are \[0\]"),
        (SceneEntityCfg("ball", joint_names=".*"), "ball has no joint names"),
    ],
)
def test_unknown_names_are_named(built, entity, match):
    with pytest.raises(ConfigError, match=match):
        entity.resolve(built)


def ranged(env, low: float, *, high: float = 1.0) -> torch.Tensor:
    return torch.full((env.num_envs,), low)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"rewards": {"r": RewardTermCfg(func=ranged, weight=1.0, params={"lo": 1})}},
            "'lo' .reward r.: did you mean low",
        ),
        ({"rewards": {"r": RewardTermCfg(func=ranged, weight=1.0)}}, "'low' is missing .reward r"),
        ({"rewards": {"r": RewardTermCfg(func=ones, weight="much")}}, "weight is 'much' .reward r"),
        ({"rewards": {"r": ObservationTermCfg(func=ones)}}, "no RewardTermCfg .reward r"),
        ({"events": {"e": EventTermCfg(func=ones, mode="reset")}}, "takes 1 arguments .event e"),
        ({"events": {"e": EventTermCfg(func=lambda env, ids: None, mode="interval")}}, "interval_range_s is missing"),
        ({"decimation": 0}, "decimation is 0"),
        ({"quaternion": "wxzy"}, "'wxzy'.*did you mean wxyz"),
        ({"episode_length_s": MISSING}, "episode_length_s is missing"),
    ],
)
def test_a_wrong_configuration_is_one_line(change, match):
    cfg = ToyCfg()
    for name, value in change.items():
        setattr(cfg, name, value)
    with pytest.raises(ConfigError, match=match) as raised:
        ManagerBasedRLEnv(cfg)
    assert "\n" not in str(raised.value)


def test_entities_in_params_are_looked_up_for_their_term():
    cfg = ToyCfg()
    cfg.observations.policy.joints.params = {"asset_cfg": SceneEntityCfg("robot", joint_names="lower_joint")}
    env = ManagerBasedRLEnv(cfg)
    assert env.reset()[0]["policy"].shape == (3, 1)
    assert cfg.observations.policy.joints.params["asset_cfg"].joint_ids == slice(None), "the given one stays as it was"
    cfg.observations.policy.joints.params["asset_cfg"].joint_names = "lover_joint"
    with pytest.raises(ConfigError, match=r"observation joints of group|observation joints"):
        ManagerBasedRLEnv(cfg)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"robot": PENDULUM.replace(actuators={"a": ImplicitActuatorCfg(joint_names_expr=["uper.*"])})}, "'uper"),
        (
            {"robot": PENDULUM.replace(init_state=PENDULUM.InitialStateCfg(joint_pos={"upper_joint": 3.5}))},
            "3.5 is beyond",
        ),
        ({"light": 3}, "a int is nothing a scene holds"),
        (
            {"tip": FrameTransformerCfg(prim_path="{ENV_REGEX_NS}/Robt", target_frames=[])},
            "did you mean {ENV_REGEX_NS}/robot",
        ),
        (
            {"tip": FrameTransformerCfg(prim_path="{ENV_REGEX_NS}/Robot/uper", target_frames=[])},
            "'uper' .articulation robot.: did you mean upper",
        ),
    ],
)
def test_a_scene_refuses_unknown_members_by_name(members, match):
    with pytest.raises(ConfigError, match=match):
        scene(**members)


def test_actuators_may_not_overlap():
    twice = {name: ImplicitActuatorCfg(joint_names_expr=[".*"]) for name in "ab"}
    with pytest.raises(ConfigError, match="driven twice"):
        scene(robot=PENDULUM.replace(actuators=twice))


def test_frames_follow_their_bodies():
    offset = OffsetCfg(pos=(0.0, 0.0, -0.5), rot=(0.0, 0.0, 0.70710678, 0.70710678))
    frame = FrameTransformerCfg.FrameCfg(prim_path="{ENV_REGEX_NS}/Robot/lower", name="tip", offset=offset)
    made = scene(tip=FrameTransformerCfg(prim_path="{ENV_REGEX_NS}/Robot", target_frames=[frame]))
    data = made["tip"].data
    # The angles are 0.3 and -0.2 about y, so the tip lies at sums of sines and cosines.
    angles = torch.tensor([0.3, 0.1])
    expected = torch.tensor([-0.5 * angles.sin().sum(), 0.0, 1.0 - 0.5 * angles.cos().sum()])
    assert torch.allclose(data.target_pos_w[0, 0], expected, atol=1e-6)
    assert data.target_frame_names == ["tip"] and torch.allclose(data.source_pos_w[0], torch.tensor([0.0, 0.0, 1.0]))
    assert torch.allclose(data.target_pos_source[0, 0].norm(), (expected - data.source_pos_w[0]).norm())
    half = torch.tensor(0.05)
    turn = torch.stack([torch.tensor(0.0), half.sin(), torch.tensor(0.0), half.cos()])
    from simulators.isaac.math import quat_mul

    assert torch.allclose(data.target_quat_w[0, 0], quat_mul(turn, torch.tensor(offset.rot)), atol=1e-6)


def test_expressions_match_names_and_values_in_order():
    names = ["arm1", "arm2", "hand"]
    assert resolve_matching_names(["hand", "arm."], names, preserve_order=True) == ([2, 0, 1], ["hand", "arm1", "arm2"])
    assert resolve_matching_names_values({"hand": 2.0, "arm.": 1.0}, names) == ([0, 1, 2], names, [1.0, 1.0, 2.0])
    with pytest.raises(ConfigError, match="both match arm1"):
        resolve_matching_names(["arm1", "arm."], names)


@configclass
class Inner:
    x = 1.0
    names = ["a"]  # noqa: RUF012


@configclass
class Outer:
    must: int = MISSING
    inner: Inner = Inner()
    free = None

    @configclass
    class Nested:
        y: int = 3

    def __post_init__(self):
        self.inner.x += 1.0


@configclass
class Derived(Outer):
    free = 4

    def __post_init__(self):
        super().__post_init__()
        self.must = 7


def test_a_configclass_copies_defaults_and_knows_its_fields():
    a, b = Outer(), Outer(must=2)
    a.inner.names.append("b")
    assert b.inner.names == ["a"] and Inner().names == ["a"] and b.inner.x == 2.0
    assert [field.name for field in dataclasses.fields(Derived)] == ["must", "inner", "free"]
    assert list(missing(a)) == ["must"] and not list(missing(Derived()))
    assert Derived().free == 4 and Derived().must == 7
    assert b.replace(must=5).must == 5 and b.copy() == b and b.copy() is not b
    assert ToyCfg().to_dict()["observations"]["policy"]["joints"]["func"].endswith(":joint_pos")
    assert ToyCfg().observations.policy.joints.func is joint_pos
    with pytest.raises(ConfigError, match=r"no field 'mst'.*did you mean must"):
        Outer(mst=3)
