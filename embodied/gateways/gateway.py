"""Gateway of any protocol: settings, connection to the policy server, checks before the start, life in a process."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from embodied.client import RemoteClient
from embodied.client.remote import Priority
from embodied.errors import EmbodiedError, UserError
from embodied.gateways.listener import is_loopback, parse, probe, signals
from embodied.settings import AtLeastOne, Seconds, Seed, Text, Word, configured, settings
from embodied.spec import PolicySpec
from embodied.wire.descriptors import raise_limit
from policies.base import Mode


@settings("gateway")
class GatewaySettings:
    """Settings of one gateway.

    Attributes:
        server: Address of the policy server.
        address: `host:port` where clients are answered; beyond this machine an `api_key` is needed.
        policy: Name of the policy that answers; empty for the server's only one.
        embodiment: Mapping of keys, see `embodied.gateways.embodiment`.
        credentials: Folder of credentials for the server's address.
        api_key: Key that clients must send; None asks for none.
        mode: `mean` or `sample`.
        seed: Seed of the noise of `sample`.
        timeout_s: Seconds within which every request is answered, a restart of the server included.
        connections: Clients at a time.
        start_s: Seconds to wait for the policy server at the start.
    """

    server: Text
    address: str = "127.0.0.1:0"
    policy: str = ""
    embodiment: Mapping[str, Any] | str = "native"
    credentials: str | None = None
    api_key: Word | None = None
    mode: Mode = "mean"
    seed: Seed = 0
    timeout_s: Seconds = 10.0
    connections: AtLeastOne = 64
    start_s: Seconds = 60.0


Options = TypeVar("Options", bound=GatewaySettings)
Keys = TypeVar("Keys")


class Gateway(ABC, Generic[Options, Keys]):
    """Gateway of one protocol; `open`, then `run` in the same thread.

    Attributes:
        protocol: Name of the protocol, for messages.
        spec: Spec of the policy, known after `open`.

    Raises:
        UserError: The address is malformed, or beyond this machine without an API key.
    """

    protocol: ClassVar[str]
    settings_class: ClassVar[type[GatewaySettings]]
    spec: PolicySpec

    def __init__(self, settings: Options) -> None:
        self._settings = settings
        self._host, self._port = parse(settings.address)
        if settings.api_key == "":
            raise UserError("an empty api_key", "api_key", "give one, or none")
        if settings.api_key is None and not is_loopback(self._host):
            raise UserError(
                "others could reach this address, and no api_key is given",
                settings.address,
                "use 127.0.0.1, or give api_key and put TLS or SSH in front",
            )

    @abstractmethod
    def mapping(self, spec: PolicySpec) -> Keys:
        """Mapping of the clients' keys to a policy's streams.

        Raises:
            ConfigError, SpecMismatch: The embodiment does not fit the policy.
        """

    @abstractmethod
    def open(self) -> str:
        """Connect to the policy server, then listen; returns the address, with the port found for port 0.

        Raises:
            DeadlineExceeded: The policy server does not answer.
            ConfigError, SpecMismatch: The embodiment does not fit the policy.
            UserError: The address is in use, not of this machine, or a package is missing.
        """

    @abstractmethod
    def run(self, stop: threading.Event) -> int:
        """Answer until `stop` is set; requests under way are answered first. Returns the exit status."""

    def connect(self, timeout_s: float | None = None, priority: Priority = "robot") -> RemoteClient:
        """Open a session of the policy server."""
        given = self._settings
        wait_s = given.timeout_s if timeout_s is None else timeout_s
        return RemoteClient(given.server, wait_s, given.credentials, priority=priority, policy=given.policy)

    def check(self, spec: PolicySpec) -> None:
        """Check that this gateway could start in front of a policy.

        Raises:
            EmbodiedError: As `open`.
        """
        self.mapping(spec)
        probe(self._host, self._port, self._settings.address)

    def _ask_spec(self) -> PolicySpec:
        client = self.connect(self._settings.start_s)
        try:
            with _one_of_several(self._settings.policy):
                return client.hello()
        finally:
            client.close()


def gateway_of(kind: type[Gateway[Any, Any]], values: Mapping[str, Any]) -> Gateway[Any, Any]:
    """Gateway of a protocol from plain values of its settings.

    Raises:
        ConfigError: A setting is unknown or out of range.
        UserError: As `Gateway`.
    """
    return kind(configured(kind.settings_class, values, f"{kind.protocol} gateway"))


def serve(
    gateway: Gateway[Any, Any], announce: Callable[[str], object] = print, stop: threading.Event | None = None
) -> int:
    """Answer clients until SIGINT, SIGTERM or `stop`; returns the exit status.

    Args:
        announce: Called with one line when the gateway listens.

    Raises:
        EmbodiedError: As `Gateway.open`.
    """
    stop = stop or threading.Event()
    raise_limit()
    with signals(stop):
        bound = gateway.open()
        policy = gateway._settings.policy or gateway.spec.name
        announce(f"answering {gateway.protocol} clients for policy {policy} at {bound}")
        return gateway.run(stop)


def line_of(error: EmbodiedError, most: int = 2000) -> str:
    """An error in one line of valid UTF-8 of at most `most` bytes."""
    return error.line().encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def failure_line(error: Exception, protocol: str) -> str:
    """Line for a client after an unexpected exception."""
    return f"{type(error).__name__} in the {protocol} gateway: see its log"


@contextmanager
def _one_of_several(policy: str) -> Iterator[None]:
    """Rewrite a server's error about an unnamed policy, for users of `embodied serve`."""
    try:
        yield
    except UserError as error:
        if policy or not error.what.startswith("several policies"):
            raise
        raise UserError(
            "several policies are served, and the gateway answers with one",
            "gateway_policy",
            f"give gateway_policy=NAME ({error.fix})",
        ) from None
