"""The renderers against each other: fast rays, the rays that draw videos, and MuJoCo's own renderer."""

import functools

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.make import make_env, task_names
from simulators.one_agent import OneAgentEnv
from simulators.render.cameras import Cameras, View
from simulators.render.gl import find_gl
from simulators.render.looks import Looks
from simulators.render.ray import RayCaster

ALL = ("rgb", "depth", "segmentation")
Pictures = dict[str, np.ndarray]

SCENE = """
<mujoco>
  <visual><headlight ambient="0.3 0.3 0.3" diffuse="0.3 0.3 0.3" specular="0 0 0"/></visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.8 0.85 0.9" rgb2="0.4 0.5 0.6" width="32" height="192"/>
  </asset>
  <worldbody>
    <light name="key" type="directional" dir="-0.2 0.2 -1" diffuse="0.4 0.4 0.4" specular="0 0 0"/>{lights}
    <camera name="front" pos="0 -1.6 0.9" xyaxes="1 0 0 0 0.5 0.9" fovy="50"/>
    <geom name="floor" type="plane" size="0 0 4" rgba="0.7 0.6 0.5 1"/>
    <body><joint type="hinge"/>
      <geom name="box" type="box" size="0.15 0.1 0.2" pos="-0.4 0 0.2" euler="0 0 30" rgba="1 0 0 1"/>
      <geom name="ball" type="sphere" size="0.15" pos="0 0 0.3" rgba="0 1 0 1"/>
      <geom name="capsule" type="capsule" size="0.08 0.2" pos="0.4 0 0.3" euler="40 0 0" rgba="0 0 1 1"/>
      <geom name="cylinder" type="cylinder" size="0.1 0.1" pos="0.1 0.5 0.1" rgba="0.9 0.9 0.2 1"/>
      <geom name="glass" type="ellipsoid" size="0.1 0.2 0.15" pos="-0.1 -0.3 0.4" rgba="0.2 0.9 0.9 0.4"/>
    </body>
  </worldbody>
</mujoco>
"""
LAMP = '<light name="lamp" pos="0.5 0 2" dir="-0.2 0 -1" diffuse="0.4 0.2 0.2" specular="0 0 0"/>'


def states(model: mujoco.MjModel, copies: int) -> Pictures:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    names = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
    return {name: np.repeat(getattr(data, name)[None], copies, axis=0) for name in names}


@functools.cache
def scene(lights: str = "") -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE.format(lights=lights))


def draw(model: mujoco.MjModel, views: list[View], renderer: str, fields: Pictures, looks: Looks | None) -> Pictures:
    cameras = Cameras(model, views, renderer, threads=1)
    try:
        return cameras.render(fields, None, looks)
    finally:
        cameras.close()


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - other.astype(int))


