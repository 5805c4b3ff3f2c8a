"""Tasks by name: a task is the module of that name in `simulators/tasks/`, so a new one needs no registration."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError, nearest
from embodied.settings import validated
from simulators import tasks
from simulators.env import BatchEnv
from simulators.randomise.ranges import Ranges
from simulators.render.cameras import Cameras, View
from simulators.tabletop import TabletopTask
from simulators.task import Task


def task_names() -> list[str]:
    """Names that `make_task` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(tasks.__path__))


def make_task(name: str, also: Iterable[str] = (), phrasings: str | None = None, **options: Any) -> Task:
    """Build a task.

    Args:
        name: Name of a module in `simulators/tasks/`, or the import path of another, such as `my_package.open_box`.
        also: Other names that a user may have meant by an unknown option.
        phrasings: As in `TabletopTask.draw_phrasings`, for those tasks; None for all.
        options: Of the task.

    Raises:
        ConfigError: No task has this name, or it does not take one of the options.
    """
    make = _module(name).make
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            fix = nearest(option, [*known, *also, "phrasings"])
            raise ConfigError(f"task {name} has no option {option!r}", f"task.{option}", fix)
    try:
        made: Task = make(**options)
    except (ValueError, KeyError) as error:  # as MuJoCo says what is wrong in a scene
        raise ConfigError(f"task {name} cannot be built: {error}", "task", "correct its scene or its robot") from error
    if phrasings is not None:
        if not isinstance(made, TabletopTask):
            raise ConfigError(f"task {name} draws no phrasings", "task.phrasings", "leave it out")
        made.draw_phrasings(phrasings)
    return made


def _module(name: str) -> Any:
    """Module of a task.

    Raises:
        ConfigError: It cannot be imported, or makes no task.
    """
    if "." not in name and name not in task_names():
        fix = f"{nearest(name, task_names())} (or give an import path, such as my_package.open_box)"
        raise ConfigError(f"no task is called {name!r}", "task", fix)
    path = name if "." in name else f"{tasks.__name__}.{name}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # it is there, and imports a package that is not installed
        fix = "install its package, or start in the folder that holds it"
        raise ConfigError(f"no module {name}", "task.name", fix) from None
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"module {name} fails: {error!r}", "task.name", "correct it; --debug shows where") from error
    if not callable(getattr(module, "make", None)):
        raise ConfigError(f"module {name} has no function make", "task.name", "write one, as docs/new-task.md does")
    return module


@validated("env", "cameras", "images")
def make_env(
    task: str,
    num_envs: int,
    num_threads: int = 0,
    seed: int = 0,
    cameras: Sequence[str] = (),
    pixels: int = 84,
    images: Sequence[str] = ("rgb",),
    renderer: str = "auto",
    randomise: Mapping[str, Any] | None = None,
    first: int = 0,
    **options: Any,
) -> BatchEnv:
    """Build `num_envs` environments of a task.

    Args:
        task: Its name.
        num_envs, num_threads, seed, first: As in `BatchEnv`.
        cameras: Names of cameras of the task's model whose pictures are sensed.
        pixels: Width and height of the pictures.
        images: Of `rgb`, `depth` and `segmentation`, for every camera.
        renderer: As in `Cameras`.
        randomise: As in `Ranges`.
        options: As in `make_task`.

    Raises:
        ConfigError: As `make_task`, `Cameras`, `Ranges.read` and `BatchEnv`.
        InfrastructureError: As `Cameras`.
    """
    own = [name for name, p in inspect.signature(make_env).parameters.items() if p.kind is not p.VAR_KEYWORD]
    made = make_task(task, also=own, **options)
    ranges = Ranges.read(randomise)
    views = [View(name, pixels, pixels, tuple(images)) for name in cameras]
    seen = Cameras(made.model, views, renderer, num_threads) if views else None
    return BatchEnv(made, num_envs, num_threads, seed, seen, ranges, first)
