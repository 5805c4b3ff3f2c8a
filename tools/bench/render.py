"""Pictures per core-second of the lift_cube scene, by rays and by lean GL, and of FetchPush's own `render()`.

`rgbN_fixed_fps_per_core`, `rgbN_wrist_fps_per_core`: the ray caster on one thread, 64 envs per call, in states of
real episodes. `rgb84_over_lean_gl`: the fixed camera by rays over the same by our own GL without shadows and
multisampling. `rgb84_over_fetchpush`: the fixed camera by rays over FetchPush-v4's `render()` at the same size, as
gymnasium-robotics has it, in its own environment on one core. A rate counts the CPU time of the whole process, GL's
threads included. All run in turn, round after round; a rate is the median of the rounds, a ratio the median of the
rounds' ratios.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import emit

from simulators.make import make_env
from simulators.one_agent import OneAgentEnv
from simulators.render.cameras import Cameras, View
from simulators.render.gl import GL_PACKAGES, find_gl

BODIES, SIZES, TASK = 64, (64, 84, 128, 224), "lift_cube"
CAMERAS = {"fixed": "front", "wrist": "wrist"}
TARGETS = {
    "rgb84_fixed_fps_per_core": 5000.0,
    "rgb84_wrist_fps_per_core": 4000.0,
    "rgb84_over_lean_gl": 3.0,
    "rgb84_over_fetchpush": 50.0,
}
PEER = Path(__file__).parents[2] / ".venvs" / "gymnasium-robotics" / "bin" / "python"
PEER_S = 120.0
PEER_CODE = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import gymnasium, gymnasium_robotics
gymnasium.register_envs(gymnasium_robotics)
env = gymnasium.make("FetchPush-v4", render_mode="rgb_array", width=84, height=84)
env.reset(seed=0)
assert env.render().shape == (84, 84, 3)
spent, count = 0.0, 0
while spent < 1.0:
    env.step(env.action_space.sample())
    begin = time.process_time()
    env.render()
    spent += time.process_time() - begin
    count += 1
print(count / spent)
"""


def episode_states(fields: tuple[str, ...]) -> tuple[Any, dict[str, NDArray[np.float64]]]:
    """The task's model, and `fields` of envs that are each at another step of an episode of a noisy expert."""
    env, rng = make_env(TASK, BODIES, 1, seed=1), np.random.default_rng(0)
    one = OneAgentEnv(env)
    one.reset()
    live = {name: env.batch.bind(name) for name in fields}
    kept = {name: np.empty_like(values) for name, values in live.items()}
    for step in range(24):
        noise = rng.normal(0.0, 0.5, (BODIES, len(env.action_limit))) * env.action_limit
        one.step(one.expert() + noise.astype(np.float32))
        rows = np.arange(BODIES) % 24 == step
        for name, values in live.items():
            kept[name][rows] = values[rows]
    return env.task.model, kept


def rate(cameras: Cameras, fields: dict[str, NDArray[np.float64]], seconds: float) -> float:
    """Pictures per CPU-second."""
    begin, count = time.process_time(), 0
    while (spent := time.process_time() - begin) < seconds:
        cameras.render(fields)
        count += BODIES
    return count / spent


def peer_rate(backend: str) -> float:
    """Pictures per CPU-second of FetchPush-v4."""
    env = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend, "OMP_NUM_THREADS": "1"}
    command = [str(PEER), "-W", "ignore", "-c", PEER_CODE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PEER_S, check=False)
    if done.returncode:
        raise SystemExit(f"FetchPush-v4 failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU time of each measurement")
    arguments = parser.parse_args()

    backend = find_gl()
    names = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
    model, fields = episode_states(names)
    sides = {
        f"rgb{size}_{name}_fps_per_core": Cameras(model, [View(camera, size, size)], "ray", 1)
        for size in SIZES
        for name, camera in CAMERAS.items()
    }
    view = View("front", 84, 84, ("depth", "segmentation"))
    sides["depth_segmentation84_fixed_fps_per_core"] = Cameras(model, [view], "ray", 1)
    if backend is None:
        print(f"no lean GL and no FetchPush: no GL library draws here ({GL_PACKAGES})")
    else:
        for size in (84, 224):
            sides[f"lean_gl{size}_fixed_fps_per_core"] = Cameras(model, [View("front", size, size)], "gl", 1)
    for cameras in sides.values():
        cameras.render(fields)
    peer = backend is not None and PEER.exists()
    if not PEER.exists():
        print("no FetchPush: `make peer-gymnasium-robotics` installs it")

    rounds: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, cameras in sides.items():
            rounds.setdefault(name, []).append(rate(cameras, fields, arguments.seconds))
        if peer and backend is not None:
            rounds.setdefault("fetchpush84_fps_per_core", []).append(peer_rate(backend))
    ours = rounds["rgb84_fixed_fps_per_core"]
    values = {name: median(rates) for name, rates in rounds.items()}
    units = dict.fromkeys(values, "1/s")
    for name, other in (("lean_gl", "lean_gl84_fixed_fps_per_core"), ("fetchpush", "fetchpush84_fps_per_core")):
        if other in rounds:
            values[f"rgb84_over_{name}"] = median(a / b for a, b in zip(ours, rounds[other], strict=True))
    for name, value in values.items():
        target = f"at least {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{name:42s} {value:10.1f}  {target}")
    emit(values, TARGETS, units)


if __name__ == "__main__":
    main()
