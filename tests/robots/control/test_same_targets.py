"""Control gives the same targets in simulation and on a robot, to the last bit."""

import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
from mujoco.batch import Batch

from robots.control import CONTROLS, make_control
from robots.descriptions import arms
from robots.kinematics.arm import ArmKinematics
from simulators.arm import Arm
from simulators.make import make_task
from simulators.scene import table_scene

ROOT = Path(__file__).parents[3]
TASKS = {"panda": "lift_cube", "so101": "lift_cube", "panda_pair": "reach_pair"}
ENVS, STEPS = 8, 21  # 168 states of each control and arm, 1,008 of each arm


def simulate(robot, kind):
    """Step a task with random actions: arm prefix to what its control was given, and what it answered."""
    options = {} if robot == "panda_pair" else {"robot": robot}
    task = make_task(TASKS[robot], control=kind, **options)
    batch = Batch(task.model, ENVS, 1, persistent=True)
    fields = {name: batch.bind(name) for name in task.fields}
    for name, values in task.initial_states(np.arange(ENVS)).state.items():
        batch.bind(name)[:] = values
    batch.forward(None, int(mujoco.mjtStage.mjSTAGE_VEL))
    memory = np.zeros((ENVS, task.memory_size))
    task.begin(fields, memory)

    parts, column, used = [], 0, 0
    for arm in getattr(task, "arms", None) or [task.arm]:
        control = make_control(kind, arm)
        size = sum(stream.size for stream in control.actions)
        parts.append((arm, slice(column, column + control.memory_size), slice(used, used + size)))
        column, used = column + control.memory_size, used + size
    limits, rng = task.spec.agents[next(iter(task.spec.agents))].action_limits, np.random.default_rng(0)
    given = {arm.prefix: {"q": [], "ee_pos": [], "memory": [], "actions": []} for arm, *_ in parts}
    answered = {arm.prefix: {"targets": [], "memory": []} for arm, *_ in parts}
    for _ in range(STEPS):
        actions = (np.clip(rng.normal(0.0, 0.7, (ENVS, len(limits))), -1.0, 1.0) * limits).astype(np.float32)
        for arm, columns, moves in parts:
            state = arm.measured(fields)
            row = {"q": state.q, "ee_pos": state.ee_pos, "memory": memory[:, columns], "actions": actions[:, moves]}
            for name, values in row.items():
                given[arm.prefix][name].append(values.copy())
        ctrl = task.control(fields, memory, actions)
        for arm, columns, _ in parts:
            answered[arm.prefix]["targets"].append(ctrl[:, arm.arm_ctrl].copy())
            answered[arm.prefix]["memory"].append(memory[:, columns].copy())
        batch.bind("ctrl")[:] = ctrl
        batch.step(None, task.substeps, int(mujoco.mjtStage.mjSTAGE_VEL))

    def joined(of):
        return {prefix: {name: np.concatenate(rows) for name, rows in parts.items()} for prefix, parts in of.items()}

    return joined(given), joined(answered)


def test_a_robot_without_mujoco_and_numba_computes_the_targets_of_the_simulation(tmp_path):
    answers = {}
    for robot in TASKS:
        for kind in CONTROLS:
            given, answered = simulate(robot, kind)
            for prefix, rows in given.items():
                name = f"{robot}:{prefix}:{kind}"
                np.savez(tmp_path / f"{name}.npz", **rows)
                answers[name] = answered[prefix]
    command = [sys.executable, "-m", "tests.robots.control.rows", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {}
    for name, answer in answers.items():
        with np.load(tmp_path / f"{name}.npz") as file:
            for key in ("targets", "memory"):
                assert file[key].tobytes() == answer[key].tobytes(), f"{name}: {key} differ"
        arm = name.rsplit(":", 1)[0]
        rows[arm] = rows.get(arm, 0) + len(answer["targets"])
    assert len(rows) == 4 and min(rows.values()) >= 1000


@pytest.mark.parametrize("robot", TASKS)
def test_forward_kinematics_find_the_end_effector_of_mujoco(robot):
    model = table_scene(robot).compile()
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(20):
        for prefix in arms(robot):
            arm, alone = Arm(model, robot, prefix), ArmKinematics(robot, prefix)
            data.qpos[arm.arm_qpos] = rng.uniform(arm.chain.lower, arm.chain.upper)
            mujoco.mj_forward(model, data)
            simulated = arm.measured({"qpos": data.qpos[None], "site_xpos": data.site_xpos[None]})
            np.testing.assert_allclose(alone.state(simulated.q).ee_pos, simulated.ee_pos, atol=1e-12)
