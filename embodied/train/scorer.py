"""Scorer stage: gives segments their rewards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied.monitor.timing import Stopwatch
from embodied.rewards.stage import RewardStage
from embodied.train.mailbox import Inbox, Outbox
from embodied.train.messages import KEEPER, SCORER, TRAINER, Collected


class Scorer:
    """Scores segments in the order of their arrival.

    Args:
        reward: Scores.
        attempt: Start of the run.
        watch: Gets the seconds of `reward`.
    """

    name = SCORER

    def __init__(self, reward: RewardStage, attempt: int, watch: Stopwatch) -> None:
        self.reward, self.watch = reward, watch
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)

    def tick(self, now: float) -> bool:
        """Score one segment for the trainer and the keeper."""
        if self.outbox.room < 2 or (message := self.inbox.take()) is None:
            return False
        collected: Collected = message.body
        with self.watch("reward"):
            scored = replace(collected, segment=self.reward.score(collected.segment))
        self.outbox.put(TRAINER, scored)
        self.outbox.put(KEEPER, scored)
        return True

    def doing(self) -> str:
        """As `Stage.doing`; a score takes one tick."""
        return ""

    def state(self) -> dict[str, Any]:
        """As `Stage.state`."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """As `Stage.load`."""
