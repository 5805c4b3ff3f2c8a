"""Scorer stage: gives segments their rewards."""

from collections.abc import Sequence
from dataclasses import replace

from embodied.monitor.timing import Stopwatch
from embodied.rewards.stage import RewardStage
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import KEEPER, SCORER, TRAINER, Collected, address


class Scorer(Stage):
    """Scores segments in the order of their arrival.

    Args:
        reward: Scores.
        attempt: Start of the run.
        watch: Gets the seconds of `reward`.
        trained: As of `Rollout`. Segments of other policies go to the keeper alone.
    """

    name = SCORER

    def __init__(self, reward: RewardStage, attempt: int, watch: Stopwatch, trained: Sequence[str] = ("",)) -> None:
        self.reward, self.watch, self._trained = reward, watch, trained
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)

    def tick(self, now: float) -> bool:
        """Score one segment for its policy's trainer and the keeper."""
        if self.outbox.room < 2 or (message := self.inbox.take()) is None:
            return False
        collected: Collected = message.body
        with self.watch("reward"):
            scored = replace(collected, segment=self.reward.score(collected.segment))
        for policy in self._trained:
            if policy in ("", collected.segment.policy):
                self.outbox.put(address(TRAINER, policy), scored)
        self.outbox.put(KEEPER, scored)
        return True
