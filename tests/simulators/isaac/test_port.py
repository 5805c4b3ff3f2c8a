"""Forms of Isaac Lab that its tasks use: errors, names of bodies, robots of foreign files, noise, observations [N]."""

from pathlib import Path

import gymnasium
import pytest
import torch

from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac.assets import ArticulationCfg
from simulators.isaac.cfg import SceneEntityCfg, SimulationCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.managers import EventTermCfg, ManagerTermBase, ObservationTermCfg
from simulators.isaac.noise import ConstantNoiseCfg, GaussianNoiseCfg, UniformNoiseCfg
from simulators.isaac.scene import InteractiveScene, InteractiveSceneCfg
from simulators.isaac.sim import MjcfSpawnCfg
from tests.simulators.isaac.toys import PENDULUM, SwingCfg, SwingEnv, ToyCfg

ANT = Path(gymnasium.__file__).parent / "envs/mujoco/assets/ant.xml"
INERTIA = '<mass value="1"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
URDF = f"""<robot name="two">
<link name="base"><inertial>{INERTIA}</inertial></link>
<link name="hinge"><inertial><origin xyz="0 0 0.2"/>{INERTIA}</inertial></link>
<joint name="hinge" type="revolute"><parent link="base"/><child link="hinge"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="5" velocity="3"/></joint></robot>"""


def scene(*spawns: MjcfSpawnCfg) -> InteractiveScene:
    cfg = InteractiveSceneCfg(num_envs=2)
    made = InteractiveScene(cfg)
    for index, spawn in enumerate(spawns):
        robot = ArticulationCfg(spawn=spawn)
        if spawn.path == str(ANT):
            robot.init_state.joint_pos = {"hip_.": 0.0, "ankle_[14]": 0.8, "ankle_[23]": -0.8}
        made.articulations[f"robot{index}"] = robot.class_type(robot)
    made.compile(SimulationCfg())
    return made


def test_errors_are_those_that_ported_code_catches():
    made = ManagerBasedRLEnv(ToyCfg())
    with pytest.raises(KeyError) as raised:
        made.scene["nothing"]
    assert isinstance(raised.value, ConfigError) and str(raised.value) == raised.value.line()
    with pytest.raises(ValueError, match="nothing is called 'x'"):
        made.scene["robot"].find_joints("x")
    with pytest.raises(TypeError, match="has no field 'y'"):
        SimulationCfg(y=1)
    made.reset()
    with pytest.raises(ValueError, match="action") as raised:
        made.step(torch.zeros(1))
    assert isinstance(raised.value, SpecMismatch)


def test_bodies_and_joints_without_a_name_are_called_after_their_parents():
    robot = scene(MjcfSpawnCfg(path=str(ANT)))["robot0"]
    assert robot.body_names[:4] == ["torso", "front_left_leg", "aux_1", "aux_1_0"] and not robot.is_fixed_base
    assert len(set(robot.body_names)) == 13 and robot.num_joints == 8


def test_a_urdf_keeps_its_root_and_kinds_are_renamed_apart(tmp_path):
    (tmp_path / "two.urdf").write_text(URDF)
    robot = scene(MjcfSpawnCfg(path=str(tmp_path / "two.urdf")))["robot0"]
    assert robot.body_names == ["base", "hinge"] and robot.joint_names == ["hinge"]
    spawn = MjcfSpawnCfg(path=str(tmp_path / "two.urdf"), rename_bodies={"hinge": "arm"}, rename={"hinge": "elbow"})
    both = scene(MjcfSpawnCfg(path=str(ANT)), spawn)
    assert both["robot1"].body_names == ["base", "arm"] and both["robot1"].joint_names == ["elbow"]
    (tmp_path / "cut.urdf").write_text(URDF[:200])
    with pytest.raises(ConfigError, match=r"MuJoCo cannot read it.*cut\.urdf"):
        scene(MjcfSpawnCfg(path=str(tmp_path / "cut.urdf")))


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ({"rename": {"uper": "x"}}, r"nothing is called 'uper' \(rename of articulation robot0\): did you mean upper"),
        ({"rename_joints": {"upper": "x"}}, "nothing is called 'upper'"),
        ({"rename_bodies": {".*er": "x"}}, "2 bodies are renamed to 'x'"),
    ],
)
def test_names_that_change_nothing_or_collide_are_refused(names, match):
    with pytest.raises(ConfigError, match=match):
        scene(MjcfSpawnCfg(build=PENDULUM.spawn.build, **names))


