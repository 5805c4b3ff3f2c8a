"""Data of articulations and rigid objects against MuJoCo's own; writes; drives; order of quaternions."""

import mujoco
import numpy as np
import pytest
import torch

from embodied.errors import ConfigError, SpecMismatch
from simulators.isaac.actuators import ImplicitActuatorCfg
from simulators.isaac.assets import ArticulationCfg, AssetBaseCfg, RigidObjectCfg
from simulators.isaac.cfg import SimulationCfg
from simulators.isaac.quaternion import check_quaternion
from simulators.isaac.robots import FRANKA_PANDA_CFG
from simulators.isaac.scene import InteractiveScene
from simulators.isaac.sim import (
    CapsuleCfg,
    CuboidCfg,
    CylinderCfg,
    GroundPlaneCfg,
    MjcfSpawnCfg,
    RigidBodyPropertiesCfg,
)
from tests.simulators.isaac.toys import PENDULUM, SceneCfg, pendulum

ORDERS = ("xyzw", "wxyz")


def walker() -> mujoco.MjSpec:
    """A free body whose centre of mass is not at its origin, with one leg."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    trunk = spec.worldbody.add_body(name="trunk", pos=[3, 0, 1])
    trunk.add_freejoint(name="root")
    box = mujoco.mjtGeom.mjGEOM_BOX
    trunk.add_geom(type=box, size=[0.2, 0.1, 0.05], pos=[0.1, 0.05, 0.0], mass=2.0)
    leg = trunk.add_body(name="leg", pos=[0, 0, -0.1])
    leg.add_joint(name="hip", axis=[0, 1, 0])
    leg.add_geom(type=box, size=[0.03, 0.03, 0.2], pos=[0, 0.02, -0.2], mass=0.5, quat=[0.9, 0.1, 0.3, 0.2])
    return spec


def build(order: str = "xyzw", num_envs: int = 3, **members) -> InteractiveScene:
    cfg = SceneCfg(num_envs=num_envs)
    cfg.walker = ArticulationCfg(spawn=MjcfSpawnCfg(build=walker))
    for name, member in members.items():
        setattr(cfg, name, member)
    scene = InteractiveScene(cfg, order)
    scene.compile(SimulationCfg(dt=0.01, substeps=2, num_threads=1))
    return scene


def stir(scene: InteractiveScene) -> list[mujoco.MjData]:
    """Random states, and MuJoCo's own data of each environment."""
    rng, sim = np.random.default_rng(0), scene.sim
    sim.batch.bind("qvel")[:] = rng.normal(size=(scene.num_envs, sim.model.nv))
    sim.touch()
    sim.step(3)
    found = []
    for state in sim.batch.state:
        data = mujoco.MjData(sim.model)
        mujoco.mj_setState(sim.model, data, state, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_forward(sim.model, data)
        found.append(data)
    return found


def velocity(model, data, body: int, kind) -> np.ndarray:
    """Linear, then angular, in the world's axes, of the body's frame (`XBODY`) or centre of mass (`BODY`)."""
    result = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, int(kind), body, result, 0)
    return np.concatenate([result[3:], result[:3]])


def wxyz(quat: torch.Tensor, order: str) -> np.ndarray:
    return quat.numpy() if order == "wxyz" else quat.numpy()[..., [3, 0, 1, 2]]


