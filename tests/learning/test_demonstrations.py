"""Windows of what was executed, against a loop over steps, whatever chunks it came in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.data import Source
from embodied.episode import Track
from embodied.errors import DataError
from embodied.learning.demonstrations import demonstrated, gather, windows
from tests.learning.pointmass import demonstrations


def draw_track(seed: int, steps: int, chunk: int, own: float) -> Track:
    """Decisions of `chunk` actions of which some are executed; `own` of the steps are the policy's or do not train."""
    rng = np.random.default_rng(seed)
    decision, k = np.zeros(steps, np.int32), np.zeros(steps, np.int32)
    for t in range(1, steps):
        goes_on = k[t - 1] + 1 < chunk and rng.random() < 0.7
        k[t] = k[t - 1] + 1 if goes_on else 0
        decision[t] = decision[t - 1] + (not goes_on)
    n = int(decision[-1]) + 1 if steps else 0
    source = np.where(rng.random(steps) < own, Source.POLICY, rng.choice([Source.HUMAN, Source.SCRIPT], steps))
    zeros = np.zeros(steps, np.uint8)
    return Track(
        observations={"x": rng.normal(size=(steps + 1, 2)).astype(np.float32)}, decision=decision, k=k,
        rewards=np.zeros(steps, np.float32), reward_status=zeros, terminated=zeros > 0, truncated=zeros > 0,
        source=source.astype(np.uint8), trainable=rng.random(steps) >= own / 2, applied=np.zeros((steps, 2)),
        segment=zeros.astype(np.int32), step=np.flatnonzero(k == 0).astype(np.int32),
        actions=rng.normal(size=(n, chunk, 2)).astype(np.float32),
        log_probs=np.full((n, chunk, 2), np.nan, np.float32), executed=np.ones((n, chunk), bool),
        values=np.full(n, np.nan, np.float32), versions=np.zeros(n, np.int64),
    )  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32), steps=st.integers(0, 12), stored=st.integers(1, 3), chunk=st.integers(1, 5),
    own=st.sampled_from([0.0, 0.3, 1.0]),
)  # fmt: skip
def test_windows_equal_a_loop(seed, steps, stored, chunk, own) -> None:
    track = draw_track(seed, steps, stored, own)
    chosen = [bool(track.trainable[t]) and track.source[t] != Source.POLICY for t in range(steps)]
    assert demonstrated(track).tolist() == chosen
    starts, actions, mask = windows(track, chunk)
    assert starts.tolist() == [t for t in range(steps) if chosen[t]]
    assert actions.dtype == np.float32 and actions.shape == (len(starts), chunk, 2)
    for row, t in enumerate(starts):
        alive = True
        for i in range(chunk):
            alive = alive and t + i < steps and chosen[t + i]
            assert mask[row, i] == alive
            done = track.actions[track.decision[t + i], track.k[t + i]] if alive else np.zeros(2)
            np.testing.assert_array_equal(actions[row, i], done)


def test_episodes_are_joined_and_what_they_lack_is_named() -> None:
    episodes = demonstrations(3, 0)
    shown = gather(iter(episodes), ["position"], 2)
    assert len(shown) == sum(len(episode) for episode in episodes) == len(shown.streams["position"])
    assert shown.mask[:, 0].all() and int((~shown.mask[:, 1]).sum()) == 3
    with pytest.raises(DataError, match="no stream place"):
        gather(episodes, ["place"], 1)
    with pytest.raises(DataError, match=r"no stream place .*policy\.critic=\[\]"):
        gather(episodes, ["position", "place"], 1, critic=["place"])
    with pytest.raises(DataError, match="human or a script"):
        gather([], ["position"], 1)
    other = demonstrations(1, 9)
    other[0].agents["robot"].observations["position"] = np.zeros((len(other[0]) + 1, 3), np.float32)
    with pytest.raises(DataError, match="unlike"):
        gather(episodes + other, ["position"], 1)
