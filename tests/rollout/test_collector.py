"""Segments of lockstep collection: one or several agents and policies, chunks that outlast segments, origins."""

from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.client import LocalClient
from embodied.data import Outcome, Rows, Segment
from embodied.errors import ConfigError, SpecMismatch
from embodied.monitor.timing import Stopwatch
from embodied.rollout.collector import Assignment, Collector
from embodied.serving.versioned_policy import VersionedPolicy
from policies.mlp import MLPPolicy
from simulators.env import BatchEnv
from simulators.make import make_task
from tests.rollout.pair import LENGTHS, Noisy, Pair


def collector(env: Any, *driven: tuple[Noisy, tuple[str, ...] | None], steps: int = 4, **options: Any) -> Collector:
    assignments = [Assignment(policy, policy.spec, agents) for policy, agents in driven]  # type: ignore[arg-type]
    return Collector(env, assignments, steps, 7, 0, Stopwatch(), **options)


def same(one: Any, two: Any, where: str = "") -> None:
    """Equal to the bit, whatever it is."""
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            same(one[key], two[key], f"{where}.{key}")
    elif hasattr(one, "__dataclass_fields__"):
        for f in fields(one):
            same(getattr(one, f.name), getattr(two, f.name), f"{where}.{f.name}")
    else:
        np.testing.assert_array_equal(one, two, err_msg=where)


def executed(segment: Segment) -> dict[tuple[int, ...], float]:
    """The action that each live step executed, by its row's identity, looked up as the contract says."""
    found = {}
    carried = segment.carried
    at = {} if carried is None else {(b, t): i for i, (b, t) in enumerate(zip(carried.row, carried.t, strict=True))}
    for t, b in np.argwhere(segment.k >= 0):
        k, rows = segment.k[t, b], segment.rows
        if t >= k:
            assert segment.executed[t - k, b, k]
            action = segment.actions[t - k, b, k, 0]
        else:
            assert carried is not None and carried.executed[at[b, t - k], k]
            action = carried.actions[at[b, t - k], k, 0]
        key = tuple(int(getattr(rows, name)[t, b]) for name in ("env", "agent", "episode", "step"))
        assert key not in found
        found[key] = float(action)
    return found


@pytest.mark.parametrize("chunk", [1, 4])
def test_one_policy_drives_both_agents_as_rows_of_one_segment(chunk: int) -> None:
    env, policy = Pair(2), Noisy(chunk=chunk)
    (segment,) = collector(env, (policy, ("right", "left")), steps=8).collect()
    assert segment.rows.agent[0].tolist() == [0, 0, 1, 1] and segment.rows.env[0].tolist() == [0, 1, 0, 1]
    assert segment.policy == "noisy" and set(segment.observations) == {"x"}
    parked = segment.rows.step == -1
    # The left agent of environment 0 ends after 3 steps and waits for the right one, which takes 5.
    assert parked[:, 0].tolist() == [False] * 3 + [True] * 2 + [False] * 3 and not parked[:, 2].any()
    assert (segment.k[parked] == -1).all() and not segment.trainable[parked].any() and segment.trainable[~parked].all()
    assert not segment.rewards[parked].any() and not segment.outcomes[parked].any()
    assert all((rows.step >= 0).all() for rows in policy.asked)
    assert segment.outcomes[2, 0] == Outcome.SUCCESS and segment.outcomes[4, 2] == Outcome.TIME_LIMIT
    np.testing.assert_array_equal(segment.applied[:, :2], segment.applied[:, 2:])
    assert segment.state_hash is not None
    np.testing.assert_array_equal(segment.state_hash[:, :2], segment.state_hash[:, 2:])
    assert segment.starts is not None and segment.starts.ids.tolist() == [0, 1, 0, 1][: len(segment.starts.ids)]
    for (env_index, agent, _, _), action in executed(segment).items():
        name = ("left", "right")[agent]
        assert any(taken[name][env_index, 0] == np.float32(action) for taken in env.taken)
    assert segment.time is not None
    np.testing.assert_allclose(segment.time[~parked], segment.rows.step[~parked] * 0.1)


