"""Robot descriptions as data: MJCF files, their paths and the arms in them."""

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

    Raises:
        ConfigError: No description has this name.
    """
    known = descriptions()
    if robot not in known:
        raise ConfigError(f"no robot is called {robot!r}", "robots/descriptions", nearest(robot, known))
    return _FOLDER / f"{robot}.xml"


class Mount(NamedTuple):
    """One arm of a robot.

    Attributes:
        robot: Name of the description of the arm alone.
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
    root = ElementTree.parse(description_path(robot)).getroot()
    files = {model.get("name"): model.get("file", "") for model in root.iterfind("asset/model")}
    found = {}
    for frame in root.iterfind("worldbody/frame"):
        if frame.attrib.keys() - {"name", "pos", "quat"}:
            raise ConfigError("a frame is oriented otherwise", f"{robot}.xml", "write it with pos and quat")
        pos = tuple(map(float, frame.get("pos", "0 0 0").split()))
        quat = tuple(map(float, frame.get("quat", "1 0 0 0").split()))
        for part in frame.iterfind("attach"):
            found[part.get("prefix", "")] = Mount(Path(files[part.get("model")]).stem, pos, quat)
    if len(found) != len(list(root.iter("attach"))):
        raise ConfigError("an arm is attached elsewhere", f"{robot}.xml", "attach it in a frame of worldbody")
    return found or {"": Mount(robot)}
