"""Rollout stage: collects a segment for every credit."""

from collections.abc import Mapping
from typing import Any

from embodied.rollout.collector import Collector
from embodied.train.mailbox import Inbox, Outbox
from embodied.train.messages import SCORER, Collected, Credit

ORIGIN = "sim-0"
"""Origin of the environments in a run's own process."""


class Rollout:
    """Drives a collector.

    Args:
        collector: Of this origin's environments.
        attempt: Start of the run.
        name: Origin.
    """

    def __init__(self, collector: Collector, attempt: int, name: str = ORIGIN) -> None:
        self.collector, self.name = collector, name
        self.inbox, self.outbox = Inbox(), Outbox(name, attempt)
        self._until = 0

    def tick(self, now: float) -> bool:
        """Collect one segment where a credit allows it."""
        while (message := self.inbox.take()) is not None:
            credit: Credit = message.body
            self._until = max(self._until, credit.until)
        if self.collector.count >= self._until or self.outbox.room < 1:
            return False
        (segment,) = self.collector.collect()
        self.outbox.put(SCORER, Collected(self.name, self.collector.count, segment, self.collector.env.faults))
        return True

    def doing(self) -> str:
        """As `Stage.doing`."""
        return f"collecting segment {self.collector.count + 1}" if self.collector.count < self._until else ""

    def state(self) -> dict[str, Any]:
        """As `Stage.state`."""
        return self.collector.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """As `Stage.load`.

        Raises:
            ConfigError: The state is of another number of environments.
        """
        self.collector.load(dict(state))
