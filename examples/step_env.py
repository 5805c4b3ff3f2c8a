"""Make a batch of environments and step it with the task's scripted expert."""

import numpy as np

from embodied.data import Outcome
from simulators.make import make_env

env = make_env("lift_cube", num_envs=16, seed=0)  # cameras=["front"] adds the stream front_rgb
agent = env.spec.only_agent
print(f"agent {agent}: actions {[(s.name, s.shape, s.unit) for s in env.spec.agents[agent].actions]}")

observations, resets = env.reset()
outcomes = np.zeros(len(Outcome), int)
for _ in range(60):
    step = env.step(env.expert())  # actions by agent: {agent: [B, D]}
    part = step.agents[agent]
    outcomes += np.bincount(part.outcomes[part.ended], minlength=len(Outcome))
env.close()

print({name: values.shape for name, values in part.observation.streams.items()})
print(", ".join(f"{outcome.name.lower()} {outcomes[outcome]}" for outcome in Outcome if outcomes[outcome]))
