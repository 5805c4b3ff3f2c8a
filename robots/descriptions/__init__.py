"""Robot descriptions as data: MJCF files and where they lie."""

from pathlib import Path
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


def arms(robot: str) -> dict[str, str]:
    """The arms a robot is made of: what stands before their names, empty for a single arm, to whose description it is.

    Raises:
        ConfigError: No description has this name.
    """
    root = ElementTree.parse(description_path(robot)).getroot()
    files = {model.get("name"): model.get("file", "") for model in root.iterfind("asset/model")}
    attached = {part.get("prefix", ""): Path(files[part.get("model")]).stem for part in root.iter("attach")}
    return attached or {"": robot}
