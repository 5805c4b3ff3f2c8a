"""Batches of decisions that an on-policy loss may use, made of segments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.data import Segment
from embodied.errors import DataError
from embodied.learning.advantages import gae, goes_on, next_values
from embodied.learning.decisions import Decisions, decisions, on_policy, without_unseen
from policies.network import Inputs
from policies.torch_policy import TorchPolicy

AT_ONCE = 1024  # observations of one forward pass where no gradient is needed


@dataclass
class Batch:
    """N decisions that may train; one that several segments execute is a decision in each, for its part there.

    Attributes:
        inputs: Of the observations that the decisions answered.
        actions, log_probs: [N, K, D], as sampled.
        executed: [N, K], those that ran and may train.
        advantages, returns: [N].
        versions: [N] weights that decided.
        numbers: [N, F + C] physical numbers observed.
        stored: Name to [N, ...] of `PolicySpec.stored`.
        weights: Importance weights at the granularity of the loss; None where there are none.
        reference: [N, K, D] log-probabilities by the reference policy; None where there is none.
        critic_inputs: Of the observations at the first step of each decision, to whose values `returns` belong; None
            where they are those of `inputs`.
    """

    inputs: Inputs
    actions: Tensor
    log_probs: Tensor
    executed: Tensor
    advantages: Tensor
    returns: Tensor
    versions: Tensor
    numbers: Tensor
    stored: Inputs = field(default_factory=dict)
    weights: Tensor | None = None
    reference: Tensor | None = None
    critic_inputs: Inputs | None = None

    def __len__(self) -> int:
        return len(self.returns)

    def take(self, index: Tensor | slice) -> Self:
        def part(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: array[index] for name, array in value.items()}
            return None if value is None else value[index]

        return type(self)(*(part(getattr(self, name)) for name in self.__dataclass_fields__))


def check_on_policy(segment: Segment) -> None:
    """Raise `DataError` for a segment no on-policy loss may learn from, saying why."""
    where = f"segment {segment.id}"
    if segment.mode != "train":
        raise DataError(f"PPO was given a segment of mode {segment.mode}", where, "send it segments of mode train only")
    found = decisions(segment, on_policy(segment))
    log_probs = found.take(segment.log_probs, segment.carried.log_probs if segment.carried else None)
    if np.isnan(log_probs[found.executed]).any():
        raise DataError(
            "PPO needs the log-probability of every action the policy chose, and some are NaN",
            where,
            "use a policy that reports them; ensembled and real-time chunks have none",
        )


def assemble(
    policy: TorchPolicy, segments: Sequence[Segment], gamma: float, lam: float, at_once: int = AT_ONCE
) -> tuple[Batch, NDArray[np.float32]]:
    """Decisions with their advantages, and all numbers observed, physical, [*, F + C].

    Values are those of the present critic, so that advantages are consistent for data of any age. Observations are
    normalised as the policy does now, `at_once` of them in one forward pass.

    Raises:
        DataError: A segment lacks a stream that the policy reads, or a decision that it executes.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    answered: dict[str, list[NDArray[Any]]] = {name: [] for name in policy.senses.names}
    taken: list[Decisions] = []
    flat: list[NDArray[np.float32]] = []
    for segment in segments:
        mine, carried = named(policy, segment), segment.carried
        counts = (segment.steps, segment.rewards.shape[1], len(segment.final_at))
        seen = [policy.flatten(part, count) for part, count in zip(mine[:3], counts, strict=True)]
        before = policy.flatten(mine[3], len(carried)) if carried else None
        valid = without_unseen(segment, on_policy(segment), seen, before)
        found = decisions(segment, valid)
        at = found.t, found.b
        advantages, returns = _advantages(policy, segment, mine[:3], valid, gamma, lam, at_once)
        columns_of = {
            "executed": found.executed, "advantages": advantages[at], "returns": returns[at],
            "versions": segment.versions[at],
            "numbers": found.take(seen[0].reshape(*valid.shape, -1), before),
            "actions": found.take(segment.actions, carried.actions if carried else None),
            "log_probs": found.take(segment.log_probs, carried.log_probs if carried else None),
            **{f"stored/{name}": found.take(array, carried.stored[name] if carried else None)
               for name, array in segment.stored.items()},
        }  # fmt: skip
        for name, array in columns_of.items():
            columns.setdefault(name, []).append(array)
        taken.append(found)
        for name in policy.senses.names:
            answered[name].append(found.take(mine[0][name], mine[3].get(name)))
        flat += seen
    device = policy.network.device
    arrays = {name: torch.from_numpy(_concatenated(parts)).to(device) for name, parts in columns.items()}
    # A gradient would meet what is not finite even through a mask.
    finite = arrays["actions"].nan_to_num(0.0, 0.0, 0.0)
    arrays["actions"] = torch.where(arrays["executed"][..., None], arrays["actions"], finite)
    stored = {name.removeprefix("stored/"): arrays.pop(name) for name in list(arrays) if name.startswith("stored/")}
    count = len(arrays["returns"])
    inputs = policy.inputs({name: _concatenated(parts) for name, parts in answered.items()}, count)
    critic_inputs = None
    if any((found.answered != found.t).any() for found in taken):
        pairs = list(zip(segments, taken, strict=True))
        streams = {name: _concatenated([s.observations[name][f.t, f.b] for s, f in pairs]) for name in answered}
        critic_inputs = policy.inputs(streams, count, rest=policy.network.value_reads_rest)
    return Batch(inputs=inputs, stored=stored, critic_inputs=critic_inputs, **arrays), np.concatenate(flat)


