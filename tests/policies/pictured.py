"""A body in outline for vision-language policies: streams, observations, and data to learn from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.data import Observation, Outcome, RewardStatus, Rows, Segment, Source
from embodied.episode import Episode, Track
from embodied.spec import AgentSpec, Stream
from policies.torch_policy import TorchPolicy

AGENT = AgentSpec(
    observations=(
        Stream("position", (2,)),
        Stream("front", (16, 16, 3), "uint8"),
        Stream("instruction", (24,), "uint8"),
        Stream("goal", (2,)),
    ),
    actions=(Stream("velocity", (2,), limit=0.5), Stream("gripper", (1,))),
)
TEXTS = (b"go to the red one", b"green", b"to the blue one")


def streams(count: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """A goal, shown as a bright square in the picture and told as a colour; noise elsewhere."""
    rng = np.random.default_rng(seed)
    goal = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    pictures = rng.integers(0, 60, (count, 16, 16, 3), dtype=np.uint8)
    texts = np.zeros((count, 24), np.uint8)
    for i, (x, y) in enumerate(((goal + 1) * 6).astype(int)):
        pictures[i, y : y + 4, x : x + 4] = 255
        text = TEXTS[i % len(TEXTS)]
        texts[i, : len(text)] = list(text)
    position = rng.normal(size=(count, 2)).astype(np.float32)
    return {"position": position, "front": pictures, "instruction": texts, "goal": goal}


def observe(count: int, seed: int = 0) -> Observation:
    return Observation(Rows.of_envs(count), streams(count, seed), np.zeros(count))


def demonstration(steps: int, seed: int) -> Episode:
    """Every step an own goal, towards which the demonstrator moves; the gripper closes on green."""
    seen = streams(steps + 1, seed)
    closed = np.arange(steps + 1) % len(TEXTS) == 1
    actions = np.concatenate([0.5 * seen["goal"], np.where(closed, 1.0, -1.0)[:, None]], 1)[:steps]
    chosen = actions.astype(np.float32)[:, None]
    track = Track(
        observations=seen, decision=np.arange(steps, dtype=np.int32), k=np.zeros(steps, np.int32),
        rewards=np.zeros(steps, np.float32), reward_status=np.zeros(steps, np.uint8),
        terminated=np.zeros(steps, bool), truncated=np.zeros(steps, bool),
        source=np.full(steps, Source.SCRIPT, np.uint8), trainable=np.ones(steps, bool),
        applied=np.zeros((steps, 3)), segment=np.zeros(steps, np.int32), step=np.arange(steps, dtype=np.int32),
        actions=chosen, log_probs=np.full_like(chosen, np.nan), executed=np.ones((steps, 1), bool),
        values=np.full(steps, np.nan, np.float32), versions=np.zeros(steps, np.int64),
        policy="expert", outcome=Outcome.SUCCESS,
    )  # fmt: skip
    return Episode(
        f"demonstration-0-0-{seed}", "pictured", "demonstration", "", seed,
        {}, {"robot": track}, np.zeros(0), {}, [],
    )  # fmt: skip


def segment(policy: TorchPolicy, steps: int, bodies: int, seed: int = 0) -> Segment:
    """Segment that `policy` sampled in `steps` (a multiple of K) x `bodies`, whole chunks, with random rewards."""
    chunk, dim = policy.spec.chunk, policy.spec.agent.action_dim
    rng = np.random.default_rng(seed)
    shape, decided = (steps, bodies), (steps, bodies, chunk, dim)
    seen = [streams(bodies, 1000 * seed + t) for t in range(steps + 1)]
    actions, log_probs = np.zeros(decided, np.float32), np.zeros(decided, np.float32)
    rows = Rows.of_envs(bodies)
    for t in range(0, steps, chunk):
        rows.step[:] = t
        made = policy.act(Observation(rows, seen[t], np.zeros(bodies)), rows.noise_keys(seed), "sample")
        actions[t], log_probs[t] = made.actions, made.log_probs
    k = np.broadcast_to((np.arange(steps, dtype=np.int32) % chunk)[:, None], shape)
    executed = np.broadcast_to(((np.arange(steps) % chunk) == 0)[:, None, None], (*shape, chunk))
    whole = Rows(*(np.broadcast_to(getattr(rows, name), shape) for name in ("env", "agent", "episode", "step")))
    return Segment(
        id=f"s{seed}", policy=policy.spec.name, task="pictured", rows=whole,
        observations={name: np.stack([s[name] for s in seen[:-1]]) for name in seen[0]}, bootstrap=seen[-1],
        final_at=np.zeros((0, 2), np.int32), final={name: array[:0] for name, array in seen[0].items()}, k=k,
        actions=actions, log_probs=log_probs, executed=executed, values=np.zeros(shape, np.float32),
        versions=np.zeros(shape, np.int64), applied=np.zeros((*shape, dim)),
        rewards=rng.normal(size=shape).astype(np.float32),
        reward_status=np.full(shape, RewardStatus.SCORED, np.uint8), reward_version="none/1",
        terminated=np.zeros(shape, bool), truncated=np.zeros(shape, bool), outcomes=np.zeros(shape, np.uint8),
        source=np.zeros(shape, np.uint8), trainable=np.ones(shape, bool), start_at=np.zeros(0, np.int32), starts=None,
    )  # fmt: skip
