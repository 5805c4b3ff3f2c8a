"""Search for a GL, operation without one, and GL's pictures against the ray caster's."""

import os
from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

import simulators
from embodied.errors import ConfigError, InfrastructureError
from simulators.render import gl
from simulators.render.ray import RayCaster

SCENE = """
<mujoco>
  <visual><headlight ambient="0.3 0.3 0.3" diffuse="0.3 0.3 0.3" specular="0 0 0"/></visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.8 0.85 0.9" rgb2="0.4 0.5 0.6" width="32" height="192"/>
  </asset>
  <worldbody>
    <light type="directional" pos="0.5 -0.5 2" dir="-0.2 0.2 -1" diffuse="0.4 0.4 0.4" specular="0 0 0"/>
    <camera name="video" pos="0 -1.6 0.9" xyaxes="1 0 0 0 0.5 0.9" fovy="45"/>
    <geom type="plane" size="1 1 1" rgba="0.7 0.6 0.5 1"/>
    <geom type="box" size="0.15 0.1 0.2" pos="-0.4 0 0.2" euler="0 0 30" rgba="1 0 0 1"/>
    <geom type="sphere" size="0.15" pos="0 0 0.3" rgba="0 1 0 1"/>
    <geom type="capsule" size="0.08 0.2" pos="0.4 0 0.3" euler="40 0 0" rgba="0 0 1 1"/>
    <geom type="cylinder" size="0.1 0.1" pos="0.1 0.5 0.1" rgba="0.9 0.9 0.2 1"/>
  </worldbody>
</mujoco>
"""


@pytest.fixture(autouse=True)
def fresh_probe() -> Iterator[None]:
    gl._draws.cache_clear()
    yield
    gl._draws.cache_clear()


def test_off_disables_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_GL", "off")
    assert gl.find_gl() is None
    with pytest.raises(InfrastructureError, match="apt-get install libegl1"):
        gl.GLRenderer(mujoco.MjModel.from_xml_string(SCENE), 32, 32)


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_GL", "vulkan")
    with pytest.raises(ConfigError, match="EMBODIED_GL is 'vulkan'"):
        gl.find_gl()


@pytest.mark.parametrize("probe", ["import os; os.abort()", "import time; time.sleep(60)", "print('dark')", "1 / 0"])
def test_a_broken_gl_is_survived(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBODIED_GL", raising=False)
    monkeypatch.setattr(gl, "_PROBE", probe)
    monkeypatch.setattr(gl, "_PROBE_S", 1.0)
    assert gl.find_gl() is None


def test_gl_and_rays_draw_the_same() -> None:
    if gl.find_gl() is None:
        pytest.skip("no GL here")
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    settings = (model.vis.global_.offwidth, model.vis.quality.offsamples, model.vis.quality.shadowsize)
    with gl.GLRenderer(model, 800, 600) as renderer:  # larger than the model's own buffer of 640x480
        image = renderer.render(data, "video")
        with pytest.raises(ConfigError, match="did you mean video"):
            renderer.render(data, "vdieo")
    renderer.close()
    assert settings == (model.vis.global_.offwidth, model.vis.quality.offsamples, model.vis.quality.shadowsize)
    assert image.shape == (600, 800, 3)
    parts = (data.geom_xpos, data.geom_xmat, data.cam_xpos[0], data.cam_xmat[0])
    cast = RayCaster(model, "video", 800, 600, shadows=True).render(*(part[None] for part in parts))[0]
    difference = np.abs(image.astype(int) - cast.astype(int))
    assert difference.mean() < 4
    assert (difference.max(2) > 40).mean() < 0.03  # edges, and edges of shadows


def test_a_platform_of_pyopengl_that_is_no_gl_of_ours_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBODIED_GL", raising=False)
    monkeypatch.setenv("PYOPENGL_PLATFORM", "glx")
    assert gl.find_gl() is None and gl.gl_fix() == "unset PYOPENGL_PLATFORM"
    with pytest.raises(InfrastructureError, match="unset PYOPENGL_PLATFORM"):
        gl.GLRenderer(mujoco.MjModel.from_xml_string(SCENE), 32, 32)


def test_a_gl_that_mujoco_cannot_use_is_ignored_and_said(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(simulators.ctypes.util, "find_library", lambda name: None)
    for wanted, why in (("osmesa", "no libOSMesa"), ("EGL", "no libEGL"), ("nonsense", "knows no such GL")):
        monkeypatch.setenv("MUJOCO_GL", wanted)
        assert why in simulators._unset_unusable_gl() and "MUJOCO_GL" not in os.environ
        assert caplog.messages[-1].startswith(f"MUJOCO_GL={wanted} is ignored: ")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert simulators._unset_unusable_gl() == "" and os.environ["MUJOCO_GL"] == "glfw"
