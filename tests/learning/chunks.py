"""Segments of chunks with everything that can happen to them, and their decisions followed one by one."""

from dataclasses import dataclass

import numpy as np

from embodied.data import Rows, Segment, Source, stack_rows
from embodied.spec import AgentSpec, Stream
from policies.mlp import GaussianActorCritic
from policies.senses import Senses
from policies.torch_policy import TorchPolicy

AGENT = AgentSpec((Stream("x", (3,)),), (Stream("u", (2,)),))


def chunk_policy(chunk: int, execute: int = 0, seed: int = 0) -> TorchPolicy:
    """Chunks of `chunk` actions of two numbers from a stream of three."""
    net = GaussianActorCritic(3, chunk, (1.0, 1.0), (8,), 0.6, seed)
    return TorchPolicy("p", AGENT.actions, Senses(AGENT.observations), net, {"kind": "test"}, execute)


def draw_segment(
    seed: int, steps: int, envs: int, chunk: int, execute: int, ends: float = 0.2, faults: float = 0.1,
    takeovers: float = 0.1,
) -> Segment:  # fmt: skip
    """Each row executes `execute` of `chunk` actions per decision, unless its episode ends first.

    A person may take over in the middle of a chunk, with decisions of their own or not. What was never executed or
    does not train is NaN.
    """
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    k, executed = np.zeros(shape, np.int32), np.zeros((*shape, chunk), bool)
    ended = rng.random(shape) < ends
    terminated = ended & (rng.random(shape) < 0.5)
    human = rng.random(shape) < takeovers
    trainable = rng.random(shape) >= faults
    for b in range(envs):
        for t in range(steps):
            anew = human[t, b] and rng.random() < 0.5
            if t and not ended[t - 1, b] and k[t - 1, b] + 1 < execute and not anew:
                k[t, b] = k[t - 1, b] + 1
            executed[t - k[t, b], b, k[t, b]] = True
    valid = trainable & ~human
    rewards = np.where(valid, rng.normal(size=shape), np.nan).astype(np.float32)
    decided = (k == 0) & valid
    actions, log_probs = (
        np.where((decided[..., None] & executed)[..., None], rng.normal(size=(*shape, chunk, 2)), np.nan).astype("f4")
        for _ in range(2)
    )
    final_at = np.argwhere(ended).astype(np.int32)
    rows = stack_rows([Rows.of_envs(envs) for _ in range(steps)])

    def stream(*size: int) -> dict[str, np.ndarray]:
        return {"x": rng.normal(size=(*size, 3)).astype(np.float32)}

    zeros = np.zeros(shape, np.uint8)
    return Segment(
        id=f"s{seed}", policy="p", task="t", rows=rows, observations=stream(*shape),
        bootstrap=stream(envs), final_at=final_at, final=stream(len(final_at)), k=k, actions=actions,
        log_probs=log_probs, executed=executed, values=np.full(shape, np.nan, np.float32),
        versions=rng.integers(0, 9, shape), applied=np.zeros((*shape, 2)), rewards=rewards, reward_status=zeros,
        reward_version="r", terminated=terminated, truncated=ended & ~terminated, outcomes=zeros,
        source=np.where(human, Source.HUMAN, Source.POLICY).astype(np.uint8), trainable=trainable,
        start_at=np.zeros(0, np.int32), starts=None,
    )  # fmt: skip


@dataclass
class Decision:
    """One decision that trains: where, which of its actions count, and what it is worth."""

    t: int
    b: int
    actions: list[int]
    advantage: float
    value: float


def follow(
    segment: Segment, values: np.ndarray, bootstrap: np.ndarray, final: np.ndarray, gamma: float, lam: float
) -> dict[tuple[int, int], Decision]:
    """The decisions of a segment that train, by (t, b), each found and valued on its own.

    Args:
        values: [T, B] of the observations. bootstrap: [B]. final: [M]. NaN where the observation is: no decision on one
            trains, nor a step after which a decision would have to trust one.
    """
    steps, envs = segment.k.shape
    ends = {(int(t), int(b)): float(v) for (t, b), v in zip(segment.final_at, final, strict=True)}
    found: dict[tuple[int, int], Decision] = {}
    for b in range(envs):
        for t in reversed(range(steps)):
            if segment.k[t, b] != 0:
                continue
            n = 0
            while t + n < steps and segment.k[t + n, b] == n:
                if not segment.trainable[t + n, b] or segment.source[t + n, b] != Source.POLICY:
                    break
                n += 1
                if (t + n - 1, b) in ends:
                    break
            arrived = np.nan
            while n and np.isnan(arrived):
                last, after = t + n - 1, t + n
                if segment.terminated[last, b]:
                    arrived = 0.0
                elif segment.truncated[last, b]:
                    arrived = ends[last, b]
                else:
                    arrived = values[after, b] if after < steps else bootstrap[b]
                n -= int(np.isnan(arrived))
            if n == 0 or np.isnan(values[t, b]):
                continue
            gain = sum(gamma**i * float(segment.rewards[t + i, b]) for i in range(n)) + gamma**n * float(arrived)
            following = found.get((after, b)) if (last, b) not in ends else None
            tail = lam * gamma**n * following.advantage if following else 0.0
            value = float(values[t, b])
            found[t, b] = Decision(t, b, list(range(n)), gain - value + tail, value)
    return found
