"""Gymnasium's environments, and those of packages that register with it."""

import importlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from embodied.errors import ConfigError, nearest
from embodied.spec import DEFAULT_AGENT, AgentSpec, EnvSpec, Stream
from simulators.worker.suite import Moment, Streams, import_named

# Packages that register environments when they are imported; others are named before the id, as in Gymnasium:
# `gymnasium:<module>:<id>`.
PROVIDERS = ("gymnasium_robotics",)
SUCCESS = ("is_success", "success")  # what environments call it in `info`
RGB = "rgb"


class GymnasiumEnv:
    """One environment as the worker's `Env`."""

    def __init__(self, env: "gymnasium.Env[Any, Any]", suite: "GymnasiumSuite") -> None:
        self._env, self._suite = env, suite

    def reset(self, seed: int) -> Streams:
        return self._sense(self._env.reset(seed=seed)[0])

    def step(self, action: NDArray[np.float32]) -> Moment:
        seen, reward, terminated, truncated, info = self._env.step(self._suite.unscale(action))
        success = any(bool(info.get(name, False)) for name in SUCCESS)
        return Moment(self._sense(seen), reward, success, bool(terminated), bool(truncated))

    def close(self) -> None:
        self._env.close()

    def _sense(self, seen: Any) -> Streams:
        streams = {name: np.array(value) for name, value in _flat(seen)}
        if self._suite.pixels:
            streams[RGB] = _resized(self._env.render(), self._suite.pixels)
        return streams


class GymnasiumSuite:
    """Environments of one id.

    A `Dict` observation gives a stream for each of its boxes, names of nested ones joined with dots; a single box is
    the stream `observation`. Floats become float32. An action box that is symmetric, with one limit for all numbers, is
    obeyed as it is; of any other bounded one a policy gives -1 to 1 and low to high is applied.

    Attributes:
        spec: As in `Suite`.
        pixels: Edge of the `rgb` stream, 0 for none.
    """

    def __init__(self, id: str, options: Mapping[str, Any], pixels: int) -> None:
        self._id, self.pixels = id, pixels
        self._options = {"disable_env_checker": True, **options}
        if pixels:
            if "DISPLAY" not in os.environ:
                os.environ.setdefault("MUJOCO_GL", "egl")
            self._options.setdefault("render_mode", "rgb_array")
        env = self._sized() if pixels else self._made()
        try:
            self._low, self._high, limit = _limits(env, id)
            observations = _streams(env.observation_space, id)
            if pixels:
                observations += (Stream(RGB, (pixels, pixels, 3), "uint8"),)
            action = Stream("action", env.action_space.shape or (), limit=limit)
            self.spec = EnvSpec(
                task=id.rpartition(":")[2],
                agents={DEFAULT_AGENT: AgentSpec(observations, (action,))},
                control_hz=_rate(env, id),
                episode_steps=_steps(env, id),
                control_size=action.size,
            )
        finally:
            env.close()

    def make(self) -> GymnasiumEnv:
        return GymnasiumEnv(self._made(), self)

    def unscale(self, action: NDArray[np.float32]) -> NDArray[Any]:
        """An action in the environment's own numbers and shape."""
        shape = self.spec.agents[DEFAULT_AGENT].actions[0].shape
        if self._low is None or self._high is None:
            return action.reshape(shape)
        part = (action.reshape(shape).astype(np.float64) + 1) / 2
        return (self._low + part * (self._high - self._low)).astype(self._low.dtype)

    def _made(self) -> "gymnasium.Env[Any, Any]":
        try:
            return gymnasium.make(self._id, **self._options)
        except ModuleNotFoundError:
            raise
        except Exception as error:
            fix = "see the environment's own documentation for what it takes"
            raise ConfigError(
                f"cannot be made: {type(error).__name__}: {error}", f"env gymnasium:{self._id}", fix
            ) from None

    def _sized(self) -> "gymnasium.Env[Any, Any]":
        """Made to render at the stream's size, where the environment can be told, as MuJoCo's can."""
        plain, size = self._options, {"width": self.pixels, "height": self.pixels}
        self._options = {**size, **plain}
        try:
            return self._made()
        except ConfigError:
            self._options = plain
            return self._made()


