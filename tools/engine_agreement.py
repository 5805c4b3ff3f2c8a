"""Whether another engine says what torch says: python tools/engine_agreement.py vla_tokens-0 [--engine vllm]

Serves a run by `embodied serve engine=...`, pins its oldest version kept, then its newest, then the oldest again, and
each time compares the server's answers to the task's own observations with torch's: greedy actions, and
log-probabilities of sampled ones. The last line is JSON, as of benchmarks. The run's pin is as before afterwards.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from embodied.client import RemoteClient
from embodied.data import Observation
from embodied.evaluate.cell import env_under
from embodied.runs.published import Run, open_run
from policies.torch_policy import TorchPolicy
from simulators.one_agent import OneAgentEnv

TOLERANCE = 1e-4
START_S = 1200.0
SWITCH_S = 300.0


@contextmanager
def served(run: Run, engine: str) -> Iterator[RemoteClient]:
    """A client of a server of this run, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/policy"
        serve = [sys.executable, "-m", "embodied.cli.main", "serve", f"run={run.folder}", f"engine={engine}"]
        server = subprocess.Popen([*serve, f"address={address}"], stdout=subprocess.DEVNULL)
        client = RemoteClient(address, timeout_s=START_S)
        try:
            yield client
        finally:
            client.close()
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def switch(run: Run, client: RemoteClient, number: int) -> None:
    """Have a version served, and torch's twin load it."""
    name = run.policy.spec.name
    version = run.registry.pin(name, number)
    limit = time.monotonic() + SWITCH_S
    while client.version() != version:
        if time.monotonic() > limit:
            raise SystemExit(f"version {number} is not served after {SWITCH_S:.0f} s")
        time.sleep(0.1)
    run.policy.load(run.registry.read(name, number)[1])


def difference(client: RemoteClient, twin: TorchPolicy, seen: Observation, seed: int) -> tuple[float, float]:
    """Largest difference of log-probabilities in nats, and share of greedy actions that are the same."""
    keys, inputs = seen.rows.noise_keys(seed), twin.inputs(seen.streams, len(seen.rows), critic=False)
    greedy, sampled = client.act(seen, keys, "mean"), client.act(seen, keys, "sample")
    same = (greedy.actions == twin.act(seen, keys, "mean").actions).mean()
    actions, stored = torch.tensor(sampled.actions), {key: torch.tensor(array) for key, array in sampled.stored.items()}
    with torch.inference_mode():
        evaluated = twin.network.evaluate_actions(inputs, actions, stored)
    return float(np.abs(sampled.log_probs - evaluated.log_probs.numpy()).max()), float(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--rows", type=int, default=64, help="scenes")
    arguments = parser.parse_args()
    run = open_run(arguments.run, arguments.runs)
    assert isinstance(run.policy, TorchPolicy)
    name = run.policy.spec.name
    before, kept = run.registry.pointers(name).pinned, run.registry.versions(name)
    env = env_under(None, run.settings.task, run.settings.env, arguments.rows, run.settings.seed)
    seen, _ = OneAgentEnv(env).reset(np.arange(arguments.rows))
    env.close()
    gaps, same = [], []
    try:
        with served(run, arguments.engine) as client:
            client.hello()
            for number in (kept[0].number, kept[-1].number, kept[0].number):
                switch(run, client, number)
                gap, share = difference(client, run.policy, seen, run.settings.seed)
                print(f"version {number}: log-probabilities within {gap:.1e}, {share:.1%} of greedy actions equal")
                gaps.append(gap)
                same.append(share)
    finally:
        run.registry.pin(name, before.number) if before else run.registry.unpin(name)
    apart = {
        "name": "engine_log_prob_difference",
        "value": max(gaps),
        "unit": "nat",
        "sense": "<=",
        "target": TOLERANCE,
    }
    equal = {"name": "engine_greedy_equal", "value": min(same), "unit": "share", "sense": ">=", "target": None}
    print(json.dumps({"results": [apart, equal]}))


if __name__ == "__main__":
    main()
