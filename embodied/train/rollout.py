"""Rollout stage: collects a segment of every policy once all trainers have given a credit."""

from collections.abc import Mapping, Sequence
from typing import Any

from embodied.rollout.collector import Collector
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import SCORER, TRAINER, Collected, Credit, address

ORIGIN = "sim-0"
"""Origin of the environments in a run's own process."""


class Rollout(Stage):
    """Drives a collector.

    Args:
        collector: Of this origin's environments.
        attempt: Start of the run.
        name: Origin.
        trained: Names of the policies that are trained, each by a trainer of its own; by default there is one.
    """

    def __init__(self, collector: Collector, attempt: int, name: str = ORIGIN, trained: Sequence[str] = ("",)) -> None:
        self.collector, self.name = collector, name
        self.inbox, self.outbox = Inbox(), Outbox(name, attempt)
        self._until = {address(TRAINER, policy): 0 for policy in trained}

    @property
    def _allowed(self) -> bool:
        return self.collector.count < min(self._until.values())

    def tick(self, now: float) -> bool:
        """Collect one segment of every policy where the credits allow it."""
        while (message := self.inbox.take()) is not None:
            credit: Credit = message.body
            self._until[message.id.sender] = credit.until
        if not self._allowed or self.outbox.room < self.collector.policies:
            return False
        collector = self.collector
        for segment in collector.collect():
            self.outbox.put(SCORER, Collected(self.name, collector.count, segment, collector.env.faults))
        return True

    def doing(self) -> str:
        return f"collecting segment {self.collector.count + 1}" if self._allowed else ""

    def state(self) -> dict[str, Any]:
        return self.collector.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            ConfigError: The state is of another number of environments.
        """
        self.collector.load(state)
