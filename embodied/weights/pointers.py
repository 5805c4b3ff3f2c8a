"""Pointers to the versions that matter, in one sealed file, `active.json`.

Per policy `pinned` and `serving` (a version's label each), `held` (a rollback's hold on publication), and `paired`
(label to the step of the checkpoint that has the same weights). A pointer that is absent is not set. A registry of an
older run has the same table in `slots.json`; it is read until the first write.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from embodied.errors import CorruptFile, MessageError
from embodied.files import read_sealed, remove, sealed, write_bytes
from embodied.weights.manifest import END_OF_TIME, Version

NAME, OLD_NAME = "active.json", "slots.json"
FIX = "delete it and set the pointers anew; until then servers serve on, and no version is deleted"
TEXT = 200
BY_SERVER = "the policy server"
"""`by` of a hold that a registry takes over from the policy server, which refused its learner's version."""

_SETTLED_NS = 100_000_000  # a file changed longer ago than a file system's clock is coarse
_ABSENT = (0, 0, 0)
_VERSIONS = ("pinned", "serving", "best")

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Hold:
    """A rollback's hold on publication.

    Attributes:
        time: Unix seconds.
        by, note: Who rolled back, and why.
        request: Names the request that did it, so that the same one sent again does nothing; may be empty.
        restore: The learner is to restore the checkpoint paired with what is served; its next version ends the hold.
    """

    time: float
    by: str = ""
    note: str = ""
    request: str = ""
    restore: bool = False

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"since {when}" + (f" by {self.by}" if self.by else "") + (f", {self.note}" if self.note else "")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `vars`; raises `TypeError` for anything else."""
        held = cls(**data)
        texts = (held.by, held.note, held.request)
        if type(held.time) not in (int, float) or not 0 <= held.time < END_OF_TIME or type(held.restore) is not bool:
            raise TypeError("not a hold")
        if not all(type(text) is str for text in texts):
            raise TypeError("not a hold")
        return held


@dataclass(frozen=True)
class Pointers:
    """One policy's pointers.

    Attributes:
        pinned, serving: Version to be served, whatever is published or until the next is.
        best: Version that did best in an evaluation.
        held: Hold on publication.
        paired: Versions to steps of checkpoints.
    """

    pinned: Version | None = None
    serving: Version | None = None
    best: Version | None = None
    held: Hold | None = None
    paired: Mapping[Version, int] = field(default_factory=dict)

    @property
    def named(self) -> set[Version]:
        """Versions that must not be deleted."""
        return {version for version in (self.pinned, self.serving, self.best) if version} | set(self.paired)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; what is not set is left out."""
        data: dict[str, Any] = {name: v.label for name in _VERSIONS if (v := getattr(self, name))}
        if self.held:
            data["held"] = vars(self.held)
        if self.paired:
            data["paired"] = {version.label: step for version, step in self.paired.items()}
        return data

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Rebuild from `to_dict`; raises `TypeError`, `AttributeError` or `MessageError` for anything else."""
        if set(data) - {*_VERSIONS, "held", "paired"}:
            raise TypeError("unknown pointers")
        versions = {name: Version.parse(data[name]) for name in _VERSIONS if name in data}
        paired = {Version.parse(label): step for label, step in data.get("paired", {}).items()}
        if not all(type(step) is int for step in paired.values()):
            raise TypeError("a step is a whole number")
        return cls(**versions, held=Hold.from_dict(data["held"]) if "held" in data else None, paired=paired)


class PointerFile:
    """`active.json` of a registry's folder, read again only when it has changed.

    The caller of `write` holds the registry's lock.
    """

    def __init__(self, folder: Path) -> None:
        self._new, self._old = folder / NAME, folder / OLD_NAME
        self._kept: tuple[Stamp, dict[str, Pointers]] | None = None

    @property
    def path(self) -> Path:
        """The file that is read: the older run's only where there is no other."""
        return self._old if self._old.exists() and not self._new.exists() else self._new

    def stamp(self) -> Stamp:
        """Changes whenever the file does, but for changes within the resolution of the file system's clock."""
        try:
            stat = self.path.stat()
        except OSError:
            return _ABSENT
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def read(self) -> dict[str, Pointers]:
        """Policy to pointers.

        Raises:
            CorruptFile: The file is damaged.
        """
        stamp, kept = self.stamp(), self._kept
        if kept is not None and kept[0] == stamp:
            return kept[1]
        if stamp == _ABSENT:
            return {}
        try:
            data = read_sealed(self.path, FIX)
            policies = data["slots"] if "slots" in data else data["policies"]
            table = {policy: Pointers.from_dict(data) for policy, data in policies.items()}
        except (AttributeError, KeyError, TypeError, MessageError):
            raise CorruptFile("not a table of pointers", str(self.path), FIX) from None
        settled = time.time_ns() - stamp[0] > _SETTLED_NS
        self._kept = (stamp, table) if settled and self.stamp() == stamp else None
        return table

    def write(self, table: Mapping[str, Pointers]) -> None:
        """Replace the file; raises `InfrastructureError` where it cannot be written, and it stays as it was then."""
        policies = {policy: data for policy, pointers in table.items() if (data := pointers.to_dict())}
        write_bytes(self._new, sealed({"policies": policies}))
        remove(self._old)
