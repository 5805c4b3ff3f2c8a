"""Videos read back: their size, number of frames, captions, borders, and files left by a failure."""

from pathlib import Path

import imageio_ffmpeg
import mujoco
import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import ConfigError, DataError, InfrastructureError
from simulators.render import video
from simulators.render.encode import Mp4Writer
from simulators.render.gl import find_gl
from simulators.render.video import Clip, write_video

MODEL = mujoco.MjModel.from_xml_string(
    """
<mujoco>
  <visual><headlight ambient="0.5 0.5 0.5" diffuse="0.4 0.4 0.4" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="video" pos="0 0 3" fovy="45"/>
    <geom type="plane" size="3 3 1" rgba="0.3 0.3 0.3 1"/>
    <body name="ball" pos="-0.6 0 0.2"><joint type="slide" axis="1 0 0"/>
      <geom type="sphere" size="0.2" rgba="0.2 0.2 1 1"/></body>
  </worldbody>
</mujoco>
"""
)
GREEN, RED = (40, 160, 70), (200, 50, 40)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_SINGLE", (160, 120))
    monkeypatch.setattr(video, "_TILE", (128, 96))


MESHED = mujoco.MjModel.from_xml_string(
    """
<mujoco>
  <asset><mesh name="hand" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>
  <worldbody><camera name="video" pos="0 -3 1"/><geom name="hand" type="mesh" mesh="hand"/></worldbody>
</mujoco>
"""
)
MESHED_SIZE = mujoco.mj_stateSize(MESHED, int(mujoco.mjtState.mjSTATE_INTEGRATION))


def clip(length: int, caption: str = "", outcome: Outcome = Outcome.SUCCESS) -> Clip:
    data = mujoco.MjData(MODEL)
    state = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    states = np.empty((length + 1, mujoco.mj_stateSize(MODEL, state)))
    for row, x in zip(states, np.linspace(0, 1.2, length + 1), strict=True):
        data.qpos[0] = x
        mujoco.mj_getState(MODEL, data, row, state)
    return Clip(states, caption, outcome)


def frames_of(path: Path) -> np.ndarray:
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def ball_x(frame: np.ndarray) -> float:
    blue = (frame[:, :, 2].astype(int) - frame[:, :, 0]) > 60
    return float(np.nonzero(blue)[1].mean())


def near(pixel: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(pixel.astype(int) - colour).max() < 40)


def test_up_to_three_clips_play_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "evaluation.mp4"
    clips = [clip(10, "seed 1"), clip(6, "seed 2", Outcome.TIME_LIMIT)]
    made = write_video(path, MODEL, clips, fps=10, renderer="ray")
    frames = frames_of(path)
    assert made == ("ray", 11 + 10 + 7 + 10, 160, 120, "")
    assert frames.shape == (made.frames, 120, 160, 3)
    assert ball_x(frames[0]) < 60 < 100 < ball_x(frames[10])
    assert ball_x(frames[21]) < 60
    assert not near(frames[5, 2, 80], GREEN) and near(frames[10, 2, 80], GREEN) and near(frames[15, 2, 80], GREEN)
    assert near(frames[-1, 2, 80], RED)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_captions_are_drawn_and_cut() -> None:
    plain = video._text_bar("", 160, (0, 0, 0))
    short = video._text_bar("seed 7", 160, (0, 0, 0))
    long = video._text_bar("a caption of far more words than there is room for", 160, (0, 0, 0))
    assert plain.max() == 0 and short.max() > 200 and long.shape == short.shape
    assert short[:, 80:].max() == 0 and long[:, -10:].max() == 0 and long[:, 100:140].max() > 200


