"""Parts of a training run, made from its settings: environments, policy, client, learner, reward, stores."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.buffer.recorder import recover
from embodied.buffer.store import EpisodeStore
from embodied.build import build, check_settings, require_parts, resolve
from embodied.client import PolicyClient
from embodied.errors import ConfigError
from embodied.learning.learner import EpisodeLearner, Learner
from embodied.machine import free_memory
from embodied.monitor.metrics import MetricsWriter
from embodied.monitor.progress import Progress
from embodied.monitor.timing import Stopwatch
from embodied.rewards.stage import RewardStage
from embodied.rollout.env import Env
from embodied.runs.parts import make_client, make_env, make_policy
from embodied.runs.settings import Settings
from embodied.spec import EnvSpec, PolicySpec
from embodied.train.publisher import HoldWait
from embodied.weights.registry import Registry
from embodied.weights.signing import Signer
from policies.base import Policy
from policies.memory import check_memory
from policies.torch_policy import TorchPolicy


@dataclass
class Parts:
    """Parts of one run.

    Attributes:
        settings, folder, attempt, progress: Of the run.
        env: Environments that training segments come from.
        policy, spec: The learner's instance of the policy.
        client: Of the policy server, or of an instance in this process.
        learner: Trains on segments; None where cloning is all there is.
        cloner: Clones demonstrations; None where none are asked for, and after the warm start of a learner.
        reward: Scores segments.
        registry, store, metrics: Versions, episodes and metrics on disk.
        watch: Times the parts of a step.
        hold_wait: Bounds of a wait for a hold to end.
    """

    settings: Settings
    folder: Path
    attempt: int
    progress: Progress
    env: Env
    policy: Policy
    spec: PolicySpec
    client: PolicyClient
    learner: Learner | None
    cloner: EpisodeLearner | None
    reward: RewardStage
    registry: Registry
    store: EpisodeStore
    metrics: MetricsWriter
    watch: Stopwatch
    hold_wait: HoldWait

    @property
    def trained(self) -> Learner | EpisodeLearner:
        """Holder of the next version's weights; a cloner and a learner train the same policy."""
        trained = self.learner or self.cloner
        assert trained is not None
        return trained

    @property
    def omitted_streams(self) -> list[str]:
        """Names of pictures that neither the policy nor its critic reads; none where `episodes.pictures` is `all`."""
        if self.settings.episodes.pictures == "all":
            return []
        read = {stream.name for stream in self.spec.whole_agent.observations}
        streams = self.env.spec.agents[self.env.spec.only_agent].observations
        return [stream.name for stream in streams if len(stream.shape) >= 2 and stream.name not in read]

    def end_cloning(self) -> None:
        """Free the cloner and its optimiser where a learner continues."""
        if self.learner is not None:
            self.cloner = None

    def close(self) -> None:
        """Close files, sockets and environments."""
        self.metrics.close()
        self.client.close()
        self.env.close()


def make_parts(settings: Settings, folder: Path, attempt: int, progress: Progress) -> Parts:
    """Make the parts of a run whose folder this process has locked.

    Raises:
        ConfigError: Settings that do not fit each other, such as a policy without weights.
        SpecMismatch: The policy cannot drive the environment, or the server has another one.
    """
    seed, rollout = settings.seed, settings.rollout
    env = make_env(settings.task, settings.env, rollout.num_envs, seed)
    policy = make_policy(settings.policy, env.spec, seed)
    if not policy.tensors():
        raise ConfigError(
            f"policy {policy.spec.name} has no weights to train",
            "policy",
            "measure it with `embodied eval run=null`, or choose another policy=",
        )
    _check_sizes(settings, env.spec, policy)
    served = make_policy(settings.policy, env.spec, seed)
    client = make_client(settings.client, served, env.spec, settings.debug)
    learner, cloner = _learners(settings, policy)
    reward = build(settings.reward, "reward", env.spec.task, settings.task.get("reward", "dense"))
    require_parts(reward, settings.reward, "reward", "score")
    quota = int(settings.runtime.versions_gb * 1e9)
    signer = Signer.from_folder(settings.client.credentials)
    registry = Registry(folder / "weights", settings.runtime.versions, quota, signer=signer)
    episodes = folder / "episodes"
    recover(episodes)
    store = EpisodeStore(episodes, settings.episodes.keep, int(settings.episodes.quota_gb * 1e9), attempt=attempt)
    hold_wait = HoldWait(f"run={folder}", math.inf if settings.debug else settings.runtime.hold_s, progress.say)
    return Parts(
        settings, folder, attempt, progress, env, policy, policy.spec, client, learner, cloner, reward, registry, store,
        MetricsWriter(folder), Stopwatch(), hold_wait,
    )  # fmt: skip


def _check_sizes(settings: Settings, env: EnvSpec, policy: Policy) -> None:
    """Raise a `ConfigError` if the observations of a segment, or training, would not fit the free memory."""
    free, rollout = free_memory(), settings.rollout
    streams = [stream for agent in env.agents.values() for stream in agent.observations]
    row = sum(stream.size * np.dtype(stream.dtype).itemsize for stream in streams)
    fix = "choose fewer environments, shorter segments, or fewer pixels"
    check_memory(rollout.num_envs * rollout.steps * row, free, "a segment's observations", "rollout", fix)
    if isinstance(policy, TorchPolicy):  # a served copy; gradients, and two moments of the optimiser
        tensors = list(policy.network.parameters())
        need = sum(t.nbytes for t in tensors) + 3 * sum(t.nbytes for t in tensors if t.requires_grad)
        what = "a served copy of the weights, gradients and the optimiser"
        check_memory(need, free, what, "policy", "choose smaller layers")


def _learners(settings: Settings, policy: Policy) -> tuple[Learner | None, EpisodeLearner | None]:
    """The learner of segments and the one of episodes, each None where the settings ask for none."""
    seed = settings.seed
    if settings.warm_start.clone:
        check_settings(settings.warm_start.clone, "warm_start.clone")
    if _method(settings.algo, "algo") == "fit":
        if settings.compare.split is not None:
            what, fix = "nothing comes after this clone to compare it with", "give compare.split=null, or algo=ppo"
            raise ConfigError(what, "compare.split", fix)
        return None, build(settings.algo, "algo", policy, seed=seed)
    cloner, normaliser = None, None
    if settings.warm_start.clones:
        if _method(settings.warm_start.clone, "warm_start.clone") != "fit":
            fix = "embodied.learning.bc.BehaviourCloning can"
            raise ConfigError("this learner cannot clone", "warm_start.clone._target_", fix)
        cloner = build(settings.warm_start.clone, "warm_start.clone", policy, seed=seed)
        normaliser = cloner.normaliser
    return build(settings.algo, "algo", policy, seed=seed, normaliser=normaliser), cloner


def _method(config: dict[str, Any], where: str) -> str:
    """`fit` for an `EpisodeLearner`, `update` for a `Learner`."""
    target = resolve(config, where)
    for method in ("fit", "update"):
        if hasattr(target, method) and hasattr(target, "tensors"):
            return method
    raise ConfigError(f"{config['_target_']} is no learner", f"{where}._target_", "such as embodied.learning.ppo.PPO")
