"""Switches a server to its registry's active version, whether the pointers move on disk or through a message."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embodied.errors import DataError, EmbodiedError, MessageError
from embodied.serving.answer import Answer
from embodied.serving.background import Background
from embodied.serving.loader import Loader, Switched
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weights.manifest import MAX_NUMBER, Version
from embodied.weights.pointers import Pointers, Stamp
from embodied.weights.registry import Registry
from embodied.weights.version_pointers import Revision
from embodied.weights.versions import State
from embodied.wire.message import Message

log = logging.getLogger(__name__)

_REST_S = 1.0  # after a failure that may pass
_POINTERS = ("pinned", "serving", "held")


def audited(registry: Registry, policy: str, server: str) -> Switched:
    """For a `Loader`: writes every switch of a server into its registry's audit. `server` names it there.

    What cannot be written waits in the registry; a `RegistryWatcher` sees to it.
    """

    def switched(before: Version, now: Version, why: str) -> None:
        came = before.label if before.hash else ""
        registry.record("switch", policy, now, **{"from": came, "why": why, "server": server})

    return switched


@dataclass(frozen=True)
class _Look:
    """A registry as it was at one moment.

    Attributes:
        revision: Changes with the rest.
        found: Pointers, active version, newest version and number of versions; an error where they cannot be read; None
            where nothing has changed.
        files: Stamp of the pointers and state of the active version's files, where another version is served.
    """

    revision: Revision
    found: tuple[Pointers, Version | None, Version | None, int] | EmbodiedError | None
    files: tuple[Stamp, State] | None


class RegistryWatcher:
    """Switches a host to the version its registry wants, and takes `set_active`, which moves the registry's pointers.

    A version that is damaged or does not fit is said once and left alone until its files change, the pointers move or
    another one is active; what is served stays. A thread of its own looks at the disk, so that `tick` never waits.

    Args:
        host: Of the policy whose versions are followed.
        loader: Reads them and moves pointers, in its thread.
        registry: Where they are.
        interval_s: Seconds between two looks at the disk.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        host: VersionedPolicy,
        loader: Loader,
        registry: Registry,
        *,
        interval_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._loader, self._registry = host, loader, registry
        self._interval_s, self._clock = interval_s, clock
        self._policy = host.spec.name
        self._pointers, self._kept = Pointers(), 0
        self._active: Version | None = None
        self._newest: Version | None = None
        self._seen: Revision = ()
        self._changed = False
        self._loading = self._unreadable = self._looking = False
        self._background, self._moving = Background(f"versions of policy {self._policy}"), 0
        self._due = -float("inf")
        self._refused: tuple[Version, Stamp, State] | None = None
        self._rest_until = self._write_at = -float("inf")
        self._error = ""

    @property
    def busy(self) -> bool:
        """Whether the answer to a `set_active` is on its way."""
        return self._moving > 0

    def tick(self) -> None:
        """Have another version loaded if the registry wants one; have it looked at if it is time to."""
        self._background.tick()
        now = self._clock()
        if now < self._due or self._looking:
            return
        self._due, self._looking = now + self._interval_s, True
        self._submit_look(self._looked)
        self._write_audit(now)

    def handle(self, message: Message, answer: Answer) -> None:
        """Move a pointer, as a `set_active` message says; answered once that is on disk.

        Raises:
            MessageError: It names no pointer or version.
            Busy: Many versions wait to be loaded.
        """
        pointer, version, note, by = (message.body.get(name) for name in ("pointer", "version", "note", "by"))
        if pointer not in _POINTERS:
            raise MessageError(f"no pointer {str(pointer)[:40]!r}", "set_active", f"one of {', '.join(_POINTERS)}")
        if not (version is None or type(version) is str or (type(version) is int and 0 <= version <= MAX_NUMBER)):
            raise MessageError(f"no version {str(version)[:40]!r}", "set_active", "give its number, its label, or null")
        if pointer == "held" and version is not None:
            raise MessageError(
                "a hold is only lifted, with version null", "set_active", "roll back to hold publication"
            )
        caller = answer.session.rpartition("/")[0]  # the name its keys give it, which it cannot choose
        who = answer.session
        if type(by) is str and by:
            who = f"{by} ({caller})" if caller else by
        request = f"{message.session}/{message.id}"

        def move() -> None:
            if pointer == "held":
                self._registry.resume(self._policy, by=who)
            elif pointer == "serving":
                text = note if type(note) is str else ""
                self._registry.rollback(self._policy, version, by=who, note=text, request=request)
            elif version is None:
                self._registry.unpin(self._policy, by=who)
            else:
                self._registry.pin(self._policy, version, by=who)

        def done(result: Version | EmbodiedError) -> None:
            if isinstance(result, EmbodiedError):
                answer.refuse(result)
                return
            self._changed = True
            self._moving += 1
            self._submit_look(moved)

        def moved(look: _Look | EmbodiedError) -> None:
            self._moving -= 1
            self._looked(look)
            status = self.status()
            answer("ack", {name: status[name] for name in ("active", "held", "pinned")})

        # In the loader's thread, since another process may keep the registry's lock for a while.
        self._loader.submit(move, why="set_active", done=done)

    def status(self) -> Mapping[str, Any]:
        """`active`, `newest` and `pinned` are labels, empty for none; `held` says since when, by whom and why,
        null for not at all; `kept` counts versions on disk; `trouble` is the last error of following, or empty."""
        held = self._pointers.held
        return {
            "active": self._active.label if self._active else "",
            "newest": self._newest.label if self._newest else "",
            "pinned": self._pointers.pinned.label if self._pointers.pinned else "",
            "held": {"time": held.time, "by": held.by, "note": held.note, "restore": held.restore} if held else None,
            "kept": self._kept,
            "trouble": self._error,
        }

    def _submit_look(self, done: Callable[[_Look | EmbodiedError], None]) -> None:
        # After a change it looks once more: a second one may have had the same time stamp.
        again, self._changed = self._changed, False
        self._background.submit(lambda: self._look(again), done)

    def _look(self, again: bool) -> _Look:
        """Look at the disk, in the background; `again` even where nothing seems to have changed."""
        registry, policy = self._registry, self._policy
        revision = registry.revision(policy)
        found: tuple[Pointers, Version | None, Version | None, int] | EmbodiedError | None = None
        active = self._active
        if revision != self._seen or again:
            try:
                versions, active = registry.versions(policy), registry.active(policy)
                found = registry.pointers(policy), active, max(versions, default=None), len(versions)
            except EmbodiedError as error:
                found = error
        other = active is not None and active != self._host.version
        return _Look(revision, found, (registry.stamp(), registry.state(policy, active)) if active and other else None)

    def _looked(self, look: _Look | EmbodiedError) -> None:
        """Take in a look at the disk."""
        self._looking = False
        if isinstance(look, EmbodiedError):
            self._note_error(look)
            return
        self._changed |= look.revision != self._seen
        self._seen = look.revision
        self._unreadable = isinstance(look.found, EmbodiedError) or (self._unreadable and look.found is None)
        if isinstance(look.found, EmbodiedError):
            self._note_error(look.found)
        elif look.found is not None:
            self._pointers, self._active, self._newest, self._kept = look.found
        self._follow(self._clock(), look.files)

    def _follow(self, now: float, files: tuple[Stamp, State] | None) -> None:
        active, pointers = self._active, self._pointers
        if active is None or self._unreadable or self._loading or self._loader.busy:
            return
        if active == self._host.version:
            self._error = ""
            return
        if now < self._rest_until or files is None:
            return
        seen = (active, *files)
        if self._refused == seen:
            return
        before = self._host.version
        why = "pin" if pointers.pinned == active else "rollback" if pointers.serving == active else "follow"

        def done(result: Version | EmbodiedError) -> None:
            self._loading = False
            self._changed = True  # what is active may have moved meanwhile
            if isinstance(result, Version):
                self._error = ""
                if before.hash and (why != "follow" or result.number < before.number):
                    gone = why if why != "follow" else f"{before.label} is not kept any more"
                    log.warning(
                        "policy %s: version %s instead of %s (%s)", self._policy, result.label, before.label, gone
                    )
                return
            if isinstance(result, DataError):
                self._refused = seen
            else:
                self._rest_until = self._clock() + _REST_S
            self._note_error(result)

        self._loading = True
        try:
            self._loader.submit(lambda: self._registry.read(self._policy, active.label), why, done, back=True)
        except EmbodiedError:  # others were quicker; at the next look again
            self._loading = False

    def _write_audit(self, now: float) -> None:
        """Have the loader's thread write down what a full or read-only disk did not take."""
        if now < self._write_at or self._loader.busy or not self._registry.has_pending:
            return
        self._write_at = now + _REST_S
        try:
            self._loader.submit(self._registry.write_pending, why="audit")
        except EmbodiedError:  # others were quicker
            return

    def _note_error(self, error: EmbodiedError) -> None:
        line = error.line()
        if line != self._error:
            log.error("policy %s: version %s stays served: %s", self._policy, self._host.version.label, line)
        self._error = line
