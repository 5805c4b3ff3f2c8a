"""Keeper stage: assembles episodes from segments, stores them, and records the segments of each update."""

from collections.abc import Mapping
from typing import Any

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.consumed import record_consumed
from embodied.buffer.store import EpisodeStore
from embodied.episode import Episode
from embodied.monitor.timing import Stopwatch
from embodied.train.mailbox import Inbox, Outbox, Stage
from embodied.train.messages import KEEPER, METRICS, Collected, Episodes, Published, Stored


class Keeper(Stage):
    """Stores what a run's stages produce.

    Args:
        assembler: Makes episodes of segments.
        store: Keeps them.
        attempt: Start of the run.
        watch: Gets the seconds of `storage`.
    """

    name = KEEPER

    def __init__(self, assembler: EpisodeAssembler, store: EpisodeStore, attempt: int, watch: Stopwatch) -> None:
        self.assembler, self.store, self.watch = assembler, store, watch
        self.inbox, self.outbox = Inbox(), Outbox(self.name, attempt)
        self._kept: dict[str, int] = {}
        self._updates: list[Published] = []

    def tick(self, now: float) -> bool:
        """Store the content of one message; answer updates whose segments are all stored."""
        if self.outbox.room < 1 or (message := self.inbox.take()) is None:
            return False
        with self.watch("storage"):
            match message.body:
                case Collected(segment=segment):
                    self._kept[segment.id] = self._add(self.assembler.add(segment))
                case Episodes(episodes=episodes):
                    self._add(episodes)
                case Published(fresh=True) as update:
                    self._updates.append(update)
            if self._updates and self._kept.keys() >= set(self._updates[0].segments):
                self._answer(self._updates.pop(0))
        return True

    def state(self) -> dict[str, Any]:
        # Every segment taken is stored, or in an open episode of the assembler.
        return {"assembler": self.assembler.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            DataError: The state cannot be read.
        """
        self.assembler.load(state["assembler"])

    def _add(self, episodes: list[Episode]) -> int:
        return sum(self.store.add(episode) for episode in episodes)

    def _answer(self, update: Published) -> None:
        record_consumed(self.store.folder, update.step, update.version.number, update.segments)
        kept = sum(self._kept.pop(id) for id in update.segments)
        self.outbox.put(METRICS, Stored(update.step, kept, self.assembler.dropped))
