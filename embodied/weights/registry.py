"""The versions of policies' weights on disk, and pointers to those that matter.

`<policy>/<number>-<hash12>/{manifest.json, model.safetensors}`, `numbers.json` (the next number per policy),
`slots.json` (policy to slot to version), `audit.jsonl` (what happened, one JSON object a line). One lock serialises
writers of all processes on the machine; readers take none, since a version appears by one rename and never changes.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from embodied.errors import Busy, CorruptFile, MessageError, UserError, WeightsRefused, nearest
from embodied.files import (
    Lock,
    append_line,
    atomic_dir,
    clean_temporaries,
    disk_errors,
    read_sealed,
    remove,
    sealed,
    temporary_name,
    write_bytes,
    write_new,
)
from embodied.weights.manifest import Manifest, Version, check_policy_name
from embodied.weights.tensors import read_tensors, write_tensors

SERVING, PREVIOUS, PINNED = "serving", "previous", "pinned"
SLOTS = (SERVING, PREVIOUS, PINNED)

_AUDIT_TAIL = 16 * 2**20
_TRIES = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One version on disk.

    Attributes:
        policy, version, path: Which, and where.
        slots: Names of the slots that point to it.
        manifest: None if it cannot be read, and then `damage` says why in one line.
    """

    policy: str
    version: Version
    path: Path
    slots: tuple[str, ...]
    manifest: Manifest | None
    damage: str = ""


