"""Contract of a suite of environments, and its lookup by name. A new suite is one new file.

`<suite>:<id>` names an environment. A suite without a dot is the file `<suite>_envs.py` in this folder, one with a dot
any importable module; either has a function `load(id, options, pixels) -> Suite`.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from embodied.settings import validated
from embodied.spec import EnvSpec

Streams = dict[str, NDArray[Any]]
SUFFIX = "_envs"
_STRIDE = 1_000_003


@dataclass
class Moment:
    """One agent's part of one step of one environment.

    Attributes:
        streams: Stream name to array, as the suite's spec says.
        reward: As the environment gives it; one that is no finite float32 is a fault.
        success: Whether the task is done now; False where the environment does not say.
        terminated, truncated: As in Gymnasium.
    """

    streams: Streams
    reward: Any
    success: bool
    terminated: bool
    truncated: bool


class Env(Protocol):
    """One environment of one agent. An exception ends its episode as an infrastructure fault."""

    def reset(self, seed: int) -> Streams:
        """Start the episode that `seed`, 0 to 2^63 - 1, alone decides."""
        ...

    def step(self, action: NDArray[np.float32]) -> Moment:
        """Take one control step; `action` [D] is finite and within the spec's limit."""
        ...

    def close(self) -> None: ...


class MultiAgentEnv(Protocol):
    """One environment of several agents; as `Env`, with mappings by agent."""

    def reset(self, seed: int) -> dict[str, Streams]:
        """Start the episode that `seed`, 0 to 2^63 - 1, alone decides; returns the streams of every agent."""
        ...

    def step(self, actions: dict[str, NDArray[np.float32]]) -> dict[str, Moment]:
        """Take one control step with the actions of the agents whose episodes go on; returns a moment of each."""
        ...

    def close(self) -> None: ...


class Suite(Protocol):
    """Maker of environments of one task.

    Attributes:
        spec: `task` names the environment, `episode_steps` is its time limit, `state_size` is 0 and `control_size` the
            number of all agents' actions.
    """

    spec: EnvSpec

    def make(self) -> Env | MultiAgentEnv:
        """Make an environment: a `MultiAgentEnv` where the spec has several agents."""
        ...


def next_seed(seed: int, count: int = 1) -> int:
    """The seed, `count` seeds on, that replaces one with which an environment does not start; 31 bits stay 31."""
    return (seed + count * _STRIDE) & (2**31 - 1 if seed < 2**31 else 2**63 - 1)


def suite_names() -> list[str]:
    """The suites that have a file here."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))


@validated("env", "pixels")
def load_suite(
    env: str, options: Mapping[str, Any], pixels: Annotated[int, Interval(ge=0, le=4096), "0 for no images"] = 0
) -> Suite:
    """The suite that makes `env`, `<suite>:<id>`.

    Args:
        env: Such as `gymnasium:FetchPush-v4`.
        options: For the environment.
        pixels: Edge of a square `rgb` stream that is rendered at every step; 0 for none.

    Raises:
        ConfigError: There is no such suite or environment, it does not take an option, or it fits no `EnvSpec`.
        ModuleNotFoundError: A package that it needs is not installed.
    """
    suite, colon, id = env.partition(":")
    if not (suite and colon and id):
        raise ConfigError(f"{env!r} names no environment", "env", "write <suite>:<id>, such as gymnasium:FetchPush-v4")
    if "." not in suite and suite not in suite_names():
        raise ConfigError(f"no suite is called {suite!r}", f"env {env}", nearest(suite, suite_names()))
    path = suite if "." in suite else f"{__package__}.{suite}{SUFFIX}"
    module = import_named(path, env)
    if not callable(getattr(module, "load", None)):
        raise ConfigError(f"{path} has no function load", f"env {env}", "write load(id, options, pixels) -> Suite")
    loaded: Suite = module.load(id, options, pixels)
    return loaded


def import_named(path: str, env: str) -> ModuleType:
    """The module `path` that `env` names.

    Raises:
        ConfigError: `path` is no name of a module, or the module is missing or fails.
        ModuleNotFoundError: It imports a package that is not installed.
    """
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{path!r} names no module", f"env {env}", "write package.module")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"cannot import {path}", f"env {env}", "install it here, or mend the name") from None
    except Exception as error:
        what = f"cannot import {path}: {type(error).__name__}: {error}"
        raise ConfigError(what, f"env {env}", "mend that module") from None
