"""Files of others: an arm and a gripper read, joined into one model, and made ready for this project's scenes."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import mujoco
import numpy as np

from embodied.errors import ConfigError
from simulators.scene import PHYSICS_DT

FLANGES = ("attachment_site", "flange", "tool0", "ee_site")
PREFIX = "hand_"
DEFAULT_RANGE = 2.0 * np.pi
STIFFNESS, DAMPING = 15.0, 1.0 / 12.0
"""Gains of the arm: stiffness per N m of the force limit, and damping per stiffness, about those of the Panda here."""


class Drive(NamedTuple):
    """Largest force of one joint, N or N m, and where it is from."""

    limit: float
    origin: str


def read(path: Path) -> mujoco.MjSpec:
    """Read an MJCF or URDF file, with every mesh and texture named by its whole path.

    Raises:
        ConfigError: There is no such file, MuJoCo cannot read it, or one of its files is missing.
    """
    if not path.is_file():
        raise ConfigError("no such file", str(path), "give an MJCF or URDF file")
    try:
        spec = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot read it: {_line(error)}", str(path), "correct the file") from None
    for parts, folder in ((spec.meshes, spec.meshdir), (spec.textures, spec.texturedir)):
        for part in parts:
            if part.file:
                part.file = str(_located(path.resolve().parent, folder, part.file, path.resolve()))
    spec.meshdir = spec.texturedir = ""
    spec.strippath = False
    for key in [*spec.lights, *(camera for camera in spec.cameras if camera.parent == spec.worldbody)]:
        spec.delete(key)
    for geom in list(spec.worldbody.geoms):  # a floor is the scene's
        spec.delete(geom)
    _name_all(spec)
    return spec


def _located(folder: Path, subfolder: str, file: str, where: Path) -> Path:
    """Path of a file that a model names; a `package://...` is found in a folder above the model."""
    name = Path(file.removeprefix("package://"))
    folders = [folder / subfolder, *(where.parents if file.startswith("package://") else (folder,))]
    for path in (base / part for part in (name, Path(name.name)) for base in folders):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"its file {file} is missing", str(where), "fetch the model again, with its meshes")


def _name_all(spec: mujoco.MjSpec) -> None:
    for kind, parts in (("body", spec.bodies), ("joint", spec.joints)):
        for index, part in enumerate(parts):
            part.name = part.name or f"{kind}{index}"


def join(arm: mujoco.MjSpec, gripper: mujoco.MjSpec, flange: str, where: Path) -> str:
    """Attach a gripper to the arm's flange; returns the site.

    Raises:
        ConfigError: The arm has no such site, or none that is known.
    """
    names = [site.name for site in arm.sites]
    chosen = flange or next((name for name in FLANGES if name in names), "")
    if not chosen and len(names) < 2:
        chosen = names[0] if names else FLANGES[0]
        if not names:
            arm.bodies[-1].add_site(name=chosen)
    site = arm.site(chosen) if chosen else None
    if site is None:
        raise ConfigError(f"the flange is unknown: its sites are {', '.join(names)}", str(where), "give flange=SITE")
    for key in list(gripper.keys):
        gripper.delete(key)
    gripper.option = arm.option  # two of them would conflict
    arm.attach(gripper, site=site, prefix=PREFIX)
    return chosen


def chain_of(spec: mujoco.MjSpec, tip: mujoco.MjsBody | None, where: Path) -> list[mujoco.MjsJoint]:
    """Joints from the base to the body `tip`, or to where the fingers branch.

    Raises:
        ConfigError: The arm has another joint than hinges, or no fingers branch from it.
    """
    if tip is None:
        tip = spec.worldbody
        while len(moving := [child for child in tip.bodies if _joints_below(child)]) == 1:
            tip = moving[0]
        if not moving:
            fix = "give gripper=FILE, or ee=SITE if its last joint is a jaw"
            raise ConfigError("no two fingers branch from the arm", str(where), fix)
        if tip == spec.worldbody:
            raise ConfigError(f"it holds {len(moving)} robots", str(where), "leave one")
    branch = [tip]
    while branch[0].parent is not None and branch[0] != spec.worldbody:
        branch.insert(0, branch[0].parent)
    joints = [joint for body in branch for joint in body.joints]
    for joint in joints:
        if joint.type != mujoco.mjtJoint.mjJNT_HINGE or np.any(joint.pos):
            kind = "an anchor beside its body's origin" if np.any(joint.pos) else "no hinge"
            raise ConfigError(f"joint {joint.name} of the arm: {kind}", str(where), "give an arm of plain hinges")
    if not joints:
        raise ConfigError("no hinge leads to the end effector", str(where), "give a site of the arm's end as ee=SITE")
    return joints


def _joints_below(body: mujoco.MjsBody) -> bool:
    return bool(body.joints) or any(_joints_below(child) for child in body.bodies)


def drives(spec: mujoco.MjSpec, model: mujoco.MjModel) -> dict[str, Drive]:
    """Largest force of every joint that an actuator drives, by its name; a tendon's counts for its first joint."""
    found: dict[str, Drive] = {}
    for index in range(model.nu):
        target, factor = int(model.actuator_trnid[index, 0]), abs(float(model.actuator_gear[index, 0]))
        if model.actuator_trntype[index] == mujoco.mjtTrn.mjTRN_TENDON:
            target = int(model.wrap_objid[model.tendon_adr[target]])
        elif model.actuator_trntype[index] != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        limit = float(np.abs(model.actuator_forcerange[index]).max()) if model.actuator_forcelimited[index] else 0.0
        found[model.joint(target).name] = Drive(limit * factor, "the actuator")
    for joint in spec.joints:
        if np.any(joint.actfrcrange):
            limit = float(np.abs(joint.actfrcrange).max())
            given = found.get(joint.name, Drive(0.0, "")).limit
            if not given or limit < given:
                found[joint.name] = Drive(limit, "the joint")
    return found