def test_many_clips_run_at_once(tmp_path: Path) -> None:
    outcomes = [Outcome.SUCCESS, Outcome.FAILURE, Outcome.SUCCESS, Outcome.SAFETY_STOP, Outcome.SUCCESS]
    clips = [clip(4 + 2 * i, f"episode {i}", outcome) for i, outcome in enumerate(outcomes)]
    made = write_video(tmp_path / "grid.mp4", MODEL, clips, fps=10, renderer="ray")
    frames = frames_of(tmp_path / "grid.mp4")
    assert (made.width, made.height, made.frames) == (3 * 128, 2 * 96, 13 + 10)
    assert frames.shape == (made.frames, 192, 384, 3)
    corners = [(2 + 96 * (i // 3), 64 + 128 * (i % 3)) for i in range(5)]
    for i, (y, x) in enumerate(corners):
        colour = GREEN if outcomes[i] == Outcome.SUCCESS else RED
        assert not near(frames[3 + 2 * i, y, x], colour)
        assert near(frames[5 + 2 * i, y, x], colour)
    assert frames[-1, 100:, 270:].max() < 40  # no sixth clip


def test_seven_clips_need_two_pages_and_long_ones_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_video(tmp_path / "a.mp4", MODEL, [clip(3)] * 7, fps=10, renderer="ray")
    assert made.frames == 2 * (4 + 10)
    monkeypatch.setattr(video, "_BUDGET", 20)
    made = write_video(tmp_path / "b.mp4", MODEL, [clip(58)], fps=30, renderer="ray")
    frames = frames_of(tmp_path / "b.mp4")
    assert made.frames == len(frames) == 20 + 10  # every third state, and a second of the last one
    assert ball_x(frames[19]) > 100


def test_auto_takes_gl_and_falls_back_to_rays_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_GL", "off")
    made = write_video(tmp_path / "auto.mp4", MODEL, [clip(3)], renderer="auto")
    assert made.renderer == "ray" and "apt-get install" in made.hint
    with pytest.raises(InfrastructureError, match="apt-get"):
        write_video(tmp_path / "none.mp4", MODEL, [clip(3)], renderer="gl")
    monkeypatch.delenv("EMBODIED_GL")
    if find_gl() is None:
        pytest.skip("no GL here")
    better = write_video(tmp_path / "gl.mp4", MODEL, [clip(3)], renderer="auto")
    assert better == made._replace(renderer="quality", hint="")
    rays, gl = frames_of(tmp_path / "auto.mp4"), frames_of(tmp_path / "gl.mp4")
    assert np.abs(rays.astype(int) - gl.astype(int)).mean() < 8
    assert sorted(file.name for file in tmp_path.iterdir()) == ["auto.mp4", "gl.mp4"]


def test_mistakes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    with pytest.raises(ConfigError, match="did you mean video"):
        write_video(path, MODEL, [clip(3)], camera="vidoe")
    with pytest.raises(ConfigError, match=r"unknown renderer 'rays'.*did you mean ray"):
        write_video(path, MODEL, [clip(3)], renderer="rays")
    with pytest.raises(ConfigError, match="0 clips"):
        write_video(path, MODEL, [])
    with pytest.raises(ConfigError, match="1000 fps"):
        write_video(path, MODEL, [clip(3)], fps=1000)
    with pytest.raises(ConfigError, match=r"the ray caster cannot draw mesh hand .*: use gl, or auto"):
        write_video(path, MESHED, [Clip(np.zeros((4, MESHED_SIZE)))], renderer="ray")
    with pytest.raises(DataError, match=r"states of shape \(4, 99\)"):
        write_video(path, MODEL, [Clip(np.zeros((4, 99)))])
    assert not list(tmp_path.iterdir())


def test_states_that_are_not_numbers_draw_a_video_all_the_same(tmp_path: Path) -> None:
    broken = clip(3, outcome=Outcome.INFRASTRUCTURE_FAULT)
    broken.states[2:] = np.nan
    assert write_video(tmp_path / "x.mp4", MODEL, [broken], fps=5, renderer="ray").frames == 4 + 5


def test_a_failed_encoder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InfrastructureError, match="encoder"):
        write_video(tmp_path / "file" / "x.mp4", MODEL, [clip(3)], renderer="ray")
    path = tmp_path / "y.mp4"
    frame = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(InfrastructureError, match="encoder failed"), Mp4Writer(path, 64, 64, 10) as writer:
        writer._process.kill()
        for _ in range(100):
            writer.write(frame)
    with pytest.raises(KeyboardInterrupt), Mp4Writer(path, 64, 64, 10) as writer:
        writer.write(frame)
        raise KeyboardInterrupt
    with pytest.raises(ConfigError, match="even"):
        Mp4Writer(path, 65, 64, 10)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
