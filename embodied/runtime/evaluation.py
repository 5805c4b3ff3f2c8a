"""Measuring a policy on seeds, in this process or through a policy server."""

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied.client import LocalClient, PolicyClient, RemoteClient
from embodied.data import Outcome
from embodied.errors import UserError
from embodied.monitor.stats import wilson
from embodied.rollout.body import Body
from embodied.rollout.play import by_policy, play
from embodied.runtime.parts import make_body, make_client, make_policy
from embodied.runtime.published import load_policy
from embodied.runtime.run_folder import resolve
from embodied.runtime.settings import Serve, check_seed, require
from embodied.serving.host import PolicyHost
from embodied.spec import PolicySpec
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry


@dataclass
class EvalSettings:
    """run: the run to evaluate; null for `task`, `body` and `policy`, such as another project's server. version:
    `latest` or a number. episodes, seed: one episode of each seed from `seed` on. threads: physics threads, 0 for every
    core. serve: a server to ask instead of answering in this process."""

    task: dict[str, Any]
    body: dict[str, Any]
    policy: dict[str, Any]
    run: str | None = "latest"
    runs: str = "runs"
    version: str = "latest"
    episodes: int = 200
    seed: int = 1000
    threads: int = 0
    serve: Serve = field(default_factory=Serve)

    def __post_init__(self) -> None:
        require(1 <= self.episodes <= 65536, "episodes", self.episodes, "choose 1 to 65536")
        check_seed(self.seed, "seed")


def evaluate(settings: EvalSettings) -> dict[str, Any]:
    """Play each seed exactly once with the mode of the policy's distribution.

    Returns:
        `success_rate`, `success_ci95`, `episodes`, counts per outcome, `steps_mean`, the `policy_versions` that
        answered, and `actions_digest`, which is equal for two evaluations that took the same actions.
    """
    with ExitStack() as stack:
        if settings.run is None:
            task, body, client, spec, seed = _given(settings, stack)
        else:
            task, body, client, spec, seed = _of_run(settings, settings.run, stack)
        seeds = np.arange(settings.seed, settings.seed + settings.episodes)
        played = play(body, by_policy(client, spec, seed), seeds, spec, id="eval", mode="evaluation")
    low, high = wilson(played.successes, played.counted)
    live = played.segment.rows.seq >= 0
    return {
        "run": settings.run,
        "task": task,
        "success_rate": played.successes / max(played.counted, 1),
        "success_ci95": [low, high],
        "episodes": played.counted,
        "seed": settings.seed,
        "outcomes": {o.name.lower(): int((played.outcomes == o).sum()) for o in Outcome if o != Outcome.RUNNING},
        "steps_mean": float(played.lengths.mean()),
        "return_mean": float(played.returns.mean()),
        "policy_versions": sorted({int(v) for v in np.unique(played.segment.versions[live])}),
        "actions_digest": digest(played.segment.actions[live]),
    }


Measured = tuple[str, Body, PolicyClient, PolicySpec, int]
"""Task, body, who decides, its spec, and the seed of its noise."""


def _of_run(settings: EvalSettings, run_name: str, stack: ExitStack) -> Measured:
    run, policy, manifest, tensors = load_policy(run_name, settings.runs, settings.version)
    body = _body(run.task, run.body, settings, run.seed, stack)
    client = make_client(settings.serve, policy, body.spec)
    stack.callback(client.close)
    if settings.serve.address == "inline":
        client.push(manifest, tensors)
    elif client.version() != manifest.version:
        _check_served(Version(*client.version()), settings, run_name)
    return run.task["name"], body, client, policy.spec, run.seed


def _given(settings: EvalSettings, stack: ExitStack) -> Measured:
    """What the groups describe, or whatever policy a server has."""
    body = _body(settings.task, settings.body, settings, 0, stack)
    client: PolicyClient
    if settings.serve.address == "inline":
        client = LocalClient(PolicyHost(make_policy(settings.policy, body.spec, seed=0)))
    else:
        client = RemoteClient(settings.serve.address, settings.serve.timeout_s, settings.serve.keys)
    stack.callback(client.close)
    return settings.task["name"], body, client, client.hello(body.spec), 0


def _body(task: dict[str, Any], config: dict[str, Any], settings: EvalSettings, seed: int, stack: ExitStack) -> Body:
    threads = {"num_threads": settings.threads} if settings.threads else {}
    body = make_body(task, config | threads, settings.episodes, seed, autoreset=False)
    stack.callback(body.close)
    return body


def _check_served(served: Version, settings: EvalSettings, run: str) -> None:
    """Raise `UserError` unless a server answers with a version of the run, the one asked for if it was."""
    folder = resolve(run, Path(settings.runs))
    names = {line["version"] for line in Registry(folder / "weights").audit() if line["event"] == "publish"}
    if settings.version != "latest" or served.label not in names:
        what = f"the server answers with version {served.label}, not with version {settings.version} of {run}"
        raise UserError(
            what, settings.serve.address, "name the run and version that it serves, or restart it with them"
        )


def digest(actions: np.ndarray) -> str:
    """Sixteen hex digits of the bytes of actions."""
    return hashlib.sha256(np.ascontiguousarray(actions).tobytes()).hexdigest()[:16]