def velocity_limits(path: Path, joints: Sequence[str], given: float) -> tuple[list[float], str]:
    """Velocity limits, rad/s: those of a URDF, else `given`."""
    root = ElementTree.parse(path).getroot()
    found = {joint.get("name"): float(limit.get("velocity", 0))
             for joint in root.iterfind("joint") for limit in joint.iterfind("limit")}  # fmt: skip
    if all(found.get(name, 0) > 0 for name in joints):
        return [found[name] for name in joints], "of the URDF"
    return [given] * len(joints), "not in the file: velocity=RAD_PER_S changes it"


def make_ready(spec: mujoco.MjSpec, arm: Sequence[str], drivers: Sequence[str], limits: dict[str, Drive]) -> None:
    """Rewrite what this project's scenes need: compensated weight, position control, and collisions with the scene.

    Args:
        spec: Written in place.
        arm: Names of the joints of the arm, in order.
        drivers: Names of the gripper's joints that are driven.
        limits: Largest force of each of them.
    """
    for part in [*spec.actuators, *spec.keys, *spec.sensors, *spec.numerics, *spec.texts, *spec.tuples]:
        spec.delete(part)
    for body in spec.bodies[1:]:
        body.gravcomp = 1.0
    for geom in spec.geoms:
        hits = bool(geom.contype or geom.conaffinity)
        geom.contype, geom.conaffinity = int(hits), 0
    for joint in spec.joints:
        joint.frictionloss = np.zeros_like(joint.frictionloss)
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        if joint.name in arm and not np.any(joint.range):
            joint.range, joint.limited = [-DEFAULT_RANGE, DEFAULT_RANGE], mujoco.mjtLimited.mjLIMITED_TRUE
    for name in [*arm, *drivers]:
        joint, limit = spec.joint(name), limits[name].limit
        if name in arm:
            stiffness = STIFFNESS * limit
            damping = DAMPING * stiffness
        else:
            stiffness = 4.0 * limit / float(joint.range[1] - joint.range[0])
            damping = stiffness / 25.0
        joint.armature = max(float(joint.armature), damping * PHYSICS_DT)
        actuator = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.set_to_position(kp=stiffness, kv=damping)
        actuator.forcerange, actuator.forcelimited = [-limit, limit], mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.ctrlrange, actuator.ctrllimited = joint.range, mujoco.mjtLimited.mjLIMITED_TRUE


def copy_files(spec: mujoco.MjSpec, folder: Path) -> dict[str, str]:
    """Copy meshes and textures to `folder`; returns the path of each to its name there."""
    taken: dict[str, str] = {}
    for part in [*spec.meshes, *spec.textures]:
        if part.file and part.file not in taken:
            name = Path(part.file).name
            taken[part.file] = name if name not in taken.values() else f"{len(taken)}_{name}"
            shutil.copyfile(part.file, folder / taken[part.file])
    return taken


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