def same_rotation(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(np.abs((a * b).sum(-1)), 1.0, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_body_states_equal_mujocos(order):
    scene = build(order)
    model, worlds = scene.sim.model, stir(scene)
    for name, bodies in {
        "robot": ["upper", "lower"],
        "walker": ["walker/trunk", "walker/leg"],
        "ball": ["ball"],
    }.items():
        data = scene[name].data
        ids = [model.body(body).id for body in bodies]
        com_quat = np.zeros(4)
        for env, world in enumerate(worlds):
            for k, body in enumerate(ids):
                link_vel = velocity(model, world, body, mujoco.mjtObj.mjOBJ_XBODY)
                com_vel = velocity(model, world, body, mujoco.mjtObj.mjOBJ_BODY)
                mujoco.mju_mat2Quat(com_quat, world.ximat[body])
                expected = {
                    "body_link_pos_w": world.xpos[body],
                    "body_com_pos_w": world.xipos[body],
                    "body_link_vel_w": link_vel,
                    # The axes of a body's centre of mass are the inertia's, but velocities are in the world's.
                    "body_com_lin_vel_w": world.cvel[body, 3:]
                    + np.cross(world.cvel[body, :3], world.xipos[body] - world.subtree_com[model.body_rootid[body]]),
                    "body_ang_vel_w": com_vel[3:],
                }
                for field, value in expected.items():
                    assert np.allclose(getattr(data, field)[env, k], value, atol=1e-5), field
                assert same_rotation(wxyz(data.body_link_quat_w[env, k], order), world.xquat[body])
                assert same_rotation(wxyz(data.body_com_quat_w[env, k], order), com_quat)
        for kind in ("link", "com"):
            for part in ("pos", "quat", "pose", "vel", "lin_vel", "ang_vel", "state"):
                root, every = getattr(data, f"root_{kind}_{part}_w"), getattr(data, f"body_{kind}_{part}_w")
                assert torch.allclose(root, every[:, 0], atol=1e-6), (kind, part)
        assert torch.equal(data.root_state_w, torch.cat([data.root_link_pose_w, data.root_com_vel_w], 1))
        assert torch.equal(data.body_vel_w, data.body_com_vel_w) and torch.equal(data.body_pos_w, data.body_link_pos_w)


@pytest.mark.parametrize("order", ORDERS)
def test_velocities_in_the_root_frame_equal_mujocos(order):
    scene = build(order)
    data = scene["walker"].data
    for env, world in enumerate(stir(scene)):
        body = scene.sim.model.body("walker/trunk").id
        turn = world.xmat[body].reshape(3, 3)
        assert np.allclose(data.projected_gravity_b[env], turn.T @ [0, 0, -1], atol=1e-5)
        assert np.allclose(data.root_lin_vel_b[env], turn.T @ data.root_com_lin_vel_w[env].numpy(), atol=1e-5)
        assert np.allclose(data.root_ang_vel_b[env], turn.T @ data.root_ang_vel_w[env].numpy(), atol=1e-5)
        assert np.allclose(data.root_link_lin_vel_b[env], turn.T @ data.root_link_lin_vel_w[env].numpy(), atol=1e-5)
        assert np.allclose(data.heading_w[env], np.arctan2(turn[1, 0], turn[0, 0]), atol=1e-5)


def test_joint_data_equals_mujocos():
    scene = build()
    worlds, robot = stir(scene), scene["robot"]
    for env, world in enumerate(worlds):
        assert np.allclose(robot.data.joint_pos[env], world.qpos[:2]) and np.allclose(
            robot.data.joint_vel[env], world.qvel[:2]
        )
    assert torch.equal(robot.data.joint_acc, torch.from_numpy(scene.sim.batch.bind("qacc")[:, :2]).float())
    assert torch.equal(
        robot.data.applied_torque, torch.from_numpy(scene.sim.batch.bind("qfrc_actuator")[:, :2]).float()
    )
    assert (robot.data.applied_torque.abs() <= 5.0).all() and robot.data.applied_torque.abs().max() > 0
    assert robot.joint_names == ["upper_joint", "lower_joint"] and robot.body_names == ["upper", "lower"]
    assert robot.num_joints == 2 and robot.num_bodies == 2
    assert robot.is_fixed_base and not scene["walker"].is_fixed_base and scene["walker"].joint_names == ["hip"]
    assert robot.data.joint_pos_limits[0].tolist() == [[-3.0, 3.0]] * 2
    assert torch.allclose(robot.data.soften(0.5)[0], torch.tensor([[-1.5, 1.5]] * 2))
    assert torch.isinf(scene["walker"].data.joint_pos_limits).all()
    assert robot.data.default_mass[0].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("order", ORDERS)
def test_written_states_are_read_back(order):
    scene = build(order)
    stir(scene)
    walker = scene["walker"]
    ids = torch.tensor([0, 2])
    untouched = walker.data.root_state_w[1].clone()
    pose = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5, 0.5, 0.5], [0.0, 1.0, 2.0, 0.6, 0.0, 0.8, 0.0]])
    speed = torch.tensor([[1.0, 2.0, 3.0, 0.1, 0.2, 0.3], [-1.0, 0.0, 0.5, 0.0, -2.0, 1.0]])
    for kind in ("link", "com"):
        getattr(walker, f"write_root_{kind}_pose_to_sim")(pose, ids)
        getattr(walker, f"write_root_{kind}_velocity_to_sim")(speed, ids)
        assert torch.allclose(getattr(walker.data, f"root_{kind}_pose_w")[ids], pose, atol=1e-5)
        assert torch.allclose(getattr(walker.data, f"root_{kind}_vel_w")[ids], speed, atol=1e-5)
    state = torch.cat([pose, speed], 1)
    walker.write_root_state_to_sim(state, ids)
    assert torch.allclose(walker.data.root_state_w[ids], state, atol=1e-5)
    assert torch.equal(walker.data.root_state_w[1], untouched)
    walker.write_joint_state_to_sim(torch.tensor([[0.4], [0.5]]), torch.tensor([[1.0], [2.0]]), env_ids=ids)
    assert torch.allclose(walker.data.joint_pos[ids, 0], torch.tensor([0.4, 0.5]))
    assert torch.allclose(walker.data.joint_vel[ids, 0], torch.tensor([1.0, 2.0]))
    robot = scene["robot"]
    robot.write_joint_position_to_sim(torch.full((2, 1), 0.7), joint_ids=[1], env_ids=ids)
    assert (robot.data.joint_pos[ids, 1] == 0.7).all() and (robot.data.joint_pos[1, 1] != 0.7)
    robot.write_root_state_to_sim(robot.data.default_root_state)
    with pytest.raises(ConfigError, match=r"a fixed base was moved .asset robot"):
        robot.write_root_pose_to_sim(robot.data.default_root_state[:, :7] + 1.0)


