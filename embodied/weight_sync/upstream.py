"""An edge: a server whose versions come from another server, over a link that may be slow or gone.

`UpstreamClient.connect` learns which policy to make, or remembers it; `start` fetches its versions into a registry
in a thread of its own, from where a `RegistryWatcher` switches the host as in any other server.
"""

import importlib
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from embodied.errors import CorruptFile, EmbodiedError, MessageError, UserError
from embodied.files import Lock, disk_errors, read_sealed, sealed, write_bytes
from embodied.serving.answer import Answer
from embodied.spec import PolicySpec
from embodied.weight_sync.rate_limit import RateLimiter
from embodied.weight_sync.replicator import Replicator
from embodied.weights.examine import dtype_name
from embodied.weights.manifest import Version, check_policy_name
from embodied.weights.registry import Registry
from embodied.wire.addresses import is_local
from embodied.wire.endpoint import Requester
from embodied.wire.message import Message

log = logging.getLogger(__name__)

_TARGET = re.compile(r"policies(\.[A-Za-z_][A-Za-z0-9_]*){2,8}")
_BUILD_BYTES = 2**18
_KEPT_WAIT_S = 3.0  # with something kept, a robot does not wait longer for a link that may be gone
_STEP_S = 0.2
_REST_S = 1.0
_SAME = "run the same version on both sides"


