"""Dataclass decorator for configurations: mutable defaults, members without annotation, fields to fill in."""

import copy
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from simulators.isaac.errors import ConfigError, nearest

T = TypeVar("T", bound=type)
MISSING: Any = dataclasses.MISSING
"""`dataclasses.MISSING`, allowed in any field."""
_PACKAGE = __name__.rpartition(".")[0] + "."
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type)


@dataclass_transform(field_specifiers=(dataclasses.field,))
def configclass(cls: T) -> T:
    """Make a class a configuration.

    Every member is a field: annotated ones, and values without annotation in the order they are written. Methods,
    nested classes and properties are no fields; a function or class without annotation is one where a base has a field
    of its name, and so is a function defined elsewhere. Each object owns deep copies of its defaults and of the values
    given to it. A field with the default `dataclasses.MISSING` need not be given, and holds MISSING until it is;
    `missing` lists those. Adds `to_dict`, `replace`, `copy`.

    An unknown keyword is a `ConfigError`. So is an attribute that no field has, where setting it would change nothing:
    a name close to a field's, None in a group of terms, and any in a configuration of the façade that takes no further
    members (`_open`).
    """
    annotations = dict(inspect.get_annotations(cls))
    ordered: dict[str, Any] = {}
    for name, value in list(vars(cls).items()):
        inherited = _inherited_annotation(cls, name)
        if name.startswith("__") or name in annotations or not _is_value(cls, value, inherited is not None):
            continue
        ordered[name] = Any if inherited is None else inherited
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
    made.__init__, made.__setattr__ = _checked(made), _set_known
    for name in ("to_dict", "replace", "copy"):
        setattr(made, name, vars(Config)[name])
    return made


def _is_value(cls: type, value: Any, known: bool) -> bool:
    """Whether a member without annotation is a value; `known` if a base has a field of its name."""
    if isinstance(value, (classmethod, staticmethod, property, functools.cached_property)):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        own = getattr(value, "__qualname__", "").startswith(f"{cls.__qualname__}.")
        return known or (not own and not inspect.isclass(value))
    return True


def _is_class_var(kind: Any) -> bool:
    return "ClassVar" in kind if isinstance(kind, str) else getattr(kind, "__origin__", kind) is ClassVar


def _inherited_annotation(cls: type, name: str) -> Any:
    for base in cls.__mro__[1:]:
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            if field.name == name:
                return field.type
    return None


def _field(cls: type, name: str) -> Any:
    """Dataclass field of a member; its default is copied for each object."""
    value = vars(cls).get(name, MISSING)
    if isinstance(value, dataclasses.Field):
        return value
    if value is MISSING:
        return dataclasses.field(default_factory=lambda: MISSING)
    if isinstance(value, _PLAIN) or inspect.isroutine(value):
        return dataclasses.field(default=value)
    return dataclasses.field(default_factory=lambda: owned(value))


def owned(value: Any) -> Any:
    """A deep copy; functions, classes and MISSING stay themselves."""
    return value if callable(value) else copy.deepcopy(value, {id(MISSING): MISSING})


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
        plain(self, *map(owned, args), **{name: owned(value) for name, value in given.items()})

    return __init__


def _set_known(self: Any, name: str, value: Any) -> None:
    """Set an attribute, unless it would change nothing."""
    known = self.__dataclass_fields__
    if name not in known and not name.startswith("_") and not hasattr(type(self), name):
        free = getattr(self, "_open", False)
        own = any(_is_facade(kind) for kind in type(self).__mro__)
        near = not dataclasses.is_dataclass(value) and difflib.get_close_matches(name, known, 1, 0.8)
        if near or (not free and (own or value is None)):
            raise ConfigError(f"{type(self).__name__} has no field {name!r}", "an attribute", nearest(name, known))
    object.__setattr__(self, name, value)


def _is_facade(kind: type) -> bool:
    """Whether the façade defines a configuration, other than a task's group of terms."""
    return kind is not Config and kind.__module__.startswith(_PACKAGE) and ".tasks." not in kind.__module__


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
        return owned(self)


def default_of(cfg: Any, name: str) -> Any:
    """Default of a field; MISSING where it has none."""
    field = type(cfg).__dataclass_fields__[name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def missing(cfg: Any) -> Iterator[str]:
    """Dotted names of the fields that still hold MISSING."""
    for name, value in members(cfg):
        if value is MISSING:
            yield name


def members(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of everything in a configuration, a dictionary or a list, depth first."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner: Any = vars(value).items()
    elif isinstance(value, (dict, list, tuple)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
    else:
        return
    for name, member in inner:
        yield f"{prefix}{name}", member
        yield from members(member, f"{prefix}{name}.")


def items(cfg: Any) -> list[tuple[str, Any]]:
    """Names and values of a group of terms, given as a configuration, a dictionary or None."""
    if cfg is None:
        return []
    return list(cfg.items() if isinstance(cfg, dict) else vars(cfg).items())
