"""Batched MuJoCo physics, scenes, cameras and tasks."""

import ctypes.util
import logging
import os


def _unusable_gl(wanted: str) -> str:
    """Reason why MuJoCo cannot be imported under this `MUJOCO_GL`; empty where it can."""
    library = {"osmesa": "OSMesa", "egl": "EGL"}.get(wanted)
    if library is not None:
        return "" if ctypes.util.find_library(library) else f"there is no lib{library} here"
    known = ("", "glfw", "glx", "enable", "enabled", "on", "true", "1", "disable", "disabled", "off", "false", "0")
    return "" if wanted in known else "MuJoCo knows no such GL"


def _unset_unusable_gl() -> str:
    """Unset a `MUJOCO_GL` that would end the import of MuJoCo: most work draws nothing, and our renderers look for a GL
    themselves. Returns what is said of it."""
    wanted = os.environ.get("MUJOCO_GL", "")
    reason = _unusable_gl(wanted.lower().strip())
    if not reason:
        return ""
    del os.environ["MUJOCO_GL"]
    logging.getLogger(__name__).warning(said := f"MUJOCO_GL={wanted} is ignored: {reason}")
    return said


IGNORED_GL = _unset_unusable_gl()
"""Sentence about a `MUJOCO_GL` that was unset; empty where none was."""
