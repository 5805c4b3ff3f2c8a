"""Proximal policy optimisation on segments of the present policy, or of versions shortly before."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from embodied.data import Segment
from embodied.errors import ConfigError, DataError
from embodied.learning.batch import AT_ONCE, Batch, assemble, check_on_policy
from embodied.learning.consistency import check_drift, measure
from embodied.learning.importance import Correction, diagnose, importance_weights
from embodied.learning.learner import Optimiser, PolicyLearner
from embodied.learning.losses import (
    Granularity,
    approximate_kl,
    clipped_policy_loss,
    masked_mean,
    reduce_log_ratio,
    value_loss,
)
from embodied.learning.normaliser import Normaliser
from embodied.learning.reference import Reference, reference_kl
from embodied.weights.manifest import Version
from policies.network import Judged
from policies.torch_policy import TorchPolicy


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    Attributes:
        gamma: Discount per control step. lam: Decay of the advantage estimator.
        epochs, minibatches: Passes over the data of one update, and parts of each pass.
        lr: Learning rate to begin with.
        target_kl: The learning rate moves by `lr_factor` when an update's KL is beyond twice this, or below half; 0
            keeps it.
        lr_factor, lr_min, lr_max: Its step and its limits.
        critic_lr: Learning rate of the critic, which stays; 0 lets it move with the actor's.
        clip: How far the probability ratio may pay off from 1.
        entropy: Weight of the entropy bonus. value: Weight of the value loss.
        max_grad_norm: The gradient is scaled down to this norm.
        critic_only_updates: The first updates train the critic alone; for an actor that was cloned.
        normaliser_steps: Observations after which the normaliser stands still; 0 keeps the one it starts with.
        granularity, per_dimension: See `embodied.learning.losses.reduce_log_ratio`.
        correction: For data of older versions. With `none` the ratio is taken to the version that decided. Otherwise it
            is taken to the weights before the update, and what they differ by enters as a weight; `truncated` or
            `masked`: see `embodied.learning.importance.importance_weights`, also for `truncate_at`, `band` and `veto`.
        reference_kl: Weight of the KL divergence to a reference policy, per executed number; 0 for no reference.
        reference_every: Updates after which the next published version becomes the reference; 0 stays with the first
            one published, such as the clone.
        drift: Largest drift of log-probabilities between decisions of the version last published and the same weights
            here, see `embodied.learning.consistency.measure`; beyond it nothing is learned. 0 does not check.
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
    critic_lr: float = 0.0
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    max_grad_norm: float = 1.0
    critic_only_updates: int = 0
    normaliser_steps: int = 10_000_000
    granularity: Granularity = "action"
    per_dimension: bool = False
    correction: Correction = "none"
    truncate_at: float = 2.0
    band: tuple[float, float] = (0.5, 5.0)
    veto: float = 1e-4
    reference_kl: float = 0.0
    reference_every: int = 0
    drift: float = 0.01
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        positive = ("epochs", "minibatches", "lr", "clip", "max_grad_norm", "truncate_at")
        wrong = [name for name in positive if not getattr(self, name) > 0]
        wrong += [name for name in ("gamma", "lam", "veto") if not 0 <= getattr(self, name) <= 1]
        wrong += [
            name for name in ("critic_lr", "reference_kl", "reference_every", "drift") if not getattr(self, name) >= 0
        ]
        if wrong:
            raise ConfigError(f"{wrong[0]}={getattr(self, wrong[0])}", "algo ppo", "give a number within its range")
        for name, known in (("granularity", Granularity), ("correction", Correction)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f"{name}={getattr(self, name)}", "algo ppo", f"give one of {', '.join(get_args(known))}"
                )
        numbers = [b for b in self.band if isinstance(b, int | float)] if isinstance(self.band, Sequence) else []
        if len(numbers) != 2 or len(self.band) != 2 or not 0 <= numbers[0] <= 1 <= numbers[1]:
            raise ConfigError(f"band={self.band}", "algo ppo", "give two numbers around 1, such as [0.5, 5.0]")


class PPO(PolicyLearner):
    """Proximal policy optimisation (Schulman et al. 2017), with advantages by GAE.

    Args:
        policy: The policy to train; this learner owns it.
        config: Settings.
        normaliser: To go on from, such as a cloned policy's.

    A policy has one normaliser per version. An update uses the one its policy holds; what the update's observations
    add to it enters the policy afterwards, and so takes part in the next version only.
    """

    algorithm, counts = "ppo", ("updates", "samples")

    def __init__(
        self, policy: TorchPolicy, config: PPOConfig | None = None, normaliser: Normaliser | None = None
    ) -> None:
        self.policy, self.config = policy, config or PPOConfig()
        self.network = policy.network.to(self.config.device)
        self.normaliser = normaliser or Normaliser(len(self.network.mean))
        cfg, net = self.config, self.network
        apart = net.critic.parameters() if cfg.critic_lr else ()
        self.optimiser = Optimiser(net.parameters(), cfg.lr, cfg.max_grad_norm, apart=apart, apart_lr=cfg.critic_lr)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.reference = Reference(policy) if self.config.reference_kl else None
        self.updates = 0
        self.samples = 0

    def published(self, version: Version) -> None:
        """As `Learner.published`; the reference moves to `version` where its time has come."""
        super().published(version)
        reference, every = self.reference, self.config.reference_every
        if reference is None:
            return
        if reference.version is None or (every and self.updates - reference.updates >= every):
            reference.take(self.policy, version, self.updates)

    def state(self) -> dict[str, Any]:
        """As `Learner.state`."""
        return super().state() | ({"reference": self.reference.state()} if self.reference else {})

    @property
    def parts(self) -> set[str]:
        return super().parts | ({"reference"} if self.reference else set())

    def load(self, state: Mapping[str, Any]) -> None:
        """As `Learner.load`."""
        self.check(state)
        if self.reference:
            self.reference.load(state["reference"])
        super().load(state)

    def update(self, segments: list[Segment]) -> dict[str, float]:
        """Learn from segments; see `Learner.update`.

        Raises:
            RolloutMismatch: Decisions of the present version drift by more than `drift`; nothing has changed then.
            DataError: A segment is not of mode `train`, or has NaN log-probabilities where the policy chose; no
                version was published that the reference could be; or learning broke down.
        """
        for segment in segments:
            check_on_policy(segment)
        batch, flat = assemble(self.policy, segments, self.config.gamma, self.config.lam)
        metrics = {"trainable_share": int(batch.executed.sum()) / sum(segment.steps for segment in segments)}
        if len(batch):
            judged = self._judge_all(batch)
            metrics |= self._before(batch, judged)
            batch, found = self._corrected(batch, judged)
            batch = self._compared(batch)
            metrics |= found
            metrics["grad_norm"] = self._optimise(batch)
            metrics |= self._after(batch)
        if self.normaliser.count < self.config.normaliser_steps:
            self.normaliser.update(flat)
            self.network.set_normaliser(*self.normaliser.frozen())
        self.updates += 1
        self.samples += len(batch)
        counts = {"updates": self.updates, "samples": self.samples, "skipped_steps": self.optimiser.skipped}
        return {f"learner/{name}": float(value) for name, value in (metrics | counts).items()}

    def _judge(self, batch: Batch) -> Judged:
        return self.network.judge(batch.inputs, batch.actions, batch.stored)

    @torch.no_grad()
    def _judge_all(self, batch: Batch) -> Judged:
        parts = [self._judge(part) for part in _parts(batch)]
        return Judged(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Judged)))

    def _log_ratio(self, judged: Judged, batch: Batch) -> tuple[Tensor, Tensor]:
        difference = judged.log_probs - batch.log_probs
        return reduce_log_ratio(difference, batch.executed, self.config.granularity, self.config.per_dimension)

    @torch.no_grad()
    def _before(self, batch: Batch, judged: Judged) -> dict[str, float]:
        """What the data are like before the first step; drift and ratio of decisions of the present version alone.

        Raises:
            RolloutMismatch: Their log-probabilities are not those of these weights.
        """
        fresh = torch.ones_like(batch.versions, dtype=torch.bool)
        if self.version is not None:
            fresh = batch.versions == self.version.number
        executed = batch.executed & fresh[:, None]
        found = measure(*reduce_log_ratio(judged.log_probs - batch.log_probs, executed, "token"))
        if self.version is not None and fresh.any():
            check_drift(found, self.config.drift, self.version.number)
        residual, spread = batch.advantages.var(correction=0), batch.returns.var(correction=0).clamp(min=1e-8)
        return {
            **{f"{name}_at_start": value for name, value in found.items()},
            "return": batch.returns.mean().item(),
            "advantage_std": residual.sqrt().item(),
            "explained_variance": 1.0 - (residual / spread).item(),
        }

    @torch.no_grad()
    def _corrected(self, batch: Batch, judged: Judged) -> tuple[Batch, dict[str, float]]:
        """The batch with the weights before the update as proximal policy, and importance weights."""
        cfg = self.config
        if cfg.correction == "none":
            return batch, {}
        log_ratio, mask = self._log_ratio(judged, batch)
        weights = importance_weights(log_ratio, mask, cfg.correction, cfg.truncate_at, cfg.band, cfg.veto)
        found = {f"importance_{name}": value for name, value in diagnose(log_ratio, mask, weights).items()}
        return replace(batch, log_probs=judged.log_probs, weights=weights), found

    def _compared(self, batch: Batch) -> Batch:
        """The batch with what the reference says of its actions."""
        reference = self.reference
        if reference is None:
            return batch
        if reference.version is None:
            raise DataError("there is no reference: no version was published", "algo ppo", "publish one, then update")
        parts = [reference.log_probs(p.numbers, p.inputs, p.actions, p.stored) for p in _parts(batch)]
        return replace(batch, reference=torch.cat(parts))

    def _optimise(self, batch: Batch) -> float:
        """All steps of one update; the mean norm of their gradients."""
        cfg, count = self.config, len(batch)
        spread = batch.advantages.std(correction=0) + 1e-8
        batch = replace(batch, advantages=(batch.advantages - batch.advantages.mean()) / spread)
        bounds = np.linspace(0, count, min(cfg.minibatches, count) + 1).astype(int)
        norms = []
        for _ in range(cfg.epochs):
            shuffled = batch.take(torch.randperm(count, generator=self.generator).to(self.network.device))
            for first, last in pairwise(bounds):
                norms.append(self.optimiser.step(self._loss(shuffled.take(slice(first, last)))))
        sound = [norm for norm in norms if math.isfinite(norm)]
        return sum(sound) / max(len(sound), 1)

    def _loss(self, part: Batch) -> Tensor:
        cfg = self.config
        if self.updates < cfg.critic_only_updates:
            return cfg.value * value_loss(self.network.value(part.inputs), part.returns)
        judged = self._judge(part)
        policy = clipped_policy_loss(*self._log_ratio(judged, part), part.advantages, cfg.clip, part.weights)
        loss = policy + cfg.value * value_loss(judged.values, part.returns)
        if part.reference is not None:
            loss = loss + cfg.reference_kl * reference_kl(judged.log_probs, part.reference, part.executed)
        return loss - cfg.entropy * masked_mean(judged.entropy.sum(-1), part.executed) if cfg.entropy else loss

    @torch.no_grad()
    def _after(self, batch: Batch) -> dict[str, float]:
        """How far the update went, and the learning rate moved accordingly."""
        cfg, judged = self.config, self._judge_all(batch)
        log_ratio, mask = self._log_ratio(judged, batch)
        kl = approximate_kl(log_ratio, mask).item()
        if cfg.target_kl and self.updates >= cfg.critic_only_updates:
            if kl > 2.0 * cfg.target_kl:
                self.optimiser.lr = max(self.optimiser.lr / cfg.lr_factor, cfg.lr_min)
            elif kl < 0.5 * cfg.target_kl:
                self.optimiser.lr = min(self.optimiser.lr * cfg.lr_factor, cfg.lr_max)
        found = {}
        if batch.reference is not None and self.reference is not None and self.reference.version is not None:
            found["reference_kl"] = reference_kl(judged.log_probs, batch.reference, batch.executed).item()
            found["reference_version"] = self.reference.version.number
        return found | {
            "policy_loss": clipped_policy_loss(log_ratio, mask, batch.advantages, cfg.clip, batch.weights).item(),
            "value_loss": value_loss(judged.values, batch.returns).item(),
            "entropy": masked_mean(judged.entropy.sum(-1), batch.executed).item(),
            "kl": kl,
            "clip_fraction": masked_mean((torch.expm1(log_ratio).abs() > cfg.clip).float(), mask).item(),
            "lr": self.optimiser.lr,
        }


def _parts(batch: Batch) -> Iterator[Batch]:
    """The batch in pieces small enough for one forward pass without gradient."""
    if len(batch) <= AT_ONCE:
        yield batch
        return
    for first in range(0, len(batch), AT_ONCE):
        yield batch.take(slice(first, first + AT_ONCE))
