"""Warm start of a run: pretrained weights, cloned demonstrations, the first version and its evaluation."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.buffer.consumed import record_consumed
from embodied.errors import ConfigError, CorruptFile, SpecMismatch, UserError, WeightsRefused
from embodied.files import remove
from embodied.learning.learner import TENTHS, EpisodeLearner
from embodied.monitor.progress import duration
from embodied.runs import checkpoint
from embodied.train.demonstrations import EXPERT, Demonstrated, by_the_expert, forget, stored
from embodied.train.loop import Loop
from embodied.train.pretrained import read_weights
from embodied.train.protocol import CLONE, PRETRAINED
from embodied.train.snapshot import write_snapshot

CLONING = "cloning"
"""Folder of a run with the state of a cloning that has not ended."""
CHECKPOINT_S = 5.0
_SAVING = 0.05  # most of the time that saving may take
FIRST_ROW = 1 - TENTHS
_EVALUATED = (-7, -5, -2)


def warm_start(loop: Loop) -> None:
    """Prepare the first version as the settings ask, publish and evaluate it, and write the first row of metrics.

    Raises:
        ConfigError: A run that only clones has no demonstrations.
    """
    parts, begin, start = loop.parts, loop.parts.settings.warm_start, time.perf_counter()
    if parts.learner is None and not begin.clones:
        raise ConfigError(
            "cloning needs demonstrations",
            "warm_start.demonstrations",
            "give their number, such as 50, or warm_start.episodes, where they are stored",
        )
    values: dict[str, float] = {}
    shown: list[str] | None = None
    first = parts.cloner or parts.trained
    compared = parts.settings.compare.split is not None
    if begin.weights is not None:
        try:
            weights = read_weights(begin.weights, parts.policy)
        except (CorruptFile, WeightsRefused) as error:
            raise UserError(error.what, f"warm_start.weights={begin.weights}", error.fix) from None
        first.load_pretrained(weights)
        loop.origin["weights"] = begin.weights
        if compared:
            write_snapshot(parts.folder / PRETRAINED, first.tensors(), parts.spec)
    if parts.cloner is not None:
        values, shown = _clone(loop, parts.cloner)
    loop.publish()
    if shown is not None:
        record_consumed(parts.store.folder, 0, loop.publisher.number, shown)
    parts.end_cloning()
    if compared:
        write_snapshot(parts.folder / CLONE, parts.trained.tensors(), parts.spec)
    values |= loop.evaluate_regular()
    parts.store.seal()
    seconds = time.perf_counter() - start
    loop.metrics.write_first(loop.trainer.env_steps, loop.publisher.number, values, seconds)


def _clone(loop: Loop, cloner: EpisodeLearner) -> tuple[dict[str, float], list[str]]:
    """Learn from demonstrations; metrics, and the names of the consumed parts for the record of the update."""
    progress = loop.parts.progress
    progress.update(phase="demonstrations")
    shown = _demonstrations(loop)
    progress.update(phase="cloning", env_steps=loop.trainer.env_steps)
    values = cloner.fit(shown, _Cloning(loop, cloner), _begun(loop))
    remove(loop.parts.folder / CLONING)
    loop.metrics.say_skipped(values)
    loop.origin |= {"demonstrations": shown.source, "episodes": shown.count}
    return values | {"learner/demonstrations": shown.count}, sorted(set(shown.parts))


def cloning_phase(share: float, loss: float, rate: float) -> str:
    """Progress of cloning, such as `cloning 40 %, loss 0.021, 0:12 left`; `rate` is the share done in a second."""
    left = duration((1.0 - share) / rate if rate > 0 else math.inf)
    return f"cloning {100 * share:.0f} %, loss {loss:.3g}, {left} left"


class _Cloning:
    """Progress of a clone, as a `FitReport`: a row of metrics at each tenth, numbered -9 to -1, before row 0.

    A run that only clones publishes and evaluates what it has learned at some of them. The state of cloning is saved
    every `CHECKPOINT_S` seconds.
    """

    def __init__(self, loop: Loop, cloner: EpisodeLearner) -> None:
        self._loop, self._cloner, self._start = loop, cloner, time.perf_counter()
        self._first: float | None = None
        self._steps, self._save_at = 0, CHECKPOINT_S

    def __call__(self, share: float, loss: float, values: Mapping[str, float]) -> None:
        loop, seconds = self._loop, time.perf_counter() - self._start
        self._first = share if self._first is None else self._first
        rate = (share - self._first) / max(seconds, 1e-9)
        loop.parts.progress.update(phase=cloning_phase(share, loss, rate))
        self._steps += 1
        if seconds >= self._save_at and share < 1.0:
            self._save()
            spent = time.perf_counter() - self._start - seconds
            self._save_at = seconds + max(CHECKPOINT_S, spent / _SAVING)
        if not values or share >= 1.0:
            return
        found, row = dict(values), int(TENTHS * share) - TENTHS
        if loop.parts.learner is None and row in _EVALUATED:
            loop.publish()
            found |= loop.evaluate_regular()
        loop.metrics.write_early(row, loop.trainer.env_steps, loop.publisher.number, found)

    def _save(self) -> None:
        parts = self._loop.parts
        saved = {parts.spec.name: checkpoint.SavedPolicy(self._cloner.tensors(), parts.spec.to_dict())}
        checkpoint.save(parts.folder / CLONING, self._steps, saved, self._cloner.fit_state(), {}, keep=1)


def _begun(loop: Loop) -> dict[str, Any] | None:
    """State of a cloning that was interrupted; None for none that can continue."""
    parts = loop.parts
    try:
        saved = checkpoint.latest(parts.folder / CLONING, {parts.spec.name: parts.spec.to_dict()}, parts.progress.say)
    except (CorruptFile, SpecMismatch, UserError) as error:
        parts.progress.say(f"cloning begins again: {error.line()}")
        return None
    if saved is not None:
        parts.progress.say("cloning continues where it was interrupted")
    return saved.learner if saved else None


def _demonstrations(loop: Loop) -> Demonstrated:
    """The first demonstrations of the named store, or of the task's expert."""
    parts, begin = loop.parts, loop.parts.settings.warm_start
    if begin.episodes is not None:
        folder, limit = Path(begin.episodes), begin.memory_gb * 1e9
        agent = parts.env.spec.only_agent
        shown = stored(folder, parts.policy, begin.demonstrations, limit, parts.progress.say, agent)
        return Demonstrated(begin.episodes, shown)
    forget(parts.store.folder, parts.attempt)
    episodes, steps = by_the_expert(parts.settings, parts.spec, parts.attempt, loop.whole_episodes)
    loop.trainer.env_steps += steps
    for episode in episodes:
        parts.store.add(episode)
    return Demonstrated(EXPERT, episodes)
