"""Base of managers: terms of a configuration, checked and resolved once."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, TypeVar

from simulators.isaac.cfg import JointedEntityCfg, ManagerTermBaseCfg, SceneEntityCfg
from simulators.isaac.checks import Range, check_range, is_number
from simulators.isaac.configclass import items
from simulators.isaac.env_base import EnvBase
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.names import resolve_matching_names
from simulators.isaac.simulation import EnvIds

T = TypeVar("T")
Term = TypeVar("Term", bound="ManagerTermBase")
ENTITIES = (SceneEntityCfg, "SceneEntityCfg", JointedEntityCfg)


class _OfEnv:
    """Part of an environment."""

    _env: EnvBase

    @property
    def num_envs(self) -> int:
        return self._env.num_envs

    @property
    def device(self) -> str:
        return self._env.device


class ManagerTermBase(_OfEnv):
    """Base of terms that are classes: made once with (cfg, env), then called as a function term is.

    Attributes:
        cfg: The term's configuration.
    """

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        self.cfg, self._env = cfg, env

    def reset(self, env_ids: EnvIds = None) -> Any:
        """Clear state of previous episodes. Results of action terms are ignored, those of command terms logged."""

    def __call__(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError


class ManagerBase(_OfEnv):
    """Terms by name.

    Raises:
        ConfigError: A term has no function, a parameter its function does not take or lacks one it needs, refers to
            something the scene does not have, or is no configuration of the right kind.
    """

    kind = "term"

    def __init__(self, cfg: Any, env: EnvBase) -> None:
        self.cfg, self._env = cfg, env
        self._stateful: list[ManagerTermBase] = []

    @property
    def active_terms(self) -> Any:
        """Names of the terms."""
        raise NotImplementedError

    def find_terms(self, name_keys: str | Sequence[str]) -> list[str]:
        """Names of terms that match; raises `ConfigError` if none does."""
        terms = self.active_terms
        names = [name for group in terms.values() for name in group] if isinstance(terms, dict) else terms
        return resolve_matching_names(name_keys, names, where=f"{self.kind}s")[1]

    def reset(self, env_ids: EnvIds = None) -> dict[str, Any]:
        """Begin new episodes; returns log entries of the old ones."""
        for term in self._stateful:
            term.reset(env_ids=env_ids)
        return {}

    def _named(self, terms: Mapping[str, T], name: str) -> T:
        """The term of this name; raises `ConfigError` if there is none."""
        if name not in terms:
            raise ConfigError(f"no {self.kind} is called {name!r}", f"{self.kind}_manager", nearest(name, terms))
        return terms[name]

    def _made(self, name: str, term: Any, base: type[Term]) -> Term:
        """The object of a term's `class_type`, which derives from `base`."""
        where, kind = f"{self.kind} {name}", term.class_type
        if not inspect.isclass(kind) or not issubclass(kind, base):
            raise ConfigError(f"class_type is {kind!r}", where, f"give a class derived from {base.__name__}")
        try:
            return kind(term, self._env)
        except ConfigError as error:
            raise within(where, error) from None

    def _terms(self, cfg: Any, kind: type) -> Iterator[tuple[str, Any]]:
        """Names and configurations of the terms, checked to be of `kind`; None is passed over."""
        for name, term in items(cfg):
            if term is None:
                continue
            if not isinstance(term, kind):
                what = f"a {type(term).__name__} is no {kind.__name__}"
                raise ConfigError(what, f"{self.kind} {name}", f"make it a {kind.__name__}")
            yield name, term

    def _resolve(self, name: str, term: ManagerTermBaseCfg, given: int = 1) -> None:
        """Check the function and parameters, look up scene entities, make the object of a class.

        Args:
            name: Of the term.
            term: Changed in place.
            given: Arguments that the manager passes itself: the environment, and for some their ids.
        """
        where = f"{self.kind} {name}"
        if term.func is MISSING or not callable(term.func):
            raise ConfigError("func is not a function", where, "give a function or a ManagerTermBase")
        if not isinstance(term.params, dict):
            raise ConfigError(f"params is {term.params!r}", where, "give a dictionary, or leave it out")
        for value in term.params.values():
            self._resolve_value(value, where)
        if inspect.isclass(term.func):
            if not issubclass(term.func, ManagerTermBase):
                raise ConfigError(f"{term.func.__name__} is no ManagerTermBase", where, "derive it from that class")
            check_params(term.func.__call__, term.params, given + 1, where)
            self._check_values(term.func.__call__, term.params, where)
            term.func = term.func(cfg=term, env=self._env)
        elif not isinstance(term.func, ManagerTermBase):
            check_params(term.func, term.params, given, where)
            self._check_values(term.func, term.params, where)
        if isinstance(term.func, ManagerTermBase):
            self._stateful.append(term.func)

    def _check_values(self, function: Callable[..., Any], params: dict[str, Any], where: str) -> None:
        """Raise `ConfigError` for parameters that contradict their annotations, as far as those are known."""
        for name, parameter in inspect.signature(function).parameters.items():
            kind, place = parameter.annotation, f"{name} of {where}"
            value = params.get(name, parameter.default)
            if value is parameter.default:
                continue
            if kind in ENTITIES and not isinstance(value, SceneEntityCfg):
                raise ConfigError(f"a {type(value).__name__} is no SceneEntityCfg", place, "name an entity by one")
            if kind == JointedEntityCfg and not hasattr(self._env.scene[value.name], "joint_names"):
                what = f"{value.name} has no joints"
                raise ConfigError(what, place, nearest("", self._env.scene.articulations))
            if kind == Range or (kind == Range | None and value is not None):
                check_range(value, place)
            elif kind == dict[str, Range]:
                if not isinstance(value, dict):
                    raise ConfigError(f"{value!r} is no dictionary", place, "give ranges by axis")
                for axis, pair in value.items():
                    check_range(pair, f"{axis} of {place}")
            elif kind in (float, int) and (
                value is None or isinstance(value, str) or (is_number(value) and math.isnan(value))
            ):
                raise ConfigError(f"{value!r} is no number", place, "give a number")

    def _resolve_value(self, value: Any, where: str) -> None:
        if isinstance(value, SceneEntityCfg):
            try:
                value.resolve(self._env.scene)
            except ConfigError as error:
                raise within(where, error) from None
        elif isinstance(value, ManagerTermBaseCfg):
            for inner in value.params.values():
                self._resolve_value(inner, where)


def within(where: str, error: ConfigError) -> ConfigError:
    """Error with `where` put before its place."""
    return ConfigError(error.what, f"{where}, {error.where}" if error.where else where, error.fix)


def check_params(function: Callable[..., Any], params: dict[str, Any], given: int, where: str) -> None:
    """Raise `ConfigError` unless `function` takes `params` as keywords after `given` positional arguments."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < given and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(f"its function takes {len(positional)} arguments", where, f"it is called with {given}")
    named = [p for p in parameters[given:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [p.name for p in named]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in params:
            if name not in known:
                raise ConfigError(f"its function takes no parameter {name!r}", where, nearest(name, known))
    for p in named:
        if p.default is p.empty and p.name not in params:
            raise ConfigError(f"parameter {p.name!r} is missing", where, f"add it to params of {where}")
