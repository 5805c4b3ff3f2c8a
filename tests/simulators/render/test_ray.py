"""The ray caster against MuJoCo's own rays, against Lambert's law, and against itself."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import ConfigError
from simulators.render.ray import RayCaster

SHAPES = """
<mujoco>
  <visual><headlight ambient="0.2 0.2 0.2" diffuse="0.3 0.3 0.3"/></visual>
  <worldbody>
    <light type="directional" dir="0.3 0.2 -1" diffuse="0.5 0.5 0.5"/>
    <camera name="front" pos="0 -2 0.9" xyaxes="1 0 0 0 0.4 0.9" fovy="50"/>
    <camera name="close" pos="0.05 -0.45 0.25" xyaxes="1 0 0.2 0 0.2 0.9" fovy="80"/>
    <geom name="floor" type="plane" size="0 0 1" rgba="0.5 0.5 0.5 1"/>
    <geom name="shelf" type="plane" size="0.5 0.3 1" pos="0.1 0.9 0.2" euler="20 10 0" rgba="0.2 0.2 0.6 1"/>
    <geom name="box" type="box" size="0.2 0.1 0.15" pos="-0.6 0.1 0.3" euler="30 40 10" rgba="1 0 0 1"/>
    <geom name="ball" type="sphere" size="0.18" pos="-0.2 0 0.5" rgba="0 1 0 1"/>
    <geom name="capsule" type="capsule" size="0.08 0.25" pos="0.2 0.2 0.45" euler="50 20 30" rgba="0 0 1 1"/>
    <geom name="cylinder" type="cylinder" size="0.12 0.2" pos="0.6 0 0.4" euler="-40 30 0" rgba="1 1 0 1"/>
    <geom name="egg" type="ellipsoid" size="0.1 0.2 0.3" pos="0 -0.3 0.35" euler="10 60 0" rgba="0 1 1 1"/>
    <geom name="upright" type="capsule" size="0.05 0.2" pos="0 -0.1 0.8" rgba="1 0 1 1"/>
    <geom name="hidden" type="box" size="1 1 1" group="3" rgba="1 1 1 1"/>
    <geom name="clear" type="box" size="1 1 1" rgba="1 1 1 0"/>
  </worldbody>