def test_different_policies_give_a_segment_each() -> None:
    one, two = Noisy("one"), Noisy("two", chunk=2, streams=("x", "force"))
    env = Pair(3, first=10)
    first, second = collector(env, (one, ("left",)), (two, ("right",)), steps=6, origin="sim-4").collect()
    assert (first.id, second.id) == ("sim-4/0/000001", "sim-4/0/000002") and first.origin == "sim-4"
    assert (first.policy, second.policy) == ("one", "two")
    assert set(first.observations) == {"x"} and set(second.observations) == set(second.final) == {"x", "force"}
    assert first.rows.env[0].tolist() == second.rows.env[0].tolist() == [10, 11, 12]
    assert (first.rows.agent == 0).all() and (second.rows.agent == 1).all()
    assert set(second.times) == {"force"} and second.time is not None
    np.testing.assert_allclose(second.times["force"], second.time - 0.05)
    np.testing.assert_array_equal(first.applied, second.applied)
    for policy, segment, sign in ((one, first, 0), (two, second, 1)):
        rows, outcomes, versions = policy.ended[0]
        assert len(rows) == len(segment.final_at) > 0 and set(outcomes.tolist()) <= {1, 3} and (versions == 1).all()
        live = segment.k >= 0
        requested = np.array([e[("left", "right")[sign]] for e in env.taken])
        executed_at = segment.action_executed
        if executed_at is None:
            assert (np.abs(requested[live]) <= 5).all()
        else:
            np.testing.assert_array_equal(executed_at[live], np.clip(requested, -5, 5)[live])


def test_agents_of_one_policy_have_noise_of_their_own() -> None:
    (segment,) = collector(Pair(2), (Noisy(), ("left", "right")), steps=3).collect()
    first = segment.actions[0, :, 0, 0]
    assert len(set(first.tolist())) == 4
    (alone,) = collector(Pair(2), (Noisy(), ("left",)), (Noisy("other"), ("right",)), steps=3).collect()[:1]
    np.testing.assert_array_equal(alone.actions[0, :, 0, 0], first[:2])


def test_every_agent_is_driven_by_one_policy() -> None:
    policy = Noisy()
    with pytest.raises(ConfigError, match="agent right is driven by 0"):
        collector(Pair(1), (policy, ("left",)))
    with pytest.raises(ConfigError, match="agent left is driven by 2"):
        collector(Pair(1), (policy, ("left", "right")), (policy, ("left",)))
    with pytest.raises(SpecMismatch, match="has 2 agents"):
        collector(Pair(1), (policy, None))