def test_a_rigid_object_is_called_as_its_prim_path_ends():
    cfg = ToyCfg()
    cfg.rewards.alive.params, cfg.rewards.alive.func = {"ball": SceneEntityCfg("ball", body_names="Ball")}, height
    env = ManagerBasedRLEnv(cfg)
    assert env.scene["ball"].body_names == ["Ball"] and env.scene["ball"].find_bodies("Ba.*")[0] == [0]
    assert env.scene["robot"]._ALL_INDICES.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="there is no PhysX view"):
        _ = env.scene["ball"].root_physx_view


def height(env, ball: SceneEntityCfg):
    return env.scene[ball.name].data.body_pos_w[:, ball.body_ids, 2].squeeze(-1)


@pytest.mark.parametrize(
    "cfg",
    [ConstantNoiseCfg(bias=1.0), UniformNoiseCfg(n_min=1.0, n_max=1.0), GaussianNoiseCfg(mean=1.0, std=0.0)],
)
def test_noise_needs_no_generator(cfg):
    assert cfg.func(torch.zeros(2, 3), cfg).tolist() == [[1.0] * 3] * 2


class Counter(ManagerTermBase):
    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.calls = torch.zeros(env.num_envs)

    def reset(self, env_ids=None):
        self.calls[slice(None) if env_ids is None else env_ids] = 0

    def __call__(self, env):
        self.calls += 1
        return self.calls.clone()


@pytest.mark.parametrize("together", [True, False])
def test_observations_of_one_number_need_no_axis(together):
    cfg = ToyCfg()
    cfg.observations.policy.calls = ObservationTermCfg(func=Counter, scale=2.0)
    cfg.observations.policy.past = ObservationTermCfg(func=Counter, history_length=2)
    cfg.observations.policy.concatenate_terms = together
    env = ManagerBasedRLEnv(cfg)
    counter = env.observation_manager.get_term_cfg("policy", "calls").func
    assert not counter.calls.any()  # The call for its shape leaves no trace.
    found = env.reset()[0]["policy"]
    assert env.observation_space["policy"].contains(found.numpy()) if together else found["calls"].shape == (3,)
    calls, past = (found[:, -3], found[:, -2:]) if together else (found["calls"], found["past"])
    assert calls.tolist() == [2.0] * 3 and past.tolist() == [[1.0, 1.0]] * 3


def note(env, env_ids, mode):
    env.modes = [*getattr(env, "modes", []), mode]


def test_prestartup_events_come_before_startup_events():
    cfg = ToyCfg()
    for mode in ("startup", "prestartup"):
        setattr(cfg.events, f"at_{mode}", EventTermCfg(func=note, mode=mode, params={"mode": mode}))
    assert ManagerBasedRLEnv(cfg).modes == ["prestartup", "startup"]


def test_spaces_have_the_bounds_of_clips_and_boxes():
    cfg = ToyCfg()
    cfg.observations.policy.concatenate_terms = False
    cfg.observations.policy.joints.clip = (-1.0, 2.0)
    space = ManagerBasedRLEnv(cfg).single_observation_space["policy"]["joints"]
    assert space.low.tolist() == [-1.0, -1.0] and space.high.tolist() == [2.0, 2.0]
    box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    assert SwingEnv(SwingCfg(action_space=box)).single_action_space == box
    for wrong in (gymnasium.spaces.Discrete(3), {3}, 0, [2, {3}]):
        with pytest.raises(ConfigError, match=r"action_space cannot be .*gymnasium Box"):
            SwingEnv(SwingCfg(action_space=wrong))
