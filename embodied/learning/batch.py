"""From segments to the decisions that an on-policy loss may use."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.data import Segment, Source
from embodied.errors import DataError
from embodied.learning.advantages import gae, next_values
from embodied.learning.learner import TrainablePolicy


@dataclass
class Batch:
    """N decisions that may train.

    Attributes:
        inputs: [N, F] normalised observations.
        actions, log_probs: [N, K, D], as sampled.
        executed: [N, K].
        advantages, returns: [N].
    """

    inputs: Tensor
    actions: Tensor
    log_probs: Tensor
    executed: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.returns)

    def take(self, index: Tensor | slice) -> Self:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))


def on_policy(segment: Segment) -> NDArray[np.bool_]:
    """[T, B] steps an on-policy loss may use: they train, and the policy chose them."""
    return segment.trainable & (segment.source == Source.POLICY)


def check_on_policy(segment: Segment) -> None:
    """Raise `DataError` for a segment no on-policy loss may learn from, saying why."""
    where = f"segment {segment.id}"
    if segment.mode != "train":
        raise DataError(f"PPO was given a segment of mode {segment.mode}", where, "send it segments of mode train only")
    if segment.k.any():
        raise DataError("PPO was given chunks of several executed actions", where, "set the policy's `execute` to 1")
    if np.isnan(segment.log_probs[on_policy(segment)[..., None] & segment.executed]).any():
        raise DataError(
            "PPO needs the log-probability of every action the policy chose, and some are NaN",
            where,
            "use a policy that reports them; ensembled and real-time chunks have none",
        )


def flatten(policy: TrainablePolicy, segment: Segment) -> tuple[NDArray[np.float32], ...]:
    """Observations of the steps, after the last step, and at the ends of episodes, [*, F] each."""
    counted = (
        (segment.observations, segment.steps),
        (segment.bootstrap, segment.rewards.shape[1]),
        (segment.final, len(segment.final_at)),
    )
    return tuple(policy.flatten(streams, rows) for streams, rows in counted)


def assemble(
    policy: TrainablePolicy, segments: Sequence[Segment], gamma: float, lam: float
) -> tuple[Batch, NDArray[np.float32]]:
    """Decisions with their advantages, and all observations met on the way, physical, [*, F].

    Values are those of the present critic, so that advantages are consistent for data of any age. Observations are
    normalised as the policy does now.
    """
    net = policy.network
    parts = [part for segment in segments for part in flatten(policy, segment)]
    flat = np.concatenate(parts)
    inputs = net.normalise(torch.from_numpy(flat).to(net.device))
    with torch.no_grad():
        values = np.split(net.value(inputs).cpu().numpy(), np.cumsum([len(part) for part in parts])[:-1])
    masks = [on_policy(segment) for segment in segments]
    advantages, returns, rows = [], [], []
    for i, (s, mask) in enumerate(zip(segments, masks, strict=True)):
        own, bootstrap, final = values[3 * i : 3 * i + 3]
        own = own.reshape(s.rewards.shape)
        after = next_values(own, bootstrap, s.final_at, final, s.terminated, s.truncated)
        advantage, target = gae(s.rewards, own, after, s.terminated | s.truncated, mask, gamma, lam)
        advantages.append(advantage[mask])
        returns.append(target[mask])
        rows += [mask.reshape(-1), np.zeros(len(bootstrap) + len(final), bool)]

    def tensor(arrays: Sequence[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(net.device)

    def chosen(name: str) -> Tensor:
        return tensor([getattr(s, name)[mask] for s, mask in zip(segments, masks, strict=True)])

    actions, log_probs, executed = (chosen(name) for name in ("actions", "log_probs", "executed"))
    return Batch(inputs[tensor(rows)], actions, log_probs, executed, tensor(advantages), tensor(returns)), flat
