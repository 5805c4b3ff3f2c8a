"""Behaviour cloning: supervised learning of the actions that demonstrators chose."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.data import Episode, Source, Track
from embodied.errors import ConfigError, DataError, nearest
from embodied.learning.learner import Optimiser, PolicyLearner, TrainablePolicy
from embodied.learning.losses import masked_mean
from embodied.learning.normaliser import Normaliser


@dataclass(frozen=True)
class BCConfig:
    """Settings of behaviour cloning.

    Attributes:
        steps: Gradient steps of one `fit`; few, since a handful of demonstrations is soon learned by heart.
        batch: Decisions in each step, drawn with replacement.
        lr: Learning rate at the first step of a `fit`; falls to zero along a half cosine.
        std_floor: Least standard deviation of the normaliser, in physical units.
        initial_std: Standard deviation of raw actions that the clone starts reinforcement learning with.
        max_grad_norm: The gradient is scaled down to this norm.
        agent: Whose track of an episode to learn from.
        seed: Draws the batches.
        device: Where the network trains.
    """

    steps: int = 300
    batch: int = 256
    lr: float = 1e-3
    std_floor: float = 1e-2
    initial_std: float = 0.3
    max_grad_norm: float = 1.0
    agent: str = "robot"
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "lr", "std_floor", "initial_std"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}", "algo bc", "give a number above zero")


class BehaviourCloning(PolicyLearner):
    """Least squares on raw actions, which is maximum likelihood for a Gaussian of fixed standard deviation.

    Args:
        policy: The policy to train; this learner owns it. Its critic is left as it is.
        config: Settings.
    """

    algorithm, counts = "bc", ("fits",)

    def __init__(self, policy: TrainablePolicy, config: BCConfig | None = None) -> None:
        self.policy, self.config = policy, config or BCConfig()
        self.network = policy.network.to(self.config.device)
        self.normaliser = Normaliser(len(self.network.mean), self.config.std_floor)
        self.optimiser = Optimiser(self.network.actor.parameters(), self.config.lr, self.config.max_grad_norm)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.fits = 0

    def fit(self, episodes: Iterable[Episode]) -> dict[str, float]:
        """Learn from what humans and scripts chose in `episodes`; the first call fixes the normaliser.

        Raises:
            DataError: No such step in any episode, or learning broke down.
        """
        cfg, net = self.config, self.network
        flat, actions, mask = self._demonstrations(episodes)
        if not self.normaliser.count:
            self.normaliser.update(flat)
            net.set_normaliser(*self.normaliser.frozen())
            with torch.no_grad():
                net.log_std.fill_(math.log(cfg.initial_std))
        inputs = net.normalise(torch.from_numpy(flat).to(net.device))
        raw = torch.from_numpy(actions).to(net.device) / net.action_scale
        executed = torch.from_numpy(mask).to(net.device)
        losses, norms = [], []
        for step in range(cfg.steps):
            self.optimiser.lr = cfg.lr * 0.5 * (1.0 + math.cos(math.pi * step / cfg.steps))
            index = torch.randint(len(flat), (min(cfg.batch, len(flat)),), generator=self.generator).to(net.device)
            loss = self._loss(inputs[index], raw[index], executed[index])
            norms.append(self.optimiser.step(loss))
            losses.append(loss.item())
        self.fits += 1
        with torch.no_grad():
            error = self._loss(inputs, raw, executed).item()
        return {
            "learner/bc_loss": error,
            "learner/bc_first_loss": losses[0],
            "learner/grad_norm": float(np.nanmean(norms)),
            "learner/samples": float(mask.sum()),
            "learner/skipped_steps": float(self.optimiser.skipped),
        }

    def _demonstrations(
        self, episodes: Iterable[Episode]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """Observations [N, F], actions [N, K, D] and which of them a demonstrator chose and executed [N, K]."""
        name, parts = self.config.agent, []
        for episode in episodes:
            if name not in episode.agents:
                raise DataError(f"no agent {name} in it", f"episode {episode.id}", nearest(name, episode.agents))
            track = episode.agents[name]
            mask = demonstrated(track)
            keep = mask.any(axis=1)
            seen = {stream: array[track.seq[keep]] for stream, array in track.observations.items()}
            parts.append((self.policy.flatten(seen, int(keep.sum())), track.actions[keep], mask[keep]))
        if not sum(len(part[0]) for part in parts):
            raise DataError("no step that a human or a script chose", "demonstrations", "record demonstrations first")
        flat, actions, masks = (np.concatenate(column) for column in zip(*parts, strict=True))
        return flat, actions, masks

    def _loss(self, inputs: Tensor, raw: Tensor, executed: Tensor) -> Tensor:
        return masked_mean((self.network.raw_mean(inputs) - raw).square().mean(-1), executed)


def demonstrated(track: Track) -> NDArray[np.bool_]:
    """[N, K] actions that a human or a script chose, that were executed, and that may train."""
    chosen = track.trainable & np.isin(track.source, (Source.HUMAN, Source.SCRIPT))
    mask = np.zeros(track.executed.shape, bool)
    mask[track.decision[chosen], track.k[chosen]] = True
    return mask & track.executed
