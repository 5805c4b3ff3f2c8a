"""Cameras: streams, choice of renderer, refusals."""

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from embodied.errors import ConfigError, InfrastructureError
from simulators.env import BatchEnv
from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.render.cameras import Cameras, View, choose
from simulators.render.gl import find_gl
from simulators.render.looks import Looks

APT = "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libosmesa6"
ALL = ("rgb", "depth", "segmentation")
MESH = """
<mujoco><asset><mesh name="m" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset><worldbody>
<camera name="front" pos="0.2 0.2 3"/><geom name="wedge" type="mesh" mesh="m" rgba="1 0 0 1"/></worldbody></mujoco>
"""
CHECKER = """
<mujoco><asset><texture name="t" type="2d" builtin="checker" rgb1="1 1 1" rgb2="0 0 0" width="16" height="16"/>
<material name="m" texture="t"/></asset><worldbody><camera name="front" pos="0 0 2"/>
<geom type="plane" size="0 0 1" material="m"/></worldbody></mujoco>
"""
BALL = """
<mujoco><worldbody><camera name="front" pos="0 0 2"/><camera name="flat" pos="0 0 2" projection="orthographic"/>
<geom type="sphere" size="0.3"/></worldbody></mujoco>
"""


def fields_of(model: mujoco.MjModel, cameras: Cameras) -> dict[str, np.ndarray]:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return {name: getattr(data, name)[None].copy() for name in cameras.fields}


@pytest.fixture(scope="module")
def env() -> Iterator[BatchEnv]:
    env = make_env("lift_cube", 5, 1, seed=2)
    OneAgentEnv(env).reset()
    for _ in range(6):
        OneAgentEnv(env).step(OneAgentEnv(env).expert())
    yield env
    env.close()


def bound(env: BatchEnv, cameras: Cameras) -> dict[str, np.ndarray]:
    return {name: env.batch.bind(name) for name in cameras.fields}


def test_streams_are_owned_and_fit_the_spec(env: BatchEnv) -> None:
    cameras = Cameras(env.task.model, [View("front", 40, 30, ALL), View("wrist", 32, 24)], "ray", threads=1)
    fields = bound(env, cameras)
    pictures = cameras.render(fields)
    assert [(s.name, s.shape, s.dtype, s.unit) for s in cameras.streams] == [
        ("front_rgb", (30, 40, 3), "uint8", ""),
        ("front_depth", (30, 40), "float32", "m"),
        ("front_segmentation", (30, 40), "int32", ""),
        ("wrist_rgb", (24, 32, 3), "uint8", ""),
    ]
    assert list(pictures) == [stream.name for stream in cameras.streams]
    for stream in cameras.streams:
        values = pictures[stream.name]
        assert values.shape == (5, *stream.shape) and values.dtype == stream.dtype
        assert values.flags.owndata and values.flags.c_contiguous and np.isfinite(values).all()
    for ids in ([3, 1], np.array([4], np.int32), []):
        some = cameras.render(fields, ids)
        for name, values in pictures.items():
            assert np.array_equal(some[name], values[np.asarray(ids, int)])
    cameras.close()


def test_threads_change_nothing(env: BatchEnv) -> None:
    rng = np.random.default_rng(0)
    looks = Looks(geom_rgba=rng.uniform(0, 1, (5, env.task.model.ngeom, 4)))
    views = [View("front", 40, 30, ALL), View("wrist", 32, 24, ALL)]
    one, many = (Cameras(env.task.model, views, "ray", threads) for threads in (1, 3))
    for given in (None, looks):
        first, other = (cameras.render(bound(env, cameras), None, given) for cameras in (one, many))
        assert all(np.array_equal(first[name], other[name]) for name in first)
    many.close()
    many.close()
    with pytest.raises(ConfigError, match="are closed"):
        many.render(bound(env, many))


def test_fixed_geoms_are_redrawn_once_their_poses_change(env: BatchEnv) -> None:
    model, views = env.task.model, [View("front", 48, 48, ALL)]
    cameras = Cameras(model, views, "ray", threads=1)
    fields = {name: values.copy() for name, values in bound(env, cameras).items()}
    cameras.render(fields)
    table, camera = model.geom("table").id, model.camera("front").id
    fields["geom_xpos"][1, table, 2] += 0.1
    fields["cam_xpos"][2, camera] += 0.05
    fields["cam_xpos"][3:, camera, 2] += 0.2
    looks = Looks(light_dir=np.tile([0.0, 0.2, -1.0], (5, model.nlight, 1)))
    for given in (None, looks, None):
        pictures = cameras.render(fields, None, given)
        for body in range(5):
            alone = {name: values[body : body + 1] for name, values in fields.items()}
            dress = None if given is None else Looks(light_dir=looks.light_dir[body : body + 1])
            fresh = Cameras(model, views, "ray", threads=1).render(alone, None, dress)
            assert all(np.array_equal(fresh[name][0], pictures[name][body]) for name in pictures)


