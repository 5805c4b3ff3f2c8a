"""Dataclass decorator for configurations: mutable defaults, members without annotation, fields to fill in."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from embodied.errors import ConfigError, nearest

T = TypeVar("T", bound=type)
MISSING: Any = dataclasses.MISSING
"""`dataclasses.MISSING`, allowed in any field."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


@dataclass_transform(field_specifiers=(dataclasses.field,))
def configclass(cls: T) -> T:
    """Make a class a configuration.

    Every member is a field: annotated ones, and values without annotation in the order they are written. Nested
    classes, functions and properties are no fields. Each object gets deep copies of the defaults. A field with the
    default `dataclasses.MISSING` need not be given, and holds MISSING until it is; `missing` lists those. Adds
    `to_dict`, `replace`, `copy`. An unknown keyword is a `ConfigError`.
    """
    annotations = dict(inspect.get_annotations(cls))
    ordered: dict[str, Any] = {}
    for name, value in list(vars(cls).items()):
        if name.startswith("__") or name in annotations or not _is_value(value):
            continue
        ordered[name] = _inherited_annotation(cls, name)
    # Members of either kind in the order of their values; those without a value come first, as written.
    bare = {name: kind for name, kind in annotations.items() if name not in vars(cls)}
    kinds = ordered | annotations
    given = {name: kinds[name] for name in vars(cls) if name in kinds}
    cls.__annotations__ = bare | given
    for name, kind in cls.__annotations__.items():
        if not _is_class_var(kind):
            setattr(cls, name, _field(cls, name))
    if "__post_init__" not in vars(cls) and not hasattr(cls, "__post_init__"):
        cls.__post_init__ = _nothing  # type: ignore[attr-defined]
    made: Any = dataclasses.dataclass(cls)
    made.__init__ = _checked(made)
    for name in ("to_dict", "replace", "copy"):
        setattr(made, name, vars(Config)[name])
    return made


def _is_value(value: Any) -> bool:
    wrapped = isinstance(value, (classmethod, staticmethod, property, functools.cached_property))
    return not (wrapped or inspect.isclass(value) or inspect.isroutine(value))


def _is_class_var(kind: Any) -> bool:
    return "ClassVar" in kind if isinstance(kind, str) else getattr(kind, "__origin__", kind) is ClassVar


def _inherited_annotation(cls: type, name: str) -> Any:
    for base in cls.__mro__[1:]:
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            if field.name == name:
                return field.type
    return Any


def _field(cls: type, name: str) -> Any:
    """Dataclass field of a member; its default is copied for each object."""
    value = vars(cls).get(name, MISSING)
    if isinstance(value, dataclasses.Field):
        return value
    if value is MISSING:
        return dataclasses.field(default_factory=lambda: MISSING)
    if isinstance(value, _PLAIN) or inspect.isroutine(value):
        return dataclasses.field(default=value)
    return dataclasses.field(default_factory=lambda: copy.deepcopy(value))


def _nothing(self: Any) -> None:
    """End of every chain of `super().__post_init__()`."""


def _checked(cls: type) -> Any:
    plain = cls.__init__  # type: ignore[misc]
    known = [field.name for field in dataclasses.fields(cls)]

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no field {name!r}", cls.__name__, nearest(name, known))
        plain(self, *args, **given)

    return __init__


def to_dict(cfg: Any) -> Any:
    """Nested dictionaries of a configuration; functions and classes as `module:name`, other objects as they are."""
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        return {name: to_dict(value) for name, value in vars(cfg).items()}
    if isinstance(cfg, dict):
        return {key: to_dict(value) for key, value in cfg.items()}
    if isinstance(cfg, (list, tuple)):
        return type(cfg)([to_dict(value) for value in cfg])
    if cfg is MISSING or not callable(cfg):
        return cfg
    return f"{cfg.__module__}:{cfg.__qualname__}" if hasattr(cfg, "__qualname__") else cfg


class Config:
    """The methods that `configclass` adds, for type checkers; deriving from it changes nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries; functions and classes as `module:name`."""
        return to_dict(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in some fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def copy(self) -> Self:
        """A deep copy."""
        return copy.deepcopy(self)


def missing(cfg: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the fields that still hold MISSING."""
    for name, value in vars(cfg).items():
        if value is MISSING:
            yield prefix + name
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from missing(value, f"{prefix}{name}.")


def items(cfg: Any) -> list[tuple[str, Any]]:
    """Names and values of a group of terms, given as a configuration, a dictionary or None."""
    if cfg is None:
        return []
    return list(cfg.items() if isinstance(cfg, dict) else vars(cfg).items())
