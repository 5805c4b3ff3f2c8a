"""A worker's environments, in this process."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from embodied.data import Outcome
from embodied.errors import InfrastructureError
from embodied.spec import AgentSpec, EnvSpec, Stream
from simulators.worker.rows import EnvRows
from simulators.worker.suite import Moment, load_suite
from tests.simulators.worker import tiny_gym
from tests.simulators.worker.tiny_gym import STEPS, TROUBLE

TINY = "gymnasium:tests.simulators.worker.tiny_gym:Tiny-v0"
STILL = np.zeros((1, 2), np.float32)
BAD = np.array([[TROUBLE, 0.0]], np.float32)


def rows(count: int = 1, success_ends: bool = False, **options: object) -> EnvRows:
    return EnvRows(load_suite(TINY, options), count, success_ends)


def goal_near(near: bool) -> int:
    """A seed whose goal is within 0.3 of the start, or not."""
    for seed in range(100):
        goal = gym.make("Tiny-v0").reset(seed=seed)[0]["desired_goal"]
        if (np.linalg.norm(goal) < 0.29) == near:
            return seed
    raise AssertionError


def test_success_counts_at_the_end() -> None:
    envs = rows()
    for near, outcome in ((True, Outcome.SUCCESS), (False, Outcome.TIME_LIMIT)):
        envs.reset([0], [goal_near(near)])
        told = [int(envs.step([0], STILL).outcomes[0, 0]) for _ in range(STEPS)]
        assert told == [0] * (STEPS - 1) + [outcome]


def test_success_may_end_an_episode_at_once() -> None:
    envs = rows(success_ends=True)
    envs.reset([0], [goal_near(True)])
    assert envs.step([0], STILL).outcomes[:, 0].tolist() == [Outcome.SUCCESS]


def test_terminated_without_success_is_a_failure_and_the_next_episode_begins() -> None:
    envs = rows()
    start = envs.reset([0], [7])
    envs.reset([0], [goal_near(False)])
    away = -np.sign(envs.reset([0], [goal_near(False)])["robot/desired_goal"]).astype(np.float32)
    for _ in range(3):
        assert not envs.step([0], away).outcomes[0]
    last = envs.step([0], away, seeds=[7])
    assert last.outcomes[:, 0].tolist() == [Outcome.FAILURE]
    np.testing.assert_allclose(last.final["robot/observation"], away * 0.4, rtol=1e-6)
    np.testing.assert_array_equal(last.streams["robot/desired_goal"], start["robot/desired_goal"])
    assert not last.streams["robot/observation"].any() and last.rewards[0, 0] < 0


@pytest.mark.parametrize(("trouble", "said"), [("raise", "RuntimeError: the gripper broke"), ("nan", "is not finite")])
def test_an_exception_is_a_fault_of_its_row_only(trouble: str, said: str) -> None:
    envs = rows(2, trouble=trouble)
    first = envs.reset([0, 1], [1, 2])
    result = envs.step([0, 1], np.concatenate([STILL, BAD]), seeds=[3, 2])
    assert result.outcomes[:, 0].tolist() == [Outcome.RUNNING, Outcome.INFRASTRUCTURE_FAULT]
    assert result.rewards[1, 0] == 0 and said in result.faults[0] and "environment 1" in result.faults[0]
    np.testing.assert_array_equal(
        result.final["robot/desired_goal"], first["robot/desired_goal"][1:]
    )  # what was seen last
    np.testing.assert_array_equal(
        result.streams["robot/desired_goal"], first["robot/desired_goal"]
    )  # of the new environment
    assert not envs.step([0, 1], np.concatenate([STILL, STILL])).outcomes.any()


class Odd:
    """A suite, and its environment, whose second step gives what it is told to."""

    spec = EnvSpec(
        task="odd",
        agents={
            "robot": AgentSpec(
                (Stream("x", (2,)), Stream("image", (2, 2), "uint8")), (Stream("action", (2,), limit=1.0),)
            )
        },
        control_hz=10.0,
        episode_steps=9,
        control_size=2,
    )

    def __init__(self, **second: Any) -> None:
        self._second, self._steps = second, 0

    def make(self) -> "Odd":
        return self

    def reset(self, seed: int) -> dict[str, Any]:
        self._steps = 0
        return {"x": np.full(2, seed), "image": np.zeros((2, 2), np.int64)}

    def step(self, action: np.ndarray) -> Moment:
        self._steps += 1
        given: dict[str, Any] = {"reward": 1, "success": False, "terminated": False, "truncated": np.bool_(False)}
        streams = {"x": action, "image": [[0, 255.0], [1, True]]}
        if self._steps == 2:
            given |= {name: value for name, value in self._second.items() if name in given}
            streams |= {name: value for name, value in self._second.items() if name in streams}
        return Moment(streams, **given)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("reward", bad) for bad in (np.nan, np.inf, -np.inf, 1e300, -1e39, 10**400, None, "1", 1j, np.ones(2), [])],
        *[("x", bad) for bad in ([np.nan, 0], [0, 1e300], ["1", "2"], None, np.zeros(3), np.zeros((1, 2)), [1, [2]])],
        *[("image", np.full((2, 2), bad)) for bad in (300, -1, 256.0, 0.5, np.nan, np.inf, 2**63, "1", 2.0**70)],
        *[("image", bad) for bad in (np.zeros((2, 2, 1), np.uint8), np.zeros((0, 2), np.uint8), None)],
        *[(flag, bad) for flag in ("success", "terminated", "truncated") for bad in ("no", None, np.zeros(2, bool))],
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_a_fault(name: str, value: Any) -> None:
    envs = EnvRows(Odd(**{name: value}), 1)
    envs.reset([0], [5])
    action = np.full((1, 2), 0.5, np.float32)
    first = envs.step([0], action)
    assert first.outcomes[:, 0].tolist() == [Outcome.RUNNING] and first.rewards[:, 0].tolist() == [1]
    assert first.streams["robot/image"].tolist() == [[[0, 255], [1, 1]]]
    result = envs.step([0], action, seeds=[7])
    assert result.outcomes[:, 0].tolist() == [Outcome.INFRASTRUCTURE_FAULT] and result.rewards[:, 0].tolist() == [0]
    assert result.final["robot/x"].tolist() == [[0.5, 0.5]] and result.streams["robot/x"].tolist() == [[7, 7]]
    assert len(result.faults) == 1 and len(result.faults[0]) < 400


def test_a_reward_may_be_an_array_of_one() -> None:
    envs = EnvRows(Odd(reward=np.full((1, 1), 0.25)), 1)
    envs.reset([0], [5])
    assert [float(envs.step([0], STILL).rewards[0, 0]) for _ in range(2)] == [1.0, 0.25]


def test_an_action_that_is_not_finite_is_a_fault() -> None:
    envs = rows()
    envs.reset([0], [1])
    assert envs.step([0], STILL * np.nan).outcomes[:, 0].tolist() == [Outcome.INFRASTRUCTURE_FAULT]
    assert envs.step([0], STILL).outcomes[:, 0].tolist() == [Outcome.INFRASTRUCTURE_FAULT]  # nothing was started since
    envs.reset([0], [1])
    assert not envs.step([0], STILL).outcomes.any()


def test_an_environment_that_cannot_start_is_named() -> None:
    with pytest.raises(InfrastructureError, match="environment 0 cannot be started with seed 5: OSError: the reset"):
        rows(trouble="reset").reset([0], [5])


def test_replay_gives_the_same_observation() -> None:
    envs, rng = rows(2), np.random.default_rng(0)
    envs.reset([0, 1], [1, 2])
    actions = rng.uniform(-0.3, 0.3, (2, 4, 2)).astype(np.float32)
    envs.step([0], actions[:1, 0])
    for k in range(4):
        last = envs.step([1], actions[1:, k])
    envs.step([0], actions[:1, 1])
    again = rows(2)
    again.reset([0, 1], [1, 2])
    seen = again.replay([0, 1], [2, 4], actions)
    np.testing.assert_array_equal(seen["robot/observation"][1:], last.streams["robot/observation"])
    following = np.full((2, 2), 0.1, np.float32)
    one, other = envs.step([0, 1], following), again.step([0, 1], following)
    np.testing.assert_array_equal(one.streams["robot/observation"], other.streams["robot/observation"])
    np.testing.assert_array_equal(one.rewards, other.rewards)


def test_the_time_limit_holds_without_the_environments_own() -> None:
    suite = load_suite(TINY, {})
    envs = EnvRows(suite, 1)
    envs.reset([0], [goal_near(False)])
    envs._rows[0].env._env = tiny_gym.Tiny()  # type: ignore[union-attr] # which never truncates
    envs.reset([0], [goal_near(False)])
    told = [int(envs.step([0], STILL).outcomes[0, 0]) for _ in range(STEPS)]
    assert told == [0] * (STEPS - 1) + [Outcome.TIME_LIMIT]
