"""Train without the command line, then measure the policy on starts of your own choice."""

import sys

import numpy as np

from embodied import api
from embodied.client import LocalClient
from embodied.rollout.play import by_policy, play
from embodied.serving.versioned_policy import VersionedPolicy
from simulators.make import make_env

steps = sys.argv[1] if len(sys.argv) > 1 else "60000"
folder = api.train("task=reach", "seed=3", f"budget.env_steps={steps}", "render.episodes=0")
print(f"the run's own evaluation: {api.summary(str(folder))['success_rate']:.2f}")

policy = api.load_policy(str(folder))
client = LocalClient(VersionedPolicy(policy))
env = make_env("reach", num_envs=50)
env.autoreset = False
played = play(
    env, by_policy(client, policy.spec, seed=0), np.arange(50) + 7000, policy.spec, id="mine", mode="evaluation"
)
env.close()
print(f"on seeds 7000 to 7049: {played.successes} of {played.counted}")
