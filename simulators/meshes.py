"""Robots drawn with the meshes of a local copy of mujoco_menagerie (github.com/google-deepmind/mujoco_menagerie).

Meshes change the looks only. Bodies, inertias, joints and collisions stay ours, so states are the same with and
without.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from robots.descriptions import arms
from robots.kinematics.rotations import quat_to_matrix

MODELS = {"panda": "franka_emika_panda/panda.xml", "so101": "robotstudio_so101/so101.xml"}
"""Robot to its model in menagerie."""
HIDDEN_GROUP = 3
"""Geom group that MuJoCo does not draw by default."""
_FRAME_TOLERANCE = 1e-3  # m, and rad

Pose = tuple[NDArray[np.float64], NDArray[np.float64]]


def menagerie(meshes: str) -> Path | None:
    """The folder that an option `meshes` names: none if empty, `menagerie` for the environment's MENAGERIE_ROOT.

    Raises:
        ConfigError: It is not there.
    """
    if not meshes:
        return None
    named = os.environ.get("MENAGERIE_ROOT", "") if meshes == "menagerie" else meshes
    if not named:
        raise ConfigError("MENAGERIE_ROOT is not set", "meshes", "set it to a copy of mujoco_menagerie")
    folder = Path(named).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}", "meshes", "name a copy of mujoco_menagerie")
    return folder


def dress(spec: mujoco.MjSpec, robot: str, folder: Path) -> None:
    """Add menagerie's visual meshes to the bodies of the same names, and hide the robot's own geoms.

    Args:
        spec: A scene with the robot, not compiled yet.
        robot: Its description's name.
        folder: The copy of menagerie.

    Raises:
        ConfigError: Menagerie has no such robot, the copy lacks a file, or its frames are not ours.
    """
    for prefix, mount in arms(robot).items():
        _dress_arm(spec, prefix, mount.robot, folder)


def _dress_arm(spec: mujoco.MjSpec, prefix: str, robot: str, folder: Path) -> None:
    if robot not in MODELS:
        raise ConfigError(f"menagerie has no meshes for {robot!r}", "meshes", nearest(robot, MODELS))
    path = folder / MODELS[robot]
    where = f"meshes {path}"
    if not path.is_file():
        raise ConfigError(f"no {MODELS[robot]} in {folder}", "meshes", "name a copy of mujoco_menagerie")
    try:
        source = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ConfigError(f"cannot read menagerie's model: {error}", where, "fetch it again") from None
    root = source.worldbody.first_body()
    own = spec.body(f"{prefix}{root.name}") if root is not None else None
    if own is None:
        raise ConfigError("it does not start with the robot's base", where, "fetch it again")

    bodies, poses = {body.name: body for body, _ in _below(own)}, {body.name: pose for body, pose in _below(own)}
    for body in bodies.values():
        for geom in body.geoms:
            geom.group = HIDDEN_GROUP
    added: set[str] = set()
    for body, (pos, rot) in _below(root):
        visuals = [geom for geom in body.geoms if geom.type == mujoco.mjtGeom.mjGEOM_MESH and not _collides(geom)]
        if not visuals:
            continue
        # A body of menagerie's own, such as a camera's mount, is part of the one that carries it.
        ours = body
        while f"{prefix}{ours.name}" not in bodies:
            ours = ours.parent
        own_pos, own_rot = poses[f"{prefix}{ours.name}"]
        pos, rot = own_rot.T @ (pos - own_pos), own_rot.T @ rot
        if ours is body and max(np.abs(pos).max(), np.abs(rot - np.eye(3)).max()) > _FRAME_TOLERANCE:
            raise ConfigError(f"body {body.name!r} has another frame there than here", where, "use a later copy")
        for geom in visuals:
            name = f"{prefix}menagerie_{geom.meshname}"
            if name not in added:
                _add_mesh(spec, name, source.mesh(geom.meshname), _folder(source, path), where)
                added.add(name)
            material = source.material(geom.material)
            bodies[f"{prefix}{ours.name}"].add_geom(
                type=mujoco.mjtGeom.mjGEOM_MESH,
                meshname=name,
                pos=pos + rot @ geom.pos,
                quat=_matrix_to_quat(rot @ quat_to_matrix(np.asarray(geom.quat))),
                rgba=geom.rgba if material is None else material.rgba,
                contype=0,
                conaffinity=0,
                group=1,
                mass=0.0,
            )
    if not added:
        raise ConfigError("it has no visual meshes", where, "fetch it again")


def _below(root: mujoco.MjsBody) -> Iterator[tuple[mujoco.MjsBody, Pose]]:
    """A body and all below it, with their poses in its frame at joint positions zero."""

    def visit(body: mujoco.MjsBody, pose: Pose) -> Iterator[tuple[mujoco.MjsBody, Pose]]:
        yield body, pose
        pos, rot = pose
        for child in body.bodies:
            step = quat_to_matrix(np.asarray(child.quat))
            yield from visit(child, (pos + rot @ np.asarray(child.pos), rot @ step))

    yield from visit(root, (np.zeros(3), np.eye(3)))


def _collides(geom: mujoco.MjsGeom) -> bool:
    return bool(geom.contype or geom.conaffinity)


def _folder(source: mujoco.MjSpec, path: Path) -> Path:
    return path.parent / (source.meshdir or ".")


def _add_mesh(spec: mujoco.MjSpec, name: str, mesh: mujoco.MjsMesh, folder: Path, where: str) -> None:
    file = folder / mesh.file
    if not file.is_file():
        raise ConfigError(f"its mesh {mesh.file} is missing", where, "fetch the copy again, with large files")
    spec.add_mesh(name=name, file=str(file), scale=mesh.scale, refpos=mesh.refpos, refquat=mesh.refquat)


def _matrix_to_quat(rot: NDArray[np.float64]) -> NDArray[np.float64]:
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, rot.ravel())
    return quat
