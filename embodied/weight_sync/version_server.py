"""The upstream's side of an edge: hands out versions in ranges, and records what edges serve. No sockets."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from embodied.errors import CorruptFile, EmbodiedError, MessageError, UserError, WeightsRefused
from embodied.serving.answer import Answer
from embodied.serving.background import Background
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.sources import CopySource, FileSource, Source
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry, Signer
from embodied.weights.transfer import read_range
from embodied.weights.versions import TENSORS
from embodied.wire.message import Message

_IDLE_S = 60.0
_FILES, _COPIES = 8, 1
_FOLLOWERS = 256
_FORGET_S = 3600.0
_NAME = 100

Response = tuple[str, dict[str, Any], dict[str, NDArray[Any]]]
"""Kind, body and arrays of a message."""


@dataclass
class _Edge:
    serving: str
    heard: float


@dataclass
class _Open:
    source: Source
    used: float


class VersionServer:
    """A desk's part that answers `fetch`. Every answer is complete in itself, so any follower may ask at any time.

    Args:
        host: Whose policy it is; what it serves is offered where there is no registry, or not in it.
        registry: Every version in it is offered.
        build: What a follower makes the same policy from.
        signer: Signs what is offered and has no signature yet, such as versions of a run on this machine.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        host: VersionedPolicy,
        *,
        registry: Registry | None = None,
        build: Mapping[str, Any] | None = None,
        signer: Signer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signer = signer
        self._host, self._registry, self._build, self._clock = host, registry, dict(build or {}), clock
        self._open: dict[Version, _Open] = {}
        self._edges: dict[str, _Edge] = {}
        self._handed_out = 0
        self._background, self._swept = Background("versions for edges"), -float("inf")

    def handle(self, message: Message, answer: Answer) -> None:
        """Answer a `fetch` of a version with an `offer`, and a `fetch` of one of its ranges with a `range`.

        Raises:
            WeightsRefused: The version is not kept any more; names the one active.
            Busy: It is being made ready; ask again.
            MessageError: The request is malformed.
            CorruptFile: The version is damaged on disk.
        """

        def done(response: Response | EmbodiedError) -> None:
            if isinstance(response, EmbodiedError):
                answer.refuse(response)
            else:
                answer(*response)

        self._background.submit(lambda: self._respond(message.body), done)

    @property
    def busy(self) -> bool:
        """Whether an edge waits for an answer."""
        return self._background.busy

    def _respond(self, body: Mapping[str, Any]) -> Response:
        """Answer to a `fetch`, in the background."""
        self._close_idle()
        source = self._source(self._version(body.get("version")))
        if "offset" in body:
            try:
                said, arrays = read_range(source, source.manifest, body)
            except (CorruptFile, WeightsRefused):
                del self._open[source.manifest.version]
                raise
            self._handed_out += arrays["data"].nbytes
            return "range", said, arrays
        signature = source.signature
        if not signature and self._signer is not None:
            signature = self._signer.sign(source.manifest)
        return "offer", {"manifest": source.manifest.to_dict(), "signature": signature, "build": self._build}, {}

    def record_edge(self, session: str, body: Mapping[str, Any]) -> None:
        """Take a follower's report, `follow: {name, serving}` of a `status` message.

        Raises:
            MessageError: It is malformed.
        """
        follow = body.get("follow")
        name, serving = (follow.get(key) for key in ("name", "serving")) if isinstance(follow, dict) else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= _NAME or not isinstance(serving, str):
            raise MessageError("a follower without name or version", "status", "send follow: {name, serving}")
        label = Version.parse(serving).label if serving else ""
        self._edges.pop(name, None)
        self._edges[name] = _Edge(label, self._clock())
        if len(self._edges) > _FOLLOWERS:
            del self._edges[next(iter(self._edges))]  # the one that was silent longest

    def tick(self) -> None:
        """Send answers, forget edges that are gone, and close versions that no edge fetches."""
        self._background.tick()
        now = self._clock()
        if self._open and now - self._swept >= _IDLE_S:
            self._swept = now
            self._background.submit(self._close_idle, lambda _: None)
        while self._edges:
            name, follower = next(iter(self._edges.items()))
            if now - follower.heard < _FORGET_S:
                break
            del self._edges[name]

    def _close_idle(self) -> None:
        for version, opened in list(self._open.items()):
            if self._clock() - opened.used >= _IDLE_S:
                del self._open[version]

    def status(self) -> Mapping[str, Any]:
        """`active`, the label followers should serve where no `RegistryWatcher` says another;
        `followers`, name to `serving` and seconds since heard;
        `handed_out`, bytes."""
        now = self._clock()
        active = self._host.version.label if self._host.manifest is not None else ""
        followers = {
            name: {"serving": follower.serving, "heard_s": round(now - follower.heard, 1)}
            for name, follower in self._edges.items()
        }
        return {"active": active, "followers": followers, "handed_out": self._handed_out}

    def active(self) -> Version | None:
        """Version that edges should serve, read from disk: the registry's active one, else the one served; None for
        initial weights."""
        active = None
        if self._registry is not None:
            try:
                active = self._registry.active(self._host.spec.name)
            except CorruptFile:
                active = None  # its follower says so; what is served is still whole
        return self._host.version if active is None and self._host.manifest is not None else active

    def _version(self, label: Any) -> Version:
        if not isinstance(label, str):
            raise MessageError("no version is named", "fetch", "send its label, or an empty text for the one active")
        if label:
            return Version.parse(label)
        active = self.active()
        if active is None:
            raise WeightsRefused("initial weights are served, which have no version", "policy server", "ask later")
        return active

    def _source(self, version: Version) -> Source:
        opened = self._open.pop(version, None)
        if opened is None:
            opened = _Open(self._find(version), 0.0)
        opened.used = self._clock()
        self._open[version] = opened
        self._bound(FileSource, _FILES)
        self._bound(CopySource, _COPIES)
        return opened.source

    def _bound(self, kind: type, most: int) -> None:
        mine = [version for version, opened in self._open.items() if isinstance(opened.source, kind)]
        for version in mine[: max(len(mine) - most, 0)]:
            del self._open[version]

    def _find(self, version: Version) -> Source:
        policy, registry, manifest = self._host.spec.name, self._registry, self._host.manifest
        if registry is not None and version in registry.versions(policy):
            try:
                known, signature = registry.manifest(policy, version.label), registry.signature(policy, version.label)
                return FileSource(registry.path(policy, version) / TENSORS, known, signature)
            except (CorruptFile, UserError, WeightsRefused):
                if version in registry.versions(policy):
                    raise
        if manifest is not None and manifest.version == version:
            return CopySource(manifest, self._host.tensors)
        active = self.active()
        raise WeightsRefused(
            f"version {version.label} is not kept here",
            f"policy {policy}",
            f"ask for {active.label}" if active and active != version else "ask again later",
        )