def interior(geoms: np.ndarray) -> np.ndarray:
    """[B, H - 2, W - 2] pixels all of whose neighbours show the same geom."""
    height, width = geoms.shape[1:]
    middle = geoms[:, 1:-1, 1:-1]
    shifted = [geoms[:, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    return np.all([part == middle for part in shifted], axis=0)


def check_agreement(rays: Pictures, gl: Pictures, camera: str) -> None:
    assert difference(rays[f"{camera}_rgb"], gl[f"{camera}_rgb"]).mean() <= 10, camera
    seen, other = rays[f"{camera}_segmentation"], gl[f"{camera}_segmentation"]
    # Lean GL draws round geoms with eight sides, so their silhouettes and depths differ by up to 8 % of a radius.
    assert (seen == other).mean() > 0.97, camera
    inside = interior(seen) & interior(other) & (seen == other)[:, 1:-1, 1:-1]
    depths = (pictures[f"{camera}_depth"][:, 1:-1, 1:-1][inside] for pictures in (rays, gl))
    error = np.abs(np.subtract(*depths))
    assert np.quantile(error, 0.8) < 2e-3 and np.quantile(error, 0.99) < 0.03, camera


@pytest.mark.parametrize("task", task_names())
def test_rays_draw_a_task_as_gl_does(task: str) -> None:
    if find_gl() is None:
        pytest.skip("no GL here")
    env = make_env(task, 3, 1, seed=4)
    OneAgentEnv(env).reset()
    for _ in range(8):
        OneAgentEnv(env).step(OneAgentEnv(env).expert())
    model = env.task.model
    names = [model.camera(i).name for i in range(model.ncam)]
    assert "front" in names and any("wrist" in name for name in names)
    views = [View(name, 84, 84, ALL) for name in names]
    rays, lean = (Cameras(model, views, renderer, threads=1) for renderer in ("auto", "gl"))
    assert rays.renderer == "ray"
    pictures = [cameras.render({name: env.batch.bind(name) for name in cameras.fields}) for cameras in (rays, lean)]
    lean.close()
    for name in names:
        check_agreement(*pictures, name)


@pytest.mark.parametrize("lights", ["", LAMP])
def test_looks_are_the_same_in_rays_and_gl(lights: str) -> None:
    """Colours, lights and cameras differ between environments, with one light and with more than the fast rays draw."""
    if find_gl() is None:
        pytest.skip("no GL here")
    model, rng = scene(lights), np.random.default_rng(3)
    looks = Looks(
        geom_rgba=rng.uniform(0.1, 1, (4, model.ngeom, 4)),
        light_diffuse=rng.uniform(0.1, 0.6, (4, model.nlight, 3)),
        light_dir=np.array([0, 0, -1.5]) + rng.normal(0, 0.4, (4, model.nlight, 3)),
        cam_pos=rng.normal(0, 0.05, (4, model.ncam, 3)),
        cam_rot=rng.normal(0, 0.1, (4, model.ncam, 3)),
    )
    fields, views = states(model, 4), [View("front", 96, 64, ALL)]
    rays, lean = (draw(model, views, renderer, fields, looks) for renderer in ("ray", "gl"))
    check_agreement(rays, lean, "front")
    assert difference(rays["front_rgb"], lean["front_rgb"]).mean() < 5
    finest = draw(model, views, "quality", fields, looks)
    assert (finest["front_segmentation"] == rays["front_segmentation"]).mean() > 0.99
    assert difference(finest["front_rgb"], rays["front_rgb"]).mean() < 20


@pytest.mark.parametrize("lights", ["", LAMP])
def test_each_look_changes_the_picture_as_described(lights: str) -> None:
    model = scene(lights)
    fields, views = states(model, 2), [View("front", 80, 60, ALL)]
    plain = draw(model, views, "ray", fields, None)
    picture, geoms = plain["front_rgb"], plain["front_segmentation"]
    assert np.array_equal(picture[0], picture[1])
    same = draw(model, views, "ray", fields, Looks(geom_rgba=np.tile(model.geom_rgba, (2, 1, 1))))
    assert difference(same["front_rgb"], picture).max() <= 1

    rgba = np.tile(model.geom_rgba, (2, 1, 1))
    box = model.geom("box").id
    rgba[1, box] = (0, 0, 0, 0.1)  # an opaque geom stays opaque
    drawn = draw(model, views, "ray", fields, Looks(geom_rgba=rgba))["front_rgb"]
    solid, through = geoms[1] == box, geoms[1] == model.geom("glass").id
    assert (drawn[1][solid] == 0).all() and difference(drawn[0], picture[0]).max() <= 1
    assert difference(drawn[1], picture[1])[~solid & ~through].max() <= 1

    dark = np.zeros((2, model.nlight, 3))
    dark[0] = model.light_diffuse
    drawn = draw(model, views, "ray", fields, Looks(light_diffuse=dark))["front_rgb"]
    floor = geoms[1] == model.geom("floor").id
    assert (drawn[1][floor] < picture[1][floor]).all() and difference(drawn[0], picture[0]).max() <= 1

    below = np.tile([0.0, 0.0, 1.0], (2, model.nlight, 1))
    drawn = draw(model, views, "ray", fields, Looks(light_dir=below))["front_rgb"]
    assert (drawn[1][floor] < picture[1][floor]).all()

    shift = np.zeros((2, model.ncam, 3))
    shift[1, 0] = (0.1, 0.2, -0.3)
    moved = {name: values.copy() for name, values in fields.items()}
    moved["cam_xpos"][1, 0] += moved["cam_xmat"][1, 0].reshape(3, 3) @ shift[1, 0]
    drawn, wanted = draw(model, views, "ray", fields, Looks(cam_pos=shift)), draw(model, views, "ray", moved, None)
    assert all(np.abs(drawn[name] - wanted[name].astype(drawn[name].dtype)).max() < 1e-5 for name in drawn)

    half_turn = np.zeros((2, model.ncam, 3))
    half_turn[1, 0, 2] = np.pi  # about the optical axis: upside down
    drawn = draw(model, views, "ray", fields, Looks(cam_rot=half_turn))["front_segmentation"]
    assert np.array_equal(drawn[0], geoms[0]) and (drawn[1][::-1, ::-1] == geoms[1]).mean() > 0.999


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(("box", "sphere", "capsule", "cylinder", "ellipsoid", "plane")),
    size=st.lists(st.floats(0.03, 0.6), min_size=3, max_size=3),
    pos=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(-3, 0.5)),
    axis=st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.1, 1)),
    angle=st.floats(-180, 180),
    alpha=st.sampled_from((1.0, 0.5)),
)
def test_fast_rays_draw_the_same_as_the_slow_ones(
    kind: str, size: list[float], pos: tuple[float, ...], axis: tuple[float, ...], angle: float, alpha: float
) -> None:
    """One geom at any place, half behind the camera too, against the slow rays that are tested against MuJoCo's."""
    numbers, turn = " ".join(map(str, size)), " ".join(map(str, (*axis, angle)))
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><statistic extent="1"/><visual><map znear="0.001"/></visual><worldbody>
        <light type="directional" dir="0.3 0.2 -1" diffuse="0.5 0.4 0.3"/><camera name="eye" fovy="70"/>
        <geom type="{kind}" size="{numbers}" pos="{pos[0]} {pos[1]} {pos[2]}" axisangle="{turn}"
              rgba="0.9 0.7 0.5 {alpha}"/></worldbody></mujoco>"""
    )
    fields = states(model, 1)
    pictures = draw(model, [View("eye", 28, 20, ALL)], "ray", fields, None)
    at = (fields["geom_xpos"], fields["geom_xmat"], fields["cam_xpos"][:, 0], fields["cam_xmat"][:, 0])
    caster = RayCaster(model, "eye", 28, 20)
    depth, geoms = caster.cast(*at)
    same = geoms == pictures["eye_segmentation"]
    assert (~same).sum() <= 3  # rays that graze
    both = same & (geoms >= 0)
    np.testing.assert_allclose(pictures["eye_depth"][both], depth[both], rtol=5e-3, atol=2e-3)
    apart = difference(caster.render(*at), pictures["eye_rgb"]).max(3)[same]
    assert (apart > 6).sum() <= 3  # edges of a box or a lid may fall to either side


def test_poses_that_are_not_numbers_draw_nothing() -> None:
    model = scene()
    for name in ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat"):
        for value in (np.nan, np.inf):
            fields = states(model, 2)
            wanted = draw(model, [View("front", 40, 30, ALL)], "ray", fields, None)
            fields[name][1] = value
            pictures = draw(model, [View("front", 40, 30, ALL)], "ray", fields, None)
            assert all(np.array_equal(pictures[key][0], wanted[key][0]) for key in wanted)
