"""Control and physics steps per second of EnvPool's PandaPickCube-v1; run by `physics.py` in EnvPool's environment."""

import sys
import time

import envpool
import numpy as np

SECONDS = 4.0


def rate(size: int, threads: int) -> float:
    env = envpool.make("PandaPickCube-v1", "gymnasium", num_envs=size, num_threads=threads, seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    actions = [rng.uniform(-1, 1, (size, *env.action_space.shape)) for _ in range(8)]
    for step in range(20):
        env.step(actions[step % 8])
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        env.step(actions[steps % 8])
        steps += 1
    return size * steps / (time.perf_counter() - begin)


best = max(rate(size, int(sys.argv[1])) for size in (16, 64, 256))
print(best, 4 * best)  # its ctrl_dt is 0.02 s, its sim_dt 0.005 s