</mujoco>
"""


def poses(model: mujoco.MjModel, camera: str, copies: int = 1) -> list[np.ndarray]:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    at = model.camera(camera).id
    parts = (data.geom_xpos, data.geom_xmat, data.cam_xpos[at], data.cam_xmat[at])
    return [np.repeat(part[None].copy(), copies, axis=0) for part in parts]


def mujoco_rays(model: mujoco.MjModel, camera: str, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Depth and geom of `mj_ray` for each pixel; planes are invisible from behind."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    at = model.camera(camera).id
    eye, axes = data.cam_xpos[at].copy(), data.cam_xmat[at].reshape(3, 3)
    tangent = np.tan(np.deg2rad(model.cam_fovy[at]) / 2)
    groups, found = np.array([1, 1, 1, 0, 0, 0], np.uint8), np.zeros(1, np.int32)
    depth, geom = np.full((height, width), np.inf), np.full((height, width), -1)
    for y in range(height):
        for x in range(width):
            u = (2 * (x + 0.5) / width - 1) * tangent * width / height
            v = (1 - 2 * (y + 0.5) / height) * tangent
            distance = mujoco.mj_ray(model, data, eye, axes @ [u, v, -1], groups, True, -1, found)
            if distance >= 0:
                depth[y, x], geom[y, x] = distance, found[0]
    return depth, geom


@pytest.mark.parametrize("camera", ["front", "close"])
def test_hits_agree_with_mujoco(camera: str) -> None:
    model = mujoco.MjModel.from_xml_string(SHAPES)
    depth, geom = RayCaster(model, camera, 64, 48).cast(*poses(model, camera))
    wanted_depth, wanted_geom = mujoco_rays(model, camera, 64, 48)
    same = geom[0] == wanted_geom
    assert same.mean() > 0.995  # rays that graze a silhouette may differ
    seen = same & (wanted_geom >= 0)
    np.testing.assert_allclose(depth[0][seen], wanted_depth[seen], rtol=1e-3, atol=1e-3)
    assert set(np.unique(wanted_geom)) >= {model.geom(name).id for name in ("floor", "egg", "capsule")}
    assert np.isinf(depth[0][geom[0] == -1]).all()


KINDS = ("box", "sphere", "capsule", "cylinder", "ellipsoid")


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    size=st.lists(st.floats(0.03, 0.6), min_size=3, max_size=3),
    pos=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(-3, 0.5)),
    axis=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.1, 1)),
    angle=st.floats(-180, 180),
)
def test_screen_bounds_contain_every_hit(
    kind: str, size: list[float], pos: tuple[float, ...], axis: tuple[float, ...], angle: float
) -> None:
    """A geom at any place, half behind the camera too, covers all pixels of MuJoCo's rays that enter it."""
    numbers = " ".join(map(str, size))
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><camera name="eye" fovy="70"/>
        <geom type="{kind}" size="{numbers}" pos="{pos[0]} {pos[1]} {pos[2]}"
              axisangle="{axis[0]} {axis[1]} {axis[2]} {angle}"/></worldbody></mujoco>"""
    )
    inside = mujoco.mju_norm3(np.array(pos)) < model.geom_rbound[0] + 0.02
    depth, geom = RayCaster(model, "eye", 24, 20).cast(*poses(model, "eye"))
    wanted_depth, wanted_geom = mujoco_rays(model, "eye", 24, 20)
    if inside:  # MuJoCo reports where a ray from within leaves; such surfaces face away and are not drawn
        assert (wanted_geom[geom[0] >= 0] >= 0).all()
        return
    assert (geom[0] != wanted_geom).sum() <= 2
    both = (geom[0] >= 0) & (wanted_geom >= 0)
    np.testing.assert_allclose(depth[0][both], wanted_depth[both], rtol=5e-3, atol=5e-3)


def test_colours_follow_lamberts_law() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight ambient="0.1 0.1 0.1" diffuse="0.2 0.2 0.2"/></visual><worldbody>
        <light type="directional" dir="0 -0.6 -0.8" diffuse="0.5 0.5 0.5"/>
        <camera name="top" pos="0 0 2" fovy="30"/>
        <geom type="plane" size="0 0 1" rgba="0.8 0.4 0.2 1"/></worldbody></mujoco>"""
    )
    image = RayCaster(model, "top", 8, 8).render(*poses(model, "top"))
    light = 0.1 + 0.2 + 0.5 * 0.8
    assert np.abs(image[0].astype(float) - 255 * light * np.array([0.8, 0.4, 0.2])).max() <= 1


def test_spot_lights_fade_and_end() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight active="0"/></visual><worldbody>
        <light type="spot" pos="0 0 2" dir="0 0 -1" cutoff="20" exponent="4" attenuation="1 0 0.25" diffuse="1 1 1"/>
        <camera name="top" pos="0 0 4" fovy="60"/>
        <geom type="plane" size="0 0 1" rgba="1 1 1 1"/></worldbody></mujoco>"""
    )
    row = RayCaster(model, "top", 65, 65).render(*poses(model, "top"))[0, 32, :, 0]
    assert abs(int(row[32]) - 255 / 2) <= 1  # straight below: 1 / (1 + 0.25 * 2^2)
    reach = 2 * np.tan(np.deg2rad(20)) / (4 * np.tan(np.deg2rad(30))) * 32.5
    assert abs((row > 0).sum() / 2 - reach) <= 1 and row[0] == 0


def test_emission_and_mean_texture_give_a_materials_colour() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight ambient="0 0 0" diffuse="0 0 0"/></visual>
        <asset><texture name="t" type="2d" builtin="checker" rgb1="1 1 1" rgb2="0 0 0" width="16" height="16"/>
        <material name="m" texture="t" rgba="0.8 0.8 0 1" emission="1"/></asset><worldbody>
        <camera name="top" pos="0 0 2"/><geom type="plane" size="0 0 1" material="m"/></worldbody></mujoco>"""
    )
    image = RayCaster(model, "top", 8, 8).render(*poses(model, "top"))
    np.testing.assert_allclose(image[0, 4, 4], [102, 102, 0], atol=1)