def named(policy: TorchPolicy, segment: Segment) -> tuple[dict[str, NDArray[Any]], ...]:
    """The streams that a policy reads: of the steps, after the last, at the ends of episodes, and carried ones.

    Raises:
        DataError: The segment lacks one.
    """
    parts = [segment.observations, segment.bootstrap, segment.final]
    for name in policy.senses.names:
        if name not in segment.observations:
            raise DataError(f"it has no stream {name}", f"segment {segment.id}", "record what the policy reads")
    found = [{name: part[name] for name in policy.senses.names} for part in parts]
    carried = segment.carried
    return *found, {} if carried is None else {name: carried.observations[name] for name in policy.senses.names}


def _concatenated(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _advantages(
    policy: TorchPolicy,
    segment: Segment,
    streams: tuple[dict[str, NDArray[Any]], ...],
    valid: NDArray[np.bool_],
    gamma: float,
    lam: float,
    at_once: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns [T, B]; only of observations whose value counts one is computed."""
    shape, ended = segment.rewards.shape, segment.terminated | segment.truncated
    counts = np.ones(shape, bool)
    counts[1:] = ~goes_on(segment.k, ended, valid)[:-1]  # where a decision begins, or one was cut short
    values = np.zeros(shape, np.float32)
    seen, bootstrap, final = streams
    values[counts] = estimate(policy, {name: array[counts] for name, array in seen.items()}, int(counts.sum()), at_once)
    after = next_values(
        values,
        estimate(policy, bootstrap, shape[1], at_once),
        segment.final_at,
        estimate(policy, final, len(segment.final_at), at_once),
        segment.terminated,
        segment.truncated,
    )
    return gae(segment.rewards, values, after, ended, valid, gamma, lam, segment.k)


@torch.no_grad()
def estimate(policy: TorchPolicy, streams: Mapping[str, NDArray[Any]], rows: int, at_once: int) -> NDArray[np.float32]:
    """[rows] values of observations, by the present critic."""
    net = policy.network
    values = np.zeros(rows, np.float32)
    for first in range(0, rows, at_once):
        part = {name: array[first : first + at_once] for name, array in streams.items()}
        count = min(at_once, rows - first)
        inputs = policy.inputs(part, count, rest=net.value_reads_rest)
        values[first : first + count] = net.value(inputs).cpu().numpy()
    return values
