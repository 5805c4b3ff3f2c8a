"""Components from their configuration: an import path instead of a registry."""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from embodied.errors import ConfigError, nearest


def build(config: Mapping[str, Any], where: str, *args: Any, **extra: Any) -> Any:
    """Call what `config["target"]` names with the other keys of `config`.

    Args:
        config: `target`, an import path such as `policies.mlp.build`, and keyword arguments.
        where: Name of the config group, for errors.
        args, extra: Arguments the program itself supplies.

    A class that takes its settings as one dataclass argument `config` is given that dataclass, its fields checked.

    Raises:
        ConfigError: The path cannot be imported, or a key is not one of its parameters.
    """
    target, path = resolve(config, where), config.get("target")
    options = {key: value for key, value in config.items() if key != "target"}
    known = set(inspect.signature(target).parameters) - set(extra)
    settings = _settings_of(target)
    if settings is not None:
        known = {field.name for field in dataclasses.fields(settings)}
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values()):
        for key in options:
            if key not in known:
                raise ConfigError(f"{path} takes no {key}", f"{where}.{key}", nearest(key, known))
    if settings is None:
        return target(*args, **options, **extra)
    given = {name: value for name, value in extra.items() if name in known}
    rest = {name: value for name, value in extra.items() if name not in known}
    return target(*args, config=_checked(settings, given | options, where), **rest)


def resolve(config: Mapping[str, Any], where: str) -> Any:
    """What `config["target"]` names.

    Raises:
        ConfigError: It cannot be imported.
    """
    path = str(config.get("target", ""))
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import {path!r}: {error}", f"{where}.target", "give an import path") from None


def _settings_of(target: Any) -> type | None:
    """The dataclass that a target takes as `config`, if it takes one."""
    if not inspect.isclass(target):
        return None
    hint = get_type_hints(target.__init__).get("config")
    return next((kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None)  # type: ignore[return-value]


def _checked(settings: type, options: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(settings)
    values = dict(options)
    for key, value in values.items():
        hint = hints[key]
        if hint is float and type(value) is int:
            values[key] = float(value)
        elif hint in (int, float, str, bool) and type(value) is not hint:
            raise ConfigError(f"{key} cannot be {value!r}", f"{where}.{key}", f"give {_KINDS[hint]}")
    return settings(**values)


_KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
