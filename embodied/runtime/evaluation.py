"""Measuring a run's policy on seeds, in this process or through a policy server."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied.data import Outcome
from embodied.errors import UserError
from embodied.monitor.stats import wilson
from embodied.rollout.play import by_policy, play
from embodied.runtime.parts import make_body, make_client, make_policy
from embodied.runtime.run_folder import resolve
from embodied.runtime.settings import Serve, Settings, check_seed, require, saved_config, typed
from embodied.serving.host import PolicyHost
from embodied.weights.manifest import Manifest, Version
from embodied.weights.registry import Registry
from policies.base import Policy


@dataclass
class EvalSettings:
    """run: the run to evaluate. version: `latest` or a number. episodes, seed: one episode of each seed from `seed` on.
    threads: physics threads, 0 for every core. serve: a server to ask instead of answering in this process."""

    run: str = "latest"
    runs: str = "runs"
    version: str = "latest"
    episodes: int = 200
    seed: int = 1000
    threads: int = 0
    serve: Serve = field(default_factory=Serve)

    def __post_init__(self) -> None:
        require(1 <= self.episodes <= 65536, "episodes", self.episodes, "choose 1 to 65536")
        check_seed(self.seed, "seed")


@dataclass
class ServeSettings:
    """run: the run whose policy answers; null for an untrained `policy` for `task`, to be filled by pushes. version:
    `latest` or a number. address: where to listen; beyond loopback `keys`, a folder of CURVE keys, is needed."""

    task: dict[str, Any]
    body: dict[str, Any]
    policy: dict[str, Any]
    run: str | None = "latest"
    runs: str = "runs"
    version: str = "latest"
    address: str = "ipc:///tmp/embodied-policy"
    keys: str | None = None


def load_policy(run: str, runs: str, version: str) -> tuple[Settings, Policy, Manifest, dict[str, Any]]:
    """A run's settings, its policy as configured, and one verified version of its weights.

    Raises:
        UserError: There is no such run or version.
        CorruptFile: What is stored of it is damaged.
    """
    folder = resolve(run, Path(runs))
    settings = typed(Settings, saved_config(folder))
    torch.set_num_threads(settings.runtime.threads)
    body = make_body(settings.task, settings.body, 1, settings.seed)
    policy = make_policy(settings.policy, body.spec, settings.seed)
    body.close()
    number = version if version == "latest" else whole_number(version, "version")
    manifest, tensors = Registry(folder / "weights").read(policy.spec.name, number)
    return settings, policy, manifest, tensors


def whole_number(text: str, key: str) -> int:
    """An integer written by a user."""
    require(text.isdecimal(), key, text, "give a whole number")
    return int(text)


def evaluate(settings: EvalSettings) -> dict[str, Any]:
    """Play each seed exactly once with the mode of the policy's distribution.

    Returns:
        `success_rate`, `success_ci95`, `episodes`, counts per outcome, `steps_mean`, the `policy_versions` that
        answered, and `actions_digest`, which is equal for two evaluations that took the same actions.
    """
    run, policy, manifest, tensors = load_policy(settings.run, settings.runs, settings.version)
    body_config = run.body | ({"num_threads": settings.threads} if settings.threads else {})
    body = make_body(run.task, body_config, settings.episodes, run.seed, autoreset=False)
    client = make_client(settings.serve, policy, body.spec)
    try:
        if settings.serve.address == "inline":
            client.push(manifest, tensors)
        elif client.version() != manifest.version:
            _check_served(Version(*client.version()), settings)
        seeds = np.arange(settings.seed, settings.seed + settings.episodes)
        decide = by_policy(client, policy.spec, run.seed)
        played = play(body, decide, seeds, policy.spec, id="eval", mode="evaluation")
    finally:
        client.close()
        body.close()
    low, high = wilson(played.successes, played.counted)
    live = played.segment.rows.seq >= 0
    return {
        "run": settings.run,
        "task": run.task["name"],
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


def _check_served(served: Version, settings: EvalSettings) -> None:
    """Raise `UserError` unless a server answers with a version of the run, the one asked for if it was."""
    folder = resolve(settings.run, Path(settings.runs))
    names = {line["version"] for line in Registry(folder / "weights").audit() if line["event"] == "publish"}
    if settings.version != "latest" or served.label not in names:
        what = f"the server answers with version {served.label}, not with version {settings.version} of {settings.run}"
        raise UserError(
            what, settings.serve.address, "name the run and version that it serves, or restart it with them"
        )


def digest(actions: np.ndarray) -> str:
    """Sixteen hex digits of the bytes of actions."""
    return hashlib.sha256(np.ascontiguousarray(actions).tobytes()).hexdigest()[:16]


def host_of(settings: ServeSettings) -> PolicyHost:
    """A host that serves one version of a run's policy, or a policy that waits for its first push."""
    if settings.run is None:
        torch.set_num_threads(1)
        body = make_body(settings.task, settings.body, 1, seed=0)
        policy = make_policy(settings.policy, body.spec, seed=0)
        body.close()
        return PolicyHost(policy)
    _, policy, manifest, tensors = load_policy(settings.run, settings.runs, settings.version)
    host = PolicyHost(policy)
    host.switch(manifest, tensors)
    return host
