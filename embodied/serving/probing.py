"""Probing of a served policy, so that a learner can compare it with its own copy."""

import logging
from collections.abc import Mapping
from typing import Any

from embodied.data import Observation
from embodied.errors import Busy, EmbodiedError, InfrastructureError
from embodied.serving.answer import Answer
from embodied.serving.error_log import ErrorLog
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.codecs import observation_from_arrays
from embodied.wire.message import Message
from embodied.wire.probe import probe_to_message

log = logging.getLogger(__name__)
errors = ErrorLog(log)


class Prober:
    """Answers `probe`, one between two batches, since it reads all weights.

    Args:
        policy: Policy to probe.
    """

    busy = False

    def __init__(self, policy: VersionedPolicy) -> None:
        self._policy = policy
        self._waiting: tuple[Observation, Answer] | None = None

    def handle(self, message: Message, answer: Answer) -> None:
        """Handle a `probe` with rows of an observation, as for `act`.

        Raises:
            EmbodiedError: As `VersionedPolicy.check_probe`.
            Busy: Another probe waits.
        """
        seen = observation_from_arrays(message.arrays, self._policy.spec.agent.observations)
        self._policy.check_probe(seen)
        if self._waiting is not None:
            raise Busy("another probe waits", "policy server", "ask again later")
        copied = {name: array.copy() for name, array in seen.streams.items()}
        self._waiting = Observation(seen.rows, copied, seen.time, seen.times), answer

    def tick(self) -> None:
        """Answer a waiting probe, between batches; never raises."""
        if self._waiting is None:
            return
        (seen, answer), self._waiting = self._waiting, None
        try:
            answer("probe", *probe_to_message(self._policy.probed(seen)))
        except EmbodiedError as error:
            answer.refuse(error)
        except Exception as error:
            errors.record(f"policy {self._policy.spec.name} could not be probed", error)
            what = f"{type(error).__name__}: {error}"
            answer.refuse(
                InfrastructureError(what, f"probe of policy {self._policy.spec.name}", "see the server's log")
            )

    def status(self) -> Mapping[str, Any]:
        """Empty status."""
        return {}
