"""A training run in one process: every station ticked in turn, in one thread, so that a seed repeats bit for bit."""

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.consumed import record_consumed
from embodied.buffer.recorder import recover
from embodied.buffer.store import EpisodeStore
from embodied.build import build, require_parts, resolve
from embodied.data import Episode, Outcome, Segment
from embodied.errors import ConfigError, RolloutMismatch
from embodied.learning.consistency import explain
from embodied.learning.learner import EpisodeLearner, Learner
from embodied.monitor.metrics import MetricsWriter
from embodied.monitor.progress import Progress
from embodied.monitor.stats import quantiles, wilson
from embodied.monitor.timing import Stopwatch
from embodied.rollout.collector import Collector
from embodied.rollout.play import Played, by_policy
from embodied.rollout.staleness import admit, version_lags
from embodied.runs import checkpoint as checkpoints
from embodied.runs.parts import make_client, make_env, make_policy
from embodied.train.demonstrations import EXPERT, Demonstrated, by_the_expert, forget, stored
from embodied.train.evaluator import Evaluation, Evaluator
from embodied.train.pretrained import read_weights
from embodied.train.protocol import BEGUN, CLONE, check_clone, check_protocol
from embodied.train.publisher import Patience, Publisher
from embodied.train.settings import Settings
from embodied.train.snapshot import keep
from embodied.weights.pointers import Held
from embodied.weights.registry import Registry
from embodied.weights.signing import Signer

AGENT = "robot"


