import mujoco
import numpy as np
import pytest

from robots.descriptions import arms, description_path, descriptions
from robots.kinematics.chain import load_chain
from robots.kinematics.forward import forward, jacobian

ARMS = [name for name in descriptions() if list(arms(name)) == [""]]


@pytest.mark.parametrize("robot", ARMS)
def test_pose_and_jacobian_are_mujocos(robot):
    path = description_path(robot)
    chain, model = load_chain(path), mujoco.MjModel.from_xml_path(str(path))
    data, site, count = mujoco.MjData(model), model.site("ee").id, len(chain)
    q = np.random.default_rng(0).uniform(chain.lower, chain.upper, (50, count))
    pos, rot, jac = jacobian(chain, q)
    assert jac.shape == (50, 6, count)
    for row in range(50):
        data.qpos[:count] = q[row]
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, site)
        np.testing.assert_allclose(pos[row], data.site_xpos[site], atol=1e-12)
        np.testing.assert_allclose(rot[row].ravel(), data.site_xmat[site], atol=1e-12)
        np.testing.assert_allclose(jac[row], np.concatenate([linear, angular])[:, :count], atol=1e-12)


@pytest.mark.parametrize(("robot", "place"), [("panda", [0.5, 0.0, 0.25]), ("so101", [0.195, 0.0, 0.10])])
def test_home_points_down_over_the_table(robot, place):
    chain = load_chain(description_path(robot))
    pos, rot = forward(chain, chain.home[None])
    np.testing.assert_allclose(pos[0], place, atol=1e-3)
    np.testing.assert_allclose(rot[0], np.diag([1.0, -1.0, -1.0]), atol=1e-3)
