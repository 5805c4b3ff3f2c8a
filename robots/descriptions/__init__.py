"""Robot descriptions as data: MJCF files and where they lie."""

from pathlib import Path

from embodied.errors import ConfigError, nearest

_FOLDER = Path(__file__).parent


def description_path(robot: str) -> Path:
    """The MJCF file of a robot.

    Raises:
        ConfigError: No description has this name.
    """
    known = sorted(path.stem for path in _FOLDER.glob("*.xml"))
    if robot not in known:
        raise ConfigError(f"no robot is called {robot!r}", "robots/descriptions", nearest(robot, known))
    return _FOLDER / f"{robot}.xml"