def test_segmentation_names_geoms_and_depth_measures(env: BatchEnv) -> None:
    model = env.task.model
    cameras = Cameras(model, [View("front", 84, 84, ALL)], "ray", threads=1)
    fields = bound(env, cameras)
    pictures = cameras.render(fields)
    cube, camera = model.geom("cube").id, model.camera("front").id
    for body in range(5):
        seen = pictures["front_segmentation"][body] == cube
        assert seen.sum() > 10
        axis = -fields["cam_xmat"].reshape(5, model.ncam, 3, 3)[body, camera, :, 2]
        centre = axis @ (fields["geom_xpos"][body, cube] - fields["cam_xpos"][body, camera])
        assert np.abs(pictures["front_depth"][body][seen] - centre).max() < 0.035


def test_auto_takes_rays_for_primitives_and_gl_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ball, mesh, checker = (mujoco.MjModel.from_xml_string(xml) for xml in (BALL, MESH, CHECKER))
    small = [View("front", 84, 84)]
    assert choose(ball, "auto") == "ray"
    if find_gl() is not None:
        assert choose(mesh, "auto") == choose(checker, "auto") == "gl"
        assert choose(ball, "gl") == "gl" and choose(ball, "quality") == "quality"
    monkeypatch.setenv("EMBODIED_GL", "off")
    assert choose(ball, "auto") == choose(checker, "auto") == "ray"
    for model, renderer in ((mesh, "auto"), (ball, "gl"), (ball, "quality")):
        with pytest.raises(InfrastructureError) as caught:
            choose(model, renderer)
        assert caught.value.fix.endswith(APT)
    with pytest.raises(ConfigError, match="cannot draw mesh wedge"):
        choose(mesh, "ray")
    cameras = Cameras(checker, small)
    assert cameras.renderer == "ray"
    picture = cameras.render(fields_of(checker, cameras))["front_rgb"]
    assert picture.std() < 1  # the texture's mean colour
    cameras.close()


def test_gl_draws_meshes_and_textures() -> None:
    if find_gl() is None:
        pytest.skip("no GL here")
    mesh = mujoco.MjModel.from_xml_string(MESH)
    cameras = Cameras(mesh, [View("front", 40, 40, ALL)])
    pictures = cameras.render(fields_of(mesh, cameras))
    seen = pictures["front_segmentation"][0] == 0
    assert cameras.renderer == "gl" and seen.sum() > 20
    assert (pictures["front_rgb"][0][seen][:, 0] > 60).all() and (pictures["front_depth"][0][seen] < 3.1).all()
    cameras.close()
    checker = mujoco.MjModel.from_xml_string(CHECKER)
    cameras = Cameras(checker, [View("front", 40, 40)], threads=2)
    assert cameras.render(fields_of(checker, cameras))["front_rgb"].std() > 40
    cameras.close()


@pytest.mark.parametrize(
    ("view", "renderer", "said"),
    [
        (View("fornt", 40, 40), "ray", r"fornt.*did you mean front"),
        (View("front", 40, 40, ("rbg",)), "ray", r"'rbg'.*did you mean rgb"),
        (View("front", 40, 40, ()), "ray", "0 kinds"),
        (View("front", 40, 40, ("rgb", "rgb")), "ray", "each stream once"),
        (View("front", 4, 40), "ray", "4x40"),
        (View("front", 40, 10**9), "ray", "choose 8 to 2048"),
        (View("front", 40.5, 40), "ray", "40.5"),
        (View("flat", 40, 40), "ray", "not described by a fovy"),
        (View("front", 40, 40), "gll", r"'gll'.*did you mean gl"),
    ],
)
def test_wrong_views_are_refused_in_one_line(view: View, renderer: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Cameras(mujoco.MjModel.from_xml_string(BALL), [view], renderer)
    assert "\n" not in str(caught.value)


def test_wrong_views_ids_and_looks_are_refused(env: BatchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    model = env.task.model
    for views in ([], [View("front", 8, 8)] * 17):
        with pytest.raises(ConfigError, match="1 to 16 views"):
            Cameras(model, views, "ray")
    with pytest.raises(ConfigError, match=r"render\.threads"):
        Cameras(model, [View("front", 8, 8)], "ray", threads=-1)
    cameras = Cameras(model, [View("front", 8, 8)], "ray", threads=1)
    fields = bound(env, cameras)
    for ids in ([5], [-1], [0.5]):
        with pytest.raises(ConfigError, match="integers below 5"):
            cameras.render(fields, ids)
    with pytest.raises(ConfigError, match=r"geom_rgba of shape \(2, 4\)"):
        cameras.render(fields, None, Looks(geom_rgba=np.ones((2, 4))))
    monkeypatch.setattr("simulators.render.cameras.MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="draw fewer"):
        cameras.render(fields)
