"""Components from their configuration: an import path instead of a registry."""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from embodied.errors import ConfigError
from embodied.settings import checked, configured


def build(config: Mapping[str, Any], where: str, *args: Any, **extra: Any) -> Any:
    """Call what `config["_target_"]` names with the other keys of `config`.

    Args:
        config: `target`, an import path such as `policies.mlp.build`, and keyword arguments.
        where: Name of the config group, for errors.
        args, extra: Arguments the program itself supplies.

    A class that takes its settings as one dataclass argument `config` is given that dataclass, its fields checked.

    Raises:
        ConfigError: The path cannot be imported, or a key is not one of its parameters.
    """
    target, path = resolve(config, where), config.get("_target_")
    options = {str(key): value for key, value in config.items() if key != "_target_"}
    kind = _settings_of(target)
    fields = {field.name for field in dataclasses.fields(kind)} if kind is not None else set()
    given = {name: value for name, value in extra.items() if name in fields}
    rest = {name: value for name, value in extra.items() if name not in fields}
    try:
        supplied = {*extra, *inspect.signature(target).bind_partial(*args, **rest).arguments}
    except (TypeError, ValueError):
        foreign = _foreign(target, rest)
        what = f"{path} takes no {', '.join(foreign)}" if foreign else f"{path} is not made for {where}"
        raise ConfigError(what, f"{where}._target_", "choose what fits the task, or give another import path") from None
    if kind is None:
        return target(*args, **checked(target, options, where, supplied), **extra)
    return target(*args, config=configured(kind, options, where, **given), **rest)


def _foreign(target: Any, given: Mapping[str, Any]) -> list[str]:
    """Names of given arguments that a target does not take."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in given if name not in parameters]


def check_settings(config: Mapping[str, Any], where: str) -> None:
    """Check the settings of a component that is not built, such as one that a run does not use.

    Raises:
        ConfigError: As `build`.
    """
    options = {str(key): value for key, value in config.items() if key != "_target_"}
    if (kind := _settings_of(resolve(config, where))) is not None:
        configured(kind, options, where)


def defaults(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings that `config["_target_"]` takes beside the keys of `config`, and their plain defaults.

    A function is asked for what it returns, and a class for its `config` or `settings_type`, dataclasses, or arguments.

    Raises:
        ConfigError: The path cannot be imported.
    """
    target = resolve(config, where)
    if inspect.isfunction(target):
        target = get_type_hints(target).get("return", target)
    if settings := _settings_of(target) or getattr(target, "settings_type", None):
        found = {
            field.name: field.default_factory() if callable(field.default_factory) else field.default
            for field in dataclasses.fields(settings)
        }
    else:
        found = {name: parameter.default for name, parameter in inspect.signature(target).parameters.items()}
    skipped = {*config, "seed"}  # the run's own
    return {name: value for name, value in found.items() if name not in skipped and _is_plain(value)}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple | list | dict)


def require_parts(made: Any, config: Mapping[str, Any], where: str, *names: str) -> None:
    """Raise a `ConfigError` unless what `build` made has the attributes that make it a `where`."""
    for name in names:
        if not hasattr(made, name):
            fix = "give the import path of one"
            raise ConfigError(f"{config.get('_target_')} makes no {where}: it has no {name}", f"{where}._target_", fix)


def resolve(config: Mapping[str, Any], where: str) -> Any:
    """Object that `config["_target_"]` names.

    Raises:
        ConfigError: It cannot be imported.
    """
    path = str(config.get("_target_", ""))
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports a package that is not installed
        raise ConfigError(f"cannot import {path!r}: {error}", f"{where}._target_", "give an import path") from None


def _settings_of(target: Any) -> type | None:
    """The dataclass that a target takes as `config`, if it takes one."""
    if not inspect.isclass(target):
        return None
    hint = get_type_hints(target.__init__).get("config")
    return next((kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None)  # type: ignore[return-value]
