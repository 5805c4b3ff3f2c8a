"""Measuring a run's policy on seeds, in this process or through a policy server."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data import Outcome
from embodied.errors import UserError
from embodied.monitor.stats import wilson
from embodied.rollout.play import by_policy, play
from embodied.runtime.parts import make_body, make_client
from embodied.runtime.published import load_policy
from embodied.runtime.run_folder import resolve
from embodied.runtime.settings import Serve, check_seed, require
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry


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
