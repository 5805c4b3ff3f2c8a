"""What the settings of an algorithm may be, checked before anything is made of them."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from embodied.errors import ConfigError

FINITE = sys.float_info.max
WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both among them unless `above`, which leaves out `low`. NaN is in no range."""

    low: float = 0.0
    high: float = FINITE
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def words(self, kind: str) -> str:
        """What to give instead, where a `kind` of number is wanted."""
        if self.above:
            return f"give {kind} above {self.low:g}"
        return f"give {kind} " + (
            f"from {self.low:g} to {self.high:g}" if self.high < WHOLE else f"of at least {self.low:g}"
        )


def check_settings(settings: Any, where: str, ranges: Mapping[str, Range]) -> None:
    """Raise a `ConfigError` for the first field of a dataclass that is not of its type, or not within its range.

    Args:
        settings: Its fields that are numbers, truth values, words or one of several words are looked at.
        where: Names the settings in errors.
        ranges: By field; a number without one may be any that is finite. A whole one has 64 bits at most.
    """
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if fix := _mistake(value, hint, ranges.get(name)):
            raise ConfigError(f"{name}={shown(value)}", where, fix)


def checked_device(name: str, where: str) -> torch.device:
    """The device of that name.

    Raises:
        ConfigError: There is none on this machine.
    """
    try:
        torch.ones(1, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"no device={name} on this machine", where, "give cpu, or cuda where there is a GPU"
        ) from None


def shown(value: Any) -> str:
    """A value as a configuration file has it, cut where it is long."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))[:60]


def _mistake(value: Any, hint: Any, allowed: Range | None) -> str:
    """What to give in place of a value; nothing where it may stay."""
    if hint is bool:
        return "" if isinstance(value, bool) else "give true or false"
    if hint is str:
        return "" if isinstance(value, str) and value else "give a word"
    if get_origin(hint) is Literal:
        return "" if value in get_args(hint) else f"give one of {', '.join(get_args(hint))}"
    if hint not in (int, float):
        return ""
    kind, limit = ("a whole number", WHOLE) if hint is int else ("a number", math.inf)
    fine = isinstance(value, hint | int) and not isinstance(value, bool) and value <= limit
    allowed = allowed or Range(-FINITE)
    return "" if fine and value in allowed else allowed.words(kind)