def hold(targets: dict, actuators: dict, seconds: float = 4.0) -> InteractiveScene:
    scene = build(num_envs=1, robot=PENDULUM.replace(actuators=actuators))
    robot = scene["robot"]
    for name, target in targets.items():
        getattr(robot, f"set_joint_{name}_target")(torch.tensor([target]))
    scene.write_data_to_sim()
    scene.sim.step(int(seconds / 0.01))
    return scene


def test_drives_follow_their_targets():
    strong = {"all": ImplicitActuatorCfg(joint_names_expr=[".*"], stiffness=2000.0, damping=100.0)}
    data = hold({"position": [0.5, -0.7]}, strong)["robot"].data
    assert torch.allclose(data.joint_pos, torch.tensor([[0.5, -0.7]]), atol=5e-3)
    speed = {"all": ImplicitActuatorCfg(joint_names_expr=[".*"], stiffness=0.0, damping=200.0)}
    data = hold({"velocity": [0.2, 0.1]}, speed, 2.0)["robot"].data
    assert torch.allclose(data.joint_vel, torch.tensor([[0.2, 0.1]]), atol=0.03)
    free = {"all": ImplicitActuatorCfg(joint_names_expr=[".*"], stiffness=0.0, damping=0.0, effort_limit_sim=1.5)}
    data = hold({"effort": [1.0, 9.0]}, free, 0.02)["robot"].data
    assert torch.allclose(data.applied_torque, torch.tensor([[1.0, 1.5]]))


def test_gains_of_one_environment_leave_the_others_alone():
    scene = build()
    robot = scene["robot"]
    robot.write_joint_stiffness_to_sim(torch.tensor([[100.0, 50.0]]), env_ids=torch.tensor([1]))
    robot.write_joint_damping_to_sim(4.0, joint_ids=[0], env_ids=torch.tensor([1]))
    assert robot.data.joint_stiffness.tolist() == [[20.0, 20.0], [100.0, 50.0], [20.0, 20.0]]
    before = robot.data.joint_pos.clone()
    robot.set_joint_position_target(before + 0.01)
    scene.write_data_to_sim()
    scene.sim.step()
    torque = robot.data.applied_torque
    assert torch.equal(torque[0], torque[2]) and (torque[1] > 1.5 * torque[0]).all()


