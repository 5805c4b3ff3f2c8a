"""Environments, policies and clients of a run, made from its settings."""

from dataclasses import replace
from typing import Any

from embodied.build import build, require_parts
from embodied.client import LocalClient, PolicyClient, RemoteClient
from embodied.errors import ConfigError, MessageError
from embodied.machine import free_memory
from embodied.rollout.env import Env
from embodied.runs.checkpoint import check_spec
from embodied.runs.settings import ClientSettings
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.spec import AgentSpec, EnvSpec
from embodied.weights.manifest import check_policy_name
from policies.base import Policy
from policies.memory import MemoryLimit


def make_env(task: dict[str, Any], env: dict[str, Any], num_envs: int, seed: int, autoreset: bool = True) -> Env:
    """`num_envs` envs of a task; `task` holds its `name` and options, `env` the target that simulates it."""
    options = {key: value for key, value in task.items() if key != "name"}
    try:
        made: Env = build(env, "env", task.get("name"), num_envs=num_envs, seed=seed, **options)
    except ConfigError as error:
        key = error.where.removeprefix("task.")
        if key == error.where or key in options or key not in env:
            raise
        raise ConfigError(error.what.replace("task ", "env of task ", 1), f"env.{key}", error.fix) from None
    require_parts(made, env, "env", "spec", "reset", "step")
    made.autoreset = autoreset
    return made


def make_policy(config: dict[str, Any], env: EnvSpec, seed: int, agent: str | None = None) -> Policy:
    """A policy for one agent of an environment, its only one by default, randomly initialised from `seed`.

    Raises:
        ConfigError: As `build_policy`.
        SpecMismatch: It cannot drive that agent.
    """
    agent = env.only_agent if agent is None else agent
    policy = build_policy(config, env.agents[agent], seed, env.control_hz)
    policy.spec.check_env(env, agent)
    return policy


def build_policy(config: dict[str, Any], agent: AgentSpec, seed: int, control_hz: float = 0.0) -> Policy:
    """A policy of an agent's streams for a control rate, 0 for any, randomly initialised from `seed`.

    Raises:
        ConfigError: It is no policy, its weights do not fit the free memory, or its name is none that its versions
            could be kept under.
    """
    with MemoryLimit(free_memory(), "policy"):
        policy: Policy = build(config, "policy", agent, seed=seed)
    require_parts(policy, config, "policy", "spec", "act", "load")
    try:
        check_policy_name(policy.spec.name)
    except MessageError:
        fix = "use at most 64 letters, digits, dots, dashes and underscores"
        raise ConfigError(f"a policy cannot be named {policy.spec.name!r}", "policy.name", fix) from None
    policy.spec = replace(policy.spec, control_hz=control_hz)
    return policy


def make_client(settings: ClientSettings, policy: Policy, env: EnvSpec | None, debug: bool = False) -> PolicyClient:
    """The client of `client.address`; `inline` gives `policy` a host in this process. `debug` waits for a day.

    A `env` given is checked to fit.

    Raises:
        SpecMismatch: The server there has another policy.
        DeadlineExceeded: No server answers.
    """
    client: PolicyClient
    if settings.address == "inline":
        client = LocalClient(VersionedPolicy(policy))
    else:
        client = RemoteClient(
            settings.address, timeout_s=86400.0 if debug else settings.timeout_s, credentials=settings.credentials
        )
    try:
        served = client.hello(env).to_dict()
        fix = "start the server with this run's task and policy, or from this run"
        check_spec(served, policy.spec.to_dict(), settings.address, "the server", fix)
    except BaseException:
        client.close()
        raise
    return client
