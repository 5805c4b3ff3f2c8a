"""What a policy's users see of it, wherever it runs."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from numpy.typing import ArrayLike, NDArray

from embodied.data import ActionChunk, Observation, Rows
from embodied.spec import EnvSpec, PolicySpec
from embodied.weights.manifest import Manifest
from embodied.wire.probe import Probed

Mode = Literal["sample", "mean"]
Version = tuple[int, str]
"""Number and hash of the weights served; (0, "") before any were published."""


def version_label(version: Version) -> str:
    """Such as `12-ab12cd34ef56`; the number alone where the hash is empty."""
    number, digest = version
    return f"{number}-{digest[:12]}" if digest else str(number)


class PolicyClient(Protocol):
    """A policy host, in this process (`LocalClient`) or behind a socket (`RemoteClient`).

    Both give the same answers and raise the same errors; a remote one also raises `InfrastructureError`s.
    """

    def hello(self, body: EnvSpec | None = None, agent: str = "robot") -> PolicySpec:
        """The policy's spec, after checking that it can drive `agent` of `body`.

        Raises:
            SpecMismatch: It cannot; names the stream and the field.
        """
        ...

    def act(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> ActionChunk:
        """Decide for B rows, B may be 0; see `policies.base.Policy.act`. `versions` says which weights decided.

        Raises:
            SpecMismatch: A stream the policy needs is missing, or of another shape or dtype.
            DataError: A number is not finite, or row counts differ; names the stream and the row.
        """
        ...

    def push(
        self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False, signature: str = ""
    ) -> Version:
        """Serve these weights from the next batch on; returns the version then served.

        Args:
            back: Take a version older than the one served, as a rollback does.
            signature: The publisher's, as hex digits; empty for none.

        Raises:
            WeightsRefused: They are partial, stale, altered or unfit; the version served stays.
            WeightsHeld: A rollback on the server stopped publication.
        """
        ...

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        """Report how episodes of `rows` [B] ended.

        Args:
            rows: The rows whose episodes ended.
            outcomes: [B] of `embodied.data.Outcome`.
            versions: [B] numbers of the versions that decided; the version served now where not given.
        """
        ...

    def version(self) -> Version:
        """The version served now."""
        ...

    def probe(self, observation: Observation) -> Probed:
        """The version served, its tensors and how it sees 1 to `PROBE_ROWS` rows, for comparison with another copy.

        Raises:
            UserError: There are more rows, or none.
            EmbodiedError: As `act`.
        """
        ...

    def tick(self) -> None:
        """Show that this client lives, between decisions that are far apart."""
        ...

    def close(self) -> None:
        """Say goodbye and drop the connection."""
        ...
