"""Frames to an mp4 file through ffmpeg; the file appears when it is whole."""

import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, InfrastructureError

_DEADLINE_S = 300.0


class Mp4Writer:
    """Writer of RGB frames as H.264 (yuv420p, known to every player). Use it as a context manager.

    Leaving the context finishes the file and renames it into place; leaving by an exception discards it.

    Args:
        path: File to make; its folder is made too.
        width: Pixels, even.
        height: Pixels, even.
        fps: Frames per second of playback.

    Raises:
        ConfigError: An odd size.
        InfrastructureError: No ffmpeg, a full disk, or an encoder that does not finish within five minutes.
    """

    def __init__(self, path: Path, width: int, height: int, fps: float) -> None:
        if width < 2 or height < 2 or width % 2 or height % 2:
            raise ConfigError(f"H.264 cannot hold {width}x{height} pixels", str(path), "use even sizes")
        self._path, self._shape = path, (height, width, 3)
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            program = imageio_ffmpeg.get_ffmpeg_exe()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._words = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the encoder)
            self._process = subprocess.Popen(
                [program, "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                 "-r", f"{fps:g}", "-i", "-", "-an", "-c:v", "libx264", "-preset", "veryfast", "-crf", "20",
                 "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(self._part)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._words,
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            fix = "check that the folder can be written, and pip install imageio-ffmpeg"
            raise InfrastructureError(f"cannot start the video encoder: {error}", str(path), fix) from None
        # A stuck encoder would block `write`; killed, it breaks the pipe instead.
        self._watchdog = threading.Timer(_DEADLINE_S, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Append one frame [height, width, 3]."""
        if frame.shape != self._shape or frame.dtype != np.uint8:
            raise ValueError(f"frame {frame.shape} {frame.dtype}, expected {self._shape} uint8")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError:
            raise self._failure() from None

    def _failure(self) -> InfrastructureError:
        self._process.kill()
        self._process.wait(10)
        self._words.seek(0)
        words = self._words.read(2000).decode(errors="replace").strip().splitlines()
        what = words[-1] if words else "it was killed, or took more than five minutes"
        return InfrastructureError(
            f"the video encoder failed: {what}", str(self._path), "free disk space, or try again"
        )

    def _finish(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            done = self._process.wait(_DEADLINE_S) == 0
        except (OSError, subprocess.TimeoutExpired):
            done = False
        if not done:
            raise self._failure()
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        self._part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._watchdog.cancel()
            self._process.kill()
            self._process.wait(10)
            self._words.close()
            self._part.unlink(missing_ok=True)
