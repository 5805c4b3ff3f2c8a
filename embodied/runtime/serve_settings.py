"""Settings of `embodied serve`."""

from dataclasses import field
from typing import Annotated, Any

from annotated_types import Interval

from embodied.errors import ConfigError
from embodied.settings import AtLeastOne, GigabytesOrNoLimit, Rows, Threads, Weight, Word, settings


@settings()
class ServeSettings:
    """Policies that answer, their addresses and clients.

    Attributes:
        run: The run whose policy answers, following its registry; null for an untrained `policy` for `task`, to be
            filled by pushes.
        version: `latest`, which follows pins and rollbacks, or a number, which stays.
        policies: Name to run, to serve several; instead of `run`.
        upstream: A server to follow, from which versions are fetched; instead of `run`.
        weights: Folder where pushed or fetched versions are kept; null keeps pushed ones in memory only.
        keep: How many of the newest versions stay in `weights`.
        keep_gb: Size of all versions in it, beyond which the oldest go first; 0 for no limit.
        bandwidth_mbit: Most megabits per second to take from upstream; 0 for no limit.
        name: What an edge calls itself to its upstream; null is the machine's name.
        address: Where to listen. Beyond loopback `credentials` is needed.
        credentials: Folder of `embodied credentials`. With a signing key in it, only signed versions are taken from
            others.
        upstream_credentials: Folder with which upstream is called, and whose signing key its versions must have.
        http: `host:port` of /healthz, /metrics and /status; null for none.
        openpi, groot: `host:port` where openpi's and GR00T's clients are answered; null for none.
        gateway_policy: Which of several policies they get; null for the only one.
        embodiment: What their keys mean; `configs/embodiment`.
        api_key: What their clients must send; needed beyond loopback. `env:NAME` reads it from the environment.
        max_wait_ms: Longest wait for other clients' requests, milliseconds.
        max_rows: Rows of one batch.
        max_requests: Requests that wait at most, per policy.
        engine: What decides, `configs/engine`.
    """

    task: dict[str, Any]
    env: dict[str, Any]
    policy: dict[str, Any]
    embodiment: dict[str, Any]
    run: Word | None = "latest"
    runs: Word = "runs"
    version: Word = "latest"
    policies: dict[str, Word] | None = None
    upstream: str | None = None
    weights: str | None = None
    keep: AtLeastOne = 5
    keep_gb: GigabytesOrNoLimit = 0.0
    bandwidth_mbit: Annotated[Weight, "0 for no limit"] = 0.0
    name: Word | None = None
    address: str = "ipc://policy"
    credentials: str | None = None
    upstream_credentials: str | None = None
    http: str | None = None
    openpi: str | None = None
    groot: str | None = None
    gateway_policy: str | None = None
    api_key: str | None = None
    max_wait_ms: Annotated[float, Interval(ge=0, le=1000), "milliseconds"] = 2.0
    max_rows: Rows = 1024
    max_requests: Rows = 256
    threads: Threads = 1
    engine: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.upstream is not None and self.policies is not None:
            raise ConfigError("a server follows upstream or serves runs", "policies", "give one of the two")
        if self.upstream is not None and self.weights is None:
            raise ConfigError("an edge keeps what it fetches", "weights", "give weights=FOLDER")
