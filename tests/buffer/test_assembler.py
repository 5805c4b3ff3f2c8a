from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.buffer import assembler as module
from embodied.buffer.assembler import EpisodeAssembler
from embodied.buffer.layout import check
from embodied.data import Outcome, Resets, Rule, Segment
from embodied.episode import Episode, Track
from embodied.errors import DataError
from embodied.spec import EnvSpec
from tests.buffer.samples import SPEC, STREAMS, Life, assert_same, live, live_together, segments

PAIR = EnvSpec("reach", {"left": SPEC.agents["robot"], "right": SPEC.agents["robot"]}, 20.0, "", 50, 5, 3)


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


def assert_true_to(episode: Episode, life: Life, number: int, agent: str = "robot", late: int = 0) -> None:
    begin = sum(life.lengths[:number])
    steps = slice(begin, begin + life.ends[number])
    track = episode.agents[agent]
    check(episode)
    assert len(track) == life.ends[number] and track.outcome == life.outcomes[number]
    assert episode.seed == life.seeds[number]
    np.testing.assert_array_equal(episode.initial_state, life.state[number])
    assert episode.drawn["mass"] == life.mass[number]
    for name in (s.name for s in STREAMS):
        assert track.observations[name].dtype == life.observations[name].dtype
        np.testing.assert_array_equal(track.observations[name][:-1], life.observations[name][steps])
        np.testing.assert_array_equal(track.observations[name][-1], life.final[name][number])
    np.testing.assert_array_equal(track.rewards, life.rewards[steps])
    np.testing.assert_array_equal(track.applied, life.applied[steps])
    np.testing.assert_array_equal(track.state_hash, life.applied[steps, 0].copy().view(np.uint64))
    decided = track.k >= 0
    at = track.decision[decided], track.k[decided]
    np.testing.assert_array_equal(decided, np.arange(len(track)) >= late)
    assert (track.decision[~decided] == -1).all()
    np.testing.assert_array_equal(track.decided[decided], life.action[steps][decided])
    np.testing.assert_array_equal(track.log_probs[at], life.log_prob[steps][decided])
    # Every decision is in the track once, and was executed.
    np.testing.assert_array_equal(track.step, np.unique((np.arange(len(track)) - track.k)[decided]))
    np.testing.assert_array_equal(track.values, life.value[steps][track.step])
    np.testing.assert_array_equal(track.versions, life.version[steps][track.step])
    executed = np.zeros_like(track.executed)
    executed[at] = True
    np.testing.assert_array_equal(track.executed, executed)
    assert all(
        value.flags.c_contiguous and value.flags.owndata
        for value in vars(track).values()
        if isinstance(value, np.ndarray)
    )


def assert_all_true(episodes: list[Episode], lives: list[Life], late: int = 0) -> None:
    found = {episode.id: episode for episode in episodes}
    assert len(found) == len(episodes)
    for env, life in enumerate(lives):
        for number in range(len(life.lengths)):
            whole = sum(life.lengths[: number + 1]) <= life.steps
            episode = found.pop(f"sim-0/train/4-{env:04d}-{number:06d}", None)
            assert (episode is not None) == whole
            if episode:
                assert_true_to(episode, life, number, late=late)
                assert episode.spec == SPEC.to_dict()
    assert not found


