"""`embodied serve` from its settings: slots of policies, the server, its gateways and its health page."""

import copy
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from embodied.errors import DataError, DeadlineExceeded
from embodied.runs.checkpoint import check_spec
from embodied.runs.engines import with_engine
from embodied.runs.parts import build_policy, make_env, make_policy
from embodied.runs.published import find_version, open_run
from embodied.runtime.gateways import ServerGateways
from embodied.runtime.serve_settings import ServeSettings
from embodied.runtime.slots import make_slot, serve_active
from embodied.serving.health import HealthServer
from embodied.serving.policy_slot import PolicySlot, Receiver
from embodied.serving.server import PolicyServer
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.upstream import UpstreamClient
from embodied.weights.registry import Registry
from embodied.weights.signing import Signer, Trusted
from policies.base import Policy

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_SAY_S = 5.0
_STUCK_S = 120.0


def run_server(settings: ServeSettings, own_policy: bool = False, announce: Callable[[str], object] = print) -> None:
    """Serve until interrupted, or until a gateway's client with authority asks to stop.

    Args:
        own_policy: An edge makes `settings.policy`, not what its upstream names.

    Raises:
        EmbodiedError: What is asked for is not there, does not fit, or cannot be listened on.
    """
    torch.set_num_threads(settings.threads)
    with ExitStack() as stack:
        slots = _slots(settings, own_policy, stack, announce)
        server = PolicyServer(
            slots,
            settings.address,
            settings.credentials,
            max_wait_s=settings.max_wait_ms / 1000,
            max_rows=settings.max_rows,
            max_requests=settings.max_requests,
        )
        beside = ServerGateways(settings, slots, announce)
        if settings.http is not None:
            health = HealthServer(settings.http, lambda: {**server.snapshot, "gateways": beside.status()})
            announce(f"health, metrics and status at http://{health.start()}")
            stack.callback(health.close)
        stop = threading.Event()

        def listening(line: str) -> None:
            announce(line)
            beside.start(server.address, stop)

        stack.callback(beside.close)
        server.serve(listening, stop)
        if beside.error is not None:
            raise beside.error


def _slots(
    settings: ServeSettings, own_policy: bool, stack: ExitStack, announce: Callable[[str], object]
) -> dict[str, PolicySlot]:
    if settings.upstream is not None:
        return _edge(settings, settings.policy if own_policy else None, stack, announce)
    if settings.policies is not None:
        return {name: _of_run(settings, run) for name, run in settings.policies.items()}
    if settings.run is not None:
        slot = _of_run(settings, settings.run)
        return {slot.policy.spec.name: slot}
    env = make_env(settings.task, settings.env, 1, seed=0)
    policy = make_policy(with_engine(settings.policy, settings.engine), env.spec, seed=0)
    env.close()
    registry = None
    if settings.weights is not None:
        registry = _registry(settings, settings.weights, settings.credentials)
    return {policy.spec.name: _slot(settings, policy, registry, settings.policy)}


def _of_run(settings: ServeSettings, run: str) -> PolicySlot:
    """A run's policy, following its registry, or one version of it for good."""
    opened = open_run(run, settings.runs, settings.engine)
    torch.set_num_threads(settings.threads)
    if settings.version == "latest":
        return _slot(settings, opened.policy, opened.registry, opened.settings.policy)
    version = find_version(opened.registry, opened.policy.spec.name, settings.version)
    slot = _slot(settings, opened.policy, None, opened.settings.policy)
    slot.policy.switch(*opened.registry.read(opened.policy.spec.name, version.label))
    return slot


def _slot(
    settings: ServeSettings,
    policy: Policy,
    registry: Registry | None,
    build: dict[str, Any],
    receiver: Receiver | None = None,
) -> PolicySlot:
    """Slot of a policy; with a registry it serves the active version. `receiver` as for `make_slot`."""
    in_place = getattr(policy, "loads_in_place", False)  # a copy would be another engine
    host = VersionedPolicy(policy, standby=None if in_place else copy.deepcopy(policy))
    return make_slot(
        host,
        build,
        registry,
        name=settings.name or settings.address,
        trusted=Trusted.from_folder(settings.credentials),
        signer=Signer.from_folder(settings.credentials),
        receiver=receiver,
    )


def _registry(settings: ServeSettings, folder: Path | str, credentials: str | None) -> Registry:
    return Registry(folder, settings.keep, int(settings.keep_gb * 1e9), trusted=Trusted.from_folder(credentials))


def _edge(
    settings: ServeSettings, own: dict[str, Any] | None, stack: ExitStack, announce: Callable[[str], object]
) -> dict[str, PolicySlot]:
    """The policy of an upstream server, made from `own` or as it says, once a version of it is here."""
    assert settings.upstream is not None and settings.weights is not None
    folder = Path(settings.weights)
    upstream = UpstreamClient(
        settings.upstream,
        folder,
        credentials=settings.upstream_credentials,
        name=settings.name or "",
        bandwidth_mbit=settings.bandwidth_mbit,
    )
    known = upstream.connect()
    build = known.config(own)
    policy = build_policy(with_engine(build, settings.engine), known.spec.whole_agent, 0, known.spec.control_hz)
    fix = "run the same code on both machines"
    check_spec(known.spec.to_dict(), policy.spec.to_dict(), settings.upstream, "upstream", fix)
    registry = _registry(settings, folder, settings.upstream_credentials)
    hosts: list[VersionedPolicy] = []
    upstream.start(registry, policy.tensors(), lambda: hosts[0].version if hosts else VersionedPolicy(policy).version)
    stack.callback(upstream.close)
    _await_first(VersionedPolicy(policy), registry, upstream, announce)
    slot = _slot(settings, policy, registry, build, upstream)
    hosts.append(slot.policy)
    return {known.policy: slot}


def _await_first(
    host: VersionedPolicy, registry: Registry, upstream: UpstreamClient, announce: Callable[[str], object]
) -> None:
    """Wait until a whole version has arrived: a robot must not move by random weights.

    Raises:
        DeadlineExceeded: Nothing of one has come for two minutes, or upstream refuses for good.
    """
    moved, said, before, seen = time.monotonic(), 0.0, None, None
    while True:
        stamp = registry.revision(host.spec.name)
        if stamp != seen:
            seen = stamp
            try:
                if serve_active(host, registry):
                    return
            except DataError as error:
                log.error("nothing whole is kept, upstream is asked: %s", error.line())
        now, status = time.monotonic(), upstream.status()["upstream"]
        pull = status.get("pulling")
        progress = f"{pull['bytes'] / 1e6:.1f} of {pull['of'] / 1e6:.1f} MB" if pull else ""
        if progress != before:
            moved, before = now, progress
        if now - moved > _STUCK_S or status.get("final"):
            raise DeadlineExceeded(
                f"no version has come from upstream in {now - moved:.0f} s: {status.get('error') or status['state']}",
                upstream.address,
                "look whether it serves a version yet, and start again",
            )
        if now - said > _SAY_S:
            announce(f"waiting for the first version from {upstream.address}: {progress or status['state']}")
            said = now
        time.sleep(_LOOK_S)
