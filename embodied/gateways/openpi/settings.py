"""Settings of the openpi gateway."""

from collections.abc import Mapping
from typing import Any

from embodied.settings import AtLeastOne, Seconds, Seed, Text, Word, settings
from policies.base import Mode


@settings("openpi gateway")
class OpenpiSettings:
    """Settings of one openpi gateway.

    Attributes:
        server: Address of the policy server.
        address: `host:port` where openpi's clients are answered; beyond this machine an `api_key` is needed.
        policy: Name of the policy that answers; empty for the server's only one.
        embodiment: Mapping of keys, see `embodied.gateways.embodiment`.
        keys: Folder of credentials for the server's address.
        api_key: Key that `Authorization: Api-Key <key>` must hold; None asks for none.
        mode: `mean` or `sample`.
        seed: Seed of the noise of `sample`.
        timeout_s: Seconds within which every request is answered, a restart of the server included.
        connections: Clients at a time.
        idle_s: Seconds without a request after which a connection is closed.
        send_s: Seconds within which a client must read an answer.
        start_s: Seconds to wait for the policy server at the start.
    """

    server: Text
    address: str = "127.0.0.1:8000"
    policy: str = ""
    embodiment: Mapping[str, Any] | str = "native"
    keys: str | None = None
    api_key: Word | None = None
    mode: Mode = "mean"
    seed: Seed = 0
    timeout_s: Seconds = 10.0
    connections: AtLeastOne = 64
    idle_s: Seconds = 600.0
    send_s: Seconds = 10.0
    start_s: Seconds = 60.0
