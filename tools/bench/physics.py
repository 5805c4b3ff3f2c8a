"""How much of bare physics the batched environment keeps, and how it compares with gymnasium's AsyncVectorEnv.

`env_over_batch_N`: control steps per second of the whole environment (control, physics, observation, reward,
auto-reset) over those of a bare `Batch.step` of the same model, N, substeps, persistence and stage, which is given the
controls that the environment applied and the starts it drew. `env_over_async_vector`: control steps per second over
those of the same task, written for one environment on `mj_step` and MuJoCo's own Jacobian, in gymnasium's
`AsyncVectorEnv` at the best of several sizes. All sides run in turn, round after round; a result is the median of the
rounds' ratios.
"""

import argparse
import time
from typing import Any

import gymnasium
import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray
from results import emit

from simulators.control import LEASH_M
from simulators.env import STAGE, BatchEnv
from simulators.make import make_env, make_task
from simulators.tabletop import encode_text
from simulators.tasks.lift_cube import HOLD_STEPS, LIFT_M, STAGE_REWARD, LiftCube

TASK = "lift_cube"
BOUNDS = {"float32": (-np.inf, np.inf), "uint8": (0, 255)}
TARGETS = {"env_over_batch_64": 0.85, "env_over_batch_256": 0.95, "env_over_async_vector": 3.0}


class Recording:
    """What an environment did: the controls it applied and where its episodes started."""

    def __init__(self, env: BatchEnv, steps: int) -> None:
        self.first = env.batch.state.copy()
        self.applied: list[NDArray[np.float64]] = []
        self.starts: list[tuple[NDArray[np.int32], NDArray[np.float64]] | None] = []
        self.actions = []
        rng = np.random.default_rng(0)
        for _ in range(steps):
            noise = rng.normal(0.0, 0.5, (env.num_bodies, len(env.action_limit))) * env.action_limit
            self.actions.append(env.expert() + noise.astype(np.float32))
            result = env.step(self.actions[-1])
            self.applied.append(result.applied)
            self.starts.append(None if result.started is None else (result.started.ids, result.started.state))


def time_batch(batch: Batch, substeps: int, recording: Recording) -> float:
    """Seconds of bare physics over the recording; the starts are written and forwarded as the environment does."""
    ctrl = batch.bind("ctrl")
    batch.state[:] = recording.first
    batch.forward(None, STAGE)
    begin = time.perf_counter()
    for applied, start in zip(recording.applied, recording.starts, strict=True):
        ctrl[:] = applied
        batch.step(None, substeps, STAGE)
        if start is not None:
            ids, state = start
            batch.state[ids] = state
            batch.forward(ids, STAGE)
    return time.perf_counter() - begin


def time_env(env: BatchEnv, snapshot: dict[str, NDArray[Any]], recording: Recording) -> float:
    """Seconds of the whole environment over the same actions from the same state."""
    env.restore(snapshot)
    begin = time.perf_counter()
    for actions in recording.actions:
        env.step(actions)
    return time.perf_counter() - begin


