"""Objects made of a configuration, each value of which is checked against the annotation of what it is for."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from embodied.errors import ConfigError, nearest

_ONE = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", NoneType: "null"}
_MANY = {int: "whole numbers", float: "numbers", str: "words"}
_UNFIT = object()
T = TypeVar("T")


def configured(kind: type[T], config: Mapping[str, Any], where: str = "policy", **given: Any) -> T:
    """A `kind` of the arguments that `config` names, and of those `given`, which it may not name.

    Annotations that are read are bool, int, float (finite), str, None, sequences and mappings of these, dataclasses,
    which a mapping of their fields makes, and unions; others take anything, and so does `**`. A sequence of words may
    be one word.

    Args:
        where: Key of `config`, for errors.

    Raises:
        ConfigError: An argument is unknown or missing, or its value is of another kind than its annotation.
    """
    parameters, hints = inspect.signature(kind).parameters, get_type_hints(kind.__init__)
    known = {name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD} - given.keys()
    takes_any = len(known) + len(given) < len(parameters)
    for name, parameter in parameters.items():
        if name in known - config.keys() and parameter.default is parameter.empty:
            raise ConfigError(f"{name} is missing", f"{where}.{name}", f"give {_described(hints[name])}")
    arguments = dict(given)
    for name, value in config.items():
        at = f"{where}.{name}"
        if name in given or not (name in known or takes_any):
            raise ConfigError(f"there is no setting {name}", at, nearest(name, known))
        arguments[name] = _fitted(value, hints[name], at) if name in known else value
        if arguments[name] is _UNFIT:
            raise ConfigError(f"{name} cannot be {value!r}", at, f"give {_described(hints[name])}")
    return kind(**arguments)


def _fitted(value: Any, hint: Any, where: str) -> Any:
    """`value` as `hint` has it, or `_UNFIT`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((made for part in parts if (made := _fitted(value, part, where)) is not _UNFIT), _UNFIT)
    if origin in (tuple, Sequence):
        items = [value] if isinstance(value, str) and parts[0] is str else value
        if not isinstance(items, list | tuple):
            return _UNFIT
        made = tuple(_fitted(item, parts[0], where) for item in items)
        return _UNFIT if any(item is _UNFIT for item in made) else made
    if origin is Mapping:
        fits = isinstance(value, Mapping) and all(_fitted(v, parts[1], where) is not _UNFIT for v in value.values())
    elif hint is float:
        fits = type(value) in (int, float) and math.isfinite(value)
    elif hint in _ONE:
        fits = type(value) is hint
    elif is_dataclass(hint) and isinstance(hint, type):
        return configured(hint, value, where) if isinstance(value, Mapping) else _UNFIT
    else:
        fits = True
    return value if fits else _UNFIT


def _described(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_described(part) for part in parts)
    if origin in (tuple, Sequence):
        return f"a list of {_MANY[parts[0]]}"
    if origin is Mapping:
        return f"a mapping to {_MANY.get(parts[1], 'anything')}"
    if is_dataclass(hint):
        return f"a mapping of {', '.join(field.name for field in fields(hint) if field.init)}"
    return _ONE.get(hint, "one")
