from dataclasses import MISSING, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.data import Observation, Outcome, Rows, Segment, stack_rows
from embodied.episode import Episode, Track
from embodied.noise import uniform


def _observation(count: int) -> Observation:
    streams = {
        "joint_pos": np.arange(count * 7, dtype=np.float32).reshape(count, 7),
        "front": np.ones((count, 4), np.uint8),
    }
    return Observation(Rows.of_envs(count), streams, np.linspace(0, 1, count))


def test_rows_of_bodies() -> None:
    rows = Rows.of_envs(3)
    assert len(rows) == 3
    np.testing.assert_array_equal(rows.env, [0, 1, 2])
    assert {name: array.dtype for name, array in rows.arrays().items()} == {
        "env": np.int32,
        "agent": np.int32,
        "episode": np.int64,
        "step": np.int32,
    }


def test_rows_share_no_memory() -> None:
    rows = Rows.of_envs(3)
    rows.step += 1
    assert not rows.agent.any() and not rows.episode.any()
    rows.env[0] = 9
    assert rows.agent[0] == 0


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=6))))
def test_take_copies_rows(case: tuple[int, list[int]]) -> None:
    count, index = case
    whole = _observation(count)
    part = whole.take(np.array(index, np.int64))
    assert len(part.rows) == len(index) == len(part.time)
    for name, stream in whole.streams.items():
        np.testing.assert_array_equal(part.streams[name], stream[index])
        assert part.streams[name].dtype == stream.dtype
        assert not np.shares_memory(part.streams[name], stream)
    np.testing.assert_array_equal(part.rows.env, index)


@pytest.mark.parametrize("index", [slice(1, 3), np.array([False, True, True, False])])
def test_take_by_slice_and_mask_owns_its_arrays(index: slice | np.ndarray) -> None:
    whole = _observation(4)
    part = whole.take(index)
    np.testing.assert_array_equal(part.rows.env, [1, 2])
    for array in (*part.streams.values(), *part.rows.arrays().values(), part.time):
        assert array.flags.owndata and array.flags.c_contiguous


def test_stacked_rows() -> None:
    first, second = Rows.of_envs(4), Rows.of_envs(4)
    second.step += 1
    stacked = stack_rows([first, second])
    assert len(stacked) == 4
    for f in fields(Rows):
        assert getattr(stacked, f.name).shape == (2, 4)
    np.testing.assert_array_equal(stacked.step[:, 0], [0, 1])


def test_noise_keys_belong_to_rows() -> None:
    rows = Rows.of_envs(4)
    rows.episode += np.arange(4)
    rows.step += 5
    keys = rows.noise_keys(seed=2**40 + 1)
    assert keys.shape == (4, 5) and keys.dtype == np.int64
    np.testing.assert_array_equal(keys[2], [2**40 + 1, 2, 0, 2, 5])
    np.testing.assert_array_equal(uniform(keys, 3)[[3, 1]], uniform(rows.take([3, 1]).noise_keys(2**40 + 1), 3))


def test_outcomes_are_fixed_numbers() -> None:
    """They are stored in episodes and sent over the wire."""
    assert [(o.name.lower(), int(o)) for o in Outcome] == [
        ("running", 0),
        ("success", 1),
        ("failure", 2),
        ("time_limit", 3),
        ("safety_stop", 4),
        ("human_stop", 5),
        ("infrastructure_fault", 6),
    ]


def _segment(steps: int, envs: int) -> Segment:
    both = (steps, envs)
    return Segment(
        id="s",
        policy="mlp",
        task="reach",
        rows=stack_rows([Rows.of_envs(envs)] * steps),
        observations={"joint_pos": np.zeros((*both, 7), np.float32)},
        bootstrap={"joint_pos": np.zeros((envs, 7), np.float32)},
        final_at=np.zeros((0, 2), np.int32),
        final={"joint_pos": np.zeros((0, 7), np.float32)},
        k=np.zeros(both, np.int32),
        actions=np.zeros((*both, 1, 8), np.float32),
        log_probs=np.zeros((*both, 1, 8), np.float32),
        executed=np.ones((*both, 1), bool),
        values=np.zeros(both, np.float32),
        versions=np.zeros(both, np.int64),
        applied=np.zeros((*both, 8)),
        rewards=np.zeros(both, np.float32),
        reward_status=np.zeros(both, np.uint8),
        reward_version="",
        terminated=np.zeros(both, bool),
        truncated=np.zeros(both, bool),
        outcomes=np.zeros(both, np.uint8),
        source=np.zeros(both, np.uint8),
        trainable=np.ones(both, bool),
        start_at=np.zeros(0, np.int32),
        starts=None,
    )


def test_a_segment_counts_its_steps() -> None:
    assert _segment(5, 3).steps == 15


def _track(length: int) -> Track:
    required = [f.name for f in fields(Track) if f.default is MISSING and f.default_factory is MISSING]
    values = {name: np.zeros(length) for name in required if name != "observations"}
    return Track(observations={"joint_pos": np.zeros((length + 1, 7), np.float32)}, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("lengths", "whole"), [({}, 0), ({"robot": 4}, 4), ({"left": 2, "right": 6}, 6)])
def test_an_episode_is_as_long_as_its_longest_track(lengths: dict[str, int], whole: int) -> None:
    agents = {name: _track(n) for name, n in lengths.items()}
    episode = Episode("e", "reach", "train", "", 0, {}, agents, np.zeros(0), {}, [])
    assert len(episode) == whole
