"""Contract of policy clients, in this process or remote."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from numpy.typing import ArrayLike, NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.spec import EnvSpec, PolicySpec
from embodied.weights.manifest import Manifest
from embodied.wire.probe import ProbeResult

Mode = Literal["sample", "mean"]
Version = tuple[int, str]
"""Number and hash of the weights served; (0, "") before any were published."""


def version_label(version: Version) -> str:
    """Such as `12-ab12cd34ef56`; the number alone where the hash is empty."""
    number, digest = version
    return f"{number}-{digest[:12]}" if digest else str(number)


def asked_agents(env: EnvSpec | None, agent: str | Sequence[str] | None) -> list[str]:
    """Names of the agents that a client will ask for; None for the only agent of `env`.

    Raises:
        SpecMismatch: None is given and `env` has several agents; names them.
    """
    if agent is None:
        return [] if env is None else [env.only_agent]
    return [agent] if isinstance(agent, str) else list(agent)


class PolicyClient(Protocol):
    """Client of a versioned policy, in this process (`LocalClient`) or behind a socket (`RemoteClient`).

    Both give the same answers and raise the same errors; a remote one also raises `InfrastructureError`s.
    """

    def hello(self, env: EnvSpec | None = None, agent: str | Sequence[str] | None = None) -> PolicySpec:
        """Spec of the policy, after checking that it can drive `agent` of `env`.

        Args:
            env: Environment whose observations will be sent; None checks nothing.
            agent: Name, or names, of the agents whose rows will be sent, in one request or in several; None for the
                environment's only agent.

        Raises:
            SpecMismatch: The policy cannot drive an agent (names the stream and the field), or None is given and there
                are several agents (names them).
        """
        ...

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        """Decide for B rows, B may be 0; see `policies.base.Policy.act`.

        The rows may be of several agents: `rows.agent` is an index into `EnvSpec.agents`. `versions` of the chunk are
        the weights that decided.

        Raises:
            SpecMismatch: A stream that the policy needs is missing, or of another shape or dtype.
            DataError: A number is not finite, or row counts differ; names the stream and the row.
        """
        ...

    def push(
        self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False, signature: str = ""
    ) -> Version:
        """Serve these weights from the next batch on; returns the version then served.

        Args:
            manifest: Manifest of the version.
            tensors: Tensor name to array, as the manifest lists them.
            back: Accept a version older than the one served, as a rollback does.
            signature: Hex digits of the publisher's signature; empty for none.

        Raises:
            WeightsRefused: The weights are partial, stale, altered or unfit; the version served stays.
            WeightsHeld: A rollback on the server stopped publication.
        """
        ...

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        """Report the outcomes of ended episodes.

        Args:
            rows: [B] rows whose episodes ended.
            outcomes: [B] of `embodied.data.Outcome`.
            versions: [B] numbers of the versions that decided; None for the version served now.
        """
        ...

    def version(self) -> Version:
        """Version served now."""
        ...

    def probe(self, observation: Observation) -> ProbeResult:
        """Version served, digests of its tensors, and intermediate results for 1 to `PROBE_ROWS` rows.

        They are compared with those of another copy of the policy.

        Raises:
            UserError: There are more rows, or none.
            EmbodiedError: As `act`.
        """
        ...

    def tick(self) -> None:
        """Send a heartbeat where one is due, between decisions that are far apart."""
        ...

    def close(self) -> None:
        """Say goodbye and drop the connection."""
        ...
