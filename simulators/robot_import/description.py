"""The description of a robot, written from another project's file."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from robots.descriptions import descriptions
from robots.kinematics.chain import Chain, load_chain
from simulators.arm import Arm
from simulators.robot_import.hand import Hand, measure
from simulators.robot_import.reach import find_home, find_workspace, reach_of
from simulators.robot_import.source import (
    PREFIX,
    Drive,
    chain_of,
    copy_files,
    drives,
    join,
    make_ready,
    read,
    velocity_limits,
)
from simulators.scene import table_scene

Array = NDArray[np.float64]
CLEAR_M = 0.003
GRASP = ("ee", "tcp", "pinch", "grasp", "grasp_site", "grip_site", "gripper_tcp")
"""Names of sites between the pads, as others give them."""
GAINS = "15 per unit of force limit, damping 1/12 of it"
SPAWN = np.array([[0.3, 0.31], [0.7, 0.69]])
"""Share of the workspace, in x and y, where tasks put objects."""


class Chosen(NamedTuple):
    """One choice of an import: the thing, its value, and its origin."""

    thing: str
    value: str
    origin: str


def import_robot(
    file: Path,
    out: Path,
    gripper: Path | None = None,
    name: str = "",
    ee: str = "",
    flange: str = "",
    home: Sequence[float] = (),
    velocity: float = np.pi,
) -> list[Chosen]:
    """Write `robot/NAME/NAME.xml` with its meshes, and the config `robot/NAME.yaml`, into a config folder.

    Args:
        file: MJCF or URDF of an arm of hinges, with a gripper or without.
        out: The config folder.
        gripper: MJCF or URDF of a gripper to attach.
        name: Name of the robot; empty for that of the file.
        ee: Site between the pads, whose z axis points away from the palm; empty to find one.
        flange: Site of the arm that carries `gripper`; empty for a known name.
        home: rad, posture of the arm; empty to find one.
        velocity: rad/s, limit of joints whose file has none.

    Raises:
        ConfigError: A file cannot be read, or the robot is of a kind that is not understood.
    """
    name = name or file.stem
    if not name.replace("_", "").replace("-", "").isalnum() or name in descriptions():
        raise ConfigError(f"the robot cannot be called {name!r}", "name", "choose another name=, of letters and digits")
    spec, told = read(file), []
    if gripper is not None:
        told.append(Chosen("flange", join(spec, read(gripper), flange, file), f"carries {gripper.name}"))
    site = _site(spec, ee, file)
    tip = site.parent if site is not None else None
    if site is None and gripper is not None:
        tip = spec.site(told[0].value).parent
    joints = chain_of(spec, tip, file)
    arm, where = [joint.name for joint in joints], str(file)
    model = _compiled(spec, where)
    limits = drives(spec, model)
    others = [joint.name for joint in spec.joints if joint.name not in arm]
    drivers = [joint for joint in others if joint in limits] or others
    drivers = [drivers[0]] if _linked(model, others) else drivers
    if not drivers:
        raise ConfigError("it has no gripper", where, "give gripper=FILE")
    if unlimited := [joint for joint in drivers if not np.any(spec.joint(joint).range)]:
        raise ConfigError(f"joint {unlimited[0]} of the gripper has no range", where, "give it one")
    limits |= {joint: _guess(model, joint) for joint in [*arm, *drivers] if not limits.get(joint, Drive(0, "")).limit}
    unranged = [joint.name for joint in joints if not np.any(joint.range)]
    begin = [key[model.jnt_qposadr[[model.joint(joint).id for joint in arm]]] for key in model.key_qpos]
    make_ready(spec, arm, drivers, limits)

    linkage = [joint for joint in others if joint not in drivers]
    palm, site_name = joints[-1].parent, site.name if site is not None else ""
    hand = measure(_compiled(spec, where), palm.name, drivers, linkage, site_name, where)
    _finish(spec, palm, hand)
    speeds, speed_origin = velocity_limits(file, arm, velocity)
    spec.add_numeric(name="velocity_limit", data=speeds)
    spec.add_text(name="gripper", data=" ".join(drivers))
    for key, values in (
        ("gripper_open", hand.opened), ("gripper_closed", hand.closed), ("gripper_width", hand.width),
    ):  # fmt: skip
        spec.add_numeric(name=key, data=list(values))
    if linkage:
        spec.add_text(name="linkage", data=" ".join(linkage))
        spec.add_numeric(name="linkage_open", data=list(hand.linkage_open))
        spec.add_numeric(name="linkage_closed", data=list(hand.linkage_closed))
    if len(home) not in (0, len(arm)):
        raise ConfigError(f"home has {len(home)} numbers", "home", f"give {len(arm)}, of {', '.join(arm)}")

    folder = out / "robot" / name
    folder.mkdir(parents=True, exist_ok=True)
    files, path = copy_files(spec, folder), folder / f"{name}.xml"
    spec.modelname, spec.compiler.degree = name, False
    posture = spec.add_numeric(name="home", data=list(home) or [0.0] * len(arm))
    chain = _chain(spec, where)
    reach = reach_of(chain)
    if not len(home):
        posture.data = find_home(chain, np.array([*begin, np.zeros(len(arm))]), reach, _contacts(model, arm), where)
    chain = _chain(spec, where)
    box = find_workspace(chain, chain.home, reach, hand.low + CLEAR_M, where)
    spawn = box[0, :2] + SPAWN * (box[1, :2] - box[0, :2])
    spec.add_numeric(name="workspace", data=box.ravel())
    spec.add_numeric(name="spawn", data=spawn.ravel())
    middle = box[:, 0].mean()
    spec.add_numeric(name="view", data=[middle, 0.0, 0.1, max(reach / 0.85, 0.3)])
    _compiled(spec, where)
    text = spec.to_xml()
    for source, copy in files.items():
        text = text.replace(f'"{source}"', f'"{copy}"')
    path.write_text(text)
    Arm(table_scene(str(path)).compile(), str(path))  # says whatever does not fit
    config = out / "robot" / f"{name}.yaml"
    config.write_text(f"# @package task\n# {name}, imported from {file.name}.\nrobot: {path.resolve()}\n")

    forces = "; ".join(f"{joint} {limits[joint].limit:.3g}" for joint in [*arm, *drivers])
    guessed = ", ".join(joint for joint in [*arm, *drivers] if limits[joint].origin == "guessed")
    turning = f"one turn either way for {', '.join(unranged)}" if unranged else "all given"
    rows = (
        ("joints", " ".join(arm), "from the base to the hand"),
        (
            "end effector",
            _numbers(hand.pos),
            f"site {site_name}" if site_name else f"between the pads, found in {palm.name}",
        ),
        ("gripper", " ".join(drivers), f"driven; {len(linkage)} joints follow" if linkage else "driven"),
        ("gripper width", f"{hand.width[0]:.4f} to {hand.width[1]:.4f} m", "measured between the pads"),
        ("force limits", forces, f"guessed for {guessed}" if guessed else "of the file's actuators and joints"),
        ("control gains", GAINS, "for 20 Hz; armature raised where the damping needs it"),
        ("joint ranges", "of the file", turning),
        ("velocity limits", _numbers(speeds), speed_origin),
        ("home", _numbers(chain.home), "given" if len(home) else "found: the hand points down, closing along y"),
        ("workspace", f"{_numbers(box[0])} to {_numbers(box[1])} m", "all reached from home, pointing down"),
        ("spawn", f"{_numbers(spawn[0])} to {_numbers(spawn[1])} m", "the middle of the workspace"),
        ("files", f"{path} and {len(files)} meshes; {config}", "written"),
    )
    return told + [Chosen(*row) for row in rows]


def _site(spec: mujoco.MjSpec, ee: str, file: Path) -> mujoco.MjsSite | None:
    """The site that is given, else one with a known name."""
    names = [site.name for site in spec.sites]
    wanted = [ee, PREFIX + ee] if ee else [prefix + known for known in GRASP for prefix in (PREFIX, "")]
    for name in wanted:
        if name in names:
            return spec.site(name)
    if ee:
        raise ConfigError(f"no site is called {ee!r}", str(file), nearest(ee, names))
    return None


def _linked(model: mujoco.MjModel, joints: Sequence[str]) -> bool:
    """Whether an equality ties joints of the gripper, so that one of them drives all."""
    ids = {model.joint(joint).id for joint in joints}
    tied = model.eq_type == mujoco.mjtEq.mjEQ_JOINT
    return bool(ids & set(model.eq_obj1id[tied].tolist()))


def _guess(model: mujoco.MjModel, joint: str) -> Drive:
    """A force limit from the weight that a joint may have to carry: three times that of all beyond it, stretched."""
    index = model.joint(joint).id
    body = int(model.jnt_bodyid[index])
    mass = float(model.body_subtreemass[body])
    if model.jnt_type[index] == mujoco.mjtJoint.mjJNT_SLIDE:
        return Drive(40.0, "guessed")
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    below = [b for b in range(body, model.nbody) if model.body_rootid[b] == model.body_rootid[body]]
    far = max(float(np.linalg.norm(data.xipos[b] - data.xpos[body])) for b in below)
    return Drive(max(3.0 * 9.81 * mass * max(far, 0.1), 2.0), "guessed")


def _finish(spec: mujoco.MjSpec, palm: mujoco.MjsBody, hand: Hand) -> None:
    """Add the site `ee` and a wrist camera, and give the pads the contact with which this project's grasps hold."""
    if (old := spec.site("ee")) is not None:
        old.name = "ee_of_the_file"
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, hand.rot.ravel())
    palm.add_site(name="ee", pos=hand.pos, quat=quat, size=[0.005] * 3, group=4)
    if spec.camera("wrist") is None:
        camera = palm.add_camera(name="wrist", pos=hand.pos + hand.rot @ [0.075, 0.0, -0.093], fovy=75)
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        camera.alt.xyaxes = [*(hand.rot @ [0.0, -1.0, 0.0]), *(hand.rot @ [-0.95, 0.0, -0.3])]
    for index in hand.pads:
        pad = spec.geoms[index]
        pad.friction, pad.condim, pad.priority, pad.solref = [1.5, 0.02, 0.0001], 4, 0, [0.01, 1.0]


def _contacts(model: mujoco.MjModel, arm: Sequence[str]) -> "_Contacts":
    return _Contacts(model, [int(model.joint(joint).qposadr[0]) for joint in arm])


class _Contacts:
    """Number of contacts of the robot with itself, as its file has them, in a posture."""

    def __init__(self, model: mujoco.MjModel, places: list[int]) -> None:
        self._model, self._places, self._data = model, places, mujoco.MjData(model)

    def __call__(self, posture: Array) -> int:
        self._data.qpos[self._places] = posture
        mujoco.mj_forward(self._model, self._data)
        return int(self._data.ncon)


def _compiled(spec: mujoco.MjSpec, where: str) -> mujoco.MjModel:
    try:
        return spec.compile()
    except ValueError as error:
        what = f"MuJoCo cannot compile it: {' '.join(str(error).split())}"
        raise ConfigError(what, where, "correct the file") from None


def _chain(spec: mujoco.MjSpec, where: str) -> Chain:
    """The arm of a description that is not written yet."""
    _compiled(spec, where)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / Path(where).name
        path.write_text(spec.to_xml())
        return load_chain(path)


def _numbers(values: Sequence[float] | Array) -> str:
    return " ".join(f"{value:.3f}" for value in values)
