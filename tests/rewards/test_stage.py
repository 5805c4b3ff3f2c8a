"""The body's own rewards pass through; what is not finite never trains and is never a plain 0."""

import numpy as np

from embodied.data import RewardStatus, Rows, Segment
from embodied.rewards.stage import TaskReward


def make_segment(steps: int = 4, bodies: int = 3) -> Segment:
    shape, none = (steps, bodies), np.zeros((0,), np.float32)
    floats, flags = np.zeros(shape, np.float32), np.zeros(shape, bool)
    return Segment(
        id="s", policy="p", task="t", rows=Rows.of_envs(bodies), observations={}, bootstrap={},
        final_at=np.zeros((0, 2), np.int32), final={}, k=np.zeros(shape, np.int32),
        actions=np.zeros((*shape, 1, 2), np.float32), log_probs=np.zeros((*shape, 1, 2), np.float32),
        executed=np.ones((*shape, 1), bool), values=floats, versions=np.zeros(shape, np.int64),
        applied=np.zeros((*shape, 2)), rewards=np.arange(steps * bodies, dtype=np.float32).reshape(shape),
        reward_status=np.zeros(shape, np.uint8), reward_version="", terminated=flags, truncated=flags,
        outcomes=np.zeros(shape, np.uint8), source=np.zeros(shape, np.uint8), trainable=np.ones(shape, bool),
        start_at=none.astype(np.int32), starts=None,
    )  # fmt: skip


def test_rewards_pass_through_with_their_version():
    segment = make_segment()
    scored = TaskReward("lift_cube", "sparse").score(segment)
    np.testing.assert_array_equal(scored.rewards, segment.rewards)
    assert scored.reward_version == "lift_cube/sparse/1"
    assert scored.trainable.all()
    assert segment.reward_version == ""


def test_what_is_not_finite_failed_and_does_not_train():
    segment = make_segment()
    segment.rewards[1, 2], segment.rewards[3, 0] = np.nan, np.inf
    segment.reward_status[0, 0] = RewardStatus.PENDING
    segment.trainable[2, 2] = False
    scored = TaskReward("t", "dense").score(segment)
    bad = np.zeros((4, 3), bool)
    bad[1, 2] = bad[3, 0] = True
    assert (scored.reward_status[bad] == RewardStatus.FAILED).all()
    assert (scored.rewards[bad] == 0).all()
    assert scored.reward_status[0, 0] == RewardStatus.PENDING
    bad[0, 0] = bad[2, 2] = True
    np.testing.assert_array_equal(scored.trainable, ~bad)


def test_throughput_is_counted_on_the_given_clock():
    ticks = iter([0.0, 2.0, 5.0, 6.0])
    stage = TaskReward("t", "dense", clock=lambda: next(ticks))
    assert stage.metrics()["wall/reward_throughput"] == 0.0
    segment = make_segment()
    segment.rewards[0, 0] = np.nan
    stage.score(segment)
    stage.score(segment)
    assert stage.metrics() == {"reward/scored": 22.0, "reward/failed": 2.0, "wall/reward_throughput": 22.0 / 3.0}
