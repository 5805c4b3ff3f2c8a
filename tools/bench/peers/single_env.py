"""`lift_cube` as one writes it for gymnasium, one environment on `mj_step`: the baseline of `physics.py`.

`python single_env.py STEPS` prints control steps per second in gymnasium's `AsyncVectorEnv`, the best of several sizes.
It is a process of its own, for a fork of one with physics threads may never wake.
"""

import sys
import time
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from robots.control import LEASH_M
from simulators.tabletop import encode_text
from simulators.tasks.lift_cube import HOLD_STEPS, LIFT_M, STAGE_REWARD, LiftCube

BOUNDS = {"float32": (-np.inf, np.inf), "uint8": (0, 255)}


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
        start = self.task.initial_states(self.np_random.integers(0, 2**62, 1))
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


if __name__ == "__main__":
    print(max(async_steps_per_s(size, max(int(sys.argv[1]) // size, 1)) for size in (2, 8, 16)))