class InlineRun:
    """One run, from its warm start to its last version.

    Args:
        settings: What to run.
        folder: The run folder, locked by this process.
        attempt: 0 for the first start, one more with each resume.
        progress: Where to show how it goes.
    """

    def __init__(self, settings: Settings, folder: Path, attempt: int, progress: Progress) -> None:
        self.settings, self.folder, self.attempt, self.progress = settings, folder, attempt, progress
        seed, rollout = settings.seed, settings.rollout
        self.watch = Stopwatch()
        self.env = make_env(settings.task, settings.env, rollout.num_envs, seed)
        policy = make_policy(settings.policy, self.env.spec, seed, AGENT)
        if not policy.tensors():
            raise ConfigError(
                f"policy {policy.spec.name} has no weights to train",
                "policy",
                "measure it with `embodied eval run=null`, or choose another policy=",
            )
        self.spec, self.policy = policy.spec, policy
        self.client = make_client(
            settings.client, make_policy(settings.policy, self.env.spec, seed), self.env.spec, settings.debug
        )
        self.cloner: EpisodeLearner | None = None
        self.learner: Learner | None = None
        if _learns_by(settings.algo, "algo") == "fit":
            self.cloner = build(settings.algo, "algo", policy, seed=seed)
        else:
            normaliser = None
            if settings.warm_start.clones:
                if _learns_by(settings.warm_start.clone, "warm_start.clone") != "fit":
                    raise ConfigError(
                        "this learner cannot clone",
                        "warm_start.clone._target_",
                        "embodied.learning.bc.BehaviourCloning can",
                    )
                cloner = build(settings.warm_start.clone, "warm_start.clone", policy, seed=seed)
                self.cloner, normaliser = cloner, cloner.normaliser
            self.learner = build(settings.algo, "algo", policy, seed=seed, normaliser=normaliser)
        if settings.compare.split is not None:
            if self.learner is None:
                what, fix = "nothing comes after this clone to compare it with", "give compare.split=null, or algo=ppo"
                raise ConfigError(what, "compare.split", fix)
            check_protocol(settings)
        self.reward = build(settings.reward, "reward", self.env.spec.task, settings.task.get("reward", "dense"))
        require_parts(self.reward, settings.reward, "reward", "score")
        self.actor = Collector(self.env, self.client, self.spec, rollout.steps, seed, attempt, self.watch, AGENT)
        signer = Signer.from_keys(settings.client.keys)
        quota = int(settings.runtime.versions_gb * 1e9)
        self.registry = Registry(folder / "weights", settings.runtime.versions, quota, signer=signer)
        patience = Patience(f"run={folder}", math.inf if settings.debug else settings.runtime.hold_s, progress.say)
        self.publisher = Publisher(self.registry, self.client, self.spec, patience)
        self.assembler = EpisodeAssembler(self.env.spec, attempt)
        recover(folder / "episodes")
        self.store = EpisodeStore(
            folder / "episodes", settings.episodes.keep, int(settings.episodes.quota_gb * 1e9), attempt=attempt
        )
        self.metrics = MetricsWriter(folder)
        decide = by_policy(self.client, self.spec, seed)
        self._tester = Evaluator(settings, self.spec, decide, self._store_whole)
        self.step, self.env_steps, self.reached, self.warm = 0, 0, 0, False
        self.played, self.skipped = 0, 0
        self.origin: dict[str, Any] = {}
        self.earlier_s = 0.0
        self.start = time.monotonic()

    @property
    def trained(self) -> Learner | EpisodeLearner:
        """Who holds the next version's weights; a cloner and a learner train the same policy."""
        trained = self.learner or self.cloner
        assert trained is not None
        return trained

    @property
    def elapsed_s(self) -> float:
        """Seconds the run has taken, earlier attempts included, but not what it waited for after a rollback."""
        return self.earlier_s + time.monotonic() - self.start - self.publisher.waited_s

    @property
    def finished(self) -> bool:
        """Whether the target is reached, or the budget spent."""
        budget, evaluate = self.settings.budget, self.settings.evaluate
        return (
            self.learner is None
            or self.reached >= evaluate.patience
            or self.env_steps >= budget.env_steps
            or (0 < budget.wall_s <= self.elapsed_s)
        )

    def run(self) -> None:
        """Train until `finished`."""
        if not self.warm:
            self.warm_start()
            self.checkpoint()
        while not self.finished:
            self.tick()
        self.checkpoint()

    def warm_start(self) -> None:
        """Clone demonstrations where the settings ask for it, and publish the first version."""
        start = time.perf_counter()
        values: dict[str, float] = {}
        begin = self.settings.warm_start
        if self.learner is None and not begin.clones:
            raise ConfigError(
                "cloning needs demonstrations",
                "warm_start.demonstrations",
                "give their number, such as 50, or warm_start.episodes, where they are stored",
            )
        first = self.cloner or self.trained
        if begin.weights is not None:
            first.load_pretrained(read_weights(begin.weights, self.policy))
            self.origin["weights"] = begin.weights
            if self.settings.compare.split is not None:
                keep(self.folder / BEGUN, first.tensors(), self.spec)
        if self.cloner is not None:
            cloned, parts = self._clone(self.cloner)
            values |= cloned
        published = self.publisher.publish(self.trained)
        if self.cloner is not None:
            record_consumed(self.folder / "episodes", self.step, published.manifest.number, parts)
        self._warmed()
        if self.settings.compare.split is not None:
            keep(self.folder / CLONE, self.trained.tensors(), self.spec)
        values |= self._evaluate()
        values |= {"rollout/env_steps": self.env_steps, "learner/version": self.publisher.number}
        self.store.seal()
        self.metrics.write(self.step, values | {"wall/step_s": time.perf_counter() - start, "wall/s": self.elapsed_s})

    def _clone(self, cloner: EpisodeLearner) -> tuple[dict[str, float], list[str]]:
        """Learn from demonstrations, which are let go of then; metrics, and what the update's record names."""
        self.progress.update(phase="demonstrations")
        shown = self._demonstrate()
        self.progress.update(phase="cloning", env_steps=self.env_steps)
        values = cloner.fit(shown)
        self._say_skipped(values)
        self.origin |= {"demonstrations": shown.source, "episodes": shown.count}
        return values | {"learner/demonstrations": shown.count}, sorted(set(shown.parts))

    def _warmed(self) -> None:
        """The warm start is over: where a learner goes on, the cloner and its optimiser only take memory."""
        self.warm = True
        if self.learner is not None:
            self.cloner = None

    def _demonstrate(self) -> Demonstrated:
        """The first demonstrations, of the store that is named or else of the expert."""
        begin = self.settings.warm_start
        if begin.episodes is not None:
            folder, limit = Path(begin.episodes), begin.memory_gb * 1e9
            shown = stored(folder, self.policy, begin.demonstrations, limit, self.progress.say, AGENT)
            return Demonstrated(begin.episodes, shown)
        forget(self.folder / "episodes", self.attempt)
        episodes, steps = by_the_expert(self.settings, self.spec, self.attempt, self._episodes)
        self.env_steps += steps
        for episode in episodes:
            self.store.add(episode)
        return Demonstrated(EXPERT, episodes)

    def tick(self) -> None:
        """One RL step: collect, reward, learn, publish, store; now and then evaluate and checkpoint."""
        self.watch.lap()
        self.step += 1
        segment = self.actor.collect()
        with self.watch("reward"):
            segment = self.reward.score(segment)
        newest = self.publisher.number
        segment, dropped = admit(segment, newest, self.settings.rollout.max_lag)
        assert self.learner is not None
        with self.watch("learning"):
            values = self._learn(segment)
        self._say_skipped(values)
        with self.watch("weights"):
            published = self.publisher.publish(self.learner)
        with self.watch("storage"):
            stored = self._store(segment)
            record_consumed(self.folder / "episodes", self.step, published.manifest.number, [segment.id])
        self.env_steps += segment.steps
        values |= self._rollout_metrics(segment, newest, dropped)
        if self.step % self.settings.evaluate.every == 0 or self.env_steps >= self.settings.budget.env_steps:
            with self.watch("evaluation"):
                values |= self._evaluate()
        parts = self.watch.lap()
        total = parts["total"]
        ended = int((segment.outcomes != Outcome.RUNNING).sum())
        values |= {
            "learner/version": published.manifest.number,
            "rollout/env_steps": self.env_steps,
            "buffer/stored_episodes": stored,
            "buffer/unassembled_episodes": self.assembler.dropped,
            **{f"wall/{part}_s": parts.get(part, 0.0) for part in PARTS},
            "wall/step_s": total,
            "wall/env_steps_per_s": segment.steps / total,
            "wall/fresh_trajectories_per_s": ended / total,
            "wall/rewards_per_s": segment.steps / max(parts.get("reward", 0.0), 1e-9),
            "wall/weight_sync_s": published.seconds,
            "wall/weight_sync_mb_per_s": published.bytes / 1e6 / max(published.seconds, 1e-9),
            "wall/s": self.elapsed_s,
            "wall/success_per_core_hour": self._successes(segment) / (total * len(os.sched_getaffinity(0)) / 3600),
        }
        self.metrics.write(self.step, values)
        self.progress.update(phase="training", env_steps=self.env_steps, version=published.manifest.number)
        if self.step % self.settings.checkpoint.every == 0:
            self.checkpoint()

    def _say_skipped(self, values: dict[str, float]) -> None:
        """Tell of gradient steps that the last update left out."""
        skipped = int(values.get("learner/skipped_steps", 0))
        if skipped > self.skipped:
            self.progress.say(f"step skipped: loss or gradient not finite ({skipped} so far)")
        self.skipped = skipped

    def _learn(self, segment: Segment) -> dict[str, float]:
        """One update; where the data are not what the learner's weights make, the error says what differs."""
        assert self.learner is not None
        try:
            return self.learner.update([segment])
        except RolloutMismatch as error:
            go_on = f"nothing was published; mend that, then `embodied train resume={self.folder}`"
            number = self.publisher.number
            raise explain(error, self.policy, self.client, segment, number, go_on) from None

    @staticmethod
    def _successes(segment: Segment) -> int:
        return int((segment.outcomes == Outcome.SUCCESS).sum())

    def _rollout_metrics(self, segment: Segment, newest: int, dropped: float) -> dict[str, float]:
        ended = segment.outcomes[
            (segment.outcomes != Outcome.RUNNING) & (segment.outcomes != Outcome.INFRASTRUCTURE_FAULT)
        ]
        lags = quantiles(version_lags(segment, newest), (0.5, 0.95, 1.0))
        return {
            "rollout/success_rate": float((ended == Outcome.SUCCESS).mean()) if len(ended) else math.nan,
            "rollout/episodes": len(ended),
            "rollout/reward_mean": float(segment.rewards.mean()),
            "rollout/faults": self.env.faults,
            "rollout/dropped_share": dropped,
            **{f"rollout/version_lag_{name}": value for name, value in lags.items()},
        }

    def _episodes(self, played: Played) -> list[Episode]:
        """Whole episodes, with ids that name the seed: `<mode>-<attempt>-<count>-<seed>`."""
        segment = self.reward.score(played.segment)
        episodes = EpisodeAssembler(self.env.spec, self.attempt).add(segment)
        self.played += 1
        name = f"{segment.mode}-{self.attempt}-{self.played:04d}"
        return [dataclasses.replace(episode, id=f"{name}-{episode.seed}") for episode in episodes]

    def _store(self, segment: Segment) -> int:
        return sum(self.store.add(episode) for episode in self.assembler.add(segment))

    def _store_whole(self, played: Played) -> list[Episode]:
        episodes = self._episodes(played)
        for episode in episodes:
            self.store.add(episode)
        return episodes

    def test(self, seeds: np.ndarray, name: str) -> tuple[Evaluation, list[Episode]]:
        """Play the present version on seeds, each exactly once, and store the episodes; the first ones for a video."""
        tested = self._tester.test(seeds, f"{self.attempt}-{name}")
        return tested, tested.shown

    def _evaluate(self) -> dict[str, float]:
        settings = self.settings.evaluate
        self.progress.update(phase="evaluation")
        played, _ = self.test(np.arange(settings.seed, settings.seed + settings.episodes), f"eval-{self.step}")
        rate = played.successes / max(played.counted, 1)
        low, high = wilson(played.successes, played.counted)
        self.reached = self.reached + 1 if rate >= settings.target else 0
        self.progress.update(success=rate)
        return {
            "eval/success_rate": rate,
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodes": played.counted,
            "eval/steps_mean": float(played.lengths.mean()),
        }

    def checkpoint(self) -> None:
        """Save everything the run needs to go on, and seal what was stored so far."""
        self.store.seal()
        state = {
            "step": self.step,
            "env_steps": self.env_steps,
            "reached": self.reached,
            "played": self.played,
            "skipped": self.skipped,
            "warm": self.warm,
            "origin": self.origin,
            "elapsed_s": self.elapsed_s,
            "version": self.publisher.number,
        }
        checkpoints.save(
            self.folder / "checkpoints",
            self.step,
            policy_tensors=self.trained.tensors(),
            policy_spec=self.spec.to_dict(),
            learner_state={
                "learner": self.trained.state(),
                "actor": self.actor.state(),
                "assembler": self.assembler.state(),
            },
            state=state,
            keep=self.settings.checkpoint.keep,
        )
        self.publisher.pair(self.step, checkpoints.steps(self.folder / "checkpoints"))

    def restore(self, saved: "checkpoints.Loaded", held: Held | None = None) -> None:
        """Go on from a checkpoint of this run. Its weights are published anew, under a number never used before.

        Args:
            held: The hold after a rollback that asked for this checkpoint.
        """
        state = saved.state
        if state["warm"] and self.settings.compare.split is not None:
            check_clone(self)
        self.trained.load(saved.learner["learner"])
        self.actor.load(saved.learner["actor"])
        self.assembler.load(saved.learner["assembler"])
        self.step, self.env_steps = int(state["step"]), int(state["env_steps"])
        self.reached, self.played = int(state["reached"]), int(state["played"])
        self.earlier_s = float(state["elapsed_s"])
        if state["warm"]:
            self._warmed()
        self.origin, self.skipped = dict(state.get("origin", {})), int(state.get("skipped", 0))
        self.metrics.truncate_after(self.step)
        self.publisher.publish(self.trained, held, parent=int(state["version"]))

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        self.metrics.close()
        self.client.close()
        self.env.close()
        self._tester.close()


def _learns_by(config: dict[str, Any], where: str) -> str:
    """`fit` for an `EpisodeLearner`, `update` for a `Learner`."""
    target = resolve(config, where)
    for method in ("fit", "update"):
        if hasattr(target, method) and hasattr(target, "tensors"):
            return method
    raise ConfigError(f"{config['_target_']} is no learner", f"{where}._target_", "such as embodied.learning.ppo.PPO")


PARTS = ("physics", "envs", "inference", "reward", "learning", "weights", "storage", "evaluation")
