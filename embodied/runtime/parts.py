"""The stations of a run, made from its settings."""

from typing import Any

from embodied.client import LocalClient, PolicyClient, RemoteClient
from embodied.errors import ConfigError, MessageError
from embodied.rollout.body import Body
from embodied.runtime.build import build, require_parts
from embodied.runtime.checkpoint import check_spec
from embodied.runtime.settings import Serve
from embodied.serving.host import PolicyHost
from embodied.spec import AgentSpec, BodySpec
from embodied.weights.manifest import check_policy_name
from policies.base import Policy


def make_body(task: dict[str, Any], body: dict[str, Any], num_envs: int, seed: int, autoreset: bool = True) -> Body:
    """`num_envs` bodies of a task; `task` holds its `name` and options, `body` the target that simulates it."""
    options = {key: value for key, value in task.items() if key != "name"}
    made: Body = build(body, "body", task.get("name"), num_envs=num_envs, seed=seed, **options)
    require_parts(made, body, "body", "spec", "reset", "step")
    made.autoreset = autoreset
    return made


def make_policy(config: dict[str, Any], body: BodySpec, seed: int, agent: str = "robot") -> Policy:
    """A policy for one agent of a body, randomly initialised from `seed`.

    Raises:
        ConfigError: As `build_policy`.
        SpecMismatch: It cannot drive that agent.
    """
    policy = build_policy(config, body.agents[agent], seed)
    policy.spec.check_body(body, agent)
    return policy


def build_policy(config: dict[str, Any], agent: AgentSpec, seed: int) -> Policy:
    """A policy of an agent's streams, randomly initialised from `seed`.

    Raises:
        ConfigError: It is no policy, or its name is none that its versions could be kept under.
    """
    policy: Policy = build(config, "policy", agent, seed=seed)
    require_parts(policy, config, "policy", "spec", "act", "load")
    try:
        check_policy_name(policy.spec.name)
    except MessageError:
        fix = "use at most 64 letters, digits, dots, dashes and underscores"
        raise ConfigError(f"a policy cannot be named {policy.spec.name!r}", "policy.name", fix) from None
    return policy


def make_client(serve: Serve, policy: Policy, body: BodySpec | None, debug: bool = False) -> PolicyClient:
    """The client of `serve.address`; `inline` gives `policy` a host in this process. `debug` waits for a day.

    A `body` given is checked to fit.

    Raises:
        SpecMismatch: The server there has another policy.
        DeadlineExceeded: Nobody answers.
    """
    client: PolicyClient
    if serve.address == "inline":
        client = LocalClient(PolicyHost(policy))
    else:
        client = RemoteClient(serve.address, timeout_s=86400.0 if debug else serve.timeout_s, keys=serve.keys)
    try:
        served = client.hello(body).to_dict()
        fix = "start the server with this run's task and policy, or from this run"
        check_spec(served, policy.spec.to_dict(), serve.address, "the server", fix)
    except BaseException:
        client.close()
        raise
    return client
