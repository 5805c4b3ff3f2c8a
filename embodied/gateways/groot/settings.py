"""Settings of the GR00T gateway."""

from collections.abc import Mapping
from typing import Any

from embodied.gateways.groot.messages import Generation
from embodied.settings import AtLeastOne, Rows, Seconds, Seed, Text, settings
from policies.base import Mode


@settings("GR00T gateway")
class GrootSettings:
    """Settings of one GR00T gateway.

    Attributes:
        server: Address of the policy server.
        address: `host:port` where GR00T's clients are answered; beyond this machine an `api_key` is needed.
        policy: Name of the policy that answers; empty for the server's only one.
        embodiment: Mapping of keys, see `embodied.gateways.groot.key_mapping`.
        keys: Folder of credentials for the server's address.
        api_key: `api_token` that every request must hold; None asks for none, and refuses `kill`.
        generation: Generation of clients whose first request is the modality configuration.
        mode: `mean` or `sample`.
        seed: Seed of the noise of `sample`.
        timeout_s: Seconds within which every request is answered, a restart of the server included.
        max_rows: Rows of one request.
        message_mib: Longest request, MiB; less where `max_rows` rows are shorter. All unanswered requests together may
            be four times as long.
        connections: Clients at a time; for one more the one that was silent longest is disconnected.
        workers: Requests to the server at a time.
        waiting: Requests that wait for a worker; a further one is refused as busy.
        start_s: Seconds to wait for the policy server at the start.
    """

    server: Text
    address: str = "127.0.0.1:5555"
    policy: str = ""
    embodiment: Mapping[str, Any] | str = "native"
    keys: str | None = None
    api_key: str | None = None
    generation: Generation = "n1.6"
    mode: Mode = "mean"
    seed: Seed = 0
    timeout_s: Seconds = 10.0
    max_rows: Rows = 64
    message_mib: AtLeastOne = 64
    connections: AtLeastOne = 64
    workers: AtLeastOne = 8
    waiting: AtLeastOne = 64
    start_s: Seconds = 60.0
