"""Proximal policy optimisation on segments of the present policy, or of versions shortly before."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.data import Segment
from embodied.errors import ConfigError, DataError
from embodied.learning.batch import AT_ONCE, Batch, assemble, check_on_policy
from embodied.learning.consistency import check_drift, measure
from embodied.learning.device import checked_device
from embodied.learning.importance import diagnose, importance_weights
from embodied.learning.learner import Optimiser, PolicyLearner
from embodied.learning.losses import (
    approximate_kl,
    clipped_policy_loss,
    masked_mean,
    reduce_log_ratio,
    value_loss,
)
from embodied.learning.normaliser import Normaliser
from embodied.learning.older_versions import OlderVersions
from embodied.learning.ppo_config import PPOConfig
from embodied.learning.reference import Reference, reference_kl
from embodied.weights.manifest import Version
from policies.network import Evaluated
from policies.torch_policy import TorchPolicy


class PPO(PolicyLearner):
    """Proximal policy optimisation (Schulman et al. 2017), with advantages by GAE.

    Args:
        policy: The policy to train; this learner owns it.
        config: Settings.
        normaliser: Continued, such as a cloned policy's.

    Attributes:
        older: Earlier versions, against which the drift of data is checked that all lag.

    A policy has one normaliser per version. An update uses the one its policy holds; what the update's observations
    add to it enters the policy afterwards, and so takes part in the next version only.
    """

    algorithm, counts = "ppo", ("updates", "samples")
    has_ratio = True

    def __init__(
        self, policy: TorchPolicy, config: PPOConfig | None = None, normaliser: Normaliser | None = None
    ) -> None:
        self.policy, self.config = policy, config or PPOConfig()
        self.network = policy.network.to(checked_device(self.config.device))
        self.normaliser = normaliser or Normaliser(len(self.network.mean))
        cfg, net = self.config, self.network
        apart = net.critic.parameters() if cfg.critic_lr else ()
        self.optimiser = Optimiser(net.parameters(), cfg.lr, cfg.max_grad_norm, apart=apart, apart_lr=cfg.critic_lr)
        self.at_once = min(cfg.micro_batch or AT_ONCE, AT_ONCE)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.reference = Reference(policy) if self.config.reference_kl else None
        self.older = OlderVersions(policy)
        self.updates = 0
        self.samples = 0

    def published(self, version: Version) -> None:
        """Note the version; the reference moves to `version` where its time has come."""
        super().published(version)
        reference, every = self.reference, self.config.reference_every
        if reference is None:
            return
        if reference.version is None or (every and self.updates - reference.updates >= every):
            reference.take(self.policy, version, self.updates)

    def state(self) -> dict[str, Any]:
        return super().state() | ({"reference": self.reference.state()} if self.reference else {})

    @property
    def parts(self) -> set[str]:
        return super().parts | ({"reference"} if self.reference else set())

    def load(self, state: Mapping[str, Any]) -> None:
        self.check(state)
        if self.reference:
            self.reference.load(state["reference"])
        super().load(state)
        if self.config.target_kl:
            self.optimiser.lr = min(max(self.optimiser.lr, self.config.lr_min), self.config.lr_max)

    def check(self, state: Mapping[str, Any]) -> None:
        """As `PolicyLearner.check`.

        Raises:
            ConfigError: A reference is asked for, and the state is of a learner that had none.
        """
        if self.parts - state.keys() == {"reference"}:
            what = "the run has learned without a reference policy so far, and keeps none to stay close to"
            fix = (
                "give algo.reference_kl=0, or start a new run with warm_start.weights=<this run> and algo.reference_kl"
            )
            raise ConfigError(what, "algo.reference_kl", fix)
        super().check(state)

    def update(self, segments: list[Segment]) -> dict[str, float]:
        """Learn from segments; see `Learner.update`.

        Raises:
            RolloutMismatch: Decisions of one version drift by more than `drift`; nothing has changed then.
            DataError: A segment is not of mode `train`, or has NaN log-probabilities where the policy chose; no
                version was published that the reference could be; or learning broke down.
        """
        for segment in segments:
            check_on_policy(segment)
        batch, flat = assemble(self.policy, segments, self.config.gamma, self.config.lam, self.at_once)
        metrics = {"trainable_share": int(batch.executed.sum()) / sum(segment.steps for segment in segments)}
        if len(batch):
            evaluated = self._evaluate_all(batch)
            metrics |= self._before(batch, evaluated)
            batch, found = self._corrected(batch, evaluated)
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

    def _evaluate(self, batch: Batch) -> Evaluated:
        evaluated = self.network.evaluate_actions(batch.inputs, batch.actions, batch.stored)
        if batch.critic_inputs is not None:
            evaluated = replace(evaluated, values=self.network.value(batch.critic_inputs))
        return evaluated

    @torch.no_grad()
    def _evaluate_all(self, batch: Batch) -> Evaluated:
        parts = [self._evaluate(part) for part in _parts(batch, self.at_once)]
        return Evaluated(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Evaluated)))

    def _log_ratio(self, evaluated: Evaluated, batch: Batch) -> tuple[Tensor, Tensor]:
        difference = evaluated.log_probs - batch.log_probs
        return reduce_log_ratio(difference, batch.executed, self.config.granularity, self.config.per_dimension)

    @torch.no_grad()
    def _before(self, batch: Batch, evaluated: Evaluated) -> dict[str, float]:
        """Statistics of the data before the first step; drift and ratio of decisions of one version alone.

        It is the present version, or, where all decisions are older, the newest of theirs that can be read.

        Raises:
            RolloutMismatch: Their log-probabilities are not those of these weights.
        """
        fresh = torch.ones_like(batch.versions, dtype=torch.bool)
        if self.version is not None:
            fresh = batch.versions == self.version.number
        executed = batch.executed & fresh[:, None]
        found = measure(*reduce_log_ratio(evaluated.log_probs - batch.log_probs, executed, "token"))
        if self.version is not None and fresh.any():
            check_drift(found, self.config.drift, self.version.number)
        elif self.version is not None and self.config.drift and (older := self.older.measure(batch, self.at_once)):
            number, found = older
            check_drift(found, self.config.drift, number)
        residual, spread = batch.advantages.var(correction=0), batch.returns.var(correction=0).clamp(min=1e-8)
        return {
            **{f"{name}_at_start": value for name, value in found.items()},
            "return": batch.returns.mean().item(),
            "advantage_std": residual.sqrt().item(),
            "explained_variance": 1.0 - (residual / spread).item(),
        }

    @torch.no_grad()
    def _corrected(self, batch: Batch, evaluated: Evaluated) -> tuple[Batch, dict[str, float]]:
        """The batch with the weights before the update as proximal policy, and importance weights."""
        cfg = self.config
        if cfg.correction == "none":
            return batch, {}
        log_ratio, mask = self._log_ratio(evaluated, batch)
        weights = importance_weights(log_ratio, mask, cfg.correction, cfg.truncate_at, cfg.band, cfg.veto)
        found = {f"importance_{name}": value for name, value in diagnose(log_ratio, mask, weights).items()}
        return replace(batch, log_probs=evaluated.log_probs, weights=weights), found

    def _compared(self, batch: Batch) -> Batch:
        """The batch with the reference's log-probabilities of its actions."""
        reference = self.reference
        if reference is None:
            return batch
        if reference.version is None:
            raise DataError("there is no reference: no version was published", "algo ppo", "publish one, then update")
        parts = [reference.log_probs(p.numbers, p.inputs, p.actions, p.stored) for p in _parts(batch, self.at_once)]
        return replace(batch, reference=torch.cat(parts))

    def _optimise(self, batch: Batch) -> float:
        """All steps of one update; the mean norm of their gradients."""
        cfg, count = self.config, len(batch)
        spread = batch.advantages.std(correction=0) + 1e-8
        batch = replace(batch, advantages=(batch.advantages - batch.advantages.mean()) / spread)
        bounds = np.linspace(0, count, min(cfg.minibatches, count) + 1).astype(int)
        norms = []
        for _ in range(cfg.epochs):
            order = torch.randperm(count, generator=self.generator).to(self.network.device)
            for first, last in pairwise(bounds):
                norms.append(self.optimiser.step(self._losses(batch, order[first:last])))
        sound = [norm for norm in norms if math.isfinite(norm)]
        return sum(sound) / max(len(sound), 1)

    def _losses(self, batch: Batch, rows: Tensor) -> Tensor | Iterator[Tensor]:
        """The loss of a minibatch; with `micro_batch` the terms of its sum, each computed on demand."""
        parts = rows.split(min(self.config.micro_batch or len(rows), len(rows)))
        if len(parts) == 1:
            return self._loss(batch.take(rows))
        actions = int(batch.executed[rows].sum())
        taken = (batch.take(part) for part in parts)
        return (self._loss(part, len(part) / len(rows), int(part.executed.sum()) / actions) for part in taken)

    def _loss(self, part: Batch, decisions: float = 1.0, actions: float = 1.0) -> Tensor:
        """The loss of a minibatch, or the term that a part of it adds, each mean weighted by the part's share.

        Args:
            decisions, actions: The part's share of the minibatch's decisions, and of its executed actions.
        """
        cfg = self.config
        if self.updates < cfg.critic_only_updates:
            return (
                cfg.value * decisions * value_loss(self.network.value(part.critic_inputs or part.inputs), part.returns)
            )
        evaluated = self._evaluate(part)
        policy = clipped_policy_loss(*self._log_ratio(evaluated, part), part.advantages, cfg.clip, part.weights)
        loss = policy * (decisions if cfg.granularity == "chunk" else actions)
        loss = loss + cfg.value * decisions * value_loss(evaluated.values, part.returns)
        if part.reference is not None:
            loss = loss + cfg.reference_kl * actions * reference_kl(evaluated.log_probs, part.reference, part.executed)
        if cfg.entropy:
            loss = loss - cfg.entropy * actions * masked_mean(evaluated.entropy.sum(-1), part.executed)
        return loss

    @torch.no_grad()
    def _after(self, batch: Batch) -> dict[str, float]:
        """Measure the size of the update, and move the learning rate accordingly."""
        cfg, evaluated = self.config, self._evaluate_all(batch)
        log_ratio, mask = self._log_ratio(evaluated, batch)
        kl = approximate_kl(log_ratio, mask).item()
        if cfg.target_kl and self.updates >= cfg.critic_only_updates:
            if kl > 2.0 * cfg.target_kl:
                self.optimiser.lr = max(self.optimiser.lr / cfg.lr_factor, cfg.lr_min)
            elif kl < 0.5 * cfg.target_kl:
                self.optimiser.lr = min(self.optimiser.lr * cfg.lr_factor, cfg.lr_max)
        found = {}
        if batch.reference is not None and self.reference is not None and self.reference.version is not None:
            found["reference_kl"] = reference_kl(evaluated.log_probs, batch.reference, batch.executed).item()
            found["reference_version"] = self.reference.version.number
        return found | {
            "policy_loss": clipped_policy_loss(log_ratio, mask, batch.advantages, cfg.clip, batch.weights).item(),
            "value_loss": value_loss(evaluated.values, batch.returns).item(),
            "entropy": masked_mean(evaluated.entropy.sum(-1), batch.executed).item(),
            "kl": kl,
            "clip_fraction": masked_mean((torch.expm1(log_ratio).abs() > cfg.clip).float(), mask).item(),
            "lr": self.optimiser.lr,
        }


def _parts(batch: Batch, at_once: int) -> Iterator[Batch]:
    """The batch in pieces of at most `at_once` decisions, for passes without gradient."""
    if len(batch) <= at_once:
        yield batch
        return
    for first in range(0, len(batch), at_once):
        yield batch.take(slice(first, first + at_once))
