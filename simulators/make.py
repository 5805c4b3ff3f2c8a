"""Tasks by name: a task is the module of that name in `simulators/tasks/`, so a new one needs no registration."""

import importlib
import inspect
import pkgutil
from typing import Any

from embodied.errors import ConfigError, nearest
from simulators import tasks
from simulators.env import BatchEnv
from simulators.task import Task


def task_names() -> list[str]:
    """Names that `make_task` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(tasks.__path__))


def make_task(name: str, **options: Any) -> Task:
    """Build a task.

    Raises:
        ConfigError: No task has this name, or it does not take one of the options.
    """
    if name not in task_names():
        raise ConfigError(f"no task is called {name!r}", "task", nearest(name, task_names()))
    make = importlib.import_module(f"{tasks.__name__}.{name}").make
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"task {name} has no option {option!r}", f"task.{option}", nearest(option, known))
    return make(**options)


def make_env(task: str, num_envs: int, num_threads: int = 0, seed: int = 0, **options: Any) -> BatchEnv:
    """Build `num_envs` bodies of a task; `options` go to `make_task`.

    Raises:
        ConfigError: As `make_task` and `BatchEnv`.
    """
    return BatchEnv(make_task(task, **options), num_envs, num_threads, seed)