class LiftCubeEnv(gymnasium.Env[dict[str, NDArray[np.float32]], NDArray[np.float32]]):
    """`lift_cube` for one environment, as one writes it for gymnasium."""

    def __init__(self) -> None:
        self.task = LiftCube("dense")
        self.model, self.data = self.task.model, mujoco.MjData(self.task.model)
        self.site = self.model.site("ee").id
        self.lower, self.upper = self.model.jnt_range[:7].T
        limit = self.task.spec.agents["robot"].action_limits
        self.action_space = gymnasium.spaces.Box(-limit, limit)
        streams = self.task.spec.agents["robot"].observations
        self.observation_space = gymnasium.spaces.Dict(
            {s.name: gymnasium.spaces.Box(*BOUNDS[s.dtype], s.shape, np.dtype(s.dtype)) for s in streams}
        )
        self.jacobian = np.zeros((6, self.model.nv))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        super().reset(seed=seed)
        start = self.task.start(self.np_random.integers(0, 2**62, 1))
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.ctrl[:] = start.state["qpos"][0], start.state["ctrl"][0]
        mujoco.mj_forward(self.model, self.data)
        self.target, self.command = self.data.site_xpos[self.site].copy(), 1.0
        self.words = encode_text(self.task.sentences()[int(start.state["userdata"][0, 0])], "lift_cube")
        self.rotation = self.task.arm.down
        self.held, self.steps = 0, 0
        return self._observe(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[dict[str, NDArray[np.float32]], float, bool, bool, dict[str, Any]]:
        action = np.clip(action, self.action_space.low, self.action_space.high)
        ee, rotation = self.data.site_xpos[self.site], self.data.site_xmat[self.site].reshape(3, 3)
        offset = self.target + action[:3] - ee
        target = ee + offset * min(1.0, LEASH_M / max(float(np.linalg.norm(offset)), 1e-9))
        self.target, self.command = np.clip(target, *self.task.arm.facts.workspace), float(action[3])
        mujoco.mj_jacSite(self.model, self.data, self.jacobian[:3], self.jacobian[3:], self.site)
        jac = self.jacobian[:, :7]
        turn = 0.5 * np.cross(rotation, self.rotation, axis=0).sum(axis=1)
        pull = 0.1 * (self.task.arm.chain.home - self.data.qpos[:7])
        error = np.concatenate([self.target - ee, turn]) - jac @ pull
        step = pull + jac.T @ np.linalg.solve(jac @ jac.T + 0.03**2 * np.eye(6), error)
        self.data.ctrl[:7] = np.clip(self.data.qpos[:7] + step, self.lower, self.upper)
        self.data.ctrl[7:] = 0.02 * (1.0 + self.command)
        mujoco.mj_step(self.model, self.data, nstep=self.task.substeps)
        mujoco.mj_step1(self.model, self.data)
        self.steps += 1
        height = self.data.qpos[11] - self.task.half
        self.held = self.held + 1 if height > LIFT_M else 0
        success = self.held >= HOLD_STEPS
        reward = STAGE_REWARD * self._stage() + self.task.success_reward["dense"] * success
        late = self.steps >= self.task.spec.episode_steps
        return self._observe(), float(reward), bool(success or height < -0.05), late, {}

    def _stage(self) -> Any:
        offset = self.data.qpos[9:12] - self.data.site_xpos[self.site]
        distance, width = float(np.linalg.norm(offset)), float(self.data.qpos[7] + self.data.qpos[8])
        grasped = distance < 0.03 and self.command < 0 and 0.03 < width < 0.05
        height = min(max((self.data.qpos[11] - self.task.half) / LIFT_M, 0.0), 1.0)
        return 1.0 - 0.5 * np.tanh(4.0 * distance) - 0.5 * np.tanh(20.0 * distance) + grasped * (1.0 + 4.0 * height)

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        qpos, qvel, ee = self.data.qpos, self.data.qvel, self.data.site_xpos[self.site]
        values: dict[str, Any] = {
            "joint_pos": qpos[:7],
            "joint_vel": qvel[:7],
            "ee_pos": ee,
            "gripper_width": [qpos[7] + qpos[8]],
            "gripper_command": [self.command],
            "ee_target_offset": self.target - ee,
            "cube_pos": qpos[9:12],
            "cube_quat": qpos[12:16],
            "cube_vel": qvel[9:12],
            "ee_to_cube": qpos[9:12] - ee,
            "held": [self.held / HOLD_STEPS],
        }
        return {**{name: np.array(value, np.float32) for name, value in values.items()}, "instruction": self.words}


def async_steps_per_s(size: int, steps: int) -> float:
    """Control steps per second of `size` environments in processes of their own."""
    env = gymnasium.vector.AsyncVectorEnv([LiftCubeEnv] * size)
    try:
        env.reset(seed=0)
        actions = [env.action_space.sample() for _ in range(8)]
        for step in range(20):
            env.step(actions[step % 8])
        begin = time.perf_counter()
        for step in range(steps):
            env.step(actions[step % 8])
        return size * steps / (time.perf_counter() - begin)
    finally:
        env.close()


def env_steps_per_s(steps: int, threads: int) -> float:
    """Control steps per second of the whole environment at 64, with random actions as the vector environment gets."""
    env = make_env(TASK, 64, threads)
    env.reset()
    rng = np.random.default_rng(0)
    limit = env.action_limit
    actions = [rng.uniform(-limit, limit, (64, len(limit))).astype(np.float32) for _ in range(8)]
    for step in range(20):
        env.step(actions[step % 8])
    begin = time.perf_counter()
    for step in range(steps):
        env.step(actions[step % 8])
    return 64 * steps / (time.perf_counter() - begin)


def compare_with_batch(size: int, rounds: int, steps: int, threads: int) -> NDArray[np.float64]:
    """[rounds, 2] control steps per second of the whole environment and of bare physics, which go first in turn."""
    env = make_env(TASK, size, threads)
    env.reset()
    for _ in range(20):  # the starts of all episodes at once are no fair sample of the work
        env.step(env.expert())
    snapshot = env.snapshot()
    recording = Recording(env, steps)
    bare = Batch(make_task(TASK).model, size, threads, persistent=True)
    seconds = np.empty((rounds + 1, 2))
    for turn in range(rounds + 1):
        for side in (0, 1) if turn % 2 else (1, 0):
            whole = side == 0
            seconds[turn, side] = (
                time_env(env, snapshot, recording) if whole else time_batch(bare, env.task.substeps, recording)
            )
    return size * steps / seconds[1:]  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of interleaved measurements")
    parser.add_argument("--steps", type=int, default=7680, help="environment steps of one measurement")
    parser.add_argument("--threads", type=int, default=0, help="physics threads, 0 for one per CPU")
    arguments = parser.parse_args()

    results: dict[str, float] = {}
    print(f"{'':24} {'ours/s':>8} {'theirs/s':>8} {'ratio':>6}  ratios of the rounds")
    for size in (64, 256):
        steps = max(arguments.steps // size, 1)
        rates = compare_with_batch(size, arguments.rounds, steps, arguments.threads)
        results[f"env_over_batch_{size}"] = show(f"env_over_batch_{size}", rates)
    pairs = []
    for _ in range(3):
        best = max(async_steps_per_s(size, max(arguments.steps // (4 * size), 1)) for size in (2, 8, 16))
        pairs.append((env_steps_per_s(max(arguments.steps // 64, 1), arguments.threads), best))
    results["env_over_async_vector"] = show("env_over_async_vector", np.array(pairs))
    emit(results, TARGETS)


def show(name: str, rates: NDArray[np.float64]) -> float:
    """Print a row of the table; the median ratio."""
    ratios = rates[:, 0] / rates[:, 1]
    ours, theirs = np.median(rates, axis=0)
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{name:24} {ours:>8.0f} {theirs:>8.0f} {np.median(ratios):>6.3f}  {each}", flush=True)
    return float(np.median(ratios))


if __name__ == "__main__":
    main()
