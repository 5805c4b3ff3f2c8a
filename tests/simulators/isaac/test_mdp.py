"""Terms against MuJoCo's own fields, and the ranges of events."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied.errors import ConfigError
from simulators.isaac import mdp
from simulators.isaac.cfg import EventTermCfg, SceneEntityCfg
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.tasks.lift import FrankaCubeLiftEnvCfg
from simulators.isaac.tasks.reach import FrankaReachEnvCfg

N = 16


def make(**actions: Any) -> ManagerBasedRLEnv:
    """The Lift task, with other actions if given."""
    cfg = FrankaCubeLiftEnvCfg()
    cfg.scene.num_envs, cfg.seed = N, 2
    if actions:
        cfg.actions = actions
    env = ManagerBasedRLEnv(cfg)
    env.reset()
    return env


@pytest.fixture(scope="module")
def moving() -> ManagerBasedRLEnv:
    """After a few steps, with everything in motion. Read only."""
    env = make()
    generator = torch.Generator().manual_seed(0)
    mdp.push_by_setting_velocity(env, None, {"x": (0.1, 0.3), "yaw": (1.0, 2.0)}, SceneEntityCfg("object"))
    for _ in range(4):
        env.step(torch.randn(N, 8, generator=generator))
    return env


def chosen(env: ManagerBasedRLEnv, name: str = "robot", **names: Any) -> SceneEntityCfg:
    entity = SceneEntityCfg(name, **names)
    entity.resolve(env.scene)
    return entity


def close(value: torch.Tensor, wanted: Any, atol: float = 1e-5) -> bool:
    return value.dtype == torch.float32 and np.allclose(value.numpy(), wanted, atol=atol)


def test_joint_terms_equal_mujocos_fields(moving: ManagerBasedRLEnv) -> None:
    env, batch, data = moving, moving.sim.batch, moving.scene["robot"].data
    pos, vel = batch.bind("qpos")[:, :9], batch.bind("qvel")[:, :9]
    two = chosen(env, joint_names=["panda_joint4", "panda_joint2"], preserve_order=True)
    default = data.default_joint_pos.numpy()
    low, high = data.soft_joint_pos_limits.unbind(-1)
    assert close(mdp.joint_pos(env), pos) and close(mdp.joint_pos(env, two), pos[:, [3, 1]])
    assert close(mdp.joint_pos_rel(env, two), (pos - default)[:, [3, 1]])
    assert close(mdp.joint_vel(env), vel) and close(mdp.joint_vel_rel(env, two), vel[:, [3, 1]])
    middle, half = 0.5 * (low + high).numpy(), 0.5 * (high - low).numpy()
    assert close(mdp.joint_pos_limit_normalized(env), (pos - middle) / half)
    assert close(mdp.joint_effort(env, two), batch.bind("qfrc_actuator")[:, [3, 1]], 1e-3)
    assert close(mdp.joint_vel_l2(env), (vel**2).sum(axis=1)) and close(mdp.joint_vel_l1(env), np.abs(vel).sum(axis=1))
    assert close(mdp.joint_deviation_l1(env, two), np.abs(pos - default)[:, [3, 1]].sum(axis=1))
    torque, acc = batch.bind("qfrc_actuator")[:, :9], batch.bind("qacc")[:, :9]
    assert np.allclose(mdp.joint_torques_l2(env), (torque**2).sum(axis=1), rtol=1e-4)
    assert np.allclose(mdp.joint_acc_l2(env), (acc**2).sum(axis=1), rtol=1e-4)


def test_root_and_body_terms_equal_mujocos_fields(moving: ManagerBasedRLEnv) -> None:
    env, cube, model = moving, SceneEntityCfg("object"), moving.sim.model
    qpos, qvel = moving.sim.batch.bind("qpos")[:, 9:], moving.sim.batch.bind("qvel")[:, 9:]
    rotation = moving.sim.batch.bind("xmat")[:, model.body("object").id].reshape(-1, 3, 3)
    assert np.abs(qvel[:, :3]).max() > 0.01 and np.abs(qvel[:, 3:]).max() > 0.1
    assert close(mdp.base_pos_z(env, cube), qpos[:, 2:3]) and close(mdp.root_pos_w(env, cube), qpos[:, :3])
    assert close(mdp.root_quat_w(env, asset_cfg=cube), np.roll(qpos[:, 3:], -1, axis=1))
    assert (mdp.root_quat_w(env, True, cube)[:, 3] >= 0).all()
    assert close(mdp.root_lin_vel_w(env, cube), qvel[:, :3])
    assert close(mdp.root_ang_vel_w(env, cube), (rotation @ qvel[:, 3:, None])[..., 0])
    assert close(mdp.base_lin_vel(env, cube), (qvel[:, None, :3] @ rotation)[:, 0])
    assert close(mdp.base_ang_vel(env, cube), qvel[:, 3:])
    gravity = mdp.projected_gravity(env, cube)
    assert close(gravity, -rotation[:, 2])
    assert close(mdp.flat_orientation_l2(env, cube), (rotation[:, 2, :2] ** 2).sum(axis=1))
    assert torch.equal(mdp.bad_orientation(env, 0.1, cube), torch.acos(-gravity[:, 2]) > 0.1)
    assert close(mdp.base_height_l2(env, 0.02, cube), (qpos[:, 2] - 0.02) ** 2)
    assert close(mdp.lin_vel_z_l2(env, cube), mdp.base_lin_vel(env, cube)[:, 2] ** 2)
    assert close(mdp.ang_vel_xy_l2(env, cube), (qvel[:, 3:5] ** 2).sum(axis=1))
    hand = mdp.body_pose_w(env, chosen(env, body_names=["panda_hand"]))
    assert hand.shape == (N, 7) and close(hand[:, :3], moving.sim.batch.bind("xpos")[:, model.body("hand").id])


def test_terms_of_actions_commands_and_time_equal_the_managers(moving: ManagerBasedRLEnv) -> None:
    env, action = moving, moving.action_manager.action
    assert torch.equal(mdp.last_action(env), action)
    assert torch.equal(mdp.last_action(env, "gripper_action"), action[:, 7:])
    assert close(mdp.action_l2(env), (action**2).sum(dim=1))
    assert close(mdp.current_time_s(env), env.episode_length_buf[:, None] * 0.02)
    assert close(mdp.remaining_time_s(env), 5.0 - env.episode_length_buf[:, None] * 0.02)
    assert torch.equal(mdp.is_alive(env) + mdp.is_terminated(env), torch.ones(N))
    goal = np.linalg.norm(
        env.command_manager.get_command("object_pose")[:, :3] - mdp.root_pos_w(env, SceneEntityCfg("object")), axis=1
    )
    reached = mdp.object_reached_goal(env, threshold=float(np.median(goal)))
    assert torch.equal(reached, torch.from_numpy(goal < np.median(goal)))
    assert not mdp.command_resample(env, "object_pose").any()


def test_positions_beyond_joint_limits_are_found_and_measured() -> None:
    env = make()
    robot = env.scene["robot"]
    pos = robot.data.default_joint_pos.clone()
    pos[1, 0], pos[2, 3] = 3.0, -3.2
    robot.write_joint_state_to_sim(pos, torch.zeros(N, 9))
    assert mdp.joint_pos_out_of_limit(env).nonzero().flatten().tolist() == [1, 2]
    wanted = np.zeros(N)
    wanted[1], wanted[2] = 3.0 - 2.8973, 3.2 - 3.0718
    assert close(mdp.joint_pos_limits(env), wanted)
    assert mdp.joint_pos_out_of_manual_limit(env, (-3.1, 3.1)).nonzero().flatten().tolist() == [2]
    robot.write_joint_state_to_sim(pos, torch.eye(N, 9) * 2.0)
    assert mdp.joint_vel_out_of_manual_limit(env, 1.5).tolist() == [i < 9 for i in range(N)]


def test_joint_resets_and_pushes_stay_in_their_ranges() -> None:
    env = make()
    arm = chosen(env, joint_names=["panda_joint[1-7]"])
    ids = torch.tensor([1, 4, 5])
    before = env.sim.batch.bind("qpos").copy()
    mdp.reset_joints_by_offset(env, ids, (-0.1, 0.1), (0.2, 0.3), arm)
    change = env.sim.batch.bind("qpos") - before
    others = [i for i in range(N) if i not in ids.tolist()]
    assert not change[others].any() and not change[:, 7:].any()
    assert np.abs(change[ids, :7]).max() <= 0.1 + 1e-6 and (np.abs(change[ids, :7]) > 0).all()
    vel = env.sim.batch.bind("qvel")
    assert (vel[ids, :7] >= 0.2 - 1e-6).all() and (vel[ids, :7] <= 0.3 + 1e-6).all() and not vel[others].any()
    mdp.reset_scene_to_default(env, ids, reset_joint_targets=True)
    assert np.allclose(env.sim.batch.bind("qpos")[ids, :9], env.scene["robot"].data.default_joint_pos[ids])
    cube = SceneEntityCfg("object")
    ranges = {"x": (0.1, 0.2), "roll": (0.5, 0.6)}
    mdp.reset_root_state_uniform(env, None, {"z": (0.3, 0.4), "yaw": (1.0, 1.1)}, ranges, cube)
    pos, quat = mdp.root_pos_w(env, cube).numpy(), mdp.root_quat_w(env, asset_cfg=cube).numpy()
    assert np.allclose(pos[:, :2], [0.5, 0.0]) and (abs(pos[:, 2] - 0.405) <= 0.0501).all()
    assert np.allclose(quat[:, :2], 0.0) and (np.abs(2 * np.arctan2(quat[:, 2], quat[:, 3]) - 1.05) <= 0.0501).all()
    lin, ang = mdp.root_lin_vel_w(env, cube).numpy(), mdp.root_ang_vel_w(env, cube).numpy()
    assert ((lin[:, 0] > 0.0999) & (lin[:, 0] < 0.2001)).all() and np.allclose(lin[:, 1:], 0.0, atol=1e-6)
    assert ((ang[:, 0] > 0.4999) & (ang[:, 0] < 0.6001)).all() and np.allclose(ang[:, 1:], 0.0, atol=1e-6)
    with pytest.raises(ConfigError, match="did you mean x"):
        mdp.push_by_setting_velocity(env, None, {"x_": (0.0, 1.0)}, cube)


def test_physics_is_randomised_from_the_models_numbers() -> None:
    env = make()
    model, batch, cube = env.sim.model, env.sim.batch, SceneEntityCfg("object")
    body = model.body("object").id
    for _ in range(3):
        mdp.randomize_rigid_body_mass(env, None, cube, (0.5, 2.0), "scale")
    mass = batch.expanded("body_mass")[:, body]
    assert (mass >= 0.05).all() and (mass <= 0.2).all() and len(set(mass)) == N
    inertia = batch.expanded("body_inertia")[:, body]
    assert np.allclose(inertia, model.body_inertia[body] * (mass / 0.1)[:, None])
    finger = chosen(env, body_names=["panda_leftfinger"])
    mdp.randomize_rigid_body_material(env, torch.tensor([0, 3]), (0.2, 0.3), (0.2, 0.3), (0.0, 0.0), 8, finger)
    friction = batch.expanded("geom_friction")
    geoms = np.flatnonzero(model.geom_bodyid == model.body("left_finger").id)
    assert ((friction[[0, 3]][:, geoms, 0] >= 0.2) & (friction[[0, 3]][:, geoms, 0] <= 0.3)).all()
    assert np.array_equal(friction[1], model.geom_friction)
    arm = chosen(env, joint_names=["panda_joint[1-4]"])
    cfg = EventTermCfg(func=mdp.randomize_actuator_gains, mode="startup", params={"asset_cfg": arm})
    gains = mdp.randomize_actuator_gains(cfg, env)
    for _ in range(2):
        gains(env, None, arm, stiffness_distribution_params=(0.5, 1.5), operation="scale")
    bias = batch.expanded("actuator_biasprm")
    assert (-bias[:, :4, 1] >= 40.0).all() and (-bias[:, :4, 1] <= 120.0).all() and np.ptp(bias[:, :4, 1]) > 10.0
    assert np.allclose(bias[:, 4:7, 1], -80.0) and np.allclose(bias[:, :7, 2], -4.0)
    env.step(torch.zeros(N, 8))
    for call, word in (
        (lambda: mdp.randomize_rigid_body_mass(env, None, cube, (-0.5, 0.0), "add"), "kg was drawn"),
        (lambda: mdp.randomize_rigid_body_mass(env, None, cube, (0.5, 2.0), "scal"), "scale"),
        (lambda: mdp.randomize_rigid_body_mass(env, None, cube, (0.5, 2.0), "abs", "log"), "log_uniform"),
        (lambda: mdp.randomize_rigid_body_material(env, None, (1, 1), (1, 1), (0.0, 0.5), 1, cube), "restitution"),
    ):
        with pytest.raises(ConfigError, match=word):
            call()


def test_relative_and_effort_actions_set_their_targets() -> None:
    joints, fingers = ["panda_joint[1-7]"], ["panda_finger.*"]
    env = make(
        arm=mdp.RelativeJointPositionActionCfg(
            asset_name="robot", joint_names=joints, scale={"panda_joint1": 0.5}, clip={"panda_joint[1-3]": (-0.1, 0.2)}
        ),
        fingers=mdp.JointEffortActionCfg(asset_name="robot", joint_names=fingers, scale=2.0, offset=1.0),
    )
    assert env.action_manager.action_term_dim == [7, 2] and not env.action_manager.constant_over_decimation
    given = torch.linspace(-1, 1, N)[:, None].expand(N, 9)
    env.step(given)
    term = env.action_manager.get_term("arm")
    wanted = given[:, :7].clone()
    wanted[:, 0] *= 0.5
    wanted[:, :3] = wanted[:, :3].clamp(-0.1, 0.2)
    assert torch.allclose(term.processed_actions, wanted) and torch.equal(term.raw_actions, given[:, :7])
    data = env.scene["robot"].data
    # The target was set from where the joints were before the last physics step, 10 ms ago.
    assert torch.allclose(data.joint_pos_target[:, :7], data.joint_pos[:, :7] + wanted, atol=0.05)
    assert torch.allclose(data.joint_effort_target[:, 7:], 1.0 + 2.0 * given[:, 7:])
    with pytest.raises(ConfigError, match="panda_finger_joint2"):
        make(
            grip=mdp.BinaryJointPositionActionCfg(
                asset_name="robot",
                joint_names=fingers,
                open_command_expr={"panda_finger_joint1": 0.04},
                close_command_expr={"panda_finger.*": 0.0},
            )
        )


def ik(command_type: str, relative: bool, **more: Any) -> mdp.DifferentialInverseKinematicsActionCfg:
    return mdp.DifferentialInverseKinematicsActionCfg(
        asset_name="robot",
        joint_names=["panda_joint.*"],
        body_name="panda_hand",
        body_offset=mdp.DifferentialInverseKinematicsActionCfg.OffsetCfg(pos=(0.0, 0.0, 0.1034)),
        controller=mdp.DifferentialIKControllerCfg(command_type=command_type, use_relative_mode=relative),
        **more,
    )


def test_the_end_effector_goes_where_it_is_sent() -> None:
    env = make(arm=ik("pose", relative=False))
    frame = env.scene["ee_frame"].data
    assert env.action_manager.total_action_dim == 7
    goal = torch.tensor([0.45, 0.1, 0.3, 1.0, 0.0, 0.0, 0.0]).expand(N, 7)
    for _ in range(150):
        env.step(goal)
    assert (frame.target_pos_w[:, 0] - goal[:, :3]).norm(dim=1).max() < 0.01
    assert (frame.target_quat_w[:, 0] * goal[:, 3:]).sum(dim=1).abs().min() > 0.999


@pytest.mark.parametrize(("kind", "width"), [("position", 3), ("pose", 6)])
def test_relative_end_effector_steps(kind: str, width: int) -> None:
    env = make(arm=ik(kind, relative=True, scale=0.5))
    frame = env.scene["ee_frame"].data
    start = frame.target_pos_w[:, 0].clone()
    action = torch.zeros(N, width)
    action[:, 1] = 0.1
    assert env.action_manager.total_action_dim == width
    env.step(action)
    term: Any = env.action_manager.get_term("arm")
    assert np.allclose(term._target_pos, start.numpy() + np.array([0.0, 0.05, 0.0]), atol=1e-5)
    for _ in range(40):
        env.step(action)
    moved = frame.target_pos_w[:, 0] - start
    assert (moved[:, 1] > 0.05).all() and (moved[:, [0, 2]].abs() < 0.05).all()


def test_mistakes_of_a_controller_are_named() -> None:
    wrong = ik("position", relative=True)
    wrong.joint_names = ["panda_joint[1-6]"]
    for cfg, word in ((ik("poses", True), "pose"), (wrong, "panda_joint7")):
        with pytest.raises(ConfigError, match=word):
            make(arm=cfg)


def test_a_null_command_has_no_columns() -> None:
    cfg = FrankaReachEnvCfg()
    cfg.scene.num_envs = 2
    cfg.commands = SimpleNamespace(none=mdp.NullCommandCfg(), ee_pose=cfg.commands.ee_pose)
    env = ManagerBasedRLEnv(cfg)
    env.reset()
    env.step(torch.zeros(2, 7))
    assert env.command_manager.get_command("none").shape == (2, 0)
