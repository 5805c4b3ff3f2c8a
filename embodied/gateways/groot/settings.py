"""What a GR00T gateway is told when it is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied.gateways.groot.messages import Generation
from policies.base import Mode


@dataclass(frozen=True)
class GrootSettings:
    """What a gateway needs to know.

    Attributes:
        server: Address of the policy server.
        address: `host:port` where GR00T's clients are answered; beyond this machine an `api_key` is needed.
        policy: Name of the policy that answers; empty for the server's only one.
        embodiment: See `embodied.gateways.groot.key_mapping`.
        keys: Folder of keys for the server's address.
        api_key: The `api_token` that every request must hold; None asks for none, and refuses `kill`.
        generation: Of clients that ask for the modality configuration before anything else.
        mode: `mean` or `sample`.
        seed: Of the noise of `sample`.
        timeout_s: Seconds within which every request is answered, a restart of the server included.
        max_rows: Rows of one request.
        message_mib: Longest request, MiB; less where so many rows are shorter. All that are not answered yet may be
            four times as long.
        connections: Clients at a time; for one more the one that was silent longest has to connect again.
        workers: Requests that are with the server at a time.
        waiting: Requests that wait for a worker; a further one is told `busy`.
        start_s: Seconds to wait for the policy server at the start.
    """

    server: str
    address: str = "127.0.0.1:5555"
    policy: str = ""
    embodiment: Mapping[str, Any] | str = "native"
    keys: str | None = None
    api_key: str | None = None
    generation: Generation = "n1.6"
    mode: Mode = "mean"
    seed: int = 0
    timeout_s: float = 10.0
    max_rows: int = 64
    message_mib: int = 64
    connections: int = 64
    workers: int = 8
    waiting: int = 64
    start_s: float = 60.0
