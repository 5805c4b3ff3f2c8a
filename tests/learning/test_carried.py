"""Chunks cut by a segment's end: each action trains once, with advantages of brute force and a loss by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied.data import CarriedDecisions, Segment
from embodied.learning.batch import assemble
from embodied.learning.decisions import decisions, on_policy
from embodied.learning.ppo import PPO, PPOConfig
from tests.learning.chunks import chunk_policy, draw_segment

T, B, K, GAMMA, LAM = 14, 4, 5, 0.9, 0.8
STEP_FIELDS = (
    "k", "actions", "log_probs", "executed", "values", "versions", "applied", "rewards", "reward_status", "terminated",
    "truncated", "outcomes", "source", "trainable",
)  # fmt: skip


def cut(whole: Segment, at: int) -> tuple[Segment, Segment]:
    """Steps before and from `at` on, as two segments of which the second carries the decisions that are open."""

    def part(index: slice, bootstrap: dict[str, np.ndarray]) -> Segment:
        inside = (whole.final_at[:, 0] >= index.start) & (whole.final_at[:, 0] < index.stop)
        return replace(
            whole, id=f"{whole.id}/{index.start}", rows=whole.rows.take(index), bootstrap=bootstrap,
            observations={"x": whole.observations["x"][index]},
            final_at=whole.final_at[inside] - np.array([index.start, 0], np.int32),
            final={"x": whole.final["x"][inside]}, **{name: getattr(whole, name)[index] for name in STEP_FIELDS},
        )  # fmt: skip

    first = part(slice(0, at), {"x": whole.observations["x"][at]})
    second = part(slice(at, T), whole.bootstrap)
    row = np.flatnonzero(whole.k[at] > 0)
    t = at - whole.k[at, row]
    second.carried = CarriedDecisions(
        row.astype(np.int32), (t - at).astype(np.int32), {"x": whole.observations["x"][t, row]}, whole.actions[t, row],
        whole.log_probs[t, row], whole.executed[t, row], whole.values[t, row], whole.versions[t, row],
    )  # fmt: skip
    return first, second


def brute_force(policy, segment: Segment) -> dict[tuple[int, int], float]:
    """Advantage of each part of a decision by the definition, first step and row to number."""
    value = lambda x: float(policy.network.value(policy.inputs({"x": x[None]}, 1)).detach()[0])  # noqa: E731
    valid, ended = on_policy(segment), segment.terminated | segment.truncated
    finals = {(int(t), int(b)): segment.final["x"][i] for i, (t, b) in enumerate(segment.final_at)}
    steps, found = len(segment.k), {}
    for b in range(segment.k.shape[1]):
        parts: list[list[int]] = []
        for t in range(steps):
            if parts and parts[-1][-1] == t - 1 and segment.k[t, b] > 0 and not ended[t - 1, b]:
                parts[-1].append(t)
            else:
                parts.append([t])
        behind, after = 0.0, None
        for part in reversed(parts):
            train = part[: next((i for i, t in enumerate(part) if not valid[t, b]), len(part))]
            if not train:
                behind, after = 0.0, part[0]
                continue
            last = train[-1]
            if segment.terminated[last, b]:
                led = 0.0
            elif ended[last, b]:
                led = value(finals[last, b])
            else:
                led = value(segment.observations["x"][last + 1, b] if last + 1 < steps else segment.bootstrap["x"][b])
            n = len(train)
            gain = sum(GAMMA**i * segment.rewards[t, b] for i, t in enumerate(train)) + GAMMA**n * led
            follows = len(train) == len(part) and not ended[last, b] and after == last + 1
            advantage = gain - value(segment.observations["x"][train[0], b])
            advantage += LAM * GAMMA**n * (behind if follows else 0.0)
            found[train[0], b], behind, after = advantage, advantage, train[0]
    return found


@given(st.integers(0, 400), st.integers(1, T - 1))
def test_both_parts_of_a_cut_chunk_train_each_action_once(seed: int, at: int) -> None:
    whole = draw_segment(seed, T, B, K, K, faults=0.0, takeovers=0.0)
    executed = {}
    for segment, offset in zip(cut(whole, at), (0, at), strict=True):
        found = decisions(segment, on_policy(segment))
        for i in range(len(found)):
            for k in np.flatnonzero(found.executed[i]):
                place = (int(found.answered[i]) + offset, int(found.b[i]), int(k))
                assert place not in executed
                executed[place] = segment.id
    assert executed.keys() == {(int(t), int(b), int(k)) for t, b, k in np.argwhere(whole.executed)}


@given(st.integers(0, 400), st.integers(1, T - 1))
def test_advantages_of_carried_decisions_are_those_of_brute_force(seed: int, at: int) -> None:
    policy = chunk_policy(K)
    whole = draw_segment(seed, T, B, K, K)
    for segment in cut(whole, at):
        wanted = brute_force(policy, segment)
        found = decisions(segment, on_policy(segment))
        assert {(int(t), int(b)) for t, b in zip(found.t, found.b, strict=True)} == wanted.keys()
        if not len(found):
            continue
        batch, _ = assemble(policy, [segment], GAMMA, LAM)
        places = zip(found.t.tolist(), found.b.tolist(), strict=True)
        np.testing.assert_allclose(batch.advantages.numpy(), [wanted[place] for place in places], atol=2e-5)


@pytest.mark.parametrize("correction", ["none", "truncated"])
def test_the_loss_of_a_carried_decision_by_hand(correction: str) -> None:
    """Its ratio is to the version before, which decided on an observation before the segment; the others' is 1."""
    policy, clip = chunk_policy(2), 0.2
    config = PPOConfig(correction=correction, truncate_at=1.5, clip=clip, value=0.5, normaliser_steps=0)
    drawn = draw_segment(3, 4, 1, 2, 2, ends=0.0, faults=0.0, takeovers=0.0)
    drawn.k[:, 0] = 1, 0, 1, 0
    drawn.executed[:] = np.array([[0, 0], [1, 1], [0, 0], [1, 0]], bool)[:, None]
    drawn.actions[:], drawn.log_probs[:] = 0.1, 0.0
    drawn.versions[:, 0] = 1, 2, 2, 2
    rng = np.random.default_rng(0)
    seen, actions = rng.normal(size=(1, 3)).astype(np.float32), rng.normal(size=(1, 2, 2)).astype(np.float32)

    def now(observed: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """[K] log-probabilities of the actions of one decision, by the present weights."""
        with torch.no_grad():
            mean = policy.network.actor(torch.from_numpy(observed)[None]).numpy().reshape(2, 2)
        std = math.exp(policy.network.log_std[0].item())
        each = -0.5 * ((taken - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
        return np.asarray(each.sum(-1))

    for t in (1, 3):
        drawn.log_probs[t, 0] = now(drawn.observations["x"][t, 0], drawn.actions[t, 0])[:, None] / 2
    before = np.array([[[9.0, 9.0], [-1.3, -1.1]]], np.float32)
    one, flags = np.zeros(1, np.int32), np.array([[False, True]])
    drawn.carried = CarriedDecisions(
        one, one - 1, {"x": seen}, actions, before, flags, np.zeros(1, np.float32), np.ones(1, np.int64)
    )
    learner = PPO(policy, config)
    batch, _ = assemble(policy, [drawn], 0.9, 0.8)
    assert batch.versions.tolist() == [1, 2, 2] and batch.executed.sum() == 4
    batch, _ = learner._corrected(batch, learner._evaluate_all(batch))
    advantages, returns = batch.advantages.numpy().astype(float), batch.returns.numpy()
    ratio = math.exp(now(seen[0], actions[0])[1] - before[0, 1].sum())
    assert not 1 - clip < ratio < 1 + clip
    if correction == "none":
        carried = min(ratio * advantages[0], np.clip(ratio, 1 - clip, 1 + clip) * advantages[0])
    else:
        carried = min(ratio, 1.5) * advantages[0]
    first = drawn.observations["x"][[0, 1, 3], 0]
    with torch.no_grad():
        values = policy.network.critic(torch.from_numpy(first))[:, 0].numpy()
    wanted = -(carried + 2 * advantages[1] + advantages[2]) / 4 + 0.5 * 0.5 * np.mean((values - returns) ** 2)
    assert learner._loss(batch).item() == pytest.approx(wanted, rel=1e-5)
