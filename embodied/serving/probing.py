"""Shows the insides of a policy that serves, so that a learner finds out where the two differ."""

import logging
from collections.abc import Mapping
from typing import Any

from embodied.data import Observation
from embodied.errors import Busy, EmbodiedError, InfrastructureError
from embodied.serving.answer import Answer
from embodied.serving.faults import Faults
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.wire.codecs import observation_from_arrays
from embodied.wire.message import Message
from embodied.wire.probe import probed_to_message

log = logging.getLogger(__name__)
faults = Faults(log)


class Prober:
    """Answers `probe`, one between two batches, since it reads all the weights.

    Args:
        host: What is shown.
    """

    def __init__(self, host: VersionedPolicy) -> None:
        self._host = host
        self._waiting: tuple[Observation, Answer] | None = None

    def handle(self, message: Message, answer: Answer) -> None:
        """Take a `probe` with rows of an observation, as `act` has them.

        Raises:
            EmbodiedError: As `VersionedPolicy.check_probe`.
            Busy: Another waits.
        """
        seen = observation_from_arrays(message.arrays, self._host.spec.agent.observations)
        self._host.check_probe(seen)
        if self._waiting is not None:
            raise Busy("another probe waits", "policy server", "ask again later")
        copied = {name: array.copy() for name, array in seen.streams.items()}
        self._waiting = Observation(seen.rows, copied, seen.time, seen.times), answer

    def tick(self) -> None:
        """Answer what waits. Between batches; never raises."""
        if self._waiting is None:
            return
        (seen, answer), self._waiting = self._waiting, None
        try:
            answer("probe", *probed_to_message(self._host.probed(seen)))
        except EmbodiedError as error:
            answer.refuse(error)
        except Exception as error:
            faults.say(f"policy {self._host.spec.name} could not be probed", error)
            what = f"{type(error).__name__}: {error}"
            answer.refuse(InfrastructureError(what, f"probe of policy {self._host.spec.name}", "see the server's log"))

    def status(self) -> Mapping[str, Any]:
        """Nothing to say."""
        return {}
