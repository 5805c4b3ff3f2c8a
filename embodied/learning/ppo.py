"""Proximal policy optimisation on segments of the present policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.data import Segment
from embodied.errors import ConfigError
from embodied.learning.batch import Batch, assemble, check_on_policy
from embodied.learning.learner import Optimiser, TrainablePolicy, check_state, model_state
from embodied.learning.losses import (
    Granularity,
    approximate_kl,
    clipped_policy_loss,
    masked_mean,
    reduce_log_ratio,
    value_loss,
)
from embodied.learning.normaliser import Normaliser


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    Attributes:
        gamma: Discount per control step. lam: Decay of the advantage estimator.
        epochs, minibatches: Passes over the data of one update, and parts of each pass.
        lr: Learning rate to begin with.
        target_kl: The learning rate moves by `lr_factor` towards this KL per update; 0 keeps it.
        lr_factor, lr_min, lr_max: Its step and its limits.
        clip: How far the probability ratio may pay off from 1.
        entropy: Weight of the entropy bonus. value: Weight of the value loss.
        max_grad_norm: The gradient is scaled down to this norm.
        critic_only_updates: The first updates train the critic alone; for an actor that was cloned.
        normaliser_steps: Observations after which the normaliser stands still; 0 keeps the one it starts with.
        granularity: See `embodied.learning.losses.reduce_log_ratio`.
        seed: Draws the minibatches.
        device: Where the network trains.
    """

    gamma: float = 0.97
    lam: float = 0.95
    epochs: int = 8
    minibatches: int = 4
    lr: float = 3e-4
    target_kl: float = 0.01
    lr_factor: float = 1.5
    lr_min: float = 1e-5
    lr_max: float = 3e-3
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    max_grad_norm: float = 1.0
    critic_only_updates: int = 0
    normaliser_steps: int = 10_000_000
    granularity: Granularity = "action"
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        wrong = [
            name for name in ("epochs", "minibatches", "lr", "clip", "max_grad_norm") if not getattr(self, name) > 0
        ]
        wrong += [name for name in ("gamma", "lam") if not 0 <= getattr(self, name) <= 1]
        wrong += ["granularity"] if self.granularity not in get_args(Granularity) else []
        if wrong:
            raise ConfigError(f"{wrong[0]}={getattr(self, wrong[0])}", "algo ppo", "give a number within its range")


