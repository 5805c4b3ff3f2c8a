import mujoco
import numpy as np
import pytest

from embodied.errors import ConfigError
from simulators.make import make_task
from simulators.scene import PHYSICS_DT, table_scene

PRIMITIVES = {mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_SPHERE}


def test_the_scene_is_primitives_with_three_cameras():
    model = make_task("lift_cube").model
    assert {model.camera(i).name for i in range(model.ncam)} == {"front", "wrist", "video"}
    assert model.nmesh == 0 and model.ngeom <= 24
    assert {int(kind) for kind in model.geom_type} <= {int(kind) for kind in PRIMITIVES | {mujoco.mjtGeom.mjGEOM_PLANE}}
    assert model.opt.timestep == PHYSICS_DT and model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE


def test_the_robot_never_hits_itself_and_only_its_hand_hits_the_scene():
    model = make_task("lift_cube").model
    data = mujoco.MjData(model)
    hits = {model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]}
    assert hits == {"hand", "left_finger", "left_pad", "right_finger", "right_pad", "table", "cube"}
    rng = np.random.default_rng(0)
    for _ in range(50):
        data.qpos[:9] = rng.uniform(model.jnt_range[:9, 0], model.jnt_range[:9, 1])
        mujoco.mj_forward(model, data)
        for contact in data.contact:
            assert {"table", "cube"} & {model.geom(contact.geom1).name, model.geom(contact.geom2).name}


def test_a_held_pose_does_not_sag():
    model = table_scene().compile()
    data = mujoco.MjData(model)
    home = model.numeric("home").data
    data.qpos[:7], data.ctrl[:7] = home, home
    mujoco.mj_step(model, data, nstep=400)
    assert np.abs(data.qpos[:7] - home).max() < 1e-4


def test_an_unknown_robot_is_refused():
    with pytest.raises(ConfigError, match="no robot is called"):
        table_scene("pandora")
