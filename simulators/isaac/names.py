"""Joints, bodies and terms by name or regular expression."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simulators.isaac.errors import ConfigError, nearest


def resolve_matching_names(
    keys: str | Sequence[str], names: Sequence[str], preserve_order: bool = False, where: str = ""
) -> tuple[list[int], list[str]]:
    """Indices and names that one of the expressions `keys` matches in full.

    In the order of `names`, or of `keys` if `preserve_order`.

    Raises:
        ConfigError: A key matches nothing, two keys match one name, or a key is no regular expression.
    """
    if not isinstance(keys, (str, Sequence)) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"{keys!r} is no list of names", where, nearest("", names))
    keys = [keys] if isinstance(keys, str) else list(keys)
    owner = _owners(keys, names, where)
    found = sorted(owner, key=(lambda i: (owner[i], i)) if preserve_order else None)
    return found, [names[i] for i in found]


def resolve_matching_names_values(
    data: Mapping[str, Any], names: Sequence[str], preserve_order: bool = False, where: str = ""
) -> tuple[list[int], list[str], list[Any]]:
    """As `resolve_matching_names` for the keys of `data`, and their values.

    Raises:
        ConfigError: As `resolve_matching_names`.
    """
    keys, values = list(data), list(data.values())
    owner = _owners(keys, names, where)
    found = sorted(owner, key=(lambda i: (owner[i], i)) if preserve_order else None)
    return found, [names[i] for i in found], [values[owner[i]] for i in found]


def _owners(keys: Sequence[str], names: Sequence[str], where: str) -> dict[int, int]:
    """Index of a name to the index of the key that matches it."""
    owner: dict[int, int] = {}
    for k, key in enumerate(keys):
        try:
            matches = [i for i, name in enumerate(names) if re.fullmatch(key, name)]
        except re.error as error:
            raise ConfigError(f"{key!r} is no regular expression", where, str(error)) from None
        if not matches:
            raise ConfigError(f"nothing is called {key!r}", where, nearest(key, names))
        for i in matches:
            if i in owner:
                raise ConfigError(f"{keys[owner[i]]!r} and {key!r} both match {names[i]}", where, "keep one of them")
            owner[i] = k
    return owner


def as_index(ids: Any) -> Any:
    """The slice that a list of consecutive ids is, for slices index several times faster; anything else unchanged."""
    if isinstance(ids, (list, tuple, range)) and ids and list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return slice(ids[0], ids[0] + len(ids))
    return list(ids) if isinstance(ids, tuple) else ids