@settings(max_examples=40, deadline=None)
@given(
    chunk=st.integers(1, 6), less=st.integers(0, 3), steps=st.integers(1, 7), count=st.integers(1, 3),
    together=st.booleans(),
)  # fmt: skip
def test_segments_of_any_length_hold_the_same_steps(
    chunk: int, less: int, steps: int, count: int, together: bool
) -> None:
    """Chunk length and segment length are independent: cut into segments or not, the same actions are executed."""
    total, execute = 14, max(chunk - less, 1)

    def run(length: int) -> tuple[list[Segment], Pair]:
        env = Pair(count)
        driven = [(("left", "right"), "p")] if together else [(("left",), "p"), (("right",), "q")]
        policies = [(Noisy(name, chunk, execute), agents) for agents, name in driven]
        made = collector(env, *policies, steps=length)
        segments = [segment for _ in range(-(-total // length)) for segment in made.collect()]
        return segments, env

    (whole, env), (parts, cut) = run(total), run(steps)
    for one, two in zip(env.taken, cut.taken, strict=False):
        same(one, two)
    expected = {key: value for segment in whole for key, value in executed(segment).items()}
    found: dict[tuple[int, ...], float] = {}
    for segment in parts:
        some = executed(segment)
        assert not some.keys() & found.keys()
        found |= some
        carried = segment.carried
        if carried is not None:
            assert carried.executed.any(axis=1).all() and (carried.t < 0).all()
            for i in range(len(carried)):  # the observation and value answered, from where the decision was taken
                assert carried.observations["x"][i, 0] == carried.values[i]
                np.testing.assert_array_equal(carried.log_probs[i], -(carried.actions[i] ** 2))
        if execute == 1:
            assert carried is None
    assert {key: found[key] for key in expected} == expected
    assert seeds(parts)[: len(seeds(whole))] == seeds(whole)


def seeds(segments: list[Segment]) -> list[int]:
    """Seeds of the episodes that began, as one policy's segments tell them."""
    own = [segment.starts for segment in segments if segment.policy == "p" and segment.starts is not None]
    return [int(seed) for starts in own for seed in starts.seeds]


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_collector_continues_from_its_state_bit_for_bit(chunk: int) -> None:
    def made() -> Collector:
        return collector(Pair(3), (Noisy("one", chunk), ("left",)), (Noisy("two", chunk), ("right",)), steps=4)

    first, second = made(), made()
    first.collect()
    state = deepcopy(first.state())
    second.load(state)
    for _ in range(3):
        for one, two in zip(first.collect(), second.collect(), strict=True):
            same(one, two)
    with pytest.raises(ConfigError, match="holds 3 environments, the run has 2"):
        collector(Pair(2), (Noisy("one", chunk), ("left",)), (Noisy("two", chunk), ("right",))).load(state)
    with pytest.raises(ConfigError, match="older format"):
        made().load({"actor/count": np.array(1)})
    with pytest.raises(ConfigError, match="of agents left"):
        made().load(state | {"observations": {"left": state["observations"]["left"]}})


def test_two_origins_of_32_environments_give_what_one_of_64_gives() -> None:
    task = make_task("reach")
    policy = MLPPolicy("mlp", task.spec.agents[task.spec.only_agent], seed=3)
    envs = [BatchEnv(task, count, 1, seed=5, first=first) for count, first in ((64, 0), (32, 0), (32, 32))]
    whole, *halves = (
        Collector(
            env, [Assignment(LocalClient(VersionedPolicy(policy)), policy.spec)], 24, 5, 0, Stopwatch(), f"sim-{i}"
        )
        for i, env in enumerate(envs)
    )
    ids = set()
    for _ in range(3):
        (expected,) = whole.collect()
        parts = [half.collect()[0] for half in halves]
        ids |= {expected.id, *(part.id for part in parts)}
        for name in ("rows", "observations", "bootstrap", "k", "actions", "log_probs", "executed", "values", "versions",
                     "applied", "rewards", "reward_status", "terminated", "truncated", "outcomes", "source",
                     "trainable", "state_hash", "time"):  # fmt: skip
            axis = 0 if name == "bootstrap" else 1
            same(getattr(expected, name), joined([getattr(part, name) for part in parts], axis), name)
        same(ends(expected), {at: last for part in parts for at, last in ends(part).items()})
        same(begun(expected), {at: start for part in parts for at, start in begun(part).items()})
    assert len(ids) == 9
    for env in envs:
        env.close()


def joined(values: list[Any], axis: int) -> Any:
    if isinstance(values[0], dict):
        return {key: joined([value[key] for value in values], axis) for key in values[0]}
    if isinstance(values[0], Rows):
        return Rows(*(joined([getattr(value, f.name) for value in values], axis) for f in fields(Rows)))
    return np.concatenate(values, axis=axis)


def ends(segment: Segment) -> dict[Any, Any]:
    """Last observations by step and environment."""
    return {
        (int(t), int(segment.rows.env[t, b])): {name: values[i] for name, values in segment.final.items()}
        for i, (t, b) in enumerate(segment.final_at)
    }


def begun(segment: Segment) -> dict[Any, Any]:
    """Seeds and states of the episodes that began, by step and environment."""
    starts = segment.starts
    if starts is None:
        return {}
    return {
        (int(t), int(starts.ids[i])): {"seed": starts.seeds[i], "state": starts.state[i]}
        for i, t in enumerate(segment.start_at)
    }


def test_the_lengths_of_episodes_are_those_of_the_toy() -> None:
    (segment,) = collector(Pair(3), (Noisy(), ("left", "right")), steps=9).collect()
    found = {tuple(int(v) for v in (t, b)) for t, b in segment.final_at if segment.rows.episode[t, b] == 0}
    assert found == {(LENGTHS[name] + e - 1, i * 3 + e) for i, name in enumerate(LENGTHS) for e in range(3)}
