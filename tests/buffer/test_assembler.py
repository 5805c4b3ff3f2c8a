import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.layout import check
from embodied.data import Episode, Resets, Segment
from embodied.errors import DataError
from tests.buffer.samples import SPEC, STREAMS, Life, assert_same, live, segments


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Life], list[int]]:
    """Environments with episodes of random lengths, and the lengths of the segments that cut them."""
    cuts = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    total = sum(cuts)
    lives = []
    for env in range(draw(st.integers(1, 3))):
        lengths: list[int] = []
        while sum(lengths) < total:
            lengths.append(draw(st.integers(1, 12)))
        lives.append(live(env, lengths, total))
    return lives, cuts


def assert_true_to(episode: Episode, life: Life, number: int) -> None:
    begin = sum(life.lengths[:number])
    steps = slice(begin, begin + life.lengths[number])
    track = episode.agents["robot"]
    check(episode)
    assert len(episode) == life.lengths[number] and episode.outcome == life.outcomes[number]
    assert episode.seed == life.seeds[number] and episode.spec == SPEC.to_dict()
    np.testing.assert_array_equal(episode.initial_state, life.state[number])
    assert episode.drawn["mass"] == life.mass[number]
    for name in (s.name for s in STREAMS):
        assert track.observations[name].dtype == life.observations[name].dtype
        np.testing.assert_array_equal(track.observations[name][:-1], life.observations[name][steps])
        np.testing.assert_array_equal(track.observations[name][-1], life.final[name][number])
    np.testing.assert_array_equal(track.rewards, life.rewards[steps])
    np.testing.assert_array_equal(track.applied, life.applied[steps])
    np.testing.assert_array_equal(track.state_hash, life.applied[steps, 0].copy().view(np.uint64))
    np.testing.assert_array_equal(track.actions[track.decision, track.k], life.action[steps])
    np.testing.assert_array_equal(track.log_probs[track.decision, track.k], life.log_prob[steps])
    np.testing.assert_array_equal(track.step, np.flatnonzero(track.k == 0))
    np.testing.assert_array_equal(track.values, life.value[steps][track.step])
    np.testing.assert_array_equal(track.versions, life.version[steps][track.step])
    executed = np.zeros_like(track.executed)
    executed[track.decision, track.k] = True
    np.testing.assert_array_equal(track.executed, executed)
    assert all(
        value.flags.c_contiguous and value.flags.owndata
        for value in vars(track).values()
        if isinstance(value, np.ndarray)
    )


def assert_all_true(episodes: list[Episode], lives: list[Life]) -> None:
    found = {episode.id: episode for episode in episodes}
    assert len(found) == len(episodes)
    for env, life in enumerate(lives):
        for number in range(len(life.lengths)):
            whole = sum(life.lengths[: number + 1]) <= life.steps
            episode = found.pop(f"train-4-{env:04d}-{number:06d}", None)
            assert (episode is not None) == whole
            if episode:
                assert_true_to(episode, life, number)
    assert not found