@dataclass(frozen=True)
class UpstreamInfo:
    """Policy of an upstream server, and the settings to make it from.

    Attributes:
        policy: The name it is served under.
        spec: Of the policy.
        build: The `policy` config group it was made from, in plain values.
        fresh: Whether upstream has just said so; else it is what was kept from before.
    """

    policy: str
    spec: PolicySpec
    build: Mapping[str, Any]
    fresh: bool = True

    @classmethod
    def from_hello(cls, body: Mapping[str, Any], fresh: bool = True) -> Self:
        """From a server's answer to `hello`.

        Raises:
            MessageError: A field is missing, or not what it should be.
        """
        policy, spec, build = (body.get(name) for name in ("policy", "spec", "build"))
        if not isinstance(policy, str) or not isinstance(spec, dict) or not isinstance(build, dict):
            raise MessageError("it does not say which policy it serves", "upstream", _SAME)
        try:
            plain = json.dumps(build)
        except (TypeError, ValueError, RecursionError):
            raise MessageError("how its policy is made is not in plain values", "upstream", _SAME) from None
        if len(plain) > _BUILD_BYTES:
            raise MessageError(f"how its policy is made takes {len(plain)} bytes", "upstream", _SAME)
        info = cls(policy, PolicySpec.from_dict(spec), json.loads(plain), fresh)
        check_policy_name(info.spec.name)
        return info

    def to_dict(self) -> dict[str, Any]:
        return {"policy": self.policy, "spec": self.spec.to_dict(), "build": dict(self.build)}

    def config(self, local: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The `policy` config group to make the policy from: `local` if it has a target, else upstream's.

        Raises:
            UserError: UpstreamClient names code outside of the package `policies`, which is not run on its word alone.
        """
        if local and local.get("_target_"):
            return dict(local)
        target = self.build.get("_target_")
        if not isinstance(target, str) or not _TARGET.fullmatch(target) or not _is_ours(target):
            raise UserError(
                f"upstream's policy is made by {str(target)[:80]!r}, which is not of the package policies",
                f"policy {self.spec.name}",
                "give policy._target_=... here if you trust it",
            )
        return dict(self.build)


class UpstreamClient:
    """The server that an edge follows. In a `PolicySlot` it takes the place of a push receiver and refuses pushes.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        folder: Of the edge's registry; what is info of upstream, and what has partly arrived, lie beside it.
        policy: The name it is served under upstream; empty for its only one.
        credentials: Folder of CURVE credentials, see `embodied.wire.addresses`.
        name: What this edge is called upstream, unlike all others; empty takes the machine's name.
        bandwidth_mbit: Most megabits per second to take; 0 for no limit.
        poll_s: How often upstream is asked what it wants.

    Raises:
        UserError: The address is malformed, or beyond this machine without credentials; or the cap is no number from 0.
    """

    busy = False

    def __init__(
        self,
        address: str,
        folder: Path | str,
        *,
        policy: str = "",
        credentials: Path | str | None = None,
        name: str = "",
        bandwidth_mbit: float = 0.0,
        poll_s: float = 1.0,
    ) -> None:
        if not 0 <= bandwidth_mbit < float("inf"):
            raise UserError(f"bandwidth_mbit={bandwidth_mbit}", "edge", "give megabits per second, or 0 for no limit")
        self.address, self.folder, self.name = address, Path(folder), (name or socket.gethostname())[:100]
        self._credentials, self._policy, self._mbit, self._poll_s = credentials, policy, bandwidth_mbit, poll_s
        self._info: UpstreamInfo | None = None
        self._replicator: Replicator | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = Lock(self.folder / "incoming" / ".lock")
        self._link()

    def connect(self, timeout_s: float = 10.0) -> UpstreamInfo:
        """Ask which policy upstream serves; without a link, return its last answer.

        Args:
            timeout_s: How long to wait for upstream; at most 3 s where something is kept.

        Raises:
            DeadlineExceeded: No link, and nothing is kept from before.
            EmbodiedError: UpstreamClient refuses, and nothing is kept from before.
            CorruptFile: No link, and what was kept is damaged.
            InfrastructureError: What was learnt cannot be written down.
        """
        path, kept, damage = self.folder / "edge.json", None, None
        try:
            kept = self._kept(path)
        except CorruptFile as error:
            damage = error
        link = self._link()
        try:
            answer = link.request(
                "hello",
                policy=self._policy,
                body={"env": None, "agents": [], "priority": "tool"},
                timeout_s=timeout_s if kept is None else min(timeout_s, _KEPT_WAIT_S),
            )
            info = UpstreamInfo.from_hello(answer.body)
        except EmbodiedError as error:
            if damage is not None:
                raise damage from None
            if kept is None:
                raise type(error)(
                    f"{error.what}, and {self.folder} keeps nothing yet", error.where, error.fix
                ) from None
            log.warning("starting with what is kept in %s: %s", self.folder, error.line())
            self._info = kept
            return kept
        finally:
            link.close()
        if kept is None or info.to_dict() != kept.to_dict():
            with disk_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, sealed(info.to_dict()))
        self._info = info
        return info

    def start(self, registry: Registry, tensors: Mapping[str, NDArray[Any]], serving: Callable[[], Version]) -> None:
        """Fetch versions from now on, in a thread that no error ends.

        Args:
            registry: Of the edge; with `trusted`, what is not signed is refused before it is fetched.
            tensors: `Policy.tensors()` of the policy here; versions of another shape are refused.
            serving: The version the edge serves now; called in the thread.

        Raises:
            UserError: `connect` was not called, another process fetches into this folder, or the credentials for an
                upstream beyond this machine hold no `signing.key`, so what comes could not be checked.
            InfrastructureError: The folder cannot be written.
        """
        if self._info is None or self._thread is not None:
            raise UserError("an edge is started once, after it has connected", str(self.folder), "call connect first")
        self._check_trust(registry)
        incoming = self.folder / "incoming"
        with disk_errors(incoming):
            incoming.mkdir(parents=True, exist_ok=True)
        if not self._lock.try_acquire():
            raise UserError(
                f"{self._lock.holder()} fetches versions into this folder already",
                str(self.folder),
                "stop it, or choose another folder",
            )
        link = self._link()
        self._replicator = Replicator(
            link,
            registry,
            incoming,
            self._info.policy,
            self._info.spec,
            {key: (array.shape, dtype_name(array.dtype)) for key, array in tensors.items()},
            serving,
            name=self.name,
            limiter=RateLimiter(self._mbit),
            poll_s=self._poll_s,
        )
        self._thread = threading.Thread(target=self._run, args=(self._replicator, link), name="upstream", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """`upstream`: its address, `state` (`connected` or `cut`), `silent_s`, the version it wants, what is being
        fetched, the last error's line, and `final`, true where that is a refusal that will not pass by itself (a
        role, a signature, another policy); for a server's status, from any thread."""
        state = self._replicator.status() if self._replicator else {"state": "cut", "final": False}
        return {"upstream": {"address": self.address, **state}}

    def handle(self, message: Message, answer: Answer) -> None:
        """Refuse what is pushed, as a desk's part: an edge takes versions from upstream only."""
        raise UserError("this server follows another one", self.address, "push to that one")

    def leave(self, session: str) -> None:
        """Nothing to do: no client uploads here."""

    def tick(self) -> None:
        """Nothing to do: the thread fetches, and a `RegistryWatcher` switches."""

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; partial downloads are resumed at the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _check_trust(self, registry: Registry) -> None:
        """Keys look as if versions were checked; without the key of who signs them, they are not."""
        if self._credentials is None or registry.trusted is not None:
            return
        what, fix = "no signing.key in it, so no version could be checked", "copy it from the server's clients/NAME"
        if not is_local(self.address):
            raise UserError(what, str(self._credentials), fix)
        log.warning("versions are taken unchecked: %s (%s): %s", what, self._credentials, fix)

    def _link(self) -> Requester:
        return Requester(self.address, "upstream server", credentials=self._credentials)

    def _kept(self, path: Path) -> UpstreamInfo | None:
        if not path.exists():
            return None
        fix = "delete it and start with a link to upstream"
        try:
            return UpstreamInfo.from_hello(read_sealed(path, fix), fresh=False)
        except MessageError as error:
            raise CorruptFile(error.what, str(path), fix) from None

    def _run(self, replicator: Replicator, link: Requester) -> None:
        while not self._stop.is_set():
            try:
                pause = replicator.step(_STEP_S)
            except EmbodiedError as error:
                log.error("following upstream: %s", error.line())
                pause = _REST_S
            except Exception:
                log.exception("following upstream failed and is tried again")
                pause = _REST_S
            if pause:
                self._stop.wait(pause)
        replicator.close()
        link.close()
        self._lock.release()


def _is_ours(target: str) -> bool:
    """Tell whether the object that a path within `policies` names is also defined there, not only imported."""
    module, _, name = target.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return True  # making the policy names the missing module
    return made is None or str(getattr(made, "__module__", "")).startswith("policies.")
