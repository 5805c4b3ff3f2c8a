import mujoco
import numpy as np

from robots.descriptions import description_path
from robots.kinematics.chain import load_chain
from robots.kinematics.forward import forward, jacobian

PATH = description_path("panda")


def test_pose_and_jacobian_are_mujocos():
    chain, model = load_chain(PATH), mujoco.MjModel.from_xml_path(str(PATH))
    data, site = mujoco.MjData(model), model.site("ee").id
    q = np.random.default_rng(0).uniform(chain.lower, chain.upper, (50, 7))
    pos, rot, jac = jacobian(chain, q)
    assert jac.shape == (50, 6, 7)
    for row in range(50):
        data.qpos[:7] = q[row]
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, site)
        np.testing.assert_allclose(pos[row], data.site_xpos[site], atol=1e-12)
        np.testing.assert_allclose(rot[row].ravel(), data.site_xmat[site], atol=1e-12)
        np.testing.assert_allclose(jac[row], np.concatenate([linear, angular])[:, :7], atol=1e-12)


def test_home_points_down_over_the_table():
    chain = load_chain(PATH)
    pos, rot = forward(chain, chain.home[None])
    np.testing.assert_allclose(pos[0], [0.5, 0.0, 0.25], atol=1e-3)
    np.testing.assert_allclose(rot[0], np.diag([1.0, -1.0, -1.0]), atol=1e-3)
