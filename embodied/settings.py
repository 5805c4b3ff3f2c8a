"""Settings: dataclasses, and arguments of calls, whose values are checked against their annotations.

Numbers, words and truth values are taken as they are: `true` is no number, `"3"` is none either, and 3.0 is no whole
number. A whole number may stand for a number with a fraction, a list for a tuple, and one word for a list of words.
A range belongs to the annotation, as in `Annotated[int, Interval(ge=1, le=64)]`; text beside it is said in errors.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from operator import index
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import AllowInfNan, BeforeValidator, ConfigDict, Strict, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.errors import PydanticUserError

from embodied.errors import ConfigError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")
Call = TypeVar("Call", bound=Callable[..., Any])

Count = Annotated[int, Ge(0)]
AtLeastOne = Annotated[int, Ge(1)]
Rows = Annotated[int, Interval(ge=1, le=65536)]
Threads = Annotated[int, Interval(ge=1, le=1024)]
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
"""Fits every generator, and the seeds derived from it."""
Share = Annotated[float, Interval(ge=0, le=1)]
Weight = Annotated[float, Ge(0)]
AboveZero = Annotated[float, Gt(0)]
Limit = Annotated[float, Gt(0), AllowInfNan(True)]
"""A number above zero, infinite for no limit."""
Seconds = Annotated[float, Interval(gt=0, le=86400), "seconds, a day at most"]
ThreadsOrAll = Annotated[int, Interval(ge=0, le=1024), "0 for every core"]
Gigabytes = Annotated[float, Interval(gt=0, le=1e6)]
GigabytesOrNoLimit = Annotated[float, Interval(ge=0, le=1e6), "0 for no limit"]


def _word(value: Any) -> Any:
    return str(value) if type(value) in (int, float) else value


Word = Annotated[str, BeforeValidator(_word)]
"""Text, such as a name or a version, that a command line may read as a number."""

Text = Annotated[str, StringConstraints(min_length=1)]
Label = Annotated[
    str,
    BeforeValidator(_word),
    StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$"),
    "at most 64 letters, digits, dashes and underscores",
]

_KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false", NoneType: "null"}
_MANY = {int: "whole numbers", float: "numbers", str: "words"}
_LIST = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
_INDEX = BeforeValidator(
    lambda value: index(value) if hasattr(value, "__index__") and type(value) is not bool else value
)
_WHOLE = Interval(ge=-(2**63), le=2**63 - 1)
_OPEN = ConfigDict(arbitrary_types_allowed=True)


@dataclass_transform(field_specifiers=(field,))
def settings(where: str = "", *, frozen: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass whose fields are checked when it is made.

    Args:
        where: Key of the settings, for errors: `algo` makes `algo.lr` of `lr`.
        frozen: Whether fields stay as they are made.
    """

    def make(cls: type[T]) -> type[T]:
        hints = get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: _strict(hints[name]) for name in inspect.get_annotations(cls)}
        made: Any = dataclass(config=ConfigDict(extra="forbid", **_OPEN), frozen=frozen)(cls)
        plain = made.__init__

        @functools.wraps(plain)
        def checked_init(self: Any, *args: Any, **values: Any) -> None:
            try:
                plain(self, *args, **values)
            except ValidationError as error:
                given = dict(zip((f.name for f in fields(made)), args, strict=False)) | values
                raise _refusal(error, made, where, given) from None

        made.__init__ = checked_init
        return made

    return make


def checked(target: Any, values: Mapping[str, Any], where: str, supplied: Collection[str] = ()) -> dict[str, Any]:
    """Arguments for `target`, a function, a class or a settings dataclass, each as its annotation has it.

    Args:
        values: Arguments by name. One that `target` takes by `**` alone, or has no annotation for that can be checked,
            is returned as it is.
        where: Key of `values`, for errors; empty at the top.
        supplied: Names of the arguments that the program gives, which `values` may not name.

    Raises:
        ConfigError: An argument is unknown or missing, or its value does not fit.
    """
    parameters = inspect.signature(target).parameters
    known = {n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} - set(supplied)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = _hints(target)
    fitted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known and (not takes_any or name in supplied):
            raise ConfigError(f"there is no setting {name}", _join(where, name), nearest(name, known))
        is_typed = name in known and name in hints
        fitted[name] = _fitted(value, hints[name], _join(where, name)) if is_typed else value
    for name, parameter in parameters.items():
        if name in known - values.keys() and parameter.default is parameter.empty:
            raise ConfigError(f"{name} is missing", _join(where, name), f"give {described(hints.get(name))}")
    return fitted