class PPO:
    """Proximal policy optimisation (Schulman et al. 2017), with advantages by GAE.

    Args:
        policy: The policy to train; this learner owns it.
        config: Settings.
        normaliser: To go on from, such as a cloned policy's.

    A policy has one normaliser per version. An update uses the one its policy holds; what the update's observations
    add to it enters the policy afterwards, and so takes part in the next version only.
    """

    def __init__(
        self, policy: TrainablePolicy, config: PPOConfig | None = None, normaliser: Normaliser | None = None
    ) -> None:
        self.policy, self.config = policy, config or PPOConfig()
        self.network = policy.network.to(self.config.device)
        self.normaliser = normaliser or Normaliser(len(self.network.mean))
        self.optimiser = Optimiser(self.network.parameters(), self.config.lr, self.config.max_grad_norm)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.updates = 0
        self.samples = 0

    def update(self, segments: list[Segment]) -> dict[str, float]:
        """Learn from segments; see `Learner.update`.

        Raises:
            DataError: A segment is not of mode `train`, has chunks of several actions, or log-probabilities that are
                NaN where the policy chose; or learning broke down.
        """
        for segment in segments:
            check_on_policy(segment)
        batch, flat = assemble(self.policy, segments, self.config.gamma, self.config.lam)
        metrics = {"trainable_share": len(batch) / sum(segment.steps for segment in segments)}
        if len(batch):
            metrics |= self._describe(batch)
            metrics |= self._optimise(batch)
        if self.normaliser.count < self.config.normaliser_steps:
            self.normaliser.update(flat)
            self.network.set_normaliser(*self.normaliser.frozen())
        self.updates += 1
        self.samples += len(batch)
        counts = {"updates": self.updates, "samples": self.samples, "skipped_steps": self.optimiser.skipped}
        return {f"learner/{name}": float(value) for name, value in (metrics | counts).items()}

    def _describe(self, batch: Batch) -> dict[str, float]:
        """What the data look like before the first step. The ratio is 1 to rounding at equal weights."""
        with torch.no_grad():
            log_ratio, mask = self._log_ratio(batch)
            ratio, largest = masked_mean(torch.exp(log_ratio), mask), torch.where(mask, log_ratio, 0.0).abs().amax()
            residual, spread = batch.advantages.var(correction=0), batch.returns.var(correction=0).clamp(min=1e-8)
        return {
            "ratio_at_start": ratio.item(),
            "max_log_ratio_at_start": largest.item(),
            "return": batch.returns.mean().item(),
            "advantage_std": residual.sqrt().item(),
            "explained_variance": 1.0 - (residual / spread).item(),
        }

    def _log_ratio(self, batch: Batch) -> tuple[Tensor, Tensor]:
        log_probs = self.network.log_prob(self.network.raw_mean(batch.inputs), batch.actions)
        return reduce_log_ratio(log_probs - batch.log_probs, batch.executed, self.config.granularity)

    def _optimise(self, batch: Batch) -> dict[str, float]:
        cfg, count = self.config, len(batch)
        spread = batch.advantages.std(correction=0) + 1e-8
        batch = replace(batch, advantages=(batch.advantages - batch.advantages.mean()) / spread)
        critic_only = self.updates < cfg.critic_only_updates
        bounds = np.linspace(0, count, min(cfg.minibatches, count) + 1).astype(int)
        metrics: list[dict[str, float]] = []
        for _ in range(cfg.epochs):
            shuffled = batch.take(torch.randperm(count, generator=self.generator).to(self.network.device))
            parts = [shuffled.take(slice(a, b)) for a, b in pairwise(bounds)]
            metrics += [self._step(part, critic_only) for part in parts]
        sound = [m for m in metrics if math.isfinite(m["grad_norm"])]
        result = {name: float(np.mean([m[name] for m in sound])) for name in sound[0]} if sound else {}
        if sound and cfg.target_kl and not critic_only:
            reached = float(np.mean([m["kl"] for m in sound[-len(parts) :]]))
            if reached > 2.0 * cfg.target_kl:
                self.optimiser.lr = max(self.optimiser.lr / cfg.lr_factor, cfg.lr_min)
            elif reached < 0.5 * cfg.target_kl:
                self.optimiser.lr = min(self.optimiser.lr * cfg.lr_factor, cfg.lr_max)
            result["kl"] = reached
        return result | {"lr": self.optimiser.lr, "std": float(self.network.log_std.detach().exp().mean())}

    def _step(self, part: Batch, critic_only: bool) -> dict[str, float]:
        net, cfg = self.network, self.config
        error = value_loss(net.value(part.inputs), part.returns)
        if critic_only:
            return {"value_loss": error.item(), "grad_norm": self.optimiser.step(error)}
        log_ratio, mask = self._log_ratio(part)
        policy = clipped_policy_loss(log_ratio, mask, part.advantages, cfg.clip)
        entropy = net.entropy()
        norm = self.optimiser.step(policy + cfg.value * error - cfg.entropy * entropy)
        with torch.no_grad():
            clipped = masked_mean((torch.expm1(log_ratio).abs() > cfg.clip).float(), mask)
            kl = approximate_kl(log_ratio, mask)
            names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
            numbers = torch.stack([policy, error, entropy, kl, clipped]).tolist()
        return dict(zip(names, numbers, strict=True)) | {"grad_norm": norm}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return self.policy.tensors()

    def state(self) -> dict[str, Any]:
        return {
            "algorithm": "ppo",
            "spec": self.policy.spec.to_dict(),
            "model": model_state(self.policy),
            "optimiser": self.optimiser.state(),
            "normaliser": self.normaliser.state(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "samples": self.samples,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        check_state(state, "ppo", self.policy)
        self.policy.load({name: tensor.numpy() for name, tensor in state["model"].items()})
        self.optimiser.load(state["optimiser"])
        self.normaliser.load(state["normaliser"])
        self.generator.set_state(state["generator"])
        self.updates, self.samples = int(state["updates"]), int(state["samples"])
