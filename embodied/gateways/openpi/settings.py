"""Settings of the openpi gateway."""

from embodied.gateways.gateway import GatewaySettings
from embodied.settings import Seconds, settings


@settings("openpi gateway")
class OpenpiSettings(GatewaySettings):
    """Settings of one openpi gateway; `Authorization: Api-Key <key>` must hold its `api_key`.

    Attributes:
        idle_s: Seconds without a request after which a connection is closed.
        send_s: Seconds within which a client must read an answer.
    """

    address: str = "127.0.0.1:8000"
    idle_s: Seconds = 600.0
    send_s: Seconds = 10.0