def validated(where: str, *names: str) -> Callable[[Call], Call]:
    """Make a function or method check the arguments called `names` by their annotations, at every call.

    Args:
        where: Key of the arguments, for errors.
    """

    def make(function: Call) -> Call:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            bound = signature.bind(*args, **values)
            hints = get_type_hints(function, include_extras=True)
            for name in names:
                if name in bound.arguments:
                    bound.arguments[name] = _fitted(bound.arguments[name], hints[name], _join(where, name))
            return function(*bound.args, **bound.kwargs)

        return cast("Call", call)

    return make


def configured(kind: Callable[..., T], config: Mapping[str, Any], where: str = "policy", **given: Any) -> T:
    """Build `kind` from the arguments that `config` names, checked, and of those `given`.

    Raises:
        ConfigError: As `checked`.
    """
    return kind(**checked(kind, config, where, given), **given)


def typed(kind: type[T], config: "DictConfig") -> T:
    """A composed configuration as the settings dataclass `kind`.

    Raises:
        ConfigError: A key is unknown or has no value, or a value is of a wrong type or out of range.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        for key in sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{key} has no value", key, f"give {key}=...")
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", "") or "")
        raise ConfigError(str(error).splitlines()[0], key, "see --help of the command") from None
    assert isinstance(values, dict)
    return configured(kind, {str(key): value for key, value in values.items()}, "")


def require(condition: bool, key: str, value: Any, fix: str) -> None:
    """Raise a `ConfigError` about `key` unless a rule between settings holds."""
    if not condition:
        raise ConfigError(f"{key} cannot be {shown(value)}", key, fix)


def described(hint: Any) -> str:
    """The values that an annotation allows, as in "a whole number from 1 to 64"."""
    kind, metadata = _bare(hint)
    return _described_kind(kind) + _range(metadata)


def _described_kind(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(described(part) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin in (tuple, list, Sequence):
        count = "" if origin is not tuple or parts[-1] is Ellipsis else f"{_COUNTS.get(len(parts), len(parts))} "
        many = _MANY.get(_bare(parts[0])[0], "values")
        return f"{count}{many}" if count else f"a list of {many}"
    if origin in (Mapping, dict):
        return f"a mapping to {_MANY.get(_bare(parts[1])[0], 'values')}"
    if is_dataclass(kind):
        return f"a mapping of {', '.join(f.name for f in fields(kind) if f.init)}"
    return _KINDS.get(kind, "another")


def shown(value: Any) -> str:
    """A value as a configuration file has it, cut where it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return {"None": "null", "True": "true", "False": "false"}.get(text, text)[:60]


_COUNTS = {2: "two", 3: "three"}
_MOST_SHARE = 1.01


def _range(metadata: Sequence[Any]) -> str:
    """Bounds and notes of an annotation, in words."""
    bounds = _bounds(metadata)
    low, high = bounds.get("ge", -(2**63)), bounds.get("le", 2**63 - 1)
    if "gt" in bounds:
        words = f" above {bounds['gt']:g}" + (f", at most {_figure(high)}" if high < 2**63 - 1 else "")
    elif low > -(2**63):
        words = f" from {_figure(low)} to {_figure(high)}" if high < 2**63 - 1 else f" of at least {_figure(low)}"
    else:
        words = ""
    if "lt" in bounds:
        words += f", below {bounds['lt']:g}"
    return words + "".join(f", {note}" for note in metadata if isinstance(note, str))


