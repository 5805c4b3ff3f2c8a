"""A task of two agents with different streams, actions and ends, on real physics: two carriages on rails.

`slider` moves on a rail of its own and succeeds where it reaches its goal; `crane` moves in a plane, fails where it
leaves it, and otherwise ends at the time limit. An environment is reset when both have ended.
"""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from embodied.spec import AgentSpec, EnvSpec, Stream
from simulators.env import BatchEnv
from simulators.randomise.ranges import Ranges
from simulators.task import Array, Fields, InitialStates, between, reset_uniforms

MODEL = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0" integrator="implicitfast"/>
  <worldbody>
    <camera name="above" pos="0 0.5 3"/>
    <camera name="near" pos="0 0.5 2"/>
    <body><joint name="slider" type="slide" axis="1 0 0" damping="1"/><geom size="0.05" mass="0.1"/></body>
    <body pos="0 1 0">
      <joint name="crane_x" type="slide" axis="1 0 0" damping="1"/>
      <joint name="crane_y" type="slide" axis="0 1 0" damping="1"/>
      <geom size="0.05" mass="0.1"/>
    </body>
  </worldbody>
  <actuator>
    <position joint="slider" kp="40" kv="4"/>
    <position joint="crane_x" kp="40" kv="4"/>
    <position joint="crane_y" kp="40" kv="4"/>
  </actuator>
</mujoco>
"""
AGENTS = {
    "slider": AgentSpec(
        (Stream("position", (1,), unit="m"), Stream("goal", (1,), unit="m")),
        (Stream("velocity", (1,), unit="m/s", limit=1.0),),
    ),
    "crane": AgentSpec(
        (Stream("position", (2,), unit="m"), Stream("pixels", (4, 4, 3), "uint8"), Stream("steps", (1,), "int32")),
        (Stream("x", (1,), unit="m/s", limit=2.0), Stream("y", (1,), unit="m/s", limit=2.0)),
    ),
}
SUBSTEPS, STEP_S = 5, 0.05
NEAR, EDGE = 0.05, 1.0


class TwoAgents:
    """The task; as `simulators.task.MultiAgentTask`. `limit` is the time limit in control steps."""

    substeps, memory_size, fields = SUBSTEPS, 5, ("qpos", "time")

    def __init__(self, limit: int = 20) -> None:
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.actuators: Mapping[str, NDArray[np.intp]] = {"slider": np.array([0]), "crane": np.array([1, 2])}
        size = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.spec = EnvSpec("two_agents", AGENTS, 1 / STEP_S, "move both", limit, size, self.model.nu)

    def initial_states(self, seeds: NDArray[np.int64]) -> InitialStates:
        u = reset_uniforms(seeds, 4)
        qpos = between(u[:, :3], -0.3, 0.3)
        return InitialStates({"qpos": qpos}, {"hue": u[:, 3].copy()})

    def begin(self, fields: Fields, memory: Array) -> None:
        """Memory: the three targets, the slider's goal, and steps."""
        memory[:, :3] = fields["qpos"]
        memory[:, 3] = 0.4 + fields["qpos"][:, 0]
        memory[:, 4] = 0

    def control(self, fields: Fields, memory: Array, actions: Mapping[str, NDArray[np.float32]]) -> Array:
        memory[:, :3] += STEP_S * np.concatenate([actions["slider"], actions["crane"]], axis=1)
        return memory[:, :3]

    def update(self, fields: Fields, memory: Array) -> None:
        memory[:, 4] += 1

    def observe(self, fields: Fields, memory: Array) -> dict[str, dict[str, NDArray[Any]]]:
        qpos = fields["qpos"].astype(np.float32)
        pixels = np.clip(127 + 127 * qpos[:, 1], 0, 255).astype(np.uint8)
        return {
            "slider": {"position": qpos[:, :1].copy(), "goal": memory[:, 3:4].astype(np.float32)},
            "crane": {
                "position": qpos[:, 1:].copy(),
                "pixels": np.tile(pixels[:, None, None, None], (1, 4, 4, 3)).copy(),
                "steps": memory[:, 4:].astype(np.int32),
            },
        }

    def _distance(self, fields: Fields, memory: Array) -> Array:
        return np.abs(memory[:, 3] - fields["qpos"][:, 0])

    def reward(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        crane = np.linalg.norm(fields["qpos"][:, 1:], axis=1)
        return {"slider": -self._distance(fields, memory).astype(np.float32), "crane": crane.astype(np.float32)}

    def success(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        near = self._distance(fields, memory) < NEAR
        return {"slider": near, "crane": np.zeros(len(near), bool)}

    def failure(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.bool_]]:
        beyond = (np.abs(fields["qpos"][:, 1:]) > EDGE).any(axis=1)
        return {"slider": np.zeros(len(beyond), bool), "crane": beyond}

    def expert(self, fields: Fields, memory: Array) -> dict[str, NDArray[np.float32]]:
        towards = np.clip((memory[:, 3:4] - fields["qpos"][:, :1]) / STEP_S, -1, 1)
        return {"slider": towards.astype(np.float32), "crane": np.tile(np.float32([1.0, -0.5]), (len(towards), 1))}


def make(
    count: int, seed: int = 0, limit: int = 20, num_threads: int = 1, first: int = 0, randomise: Ranges | None = None
) -> BatchEnv:
    """`count` environments of the task, the first with global index `first`."""
    return BatchEnv(TwoAgents(limit), count, num_threads, seed, randomise=randomise, first=first)


def actions(env: BatchEnv, step: int, first: int = 0) -> dict[str, NDArray[np.float32]]:
    """Actions of both agents that differ between environments: some reach their ends early, others late or never."""
    at = first + np.arange(env.num_envs, dtype=np.float32)
    slider = np.where(at % 3 == 0, 1.0, 0.2 * np.sin(at + step))[:, None]
    crane = np.stack([np.where(at % 4 < 2, 1.9, 0.1), 0.5 * np.cos(at + step)], axis=1)
    return {"slider": slider.astype(np.float32), "crane": crane.astype(np.float32)}