def test_numbers_of_the_configuration_reach_the_model():
    drive = ImplicitActuatorCfg(
        joint_names_expr=[".*"],
        stiffness={"upper_joint": 30.0, "lower_joint": 40.0},
        damping=2.0,
        effort_limit_sim=6.0,
        velocity_limit_sim={"lower_joint": 1.5},
        armature=0.001,
        friction=0.3,
    )
    scene = build(robot=PENDULUM.replace(actuators={"all": drive}))
    data, model = scene["robot"].data, scene.sim.model
    assert data.joint_stiffness[0].tolist() == [30.0, 40.0] and data.joint_effort_limits[0].tolist() == [6.0, 6.0]
    assert data.joint_vel_limits[0].tolist() == [float("inf"), 1.5]
    assert np.allclose(model.dof_frictionloss[:2], 0.3)
    assert torch.allclose(data.joint_armature[0], torch.tensor(2.0 * 0.005)), "raised to damping times the time step"


def test_the_panda_has_isaacs_names():
    scene = build(robot=FRANKA_PANDA_CFG)
    robot = scene["robot"]
    assert robot.joint_names[:7] == [f"panda_joint{k}" for k in range(1, 8)]
    assert robot.body_names[8:] == ["panda_hand", "panda_leftfinger", "panda_rightfinger"]
    assert robot.find_joints(["panda_finger_joint.*"]) == ([7, 8], ["panda_finger_joint1", "panda_finger_joint2"])
    with pytest.raises(ConfigError, match="did you mean panda_hand"):
        robot.find_bodies("panda_hnd")
    scene.write_data_to_sim()
    scene.sim.step(50)
    assert torch.allclose(robot.data.joint_pos, robot.data.default_joint_pos, atol=2e-3)


def test_objects_of_all_shapes_have_mujocos_geoms():
    fixed = RigidBodyPropertiesCfg(kinematic_enabled=True)
    init = RigidObjectCfg.InitialStateCfg(pos=(2.0, 0.0, 0.5), rot=(0.0, 0.0, 1.0, 0.0))
    scene = build(
        ground=AssetBaseCfg(spawn=GroundPlaneCfg()),
        wall=AssetBaseCfg(
            spawn=CuboidCfg(size=(0.1, 1.0, 1.0)), init_state=AssetBaseCfg.InitialStateCfg(pos=(5.0, 0, 0))
        ),
        rod=RigidObjectCfg(spawn=CylinderCfg(radius=0.1, height=0.6, axis="X"), init_state=init),
        pill=RigidObjectCfg(spawn=CapsuleCfg(radius=0.1, height=0.6, rigid_props=fixed)),
    )
    scene.sim.step(200)
    assert torch.allclose(scene["rod"].data.root_pos_w[:, 2], torch.tensor(0.1), atol=5e-3), "it lies on its side"
    assert torch.allclose(scene["rod"].data.default_root_state[0, 3:7], torch.tensor(init.rot))
    pose = torch.tensor([[1.0, 2.0, 3.0, 0.0, 1.0, 0.0, 0.0]]).repeat(3, 1)
    scene["pill"].write_root_pose_to_sim(pose)
    assert torch.allclose(scene["pill"].data.root_pose_w, pose)
    with pytest.raises(ConfigError, match="choose X, Y or Z"):
        build(rod=RigidObjectCfg(spawn=CylinderCfg(radius=0.1, height=0.6, axis="x")))


def test_a_robot_has_exactly_one_readable_source(tmp_path):
    (tmp_path / "arm.xml").write_text(pendulum().to_xml())
    scene = build(robot=PENDULUM.replace(spawn=PENDULUM.spawn.replace(build=None, path=str(tmp_path / "arm.xml"))))
    assert scene["robot"].joint_names == ["upper_joint", "lower_joint"]
    for spawn, match in (
        (MjcfSpawnCfg(), "0 sources"),
        (MjcfSpawnCfg(robot="pnda"), "did you mean panda"),
        (MjcfSpawnCfg(path="nowhere.xml"), "no file"),
        (MjcfSpawnCfg(build=pendulum, root="upr"), "no body is called 'upr'"),
    ):
        with pytest.raises(ConfigError, match=match):
            build(robot=PENDULUM.replace(spawn=spawn))


def test_another_order_is_refused_by_name():
    check_quaternion("xyzw", "xyzw", "checkpoint a")
    with pytest.raises(SpecMismatch, match=r"wxyz there and xyzw here \(checkpoint a\): set quaternion: wxyz"):
        check_quaternion("xyzw", "wxyz", "checkpoint a")
    with pytest.raises(ConfigError, match="did you mean"):
        check_quaternion("xyzw", "wxy", "checkpoint a")
