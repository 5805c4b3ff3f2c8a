"""Follows an upstream server's versions into a registry: what to ask next, and what to do with what comes back.

No thread and no socket in here: `Replicator.step` is called repeatedly, with a clock and a link that a test may fake.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from embodied.errors import (
    Busy,
    CorruptFile,
    DeadlineExceeded,
    EmbodiedError,
    InfrastructureError,
    MessageError,
    UserError,
    WeightsRefused,
)
from embodied.spec import PolicySpec
from embodied.weight_sync.fetch import DiskFetch, Shapes, check_new, check_shapes, check_spec
from embodied.weight_sync.partial_download import remove_stale
from embodied.weight_sync.rate_limit import Backoff, RangeSize, RateLimiter
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from embodied.wire.message import Message

log = logging.getLogger(__name__)

WINDOW = 4
"""Ranges in flight."""

_DEADLINE_S = 30.0
_SILENT_S = 10.0
_ATTEMPTS = 3
_FIX = "restart this edge to take over upstream's policy"


class Link(Protocol):
    """Requests to upstream; the part of `embodied.wire.endpoint.Requester` that is needed here."""

    def submit(
        self, kind: str, *, policy: str = "", body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> int: ...

    def collect(self, ids: Iterable[int], timeout_s: float | None = None) -> Message: ...

    def cancel(self, ids: Iterable[int]) -> None: ...


@dataclass(frozen=True)
class _Ask:
    """A request in flight: `status`, `manifest` or `range`."""

    what: str
    version: Version | None = None
    offset: int = 0
    size: int = 0
    sent: float = 0.0


class Replicator:
    """Keeps a registry's `serving` at what upstream wants, fetching what is missing. One thread.

    A newer version does not interrupt one that is half here, and interrupts at most once between two that were
    finished: a link slower than upstream publishes still brings versions. An older one, a rollback, interrupts always.

    Args:
        link: To upstream.
        registry: Where versions are kept; with `trusted`, others are refused before they are fetched.
        incoming: Folder of what has partly arrived.
        policy: The name it is served under upstream.
        spec, shapes: Of the policy here; other versions are refused before they are asked for.
        serving: The version served here, told upstream.
        name: What this follower is called upstream.
        limiter: Caps what is asked for.
        poll_s: How often upstream is asked what it wants.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        link: Link,
        registry: Registry,
        incoming: Path,
        policy: str,
        spec: PolicySpec,
        shapes: Shapes,
        serving: Callable[[], Version],
        *,
        name: str,
        limiter: RateLimiter | None = None,
        poll_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._registry, self._incoming, self._policy = link, registry, incoming, policy
        self._spec, self._shapes, self._serving, self._name = spec, shapes, serving, name
        self._limiter, self._poll_s, self._clock = limiter or RateLimiter(0.0, clock), poll_s, clock
        self._asked: dict[int, _Ask] = {}
        self._poll_at, self._heard, self._started = clock(), -float("inf"), clock()
        self._reported: Version | None = None
        self._active: Version | None = None
        self._fetch: DiskFetch | None = None
        self._preempted = False
        self._attempts = 0
        self._link_rest, self._version_rest = Backoff(), Backoff()
        self._range_size = RangeSize(self._limiter.rate)
        self._error, self._final = "", False
        self._silent_s = max(_SILENT_S, 3 * poll_s)
        self._cut = False
        self._damaged: Version | None = None

    def step(self, wait_s: float) -> float:
        """Ask what is due and take in at most one answer, waiting `wait_s` at most.

        Returns:
            Seconds until there is something to do, at most `wait_s`.

        Raises:
            EmbodiedError: Something went wrong outside of any request; it may be called again.
        """
        now = self._clock()
        self._note_link(now)
        self._ask_status(now)
        self._ask_ranges(now)
        wait = min(wait_s, self._due(now))
        if not self._asked:
            return wait
        try:
            answer = self._link.collect(tuple(self._asked), timeout_s=wait)
        except EmbodiedError as error:
            self._failed(error)
            return 0.0 if error.request is not None or isinstance(error, DeadlineExceeded) else wait
        self._heard = self._clock()
        ask = self._asked.pop(answer.id)
        try:
            self._take(ask, answer)
        except EmbodiedError as error:
            self._back_off(error, self._link_rest if ask.what == "range" else self._version_rest)
        return 0.0

    def status(self) -> dict[str, Any]:
        """Plain values: whether upstream is heard, what it wants, what is being fetched, the last error's line,
        and `final`: whether that is a refusal that will not pass by itself."""
        now, fetch, active = self._clock(), self._fetch, self._active
        state: dict[str, Any] = {
            "state": "connected" if now - self._heard < self._silent_s else "cut",
            "silent_s": round(self._silent(now), 1),
            "active": active.label if active else "",
            "error": self._error,
            "final": bool(self._error) and self._final,
        }
        if fetch is not None:
            state["pulling"] = {
                "version": fetch.label,
                "bytes": fetch.received,
                "of": fetch.manifest.nbytes,
                "mbit_s": round(fetch.rate(now) * 8e-6, 3),
            }
        return state

    def close(self) -> None:
        """Stop; what has arrived stays on disk."""
        if self._fetch is not None:
            self._fetch.close()
            self._fetch = None

    def _silent(self, now: float) -> float:
        return now - max(self._heard, self._started)

    def _note_link(self, now: float) -> None:
        cut = self._silent(now) >= self._silent_s
        if cut == self._cut:
            return
        self._cut, policy = cut, self._spec.name
        if cut:
            label = self._serving().label
            log.warning("policy %s: the link to upstream is cut; version %s stays served", policy, label)
        else:
            log.warning("policy %s: the link to upstream is back", policy)

    def _due(self, now: float) -> float:
        """Seconds until something can be asked."""
        due = float("inf") if self._in_flight("status") else self._poll_at - now
        if self._fetch is not None and self._fetch.todo and len(self._fetch.in_flight) < WINDOW:
            due = min(due, max(self._limiter.wait(), self._link_rest.wait(now)))
        return max(due, 0.001)

    def _in_flight(self, what: str) -> int:
        return sum(ask.what == what for ask in self._asked.values())

    def _ask(self, ask: _Ask, kind: str, body: Mapping[str, Any]) -> None:
        self._asked[self._link.submit(kind, policy=self._policy, body=body, timeout_s=_DEADLINE_S)] = ask

    def _ask_status(self, now: float) -> None:
        serving = self._serving()
        if self._in_flight("status") or (now < self._poll_at and serving == self._reported):
            return
        self._reported, self._poll_at = serving, now + self._poll_s
        label = serving.label if serving.hash else ""
        self._ask(_Ask("status"), "status", {"follow": {"name": self._name, "serving": label}})

    def _ask_ranges(self, now: float) -> None:
        fetch = self._fetch
        while fetch is not None and fetch.todo and len(fetch.in_flight) < WINDOW:
            if self._limiter.wait() > 0 or self._link_rest.wait(now) > 0:
                return
            body = fetch.next(self._range_size.size)
            offset, size = body["offset"], body["size"]
            try:
                self._ask(_Ask("range", fetch.manifest.version, offset, size, now), "fetch", body)
            except BaseException:
                fetch.retry(offset)
                raise
            self._limiter.spend(size)

    def _take(self, ask: _Ask, answer: Message) -> None:
        if ask.what == "status":
            self._take_status(answer)
        elif ask.what == "manifest":
            if ask.version is not None and ask.version == self._active and self._fetch is None:
                self._begin(ask.version, answer)
        elif self._fetch is not None and ask.version == self._fetch.manifest.version:
            self._receive(self._fetch, ask, answer)

    def _take_status(self, answer: Message) -> None:
        label = answer.body.get("active")
        if not isinstance(label, str):
            raise MessageError("its status has no `active` version", "upstream", "run the same version on both")
        active = Version.parse(label) if label else None
        if active != self._active:
            self._active, self._attempts = active, 0
            self._version_rest.clear()
        self._follow()

    def _follow(self) -> None:
        """Serve upstream's active version if it is kept here, else begin to fetch it."""
        active, fetch, now = self._active, self._fetch, self._clock()
        if active is None or self._version_rest.wait(now) > 0:
            return
        if self._registry.held(self._spec.name) is not None:  # a rollback on the edge itself stays until resumed here
            return
        if self._is_here(active):
            if fetch is not None and fetch.manifest.version != active:
                self._drop(fetch)
            self._serve(active)
            self._error = ""
        elif self._may_preempt(active, fetch) and self._attempts < _ATTEMPTS and not self._in_flight("manifest"):
            if fetch is not None:
                self._preempted = self._preempted or active.number > fetch.manifest.number
                self._drop(fetch)
            self._ask(_Ask("manifest", active), "fetch", {"version": active.label})

    def _is_here(self, version: Version) -> bool:
        """Tell whether the registry has the version, whole; it is read again only after its files changed."""
        if version not in self._registry.versions(self._spec.name):
            return False
        try:
            self._registry.check(self._spec.name, version)
        except (CorruptFile, WeightsRefused) as error:
            if self._damaged != version:
                log.warning("policy %s: fetched again, since it is damaged here: %s", self._spec.name, error.line())
            self._damaged = version
            return False
        self._damaged = None
        return True

    def _may_preempt(self, active: Version, fetch: DiskFetch | None) -> bool:
        """Tell whether fetching `active` may begin now."""
        if fetch is None or active.number < fetch.manifest.number:
            return True
        return active != fetch.manifest.version and not self._preempted and 2 * fetch.received < fetch.manifest.nbytes

    def _begin(self, version: Version, answer: Message) -> None:
        try:
            manifest = Manifest.from_dict(answer.body.get("manifest"))
            signature = answer.body.get("signature")
            if manifest.version != version or not isinstance(signature, str):
                raise MessageError(f"not the manifest of {version.label}", "upstream", "run the same version on both")
            if self._registry.trusted is not None:
                self._registry.trusted.check(manifest, signature)
            check_spec(manifest, self._spec, _FIX)
            check_shapes(manifest, self._shapes, _FIX)
            check_new(manifest, self._registry.versions(manifest.policy))
        except EmbodiedError:
            self._attempts = _ATTEMPTS  # it would be the same manifest again
            raise
        remove_stale(self._incoming, keep=manifest.label)
        self._fetch = DiskFetch(manifest, signature, self._incoming, self._clock())
        if self._fetch.complete:
            self._finish(self._fetch)

    def _receive(self, fetch: DiskFetch, ask: _Ask, answer: Message) -> None:
        now = self._clock()
        try:
            fetch.take(ask.offset, answer)
        except InfrastructureError as error:
            self._drop(fetch)
            self._back_off(error, self._version_rest)
            return
        self._link_rest.clear()
        self._range_size.took(ask.size, now - ask.sent)
        if fetch.complete:
            self._finish(fetch)

    def _finish(self, fetch: DiskFetch) -> None:
        manifest = fetch.manifest
        try:
            self._registry.adopt(manifest, manifest.verify(fetch.tensors()), fetch.signature)
            log.info("fetched version %s of policy %s from upstream", manifest.label, manifest.policy)
            self._preempted, self._error = False, ""
            self._serve(manifest.version)
        except EmbodiedError as error:
            self._attempts += isinstance(error, WeightsRefused)
            self._back_off(error, self._version_rest)
        finally:
            self._drop(fetch)
        self._follow()

    def _serve(self, version: Version) -> None:
        """Let the registry say so; what is pinned on the edge itself goes before."""
        policy = self._spec.name
        newest = max(self._registry.versions(policy), default=None)
        if (self._registry.pointers(policy).serving or newest) != version:
            self._registry.serve(policy, version, by="upstream")

    def _failed(self, error: EmbodiedError) -> None:
        """A request was refused or not answered."""
        now = self._clock()
        if error.request is None:
            if not isinstance(error, DeadlineExceeded):
                self._back_off(error, self._link_rest)
            return
        ask, fetch = self._asked.pop(error.request), self._fetch
        if not isinstance(error, DeadlineExceeded):
            self._heard = now
        if fetch is not None and ask.what == "range" and ask.version == fetch.manifest.version:
            if isinstance(error, WeightsRefused):  # it was deleted upstream; what is active now is something else
                self._drop(fetch)
                self._poll_at = now
            else:
                fetch.retry(ask.offset)
        if isinstance(error, DeadlineExceeded):
            self._range_size.least()
            self._note_error(error)
        elif isinstance(error, Busy):
            self._link_rest.fail(now)
        else:
            self._back_off(error, self._version_rest if isinstance(error, WeightsRefused) else self._link_rest)

    def _back_off(self, error: EmbodiedError, rest: Backoff) -> None:
        self._note_error(error)
        rest.fail(self._clock())

    def _note_error(self, error: EmbodiedError) -> None:
        if error.line() != self._error:
            log.warning("following upstream: %s", error.line())
        self._error = error.line()
        self._final = isinstance(error, UserError) or self._attempts >= _ATTEMPTS

    def _drop(self, fetch: DiskFetch) -> None:
        ids = [id for id, ask in self._asked.items() if ask.what == "range"]
        self._link.cancel(ids)
        for id in ids:
            del self._asked[id]
        fetch.discard()
        if self._fetch is fetch:
            self._fetch = None
