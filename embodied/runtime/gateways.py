"""What runs beside a server: the gateways of other projects' clients, each a process of its own."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError, UserError, nearest
from embodied.gateways.launcher import Gateways
from embodied.runtime.serve_settings import ServeSettings
from embodied.serving.policy_slot import PolicySlot
from embodied.wire.credentials import ACT, CLIENTS, add_client, list_clients

_LOOK_S = 0.5
_GATEWAY = "gateway"


class Beside:
    """The gateways of one server, watched in a thread of their own.

    Args:
        settings: Of the server.
        desks: What it serves.
        announce: Is told one line when a gateway listens, dies or comes back.

    Attributes:
        error: Why a gateway could not listen, after it has stopped the server.

    Raises:
        UserError: A gateway could not listen as it is configured, or does not fit the policy.
    """

    def __init__(
        self, settings: ServeSettings, desks: Mapping[str, PolicySlot], announce: Callable[[str], object] = print
    ) -> None:
        self.error: EmbodiedError | None = None
        self._gateways: Gateways | None = None
        self._settings, self._announce = settings, announce
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._key = _api_key(settings.api_key)
        if settings.openpi is not None or settings.groot is not None:
            self._keys = _gateway_keys(settings.keys)
            spec = _policy(settings, desks).host.spec
            for check, _, options in self._wanted(settings.address):
                check(options, spec)

    def status(self) -> list[dict[str, Any]]:
        """How the gateways are, see `Gateways.status`; from any thread."""
        return [] if self._gateways is None else self._gateways.status()

    def start(self, server: str, stop: threading.Event) -> None:
        """Spawn them; `stop` is set when one cannot listen, or a client asked for it."""
        wanted = self._wanted(server.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"))
        if wanted:
            gateways = self._gateways = Gateways([(main, options) for _, main, options in wanted], self._announce)
            self._thread = threading.Thread(target=self._watch, args=(gateways, stop), name="gateways", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _wanted(self, server: str) -> list[tuple[Any, Any, Any]]:
        """Check, main function and options of each."""
        settings, wanted = self._settings, list[tuple[Any, Any, Any]]()
        policy = settings.gateway_policy or ""
        if settings.openpi is not None:
            from embodied.gateways.openpi import server as openpi

            options = openpi.OpenpiSettings(server, settings.openpi, policy, settings.embodiment, self._keys, self._key)
            wanted.append((openpi.check, openpi.run, options))
        if settings.groot is not None:
            from embodied.gateways.groot import server as groot

            at = settings.groot if "://" in settings.groot else f"tcp://{settings.groot}"
            given = groot.GrootSettings(server, at, policy, settings.embodiment, self._keys, self._key)
            wanted.append((groot.check, groot.main, given))
        return wanted

    def _watch(self, gateways: Gateways, stop: threading.Event) -> None:
        try:
            gateways.start()
            while not (self._ending.is_set() or stop.is_set()):
                if gateways.check():
                    self._announce("a gateway's client asked the server to stop")
                    stop.set()
                self._ending.wait(_LOOK_S)
        except EmbodiedError as error:
            self.error = error
            stop.set()
        finally:
            gateways.close()


def _api_key(given: str | None) -> str | None:
    if given is None or not given.startswith("env:"):
        return given
    name = given.removeprefix("env:")
    if not (key := os.environ.get(name)):
        raise UserError(f"the environment has no {name}", "api_key", f"export {name}=...")
    return key


def _policy(settings: ServeSettings, desks: Mapping[str, PolicySlot]) -> PolicySlot:
    """The policy that gateways' clients get."""
    if settings.gateway_policy is None and len(desks) > 1:
        raise UserError("gateways answer with one policy", "gateway_policy", f"give one of {', '.join(sorted(desks))}")
    name = settings.gateway_policy or next(iter(desks))
    if name not in desks:
        raise UserError(f"no policy {name} is served here", "gateway_policy", nearest(name, desks))
    return desks[name]


def _gateway_keys(folder: str | None) -> str | None:
    """The keys with which gateways call a server that asks for some: a client of their own, which may only act."""
    if folder is None:
        return None
    carried = Path(folder) / CLIENTS / _GATEWAY
    if _GATEWAY not in {client.name for client in list_clients(Path(folder))}:
        add_client(Path(folder), _GATEWAY, [ACT])
    if not carried.is_dir():
        raise UserError("the client gateway has no keys here", folder, f"embodied keys remove {folder} {_GATEWAY}")
    return str(carried)
