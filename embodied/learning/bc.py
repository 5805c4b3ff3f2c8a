"""Behaviour cloning: supervised learning of the actions that demonstrators chose."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Interval

from embodied.episode import Episode
from embodied.learning.augmentation import vary_pictures, vary_words
from embodied.learning.demonstrations import Demonstrations, gather
from embodied.learning.device import checked_device
from embodied.learning.learner import TENTHS, FitReport, Optimiser, PolicyLearner
from embodied.learning.losses import masked_mean
from embodied.learning.normaliser import Normaliser
from embodied.settings import AboveZero, AtLeastOne, Limit, Share, Text, Weight, settings
from policies.network import Inputs
from policies.torch_policy import TorchPolicy

Deviation = Annotated[float, Interval(ge=1e-6, le=1e6)]
"""A standard deviation in 32-bit floats, which are multiplied and divided by it."""


@settings("algo")
class BCConfig:
    """Settings of behaviour cloning.

    Attributes:
        steps: Gradient steps of one `fit`; few, since a handful of demonstrations is soon overfitted.
        seconds: Wall time after which a `fit` ends, but not before its first step; 0 for no limit. A `fit` that it
            ends does not repeat bit for bit.
        batch: Decisions in each step, drawn with replacement.
        lr: Learning rate at the first step of a `fit`; falls to zero along a half cosine.
        std_floor: Least standard deviation of the normaliser, in physical units.
        initial_std: Standard deviation of raw actions that the clone starts reinforcement learning with.
        word_dropout: Share of an instruction's words that random words replace, while the instruction is shifted, so
            that the clone reads phrasings that were never demonstrated; 0 for neither.
        picture_jitter: Channels of a picture are multiplied by factors up to this far from 1.
        picture_shift: Pixels by which a picture moves at most. Both 0 show pictures as they were.
        max_grad_norm: The gradient is scaled down to this norm.
        held_out: Share of the episodes that are not learned from, whose loss is `learner/bc_held_out_loss`; every tenth
            for 0.1. 0 learns from all.
        agent: Name of the track of an episode to learn from; None for the only one.
        seed: Draws the batches.
        device: Where the network trains.
    """

    steps: AtLeastOne = 300
    seconds: Weight = 0.0
    batch: AtLeastOne = 256
    lr: AboveZero = 1e-3
    std_floor: Annotated[float, Interval(ge=1e-12, le=1e6)] = 1e-2
    initial_std: Deviation = 0.3
    word_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.15
    picture_jitter: Share = 0.3
    picture_shift: Annotated[int, Interval(ge=0, le=4096)] = 1
    max_grad_norm: Limit = 1.0
    held_out: Annotated[float, Interval(ge=0, le=0.5)] = 0.0
    agent: Text | None = None
    seed: int = 0
    device: Text = "cpu"


class BehaviourCloning(PolicyLearner):
    """Maximum likelihood of what was demonstrated, in the policy's own terms (`PolicyNetwork.clone_loss`).

    Args:
        policy: The policy to train; this learner owns it. Its critic is left as it is.
        config: Settings.
    """

    algorithm, counts = "bc", ("fits",)

    def __init__(self, policy: TorchPolicy, config: BCConfig | None = None) -> None:
        self.policy, self.config = policy, config or BCConfig()
        self.network = policy.network.to(checked_device(self.config.device))
        self.normaliser = Normaliser(len(self.network.mean), self.config.std_floor)
        trained = [p for p in self.network.parameters() if p.requires_grad]
        self.optimiser = Optimiser(trained, self.config.lr, self.config.max_grad_norm)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.fits = 0
        self._losses: list[float] = []
        self._norms: list[float] = []

    def fit(
        self,
        episodes: Iterable[Episode],
        report: FitReport | None = None,
        begun: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Learn from what humans and scripts chose in `episodes`; the first call fixes the normaliser, unless
        the weights it began with have one.

        Args:
            episodes: Read one by one, once.
            report: Told how far learning is.
            begun: `fit_state` of an interrupted call on the same episodes, which continues bit for bit.

        Raises:
            DataError: No such step in any episode, or learning broke down.
        """
        cfg, net, senses = self.config, self.network, self.policy.senses
        privileged = [stream.name for stream in senses.critic]
        kept: list[Episode] = []
        shown = gather(self._split(episodes, kept), senses.names, net.chunk, cfg.agent, privileged)
        held_out = gather(kept, senses.names, net.chunk, cfg.agent, privileged) if kept else None
        if not self.normaliser.count:
            self.normaliser.update(self.policy.flatten(shown.streams, len(shown)))
            net.set_normaliser(*self.normaliser.frozen())
        net.prepare_clone(cfg.initial_std)
        losses, norms = self._losses, self._norms = [], []
        if begun is not None:
            self.load(begun["learner"])
            losses += begun["losses"]
            norms += begun["norms"]
        reports = int(TENTHS * len(losses) / cfg.steps)
        start, size = time.monotonic(), min(cfg.batch, len(shown))
        for step in range(len(losses), cfg.steps):
            done = step / cfg.steps
            if cfg.seconds and step:
                done = max(done, (time.monotonic() - start) / cfg.seconds)
            if done >= 1.0:
                break
            self.optimiser.lr = cfg.lr * 0.5 * (1.0 + math.cos(math.pi * done))
            index = torch.randint(len(shown), (size,), generator=self.generator).numpy()
            loss = self._loss(shown, index, varied=True)
            norms.append(self.optimiser.step(loss))
            losses.append(loss.item())
            if report is not None:
                after = (step + 1) / cfg.steps
                if cfg.seconds:
                    after = max(after, min((time.monotonic() - start) / cfg.seconds, 1.0))
                is_tenth = int(TENTHS * after) > reports
                reports = int(TENTHS * after)
                report(after, losses[-1], self._so_far(losses, held_out) if is_tenth else {})
        self.fits += 1
        return {
            "learner/bc_loss": self._error(shown),
            **({"learner/bc_held_out_loss": self._error(held_out)} if held_out is not None else {}),
            "learner/bc_first_loss": losses[0],
            "learner/bc_steps": float(len(losses)),
            "learner/grad_norm": float(np.nanmean(norms)) if np.isfinite(norms).any() else math.nan,
            "learner/samples": float(shown.mask.sum()),
            "learner/skipped_steps": float(self.optimiser.skipped),
        }

    def fit_state(self) -> dict[str, Any]:
        return {"learner": self.state(), "losses": list(self._losses), "norms": list(self._norms)}

    def _split(self, episodes: Iterable[Episode], held_out: list[Episode]) -> Iterator[Episode]:
        """The episodes to learn from; the others are added to `held_out`."""
        every = round(1 / self.config.held_out) if self.config.held_out else 0
        for number, episode in enumerate(episodes, start=1):
            if every and number % every == 0:
                held_out.append(episode)
            else:
                yield episode

    def _so_far(self, losses: list[float], held_out: Demonstrations | None) -> dict[str, float]:
        """Metrics within a `fit`; the random numbers that follow stay as they would be."""
        recent = losses[-max(len(losses) // TENTHS, 1) :]
        values = {"learner/bc_loss": float(np.mean(recent)), "learner/bc_steps": float(len(losses))}
        if held_out is not None:
            state = self.generator.get_state()
            values["learner/bc_held_out_loss"] = self._error(held_out)
            self.generator.set_state(state)
        return values

    def _loss(self, shown: Demonstrations, index: np.ndarray, varied: bool = False) -> torch.Tensor:
        inputs = self.policy.inputs({name: array[index] for name, array in shown.streams.items()}, len(index))
        if varied:
            self._vary(inputs)
        actions = torch.from_numpy(shown.actions[index]).to(self.network.device)
        mask = torch.from_numpy(shown.mask[index]).to(self.network.device)
        return masked_mean(self.network.clone_loss(inputs, actions, self.generator), mask)

    def _vary(self, inputs: Inputs) -> None:
        cfg, senses = self.config, self.policy.senses
        if cfg.word_dropout and senses.words is not None:
            inputs["words"] = vary_words(inputs["words"], cfg.word_dropout, senses.words.vocabulary, self.generator)
        if cfg.picture_jitter or cfg.picture_shift:
            for picture in senses.pictures:
                shown = inputs[picture.name]
                inputs[picture.name] = vary_pictures(shown, cfg.picture_jitter, cfg.picture_shift, self.generator)

    @torch.no_grad()
    def _error(self, shown: Demonstrations) -> float:
        """Mean loss over everything shown, weighted by how much of it each part holds."""
        total = 0.0
        for first in range(0, len(shown), self.config.batch):
            index = np.arange(first, min(first + self.config.batch, len(shown)))
            total += self._loss(shown, index).item() * float(shown.mask[index].sum())
        return total / float(shown.mask.sum())
