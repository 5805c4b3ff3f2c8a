"""Moving the pointers of a registry: pin, roll back, resume; from any process of the machine, one at a time.

A pointer's line in the audit is written before the pointer moves, so every move has its line; a line without its move
is left only by a writer that was killed, or whose disk was full, in between. No pointer moves to a version that cannot
be read whole.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied.errors import CorruptFile, EmbodiedError, UserError, WeightsHeld, WeightsRefused
from embodied.files import Lock, clean_temporaries, disk_errors
from embodied.weights.audit import read_audit, write_audit
from embodied.weights.manifest import Version
from embodied.weights.pointers import TEXT, Hold, PointerFile, Pointers, Stamp
from embodied.weights.versions import Trusted, Versions

Revision = tuple[int, ...]

_MOST_PENDING = 256


class VersionPointers(Versions):
    """Versions and the pointers to those that matter.

    Args:
        folder, trusted: As for `Versions`.
        lock_s: Seconds to wait for another writer before an error names it.
    """

    def __init__(self, folder: Path | str, trusted: Trusted | None = None, lock_s: float = 60.0) -> None:
        super().__init__(folder, trusted)
        self._lock_s = lock_s
        self._pointers = PointerFile(self.folder)
        self._clean = False
        self._pending: deque[tuple[str, str, Version | None, dict[str, Any]]] = deque(maxlen=_MOST_PENDING)

    def pointers(self, policy: str) -> Pointers:
        """Pointers of a policy; `active.json` is read only if it has changed.

        Raises:
            CorruptFile: `active.json` is damaged.
        """
        return self._pointers.read().get(policy, Pointers())

    def active(self, policy: str) -> Version | None:
        """The version to be served: the pinned one, else the one rolled back to, else the newest; None for none yet.

        Raises:
            CorruptFile: `active.json` is damaged.
        """
        pointers = self.pointers(policy)
        return pointers.pinned or pointers.serving or max(self.versions(policy), default=None)

    def held(self, policy: str) -> Hold | None:
        """The hold on publication, if there is one. Raises as `active`."""
        return self.pointers(policy).held

    def pin(self, policy: str, number: int | str, by: str = "") -> Version:
        """Serve one version, whatever is published, until `unpin`. Returns it.

        Raises:
            UserError, WeightsRefused: No such policy or version; names those kept.
            CorruptFile: The version, or a file of the registry, is damaged; the pointers stay as they were.
            DeadlineExceeded, InfrastructureError: As `reserve`; the pointers stay as they were.
        """
        with self._locked(f"pin a version of {policy}"):
            version = self.find(policy, number)
            self.check(policy, version)
            self._set_pointers("pin", policy, version, by, pinned=version)
        return version

    def unpin(self, policy: str, by: str = "") -> Version | None:
        """Remove the pin; returns the version to be served then. Raises as `pin`."""
        with self._locked(f"unpin {policy}"):
            self._set_pointers("unpin", policy, self.pointers(policy).pinned, by, pinned=None)
        return self.active(policy)

    def rollback(
        self, policy: str, number: int | str | None = None, by: str = "", note: str = "", request: str = ""
    ) -> Version:
        """Serve an older version, and hold publication until `resume`. Returns it.

        Args:
            number: None takes the newest one below that served now which is paired with a checkpoint, else the one
                kept before that served now; damaged ones are passed over.
            by, note: Name of the caller and reason, which a held publisher is told.
            request: Names this call: the same one made again does nothing, though it named no number.

        Raises:
            UserError: There is none to go back to, or a version is pinned.
            WeightsRefused, DeadlineExceeded, CorruptFile, InfrastructureError: As `pin`.
        """
        with self._locked(f"roll back {policy}"):
            newest, pointers = self.find(policy, "latest"), self.pointers(policy)
            served = pointers.serving or newest
            if request and pointers.held and pointers.held.request == request:
                return served
            if pointers.pinned:
                what = f"version {pointers.pinned.label} of {policy} is pinned"
                raise UserError(what, str(self.folder), "unpin it first, or pin another")
            version = self._earlier(policy, served) if number is None else self.find(policy, number)
            self.check(policy, version)
            held = Hold(time.time(), by[:TEXT], note[:TEXT], request[:TEXT])
            self._set_pointers("rollback", policy, version, by, note, serving=version, held=held)
        return version

    def serve(self, policy: str, version: Version, by: str = "") -> None:
        """Serve a kept version until a newer one is stored, without holding anybody: what an edge does as its upstream
        goes back, and a server as its learner does.

        Raises:
            WeightsHeld: Publication is held here, and another version served.
            UserError, WeightsRefused, DeadlineExceeded, CorruptFile, InfrastructureError: As `pin`.
        """
        with self._locked(f"serve a version of {policy}"):
            self.check(policy, self.find(policy, version.label))
            pointers = self.pointers(policy)
            if pointers.held is not None and pointers.serving != version:
                raise WeightsHeld(
                    f"version {version.label} of {policy} is not served: a rollback holds publication, {pointers.held}",
                    str(self.folder),
                    f"`embodied weights resume weights={self.folder}` lifts the hold",
                )
            self._set_pointers("serve", policy, version, by, serving=version)

    def resume(self, policy: str, restore: bool = False, by: str = "") -> Version | None:
        """Lift the hold of a rollback; what is served stays until the next version is published. Returns it.

        Args:
            restore: Keep holding everybody but a learner that has restored the checkpoint paired with what is served,
                or with the newest version before it.

        Raises:
            UserError: No checkpoint is paired with such a version, or nothing is held.
            DeadlineExceeded, CorruptFile, InfrastructureError: As `reserve`; the hold stays as it was.
        """
        with self._locked(f"resume {policy}"):
            pointers, held = self.pointers(policy), None
            if restore:
                where = f"policy {policy} in {self.folder}"
                if pointers.held is None:
                    raise UserError("nothing is held, so nothing is to be restored", where, "roll back first")
                if not self.restorable(policy):
                    what = "no checkpoint is paired with the version served or an older one"
                    raise UserError(what, where, "roll back to another version, or resume without restore=true")
                held = replace(pointers.held, restore=True)
            self._set_pointers("resume", policy, pointers.serving, by, restore=restore, held=held)
        return self.active(policy)

    def restorable(self, policy: str) -> list[tuple[Version, int]]:
        """Versions with a checkpoint up to that rolled back to, newest first, and the checkpoints' steps. Raises as
        `active`."""
        pointers = self.pointers(policy)
        served = pointers.serving or max(self.versions(policy), default=Version(0, ""))
        return sorted(((v, step) for v, step in pointers.paired.items() if v.number <= served.number), reverse=True)

    def pair(self, policy: str, paired: Mapping[int, int]) -> None:
        """Say which versions have a checkpoint, by number, with its step; all others have none any more.

        Numbers of versions that are not kept are left out. Raises as `reserve`.
        """
        with self._locked(f"pair versions of {policy} with checkpoints"):
            known = {v: paired[v.number] for v in self.versions(policy) if v.number in paired}
            table = self._pointers.read()
            mine = table.get(policy, Pointers())
            if mine.paired != known:
                self._pointers.write({**table, policy: replace(mine, paired=known)})

    def keep_best(self, policy: str, number: int) -> None:
        """Keep the version that did best in an evaluation, until another does. Raises as `reserve`."""
        with self._locked(f"keep the best version of {policy}"):
            best = next((version for version in self.versions(policy) if version.number == number), None)
            if best is not None and best != self.pointers(policy).best:
                self._move(policy, best=best)

    def stamp(self) -> Stamp:
        """Changes with the pointers of any policy; as `revision`."""
        return self._pointers.stamp()

    def revision(self, policy: str) -> Revision:
        """Changes with the pointers and with the policy's versions; two looks at the disk, nothing is read.

        Two changes within the resolution of the file system's clock may look like one: look once more later.
        """
        try:
            stat = (self.folder / policy).stat()
            versions = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            versions = (0, 0)
        return *self._pointers.stamp(), *versions

    def record(self, event: str, policy: str, version: Version | None, **more: Any) -> None:
        """Add a line to the audit, such as a server's switch.

        Raises:
            DeadlineExceeded, InfrastructureError: As `reserve`. The line is kept, as one of at most 256, and written
                before the next one, or by `write_pending`.
        """
        self._pending.append((event, policy, version, {"time": time.time(), **more}))
        self.write_pending()

    @property
    def has_pending(self) -> bool:
        """Tell whether lines of `record` are still to be written."""
        return bool(self._pending)

    def write_pending(self) -> None:
        """Write the lines that `record` could not; raises as that does."""
        if self._pending:
            with self._locked("write down what happened"):
                self._write_pending()

    def audit(self) -> list[dict[str, Any]]:
        """Events, oldest first, of the last 16 MiB; a line torn by a killed writer is left out."""
        return read_audit(self.folder)

    def _locked(self, doing: str) -> Lock:
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.folder / ".lock").acquire(self._lock_s, doing)
        if not self._clean:
            for folder in (self.folder, *(path for path in self.folder.iterdir() if path.is_dir())):
                clean_temporaries(folder)
            self._clean = True
        return lock

    def _earlier(self, policy: str, served: Version) -> Version:
        older = [version for version in self.versions(policy) if version.number < served.number]
        paired = [version for version in older if version in self.pointers(policy).paired]
        if not older:
            what = f"no version of {policy} before {served.label} is kept"
            raise UserError(what, str(self.folder), "keep more versions; there is nothing to go back to")
        damage: EmbodiedError | None = None
        for version in dict.fromkeys([*reversed(paired), *reversed(older)]):
            try:
                self.check(policy, version)
            except (CorruptFile, WeightsRefused) as error:
                damage = damage or error
            else:
                return version
        assert damage is not None
        raise damage

    def _audit(self, event: str, policy: str, version: Version | None, sync: bool = True, **more: Any) -> None:
        """Add a line after those that could not be written before; the caller holds the lock."""
        self._write_pending()
        write_audit(self.folder, event, policy, version, sync, **more)

    def _write_pending(self) -> None:
        while self._pending:
            event, policy, version, more = self._pending[0]
            write_audit(self.folder, event, policy, version, sync=False, **more)
            self._pending.popleft()

    def _set_pointers(
        self,
        event: str,
        policy: str,
        version: Version | None,
        by: str,
        note: str = "",
        restore: bool = False,
        **to: Any,
    ) -> None:
        """Write the audit's line, then move pointers; nothing happens if they are there already."""
        pointers = self.pointers(policy)
        if all(getattr(pointers, name) == value for name, value in to.items()):
            return
        active = self.active(policy)
        more: dict[str, Any] = {"by": by[:TEXT], "note": note[:TEXT], "from": active.label if active else ""}
        if restore:
            more["restore"] = True
        self._audit(event, policy, version, **more)
        self._move(policy, **to)

    def _move(self, policy: str, **to: Any) -> Pointers:
        table = self._pointers.read()
        moved = replace(table.get(policy, Pointers()), **to)
        self._pointers.write({**table, policy: moved})
        return moved
