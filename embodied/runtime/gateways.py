"""Gateways of a policy server, each a process of its own."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from embodied.errors import EmbodiedError, UserError, nearest
from embodied.gateways.gateway import Gateway, gateway_of
from embodied.gateways.launcher import GatewayLauncher, Main
from embodied.runtime.serve_settings import ServeSettings
from embodied.serving.policy_slot import PolicySlot
from embodied.wire.credentials import ACT, CLIENTS, add_client, list_clients

_LOOK_S = 0.5
_GATEWAY = "gateway"


class ServerGateways:
    """Gateways of one server, supervised in a thread.

    Args:
        settings: Settings of the server.
        slots: Policies that it serves, by name.
        announce: Called with one line when a gateway listens, dies or restarts.

    Attributes:
        error: Reason that a gateway could not listen, which also stops the server; None else.

    Raises:
        UserError: A gateway could not listen as it is configured, or does not fit the policy.
    """

    def __init__(
        self, settings: ServeSettings, slots: Mapping[str, PolicySlot], announce: Callable[[str], object] = print
    ) -> None:
        self.error: EmbodiedError | None = None
        self._gateways: GatewayLauncher | None = None
        self._settings, self._announce = settings, announce
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._key = _api_key(settings.api_key)
        self._credentials: str | None = None
        if settings.openpi is not None or settings.groot is not None:
            self._credentials = _gateway_credentials(settings.credentials)
            spec = _policy(settings, slots).policy.spec
            for kind, _, values in self._wanted(settings.address).values():
                gateway_of(kind, values).check(spec)

    def status(self) -> list[dict[str, Any]]:
        """Status of the gateways, see `GatewayLauncher.status`; from any thread."""
        return [] if self._gateways is None else self._gateways.status()

    def start(self, server: str, stop: threading.Event) -> None:
        """Spawn the gateways; `stop` is set when one cannot listen, or an authorized client asks to stop."""
        wanted = self._wanted(server.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"))
        if wanted:
            mains = {name: (main, values) for name, (_, main, values) in wanted.items()}
            gateways = self._gateways = GatewayLauncher(mains, self._announce)
            self._thread = threading.Thread(target=self._watch, args=(gateways, stop), name="gateways", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _wanted(self, server: str) -> dict[str, tuple[type[Gateway[Any, Any]], Main, dict[str, Any]]]:
        """Name of each gateway to its class, main function and settings."""
        settings, wanted = self._settings, dict[str, tuple[type[Gateway[Any, Any]], Main, dict[str, Any]]]()
        if settings.openpi is None and settings.groot is None:
            return wanted
        values = {
            "server": server, "policy": settings.gateway_policy or "", "embodiment": settings.embodiment,
            "credentials": self._credentials, "api_key": self._key,
        }  # fmt: skip
        if settings.openpi is not None:
            from embodied.gateways.openpi import server as openpi

            wanted["openpi"] = (openpi.OpenpiGateway, openpi.run, {**values, "address": settings.openpi})
        if settings.groot is not None:
            from embodied.gateways.groot import server as groot

            wanted["groot"] = (groot.GrootGateway, groot.run, {**values, "address": settings.groot})
        return wanted

    def _watch(self, gateways: GatewayLauncher, stop: threading.Event) -> None:
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


def _policy(settings: ServeSettings, slots: Mapping[str, PolicySlot]) -> PolicySlot:
    """Slot of the policy that answers the gateways' clients."""
    if settings.gateway_policy is None and len(slots) > 1:
        raise UserError("gateways answer with one policy", "gateway_policy", f"give one of {', '.join(sorted(slots))}")
    name = settings.gateway_policy or next(iter(slots))
    if name not in slots:
        raise UserError(f"no policy {name} is served here", "gateway_policy", nearest(name, slots))
    return slots[name]


def _gateway_credentials(folder: str | None) -> str | None:
    """Credentials with which gateways connect to the server: a client of their own, with the permission to act."""
    if folder is None:
        return None
    carried = Path(folder) / CLIENTS / _GATEWAY
    if _GATEWAY not in {client.name for client in list_clients(Path(folder))}:
        add_client(Path(folder), _GATEWAY, [ACT])
    if not carried.is_dir():
        raise UserError(
            "the client gateway has no credentials here", folder, f"embodied credentials remove {folder} {_GATEWAY}"
        )
    return str(carried)