@given(worlds(), st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_episodes_are_the_same_wherever_segments_are_cut(
    world: tuple[list[Life], list[int]], chunk: int, early: bool
) -> None:
    lives, cuts = world
    assembler = EpisodeAssembler(SPEC, 4)
    parts = segments(lives, cuts, chunk, early=early)
    episodes = [episode for segment in parts for episode in assembler.add(segment)]
    assert_all_true(episodes, lives)
    assert assembler.dropped == 0
    for episode in episodes:
        named = [episode.segments[i] for i in episode.agents["robot"].segment]
        env, number = int(episode.id[8:12]), int(episode.id[13:])
        begin = sum(lives[env].lengths[:number])
        of_step = np.repeat([segment.id for segment in parts], cuts)
        assert named == of_step[begin : begin + len(episode)].tolist()


@given(worlds(), st.integers(0, 5), st.booleans())
@settings(max_examples=30)
def test_open_episodes_survive_a_checkpoint(world: tuple[list[Life], list[int]], at: int, early: bool) -> None:
    lives, cuts = world
    parts = segments(lives, cuts, early=early)
    first, second = EpisodeAssembler(SPEC, 4), EpisodeAssembler(SPEC, 4)
    episodes = [episode for segment in parts[:at] for episode in first.add(segment)]
    second.load(first.state())
    assert_same(second.state(), first.state())
    episodes += [episode for segment in parts[at:] for episode in second.add(segment)]
    assert_all_true(episodes, lives)


def two_segments() -> list[Segment]:
    return segments([live(0, [5, 9], 12), live(1, [12], 12)], [6, 6])


def test_episodes_whose_start_was_not_seen_are_dropped_and_counted() -> None:
    assembler = EpisodeAssembler(SPEC, 1)
    assert assembler.add(two_segments()[1]) == []
    assert assembler.dropped == 1  # the first env's second episode does not end here


def test_a_missing_segment_drops_the_episodes_it_cuts() -> None:
    parts = segments([live(0, [5, 9, 4], 18), live(1, [18], 18)], [6, 6, 6])
    assembler = EpisodeAssembler(SPEC, 1)
    ids = [episode.id for part in (parts[0], parts[2]) for episode in assembler.add(part)]
    assert ids == ["train-1-0000-000000", "train-1-0000-000002"]
    assert assembler.dropped == 2


def test_rows_after_the_end_of_a_parked_body_belong_to_no_episode() -> None:
    [segment] = segments([live(0, [3, 9], 8)], [8])
    assert segment.starts
    segment.starts = Resets(
        segment.starts.ids[:1], segment.starts.seeds[:1], segment.starts.state[:1], {"mass": np.zeros(1)}
    )
    segment.start_at = segment.start_at[:1]
    segment.rows.step[3:] = -1
    assembler = EpisodeAssembler(SPEC, 0)
    [episode] = assembler.add(segment)
    assert len(episode) == 3 and assembler.dropped == 0


def test_ids_stay_unique_when_bodies_are_made_anew() -> None:
    assembler = EpisodeAssembler(SPEC, 2)
    ids = []
    for _ in range(3):
        ids += [e.id for e in assembler.add(segments([live(0, [3, 5], 8)], [8], mode="evaluation")[0])]
    assert ids == [f"evaluation-2-0000-{number:06d}" for number in range(6)]


def test_modes_do_not_mix() -> None:
    assembler = EpisodeAssembler(SPEC, 0)
    training, evaluation = two_segments(), segments([live(0, [5, 9], 12), live(1, [12], 12)], [6, 6], mode="evaluation")
    ids = [e.id for s in (training[0], evaluation[0], training[1], evaluation[1]) for e in assembler.add(s)]
    assert sorted(ids) == [f"{mode}-0-{env:04d}-000000" for mode in ("evaluation", "train") for env in (0, 1)]


def test_reward_versions_of_one_episode_are_all_named() -> None:
    first, second = segments([live(0, [8], 8)], [4, 4])
    second.reward_version = "dense-2"
    assembler = EpisodeAssembler(SPEC, 0)
    assembler.add(first)
    assert assembler.add(second)[0].reward_version == "sparse-1+dense-2"


def test_episodes_hold_nothing_of_their_segment() -> None:
    [segment] = segments([live(0, [3, 9], 8), live(1, [8], 8)], [8])
    for episode in EpisodeAssembler(SPEC, 0).add(segment):
        track = episode.agents["robot"]
        for value in (*track.observations.values(), track.rewards, track.actions, episode.initial_state):
            assert value.base is None


def test_a_segment_that_begins_within_a_chunk_is_refused() -> None:
    segment = two_segments()[0]
    segment.k[0, 1] = 1
    with pytest.raises(DataError, match="within a chunk"):
        EpisodeAssembler(SPEC, 0).add(segment)


@pytest.mark.parametrize("damage", [{}, {"meta": np.zeros(3, np.uint8)}, {"data": np.zeros(5, np.uint8)}])
def test_a_damaged_state_is_refused(damage: dict[str, np.ndarray]) -> None:
    assembler = EpisodeAssembler(SPEC, 0)
    assembler.add(two_segments()[0])
    state = assembler.state() | damage if damage else {}
    with pytest.raises(DataError):
        EpisodeAssembler(SPEC, 0).load(state)
