"""Robot descriptions as data: MJCF files, their paths and the arms in them."""

import importlib.util
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from embodied.errors import ConfigError, nearest

_FOLDER = Path(__file__).parent


def descriptions() -> list[str]:
    """Names of the robots that have a description."""
    return sorted(path.stem for path in _FOLDER.glob("*.xml"))


def description_path(robot: str) -> Path:
    """The MJCF file of a robot.

    Args:
        robot: Name of a description of this project; path of another, which ends in `.xml`; or its import path:
            `my_package.robots.crane` is the file `crane.xml` of the package `my_package.robots`.

    Raises:
        ConfigError: There is no such description.
    """
    known = descriptions()
    if robot in known:
        return _FOLDER / f"{robot}.xml"
    package, _, name = robot.rpartition(".")
    if name == "xml" and (path := Path(robot).expanduser()).is_file():
        return path.resolve()
    try:
        spec = importlib.util.find_spec(package) if package and name != "xml" else None
    except ImportError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(folder) / f"{name}.xml").is_file():
            return path
    fix = f"{nearest(robot, known)} (or give the path of an .xml file, or its import path)"
    raise ConfigError(f"no robot is called {robot!r}", "robots/descriptions", fix)


class Mount(NamedTuple):
    """One arm of a robot.

    Attributes:
        robot: Name of the description of the arm alone, or the path of its file.
        pos: m, position of its base in the frame of the robot's description.
        quat: wxyz, orientation of its base in that frame.
    """

    robot: str
    pos: tuple[float, ...] = (0.0, 0.0, 0.0)
    quat: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)


def arms(robot: str) -> dict[str, Mount]:
    """Arms of a robot by the prefix of their names, which is empty for a single arm.

    Raises:
        ConfigError: No description has this name, or it attaches an arm in a way that is not understood.
    """
    path = description_path(robot)
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ConfigError(f"cannot read a robot description: {error}", str(path), "give an MJCF file") from None
    files = {model.get("name"): model.get("file", "") for model in root.iterfind("asset/model")}
    found = {}
    for frame in root.iterfind("worldbody/frame"):
        if frame.attrib.keys() - {"name", "pos", "quat"}:
            raise ConfigError("a frame is oriented otherwise", f"{robot}.xml", "write it with pos and quat")
        pos = tuple(map(float, frame.get("pos", "0 0 0").split()))
        quat = tuple(map(float, frame.get("quat", "1 0 0 0").split()))
        for part in frame.iterfind("attach"):
            file = path.parent / files[part.get("model")]
            found[part.get("prefix", "")] = Mount(file.stem if file.parent == _FOLDER else str(file), pos, quat)
    if len(found) != len(list(root.iter("attach"))):
        raise ConfigError("an arm is attached elsewhere", f"{robot}.xml", "attach it in a frame of worldbody")
    return found or {"": Mount(robot)}
