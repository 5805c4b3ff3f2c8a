"""Settings of the GR00T gateway."""

from embodied.gateways.gateway import GatewaySettings
from embodied.gateways.groot.messages import Generation
from embodied.settings import AtLeastOne, Rows, settings


@settings("GR00T gateway")
class GrootSettings(GatewaySettings):
    """Settings of one GR00T gateway. Its `api_key` is the `api_token` of every request; without one, `kill` is refused.
    For one connection too many, the one that was silent longest is closed.

    Attributes:
        generation: Generation of clients whose first request is the modality configuration.
        max_rows: Rows of one request.
        message_mib: Longest request, MiB; less where `max_rows` rows are shorter. All unanswered requests together may
            be four times as long.
        workers: Requests to the server at a time.
        waiting: Requests that wait for a worker; a further one is refused as busy.
    """

    address: str = "127.0.0.1:5555"
    generation: Generation = "n1.6"
    max_rows: Rows = 64
    message_mib: AtLeastOne = 64
    workers: AtLeastOne = 8
    waiting: AtLeastOne = 64
