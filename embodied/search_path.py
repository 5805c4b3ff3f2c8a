"""Config folders: this project's `configs/`, those of installed packages, and those that a user names.

A config folder holds groups as `configs/` does, such as `task/open_box.yaml` or `split/dark.yaml`. A package names its
own by an entry point: `[project.entry-points."embodied.configs"]`, `mine = "my_package.configs"`. A user names others
by `embodied --config-dir FOLDER`, or in the environment variable EMBODIED_CONFIG_DIR.
"""

import importlib.util
import os
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from embodied.errors import ConfigError

CONFIGS = Path(str(files("embodied"))) / "configs"
ENTRY_POINTS = "embodied.configs"
VARIABLE = "EMBODIED_CONFIG_DIR"


def add_folder(folder: str) -> None:
    """Add a config folder for this process and those that it starts.

    Raises:
        ConfigError: There is no such folder, or it holds no group.
    """
    path = Path(folder).expanduser().resolve()
    if not any(path.glob("*/*.yaml")):
        what = "it holds no config group" if path.is_dir() else "no such folder"
        raise ConfigError(what, f"--config-dir {folder}", "name a folder that holds files such as task/NAME.yaml")
    named = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"{named}{os.pathsep}{path}" if named else str(path)


def config_folders() -> list[Path]:
    """All config folders, this project's first.

    Raises:
        ConfigError: An entry point names no package.
    """
    named = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return list(dict.fromkeys([CONFIGS, *_installed(), *named]))


def config_files(group: str) -> dict[str, Path]:
    """Name to file of every option of a group, sorted by name.

    Raises:
        ConfigError: Two folders have an option of one name.
    """
    found: dict[str, Path] = {}
    for path in (path for folder in config_folders() for path in folder.glob(f"{group}/*.yaml")):
        if found.setdefault(path.stem, path) != path:
            raise ConfigError(f"{group} {path.stem} is there twice", f"{path} and {found[path.stem]}", "rename one")
    return dict(sorted(found.items()))


@cache
def _installed() -> tuple[Path, ...]:
    """Config folders of installed packages."""
    found = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            fix = "correct it in the package's pyproject.toml"
            raise ConfigError(f"entry point {point.name} = {point.value!r} is no package", ENTRY_POINTS, fix)
        found.append(Path(next(iter(spec.submodule_search_locations))))
    return tuple(found)
