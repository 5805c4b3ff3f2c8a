"""From segments to the decisions that an on-policy loss may use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.data import Segment, Source
from embodied.errors import DataError
from embodied.learning.advantages import gae, goes_on, next_values
from policies.network import Inputs
from policies.torch_policy import TorchPolicy

AT_ONCE = 1024  # observations of one forward pass where no gradient is needed


@dataclass
class Batch:
    """N decisions that may train.

    Attributes:
        inputs: Of the observations they answered.
        actions, log_probs: [N, K, D], as sampled.
        executed: [N, K], those that ran and may train.
        advantages, returns: [N].
        versions: [N] weights that decided.
        numbers: [N, F + C] physical numbers observed.
        stored: Name to [N, ...] of `PolicySpec.stored`.
        weights: Importance weights at the granularity of the loss; None where there are none.
        reference: [N, K, D] log-probabilities by the reference policy; None where there is none.
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

    def __len__(self) -> int:
        return len(self.returns)

    def take(self, index: Tensor | slice) -> Self:
        def part(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: array[index] for name, array in value.items()}
            return None if value is None else value[index]

        return type(self)(*(part(getattr(self, name)) for name in self.__dataclass_fields__))


def on_policy(segment: Segment) -> NDArray[np.bool_]:
    """[T, B] steps an on-policy loss may use: they train, and the policy chose them."""
    return segment.trainable & (segment.source == Source.POLICY)


def check_on_policy(segment: Segment) -> None:
    """Raise `DataError` for a segment no on-policy loss may learn from, saying why."""
    where = f"segment {segment.id}"
    if segment.mode != "train":
        raise DataError(f"PPO was given a segment of mode {segment.mode}", where, "send it segments of mode train only")
    if np.isnan(segment.log_probs[executed_and_valid(segment, on_policy(segment))]).any():
        raise DataError(
            "PPO needs the log-probability of every action the policy chose, and some are NaN",
            where,
            "use a policy that reports them; ensembled and real-time chunks have none",
        )


def executed_and_valid(segment: Segment, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[T, B, K] actions of each decision that were executed and may train: those before its first step that may not."""
    mask = np.zeros(segment.executed.shape, bool)
    if not segment.k.any():
        mask[..., 0] = valid
        return mask & segment.executed
    same = goes_on(segment.k, segment.terminated | segment.truncated, valid)
    alive = np.zeros(segment.k.shape[1], bool)
    rows = np.arange(segment.k.shape[1])
    for t, k in enumerate(segment.k):
        alive = valid[t] & ((k == 0) | (alive & (same[t - 1] if t else False)))
        mask[t - k, rows, k] |= alive
    return mask & segment.executed


def without_unseen(
    segment: Segment, valid: NDArray[np.bool_], numbers: Sequence[NDArray[np.float32]]
) -> NDArray[np.bool_]:
    """[T, B] the steps of `valid` that may still train where observations hold NaN, as one beside a fault may.

    A decision on such an observation is left out with what it executed. So is the last step that a decision executed,
    where nobody saw what it led to: the decision then ends a step sooner, and trusts the value of where that arrived.

    Args:
        numbers: What was observed at the steps, after the last step and at the ends of episodes, [*, F + C] each.
    """
    at, behind, final = (np.where(np.isnan(part).any(axis=-1), 1, 0).astype(np.float32) for part in numbers)
    if not (at.any() or behind.any() or final.any()):
        return valid
    at, ended = at.reshape(valid.shape), segment.terminated | segment.truncated
    led = next_values(at, behind, segment.final_at, final, segment.terminated, segment.truncated)
    result = valid & ((at == 0) | (segment.k != 0))
    following = np.zeros(valid.shape[1], bool)  # whether the step behind goes on with the same chunk
    for t in range(len(valid) - 1, -1, -1):
        result[t] &= following & ~ended[t] | (led[t] == 0)
        following = (segment.k[t] > 0) & result[t]
    return result


def assemble(
    policy: TorchPolicy, segments: Sequence[Segment], gamma: float, lam: float, at_once: int = AT_ONCE
) -> tuple[Batch, NDArray[np.float32]]:
    """Decisions with their advantages, and all numbers met on the way, physical, [*, F + C].

    Values are those of the present critic, so that advantages are consistent for data of any age. Observations are
    normalised as the policy does now, `at_once` of them in one forward pass.
    """
    device = policy.network.device
    columns: dict[str, list[NDArray[Any]]] = {}
    streams: dict[str, list[NDArray[Any]]] = {name: [] for name in policy.senses.names}
    flat = []
    for segment in segments:
        valid, mine = on_policy(segment), named(policy, segment)
        counts = (segment.steps, segment.rewards.shape[1], len(segment.final_at))
        seen = [policy.flatten(part, count) for part, count in zip(mine, counts, strict=True)]
        valid = without_unseen(segment, valid, seen)
        executed = executed_and_valid(segment, valid)
        train = (segment.k == 0) & executed.any(axis=2)
        advantages, returns = _advantages(policy, segment, mine, valid, gamma, lam, at_once)
        rows = {"actions": segment.actions, "log_probs": segment.log_probs, "executed": executed,
                "advantages": advantages, "returns": returns, "versions": segment.versions,
                "numbers": seen[0].reshape(*train.shape, -1),
                **{f"stored/{name}": array for name, array in segment.stored.items()}}  # fmt: skip
        for name, array in rows.items():
            columns.setdefault(name, []).append(array[train])
        for name, parts in streams.items():
            parts.append(mine[0][name][train])
        flat += seen
    arrays = {name: torch.from_numpy(np.concatenate(parts)).to(device) for name, parts in columns.items()}
    # A gradient would meet what is not finite even through a mask.
    finite = arrays["actions"].nan_to_num(0.0, 0.0, 0.0)
    arrays["actions"] = torch.where(arrays["executed"][..., None], arrays["actions"], finite)
    stored = {name.removeprefix("stored/"): arrays.pop(name) for name in list(arrays) if name.startswith("stored/")}
    joined = {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in streams.items()}
    inputs = policy.inputs(joined, len(arrays["returns"]))
    return Batch(inputs=inputs, stored=stored, **arrays), np.concatenate(flat)


def named(policy: TorchPolicy, segment: Segment) -> tuple[dict[str, NDArray[Any]], ...]:
    """The streams a policy reads, of the steps, after the last step, and at the ends of episodes.

    Raises:
        DataError: The segment lacks one.
    """
    parts = (segment.observations, segment.bootstrap, segment.final)
    for name in policy.senses.names:
        if name not in segment.observations:
            raise DataError(f"it has no stream {name}", f"segment {segment.id}", "record what the policy reads")
    return tuple({name: part[name] for name in policy.senses.names} for part in parts)


def _advantages(
    policy: TorchPolicy,
    segment: Segment,
    streams: tuple[dict[str, NDArray[Any]], ...],
    valid: NDArray[np.bool_],
    gamma: float,
    lam: float,
    at_once: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns [T, B]; only the observations whose value counts are looked at."""
    shape, ended = segment.rewards.shape, segment.terminated | segment.truncated
    counts = segment.k == 0
    counts[1:] |= ~goes_on(segment.k, ended, valid)[:-1]  # where a chunk was cut short
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