def _bounds(metadata: Sequence[Any]) -> dict[str, Any]:
    """Bounds of an annotation, such as `{"ge": 0, "le": 1}`."""
    parts = [each for part in metadata for each in (part if isinstance(part, Interval) else (part,))]
    names = [(type(part).__name__.lower(), part) for part in parts if isinstance(part, Ge | Gt | Le | Lt)]
    return {name: getattr(part, name) for name, part in names}


def _figure(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without its metadata, and the metadata."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _strict(hint: Any) -> Any:
    """An annotation whose numbers, words and truth values are taken as they are."""
    kind, metadata = _bare(hint)
    origin, parts = get_origin(kind), get_args(kind)
    own: tuple[Any, ...] = ()
    if kind in (bool, int, float, str):
        own = (Strict(), *{int: (_INDEX, _WHOLE), float: (AllowInfNan(False),)}.get(kind, ()))
    elif origin in (Union, UnionType):
        kind = Union[tuple(map(_strict, parts))]  # noqa: UP007
    elif origin in (tuple, Sequence):
        items = parts if origin is tuple else (parts[0], ...)
        kind = tuple[tuple(part if part is ... else _strict(part) for part in items)]  # type: ignore[misc]
        own = (_LIST,) if _bare(parts[0])[0] is str else ()
    elif origin in (list, dict, Mapping):
        kind = (dict if origin is Mapping else origin)[tuple(map(_strict, parts))]
        own = (_LIST,) if origin is list and _bare(parts[0])[0] is str else ()
    metadata = tuple(dict.fromkeys((*own, *metadata)))
    return Annotated[(kind, *metadata)] if metadata else kind


def _hints(target: Any) -> dict[str, Any]:
    of_call = inspect.isclass(target) and not is_dataclass(target)
    return get_type_hints(target.__init__ if of_call else target, include_extras=True)


@functools.lru_cache(maxsize=1024)
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Validator of an annotation; None for one of a kind that settings do not have."""
    kind = _bare(hint)[0]
    parts = [_bare(part)[0] for part in get_args(kind)] or [kind]
    try:
        return TypeAdapter(hint, config=None if any(is_dataclass(part) for part in parts) else _OPEN)
    except PydanticUserError:
        return None


def _fitted(value: Any, hint: Any, where: str) -> Any:
    hint = _strict(hint)
    try:
        return value if (adapter := _adapter(hint)) is None else adapter.validate_python(value)
    except ValidationError as error:
        raise _refusal(error, hint, where, value) from None


def _refusal(error: ValidationError, hint: Any, where: str, value: Any) -> ConfigError:
    """One line about the first mistake."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    for part in first["loc"]:
        inner = _fields(hint)
        if not inner or not isinstance(value, Mapping):
            break
        place = _join(where, str(part))
        if part not in inner:
            return ConfigError(f"there is no setting {part}", place, nearest(part, inner))
        if part not in value:
            return ConfigError(f"{part} is missing", place, f"give {described(inner[str(part)])}")
        hint, value, where = inner[str(part)], value[part], place
    (kind, metadata), fix = _bare(hint), f"give {described(hint)}"
    if type(value) in (int, float) and 2 < value <= 100 and _bounds(metadata).get("le", 100) <= _MOST_SHARE:
        fix = f"did you mean {value / 100:g}? {fix}"
    if isinstance(value, str) and get_origin(kind) is Literal:
        close = nearest(value, get_args(kind))
        fix = f"{close} {fix}" if close.startswith("did") else fix
    return ConfigError(f"{where.rpartition('.')[2]} cannot be {shown(value)}", where, fix)


def _fields(hint: Any) -> dict[str, Any]:
    """Annotations of a settings dataclass by field; none where `hint` is no such class, or null."""
    kind = _bare(hint)[0]
    for part in get_args(kind) or (kind,):
        if is_dataclass(bare := _bare(part)[0]):
            hints = get_type_hints(bare, include_extras=True)
            return {f.name: hints[f.name] for f in fields(bare) if f.init}
    return {}


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
