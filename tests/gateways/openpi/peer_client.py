"""A view by openpi's own client; runs in its environment, with openpi_client and numpy only. Prints JSON lines.

    python peer_client.py PORT HORIZON [API_KEY]

Each line read from standard input asks for one chunk, action by action.
"""

import json
import sys

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy

port, horizon, *key = sys.argv[1:]
policy = WebsocketClientPolicy("127.0.0.1", int(port), *key)
metadata = policy.get_server_metadata()
print(json.dumps(metadata), flush=True)

observation: dict = {}
for entry in metadata["observation"].values():
    *above, last = entry["path"]
    node = observation
    for name in above:
        node = node.setdefault(name, {})
    node[last] = "pick it up" if entry["dtype"] == "str" else np.zeros(entry["shape"], entry["dtype"])

broker = ActionChunkBroker(policy, action_horizon=int(horizon))
for _ in sys.stdin:
    steps = [broker.infer(observation) for _ in range(int(horizon))]
    print(
        json.dumps({
            "actions": [step["actions"].tolist() for step in steps],
            "dtype": str(steps[0]["actions"].dtype),
            "versions": [step["policy_version"] for step in steps],
            "labels": [step["policy_label"] for step in steps],
            "timing": [sorted(steps[0]["server_timing"]), sorted(steps[0]["policy_timing"])],
        }),
        flush=True,
    )  # fmt: skip
