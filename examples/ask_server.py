"""Ask a policy server for actions, as a robot's program does: base install only.

Start one first: `embodied serve run=null task=reach address=ipc://policy`.
"""

import sys

import numpy as np

from embodied.client import Executor, RecedingHorizon, RemoteClient
from embodied.data import Observation, Rows

address = sys.argv[1] if len(sys.argv) > 1 else "ipc://policy"
client = RemoteClient(address, timeout_s=20.0, priority="robot")
policy = client.hello()
print(f"policy {policy.name}: chunks of {policy.chunk} actions, {[s.name for s in policy.agent.observations]}")

rows = Rows.of_envs(1)
executor = Executor(1, policy, RecedingHorizon(policy.execute))
for step in range(5):
    time = np.array([step * 0.05])  # capture time, seconds on your own clock
    sensed = {s.name: np.zeros((1, *s.shape), s.dtype) for s in policy.agent.observations}  # read your sensors here
    if executor.due(rows, time)[0]:
        asked = Observation(rows, sensed | executor.ask([0], rows, time), time)
        executor.accept([0], client.act(asked, rows.noise_keys(seed=0), "mean"), time)
    decided = executor.next(rows, time)
    print(f"step {step}: version {decided.versions[0]}, action {np.round(decided.actions[0], 3)}")
    rows.step += 1
client.close()