def load(id: str, options: Mapping[str, Any], pixels: int = 0) -> GymnasiumSuite:
    """See `simulators.worker.suite`. `max_episode_steps` is an option of every environment.

    Raises:
        ConfigError: No such environment, or one with spaces, a rate or a time limit that do not fit.
    """
    _register(id)
    return GymnasiumSuite(id, options, pixels)


def _register(id: str) -> None:
    """Import what registers `id`."""
    module, _, name = id.rpartition(":")
    if module:
        import_named(module, f"gymnasium:{id}")
    for provider in PROVIDERS:
        if name not in gymnasium.registry and find_spec(provider) is not None:
            gymnasium.register_envs(importlib.import_module(provider))
    if name not in gymnasium.registry:
        fix = nearest(name, gymnasium.registry)
        raise ConfigError(f"gymnasium knows no environment {name!r} here", f"env gymnasium:{id}", fix)


def _flat(seen: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(seen, Mapping):
        return [(prefix or "observation", seen)]
    return [leaf for name, value in seen.items() for leaf in _flat(value, f"{prefix}.{name}" if prefix else str(name))]


def _streams(space: Any, id: str, prefix: str = "") -> tuple[Stream, ...]:
    if isinstance(space, spaces.Dict):
        inner = (_streams(part, id, f"{prefix}.{name}" if prefix else str(name)) for name, part in space.items())
        return tuple(stream for streams in inner for stream in streams)
    name = prefix or "observation"
    dtypes = {"f": "float32", "u": "uint8" if space.dtype == np.uint8 else "int32", "i": "int32", "b": "uint8"}
    kind = space.dtype.kind if isinstance(space, spaces.Box | spaces.MultiBinary) else ""
    if kind not in dtypes:
        fix = "wrap the environment in one whose observations are boxes"
        raise ConfigError(f"observation {name} is a {type(space).__name__}", f"env gymnasium:{id}", fix)
    return (Stream(name, tuple(space.shape), dtypes[kind]),)


def _limits(env: "gymnasium.Env[Any, Any]", id: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None, float]:
    """The bounds to scale actions to, None where they are obeyed as they are, and the limit of the action stream."""
    space = env.action_space
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        fix = "wrap the environment in one whose actions are a box of floats"
        raise ConfigError(f"actions are a {type(space).__name__}", f"env gymnasium:{id}", fix)
    low, high = space.low, space.high
    if (low == -high).all() and high.size and (high == high.flat[0]).all():
        return None, None, float(high.flat[0]) if np.isfinite(high.flat[0]) else 0.0
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError("some actions have bounds, others none", f"env gymnasium:{id}", "wrap it in one that has all")
    return low, high, 1.0


def _rate(env: "gymnasium.Env[Any, Any]", id: str) -> float:
    """Control steps per simulated second."""
    dt = getattr(env.unwrapped, "dt", None)
    rate = 1.0 / dt if isinstance(dt, float) and dt > 0 else env.metadata.get("render_fps")
    if not isinstance(rate, int | float) or not rate > 0:
        fix = "give the environment a `dt`, or metadata with `render_fps`"
        raise ConfigError("it does not say how often it is controlled", f"env gymnasium:{id}", fix)
    return round(float(rate), 6)  # 1 / 0.04 is 25


def _steps(env: "gymnasium.Env[Any, Any]", id: str) -> int:
    steps = env.spec.max_episode_steps if env.spec else None
    if not steps:
        raise ConfigError("it has no time limit", f"env gymnasium:{id}", "give --option max_episode_steps=200")
    return int(steps)


def _resized(frame: Any, pixels: int) -> NDArray[Any]:
    """A rendered frame at [pixels, pixels, 3], the nearest pixels where the environment renders another size."""
    image = np.asarray(frame)
    if image.shape[:2] == (pixels, pixels):
        return image
    rows, columns = (np.arange(pixels) * size // pixels for size in image.shape[:2])
    return np.ascontiguousarray(image[rows][:, columns])