def test_translucent_geoms_blend_and_shadows_darken() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0"/></visual><worldbody>
        <camera name="top" pos="0 0 2" fovy="40"/>
        <geom type="sphere" size="0.2" pos="-0.3 0 0.5" rgba="0 0 1 0.5"/>
        <geom type="plane" size="0 0 1" rgba="1 0 0 1"/></worldbody></mujoco>"""
    )
    image = RayCaster(model, "top", 40, 40).render(*poses(model, "top"))[0]
    blended = np.abs(image.astype(int) - [127, 0, 127]).max(2) <= 1
    assert 20 < blended.sum() < 400 and (image[~blended] == [255, 0, 0]).all()

    model = mujoco.MjModel.from_xml_string(
        """<mujoco><visual><headlight ambient="0.5 0.5 0.5" diffuse="0 0 0"/></visual><worldbody>
        <light type="directional" dir="0 0 -1" diffuse="0.5 0.5 0.5" castshadow="true"/>
        <camera name="side" pos="0 -2 2" xyaxes="1 0 0 0 1 1" fovy="40"/>
        <geom type="box" size="0.2 0.2 0.01" pos="0 0 0.6" rgba="0 1 0 1"/>
        <geom type="plane" size="0 0 1" rgba="1 1 1 1"/></worldbody></mujoco>"""
    )
    at = poses(model, "side")
    lit = RayCaster(model, "side", 80, 80).render(*at)[0]
    dark = RayCaster(model, "side", 80, 80, shadows=True).render(*at)[0]
    depth, geom = RayCaster(model, "side", 80, 80).cast(*at)
    # In the shadow of the box the plane has only the ambient half of the light.
    us = (2 * (np.arange(80) + 0.5) / 80 - 1) * np.tan(np.deg2rad(20))
    u, v = np.meshgrid(us, -us)
    x, y = u * depth[0], -2 + (v / np.sqrt(2) + 1 / np.sqrt(2)) * depth[0]
    floor = geom[0] == 1
    below = floor & (np.abs(x) < 0.18) & (np.abs(y) < 0.18)
    outside = floor & ((np.abs(x) > 0.22) | (np.abs(y) > 0.22))
    assert below.sum() > 20 and (lit[floor] == 255).all()
    assert (dark[below] <= 128).all() and (dark[outside] == 255).all()
    assert (dark[geom[0] == 0] == lit[geom[0] == 0]).all()  # the box does not shade itself


def test_batches_threads_and_supersampling_agree() -> None:
    model = mujoco.MjModel.from_xml_string(SHAPES)
    batch = poses(model, "front", 5)
    batch[2] += np.linspace(0, 0.2, 5)[:, None]
    images = RayCaster(model, "front", 40, 30).render(*batch)
    threaded = RayCaster(model, "front", 40, 30, threads=3).render(*batch)
    assert images.shape == (5, 30, 40, 3) and images.dtype == np.uint8
    assert (images == threaded).all()
    for i in range(5):
        alone = RayCaster(model, "front", 40, 30).render(*(part[i : i + 1] for part in batch))
        assert (alone[0] == images[i]).all()
    fine = RayCaster(model, "front", 80, 60).render(*batch).reshape(5, 30, 2, 40, 2, 3).mean((2, 4))
    smooth = RayCaster(model, "front", 40, 30, supersample=2).render(*batch)
    assert np.abs(fine - smooth).max() <= 0.5


def test_poses_that_are_not_numbers_draw_nothing() -> None:
    model = mujoco.MjModel.from_xml_string(SHAPES)
    caster = RayCaster(model, "front", 40, 30, shadows=True)
    for broken in range(4):
        batch = poses(model, "front")
        batch[broken][:] = np.nan
        assert caster.render(*batch).shape == (1, 30, 40, 3)
        batch = poses(model, "front")
        batch[broken].flat[0] = np.inf
        assert caster.render(*batch).shape == (1, 30, 40, 3)


def test_wrong_names_and_sizes_are_refused() -> None:
    model = mujoco.MjModel.from_xml_string(SHAPES)
    with pytest.raises(ConfigError, match=r"fornt.*did you mean front"):
        RayCaster(model, "fornt", 40, 30)
    with pytest.raises(ConfigError, match="5000x30"):
        RayCaster(model, "front", 5000, 30)
    with pytest.raises(ConfigError, match="supersample 9"):
        RayCaster(model, "front", 50, 30, supersample=9)