@given(worlds(), st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_episodes_are_the_same_wherever_segments_are_cut(
    world: tuple[list[Life], list[int]], chunk: int, early: bool
) -> None:
    lives, cuts = world
    assembler = EpisodeAssembler(SPEC, 4)
    parts = segments(lives, cuts, chunk=chunk, early=early)
    episodes = [episode for segment in parts for episode in assembler.add(segment)]
    assert_all_true(episodes, lives)
    assert assembler.dropped == 0
    for episode in episodes:
        named = [episode.segments[i] for i in episode.agents["robot"].segment]
        _, env, number = map(int, episode.id.split("/")[2].split("-"))
        begin = sum(lives[env].lengths[:number])
        of_step = np.repeat([segment.id for segment in parts], cuts)
        assert named == of_step[begin : begin + len(episode)].tolist()


@given(worlds(), st.integers(1, 4), st.data(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_chunks_that_go_on_over_segments_are_one_decision(
    world: tuple[list[Life], list[int]], chunk: int, data: st.DataObject, timed: bool, changed: bool
) -> None:
    lives, cuts = world
    late = data.draw(st.integers(0, chunk - 1))
    options = {"chunk": chunk, "late": late, "carry": True, "timed": timed, "changed": changed}
    for cut in (cuts, [sum(cuts)]):
        assembler = EpisodeAssembler(SPEC, 4)
        parts = segments(lives, cut, **options)
        episodes = [episode for segment in parts for episode in assembler.add(segment)]
        assert_all_true(episodes, lives, late)
        assert assembler.dropped == 0


@given(worlds(), st.integers(0, 5), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_open_episodes_survive_a_checkpoint(
    world: tuple[list[Life], list[int]], at: int, early: bool, more: bool
) -> None:
    lives, cuts = world
    parts = segments(lives, cuts, early=early, carry=more, timed=more, changed=more)
    first, second = EpisodeAssembler(SPEC, 4), EpisodeAssembler(SPEC, 4)
    episodes = [episode for segment in parts[:at] for episode in first.add(segment)]
    second.load(first.state())
    assert_same(second.state(), first.state())
    episodes += [episode for segment in parts[at:] for episode in second.add(segment)]
    assert_all_true(episodes, lives)


def test_capture_times_and_changed_actions_are_kept_where_segments_have_them() -> None:
    parts = segments([live(0, [12], 12)], [4, 4, 4], timed=True, changed=True)
    parts[2].time, parts[2].times = None, {}
    assembler = EpisodeAssembler(SPEC, 0)
    [track] = [episode.agents["robot"] for part in parts for episode in assembler.add(part)]
    time = np.append(np.arange(8) / 20, np.full(5, np.nan))
    np.testing.assert_array_equal(track.time, time)
    np.testing.assert_array_equal(track.times["camera"], time - 0.02)
    assert track.action_requested is not None and track.action_executed is not None and track.action_rule is not None
    asked, changed = np.array([3, 11]), np.array([2, 10])
    assert np.flatnonzero(track.action_rule).tolist() == changed.tolist()
    assert (track.action_rule[changed] == Rule.POSITION).all()
    assert (track.action_requested[asked] == 0.25).all() and (track.action_executed[changed] == -0.5).all()
    others = np.setdiff1d(np.arange(12), asked)
    np.testing.assert_array_equal(track.action_requested[others], track.decided[others])
    others = np.setdiff1d(np.arange(12), changed)
    np.testing.assert_array_equal(track.action_executed[others], track.action_requested[others])


def two_segments() -> list[Segment]:
    return segments([live(0, [5, 9], 12), live(1, [12], 12)], [6, 6])


def test_episodes_whose_start_was_not_seen_are_dropped_and_counted() -> None:
    assembler = EpisodeAssembler(SPEC, 1)
    assert assembler.add(two_segments()[1]) == []
    assert assembler.dropped == 1  # the first environment's second episode does not end here


def test_a_missing_segment_drops_the_episodes_it_cuts() -> None:
    parts = segments([live(0, [5, 9, 4], 18), live(1, [18], 18)], [6, 6, 6])
    assembler = EpisodeAssembler(SPEC, 1)
    ids = [episode.id for part in (parts[0], parts[2]) for episode in assembler.add(part)]
    assert ids == ["sim-0/train/1-0000-000000", "sim-0/train/1-0000-000002"]
    assert assembler.dropped == 2


def test_a_segment_that_is_sent_again_is_acknowledged_and_not_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = two_segments()
    assembler = EpisodeAssembler(SPEC, 1)
    ids = [[episode.id for episode in assembler.add(part)] for part in (parts[0], parts[0], parts[1], *parts)]
    assert ids == [["sim-0/train/1-0000-000000"], [], ["sim-0/train/1-0001-000000"], [], []]
    assert assembler.dropped == 0
    restored = EpisodeAssembler(SPEC, 1)
    restored.load(assembler.state())
    assert restored.add(parts[1]) == [] and restored.dropped == 0
    monkeypatch.setattr(module, "SEEN", 3)
    for part in segments([live(0, [9], 9)], [1] * 9, mode="evaluation"):
        assembler.add(part)
    assert len(assembler._state.seen) <= 3


def test_rows_after_the_end_of_a_parked_environment_belong_to_no_episode() -> None:
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


def test_ids_stay_unique_when_environments_are_made_anew() -> None:
    assembler = EpisodeAssembler(SPEC, 2)
    ids = []
    for again in range(3):
        [segment] = segments([live(0, [3, 5], 8)], [8], mode="evaluation")
        segment.id = f"evaluation-{again}"
        ids += [e.id for e in assembler.add(segment)]
    assert ids == [f"sim-0/evaluation/2-0000-{number:06d}" for number in range(6)]


def test_origins_and_their_attempts_do_not_collide() -> None:
    assembler = EpisodeAssembler(SPEC, 2)
    ids = []
    for origin, attempt in (("sim-0", 0), ("sim-1", 0), ("sim-0", 1)):
        [segment] = segments([live(0, [3, 5], 8)], [8], origin=origin)
        segment.id = f"{origin}/{attempt}/0"
        ids += [e.id for e in assembler.add(segment)]
    numbers = ("0000-000000", "0000-000001")
    places = ("sim-0/train/0", "sim-1/train/0", "sim-0/train/1")
    assert ids == [f"{place}-{number}" for place in places for number in numbers]


def test_modes_do_not_mix() -> None:
    assembler = EpisodeAssembler(SPEC, 0)
    training, evaluation = two_segments(), segments([live(0, [5, 9], 12), live(1, [12], 12)], [6, 6], mode="evaluation")
    ids = [e.id for s in (training[0], evaluation[0], training[1], evaluation[1]) for e in assembler.add(s)]
    assert sorted(ids) == [f"sim-0/{mode}/0-{env:04d}-000000" for mode in ("evaluation", "train") for env in (0, 1)]


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


def test_a_decision_that_no_segment_holds_is_refused() -> None:
    segment = two_segments()[0]
    segment.k[0, 1], segment.rows.step[0, 1] = 1, 1
    with pytest.raises(DataError, match="not carried"):
        EpisodeAssembler(SPEC, 0).add(segment)
    segment = two_segments()[0]
    segment.k[2, 1] = 3
    with pytest.raises(DataError, match="from before its episode"):
        EpisodeAssembler(SPEC, 0).add(segment)
    segment = two_segments()[0]
    segment.rows.agent[:] = 1
    with pytest.raises(DataError, match="beyond the 1 of the spec"):
        EpisodeAssembler(SPEC, 0).add(segment)


@pytest.mark.parametrize("damage", [{}, {"packed": np.zeros(3, np.uint8)}, {"packed": np.zeros(0, np.uint8)}])
def test_a_damaged_state_is_refused(damage: dict[str, np.ndarray]) -> None:
    assembler = EpisodeAssembler(SPEC, 0)
    assembler.add(two_segments()[0])
    state = assembler.state() | damage if damage else {}
    with pytest.raises(DataError):
        EpisodeAssembler(SPEC, 0).load(state)


# Several agents. Two environments of two agents, with episodes of 6 and 8 steps, of which the last does not end.

LENGTHS = [[6, 8, 4], [8, 6, 4]]
ENDS = [[[6, 3, 4], [2, 8, 4]], [[8, 6, 4], [8, 1, 4]]]


def pairs() -> list[list[Life]]:
    """Lives by environment and agent."""
    return [live_together(env, LENGTHS[env], ENDS[env], 16) for env in range(2)]


def assert_pairs_true(episodes: list[Episode]) -> None:
    lives = pairs()
    ids = [f"sim-0/train/0-{env:04d}-{number:06d}" for env in range(2) for number in range(2)]
    assert sorted(episode.id for episode in episodes) == ids
    for episode in episodes:
        _, env, number = map(int, episode.id.split("/")[2].split("-"))
        assert list(episode.agents) == ["left", "right"]
        for agent, life in zip(episode.agents, lives[env], strict=True):
            assert_true_to(episode, life, number, agent)
        assert len(episode) == LENGTHS[env][number]


@pytest.mark.parametrize("early", [False, True])
def test_agents_of_one_policy_become_one_episode_with_a_track_each(early: bool) -> None:
    lives = pairs()
    rows = [(env, agent) for agent in range(2) for env in range(2)]
    parts = segments([lives[env][agent] for env, agent in rows], [5, 5, 6], rows, early=early, carry=True)
    assembler = EpisodeAssembler(PAIR, 0)
    assert_pairs_true([episode for part in parts for episode in assembler.add(part)])
    assert assembler.dropped == 0 and not any(assembler._state.incomplete.values())


def by_policy(**options: bool) -> dict[str, list[Segment]]:
    """Segments of 5, 5 and 6 steps of the policy of each agent; the right one records shorter ones."""
    lives = pairs()
    cuts = {"left": [5, 5, 6], "right": [2, 8, 6]}
    return {
        name: segments([lives[0][n], lives[1][n]], cuts[name], [(0, n), (1, n)], policy=name, **options)
        for n, name in enumerate(cuts)
    }


@pytest.mark.parametrize("order", sorted(set(permutations("LLLRRR"))))
def test_policies_send_their_segments_in_any_order(order: tuple[str, ...]) -> None:
    sent = {name[0].upper(): iter(parts) for name, parts in by_policy(carry=True).items()}
    assembler = EpisodeAssembler(PAIR, 0)
    episodes = []
    for name in order:
        episodes += assembler.add(next(sent[name]))
        restored = EpisodeAssembler(PAIR, 0)
        restored.load(assembler.state())
        assert_same(restored.state(), assembler.state())
        assembler = restored
    assert_pairs_true(episodes)
    assert assembler.dropped == 0 and assembler._incomplete_bytes == 0
    for episode in episodes:
        assert {name: track.policy for name, track in episode.agents.items()} == {"left": "left", "right": "right"}
        for track in episode.agents.values():
            assert {episode.segments[i].split("-")[1] for i in track.segment} == {track.policy}


def test_an_episode_of_which_a_part_never_comes_is_dropped_and_counted_once() -> None:
    parts = by_policy()
    assembler = EpisodeAssembler(PAIR, 0)
    episodes = [e for part in (*parts["left"], parts["right"][0], parts["right"][2]) for e in assembler.add(part)]
    # The right agent of environment 0 ended its first episode before the segment that is missing.
    assert [episode.id for episode in episodes] == ["sim-0/train/0-0000-000000"]
    assert assembler.dropped == 3 and assembler._incomplete_bytes == 0


def test_what_waits_for_an_agent_that_never_comes_is_bounded() -> None:
    parts = by_policy()["left"]
    assembler = EpisodeAssembler(PAIR, 0, incomplete_bytes=2000)
    for part in parts:
        assert assembler.add(part) == []
        assert assembler._incomplete_bytes <= 2000
    assert assembler.dropped > 0


def test_tracks_of_different_starts_are_not_joined() -> None:
    parts = by_policy()
    for part in parts["right"]:
        if part.starts is not None:
            part.starts = replace(part.starts, seeds=part.starts.seeds + 1)
    assembler = EpisodeAssembler(PAIR, 0)
    assert [e for name in parts for part in parts[name] for e in assembler.add(part)] == []
    assert assembler.dropped == 4


def test_outcomes_of_agents_make_one() -> None:
    def track(outcome: Outcome) -> Track:
        return replace(next(iter(EpisodeAssembler(SPEC, 0).add(two_segments()[0]))).agents["robot"], outcome=outcome)

    [episode] = EpisodeAssembler(SPEC, 0).add(two_segments()[0])
    for outcomes, joint in (
        ((Outcome.SUCCESS, Outcome.SUCCESS), Outcome.SUCCESS),
        ((Outcome.SUCCESS, Outcome.FAILURE), Outcome.FAILURE),
        ((Outcome.FAILURE, Outcome.SAFETY_STOP), Outcome.SAFETY_STOP),
        ((Outcome.INFRASTRUCTURE_FAULT, Outcome.SUCCESS), Outcome.INFRASTRUCTURE_FAULT),
    ):
        tracks = {str(n): track(outcome) for n, outcome in enumerate(outcomes)}
        assert replace(episode, agents=tracks).outcome == joint


def test_omitted_streams_are_in_no_episode() -> None:
    [whole], [without] = (EpisodeAssembler(SPEC, 0, omit=omit).add(two_segments()[0])[:1] for omit in ((), ("camera",)))
    assert without.agents["robot"].observations.keys() == whole.agents["robot"].observations.keys() - {"camera"}
    assert "camera" in whole.agents["robot"].observations