class Registry:
    """Weights under one folder. Opening and reading change nothing on disk.

    Args:
        folder: Made by the first writer, who also removes what killed ones left half-written.
        keep: How many of the newest versions of each policy are kept, at least 1. Versions in a slot are always kept.
        lock_s: Seconds to wait for another writer before an error names it.

    Raises:
        UserError: `keep` is less than 1.
    """

    def __init__(self, folder: Path | str, keep: int = 5, lock_s: float = 60.0) -> None:
        if keep < 1:
            raise UserError(f"keep={keep} would keep no weights", "weights", "keep at least 1")
        self.folder, self.keep, self._lock_s = Path(folder), keep, lock_s
        self._clean = False

    def reserve(self, policy: str, count: int = 1) -> int:
        """The first of the policy's next `count` version numbers, from 1, which no one else is or was given.

        They are on disk before this returns, so a killed run leaves a gap and never a number that is used twice.

        Raises:
            DeadlineExceeded: Another process kept the lock; names it.
            CorruptFile: `numbers.json` is damaged.
            InfrastructureError: No disk space; no number was given out.
        """
        check_policy_name(policy)
        with self._locked(f"reserve a version of {policy}"):
            numbers = self._numbers()
            number = max(numbers.get(policy, 0), *(v.number for v in self._versions(policy)), 0) + 1
            write_bytes(self.folder / "numbers.json", sealed({"numbers": {**numbers, policy: number + count - 1}}))
        return number

    def publish(
        self,
        policy: str,
        number: int,
        tensors: Mapping[str, NDArray[Any]],
        spec: Mapping[str, Any],
        parent: str = "",
    ) -> Manifest:
        """Write a reserved version of a policy; it becomes `latest`, whole, when this returns.

        Publishing the same content under the same number again does nothing.

        Raises:
            WeightsRefused: The number was never reserved, is older than one published, or names another content; or a
                tensor is not finite or has an unknown dtype.
            DeadlineExceeded, InfrastructureError: As `reserve`; nothing half-written is left.
        """
        manifest = Manifest.of(policy, number, tensors, spec, parent)
        path = self._path(policy, manifest.version)
        with self._locked(f"publish version {number} of {policy}"):
            versions = self._versions(policy)
            self._check_number(manifest, versions)
            if manifest.version in versions:
                return self.manifest(policy, number)
            with atomic_dir(path) as part:
                write_tensors(part / "model.safetensors", tensors)
                write_new(part / "manifest.json", [sealed(manifest.to_dict())])
            self._audit("publish", policy, manifest.version, parent=parent, bytes=manifest.nbytes)
            self._prune(policy)
        return manifest

    def read(self, policy: str, number: int | str) -> tuple[Manifest, dict[str, NDArray[Any]]]:
        """The manifest and tensors of a version, or of `latest`, every byte verified.

        Raises:
            UserError: No such policy; names the nearest.
            WeightsRefused: The policy has no such version; names those kept.
            CorruptFile: Truncated or altered.
        """
        return self._retried(policy, number, self._read)

    def manifest(self, policy: str, number: int | str) -> Manifest:
        """A version's manifest alone; raises as `read`."""
        return self._retried(policy, number, self._read_manifest)

    def find(self, policy: str, number: int | str) -> Version:
        """The version with this number, or for `latest` the newest; raises as `read`."""
        if policy not in self.policies():
            raise UserError(f"no weights of policy {policy}", str(self.folder), nearest(policy, self.policies()))
        versions = self._versions(policy)
        found = versions[-1:] if number == "latest" else [v for v in versions if v.number == number]
        if not found:
            kept = ", ".join(str(v.number) for v in versions[-10:]) or "none"
            raise WeightsRefused(
                f"version {number} of {policy} is not kept", str(self.folder), f"versions kept: {kept}"
            )
        return found[0]

    def policies(self) -> list[str]:
        """Names of the policies that have versions, sorted."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path.name for path in found if path.is_dir() and self._versions(path.name))

    def ls(self) -> list[Entry]:
        """Every version on disk, damaged ones too, oldest first by policy; tensors are not read."""
        slots, entries = self.slots(), []
        for policy in self.policies():
            for version in self._versions(policy):
                path, manifest, damage = self._path(policy, version), None, ""
                try:
                    manifest = self.manifest(policy, version.number)
                except (CorruptFile, WeightsRefused) as error:
                    damage = error.line()
                names = tuple(name for name, held in slots.get(policy, {}).items() if held == version)
                entries.append(Entry(policy, version, path, names, manifest, damage))
        return entries

    def slots(self) -> dict[str, dict[str, Version]]:
        """Policy to slot to version.

        Raises:
            CorruptFile: `slots.json` is damaged.
        """
        path, fix = self.folder / "slots.json", "delete it and set the slots anew; until then no version is pruned"
        if not path.exists():
            return {}
        try:
            table = read_sealed(path, fix)
            return {
                p: {slot: Version.parse(label) for slot, label in held.items()} for p, held in table["slots"].items()
            }
        except (AttributeError, KeyError, TypeError, MessageError):
            raise CorruptFile("not a table of slots", str(path), fix) from None

    def point(self, policy: str, slot: str, number: int | str | None) -> None:
        """Let a slot name a version, or nothing. What `serving` named before goes to `previous`.

        A version in a slot is never pruned.

        Raises:
            UserError, WeightsRefused: No such slot, policy or version.
            DeadlineExceeded, InfrastructureError: As `reserve`.
        """
        if slot not in SLOTS:
            raise UserError(f"no slot {slot}", "weights", nearest(slot, SLOTS))
        with self._locked(f"point {slot} of {policy}"):
            version = None if number is None else self.find(policy, number)
            slots = self.slots()
            mine = slots.setdefault(policy, {})
            if mine.get(slot) == version:
                return
            if slot == SERVING and SERVING in mine:
                mine[PREVIOUS] = mine[SERVING]
            if version is None:
                mine.pop(slot, None)
            else:
                mine[slot] = version
            labels = {p: {s: v.label for s, v in m.items()} for p, m in slots.items()}
            write_bytes(self.folder / "slots.json", sealed({"slots": labels}))
            self._audit("serve" if slot == SERVING else "point", policy, version, slot=slot)

    def audit(self) -> list[dict[str, Any]]:
        """What happened, oldest first, of the last 16 MiB; a line torn by a killed writer is left out."""
        path = self.folder / "audit.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _AUDIT_TAIL))
            lines = file.read(_AUDIT_TAIL).split(b"\n")
        events = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
        return events

    def _locked(self, doing: str) -> Lock:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.folder / ".lock").acquire(self._lock_s, doing)
        if not self._clean:
            for folder in (self.folder, *(path for path in self.folder.iterdir() if path.is_dir())):
                clean_temporaries(folder)
            self._clean = True
        return lock

    def _path(self, policy: str, version: Version) -> Path:
        return self.folder / policy / version.label

    def _fix(self, policy: str, version: Version) -> str:
        return f"delete {self._path(policy, version)} and use another version"

    def _versions(self, policy: str) -> list[Version]:
        """Versions on disk by number, ascending; names that are none are skipped."""
        found = []
        folder = self.folder / policy
        for path in folder.iterdir() if folder.is_dir() else ():
            try:
                found.append(Version.parse(path.name))
            except MessageError:
                continue
        return sorted(found)

    def _retried(self, policy: str, number: int | str, read: Callable[[str, Version], T]) -> T:
        """Read again where a version was pruned between finding and reading it: `latest` is then another one."""
        for _ in range(_TRIES):
            version = self.find(policy, number)
            try:
                return read(policy, version)
            except CorruptFile:
                if self._path(policy, version).exists():
                    raise
        raise Busy(
            f"{_TRIES} versions of {policy} were pruned while they were read", str(self.folder), "keep more versions"
        )

    def _read_manifest(self, policy: str, version: Version) -> Manifest:
        path, fix = self._path(policy, version) / "manifest.json", self._fix(policy, version)
        try:
            manifest = Manifest.from_dict(read_sealed(path, fix))
        except MessageError as error:
            raise CorruptFile(error.what, str(path), fix) from None
        if (manifest.policy, manifest.version) != (policy, version):
            raise CorruptFile(f"holds {manifest.policy} {manifest.label}", str(path), fix)
        return manifest

    def _read(self, policy: str, version: Version) -> tuple[Manifest, dict[str, NDArray[Any]]]:
        manifest = self._read_manifest(policy, version)
        path, fix = self._path(policy, version) / "model.safetensors", self._fix(policy, version)
        tensors = read_tensors(path, manifest.nbytes, fix)
        try:
            manifest.verify(tensors)
        except WeightsRefused as error:
            raise CorruptFile(error.what, str(path), fix) from None
        return manifest, tensors

    def _numbers(self) -> dict[str, int]:
        path, fix = self.folder / "numbers.json", "delete it; numbers then go on after the newest version on disk"
        numbers = read_sealed(path, fix).get("numbers") if path.exists() else {}
        if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
            raise CorruptFile("not a table of numbers", str(path), fix)
        return numbers

    def _check_number(self, manifest: Manifest, versions: list[Version]) -> None:
        number, where = manifest.number, f"policy {manifest.policy} in {self.folder}"
        if number > self._numbers().get(manifest.policy, 0):
            raise WeightsRefused(f"version {number} was never reserved", where, "call reserve first")
        newest = versions[-1] if versions else Version(0, "")
        same = [v for v in versions if v.number == number]
        if same and manifest.version not in same:
            raise WeightsRefused(
                f"number {number} already names {same[0].label}, another content than {manifest.label}",
                where,
                "reserve anew",
            )
        if number < newest.number and not same:
            raise WeightsRefused(
                f"version {number} is older than {newest.label}, already published", where, "reserve anew"
            )

    def _audit(self, event: str, policy: str, version: Version | None, sync: bool = True, **more: Any) -> None:
        label = version.label if version else ""
        line = {"time": time.time(), "event": event, "policy": policy, "version": label, "pid": os.getpid(), **more}
        append_line(self.folder / "audit.jsonl", json.dumps(line), sync)

    def _prune(self, policy: str) -> None:
        try:
            held = set(self.slots().get(policy, {}).values())
        except CorruptFile as error:
            # What must be kept is unknown, so all is; the version just published stays published.
            self._audit("not_pruned", policy, None, why=error.line())
            return
        for version in self._versions(policy)[: -self.keep]:
            if version not in held:
                path = self._path(policy, version)
                gone = temporary_name(path)
                # Renamed first, so that no reader finds it half deleted.
                path.rename(gone)
                remove(gone)
                self._audit("prune", policy, version, sync=False)
