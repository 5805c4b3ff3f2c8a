"""Policy slots put together from their parts: what receives versions, hands them out, and follows a registry."""

import logging
from collections.abc import Mapping
from typing import Any

from embodied.errors import CorruptFile, DataError, EmbodiedError
from embodied.serving.loader import Loader
from embodied.serving.policy_slot import PolicySlot, Receiver
from embodied.serving.versioned_policy import VersionedPolicy
from embodied.weight_sync.push_receiver import PushReceiver
from embodied.weight_sync.registry_watcher import RegistryWatcher, audited
from embodied.weight_sync.version_server import VersionServer
from embodied.weights.manifest import Version
from embodied.weights.registry import Registry
from embodied.weights.signing import Signer, Trusted

log = logging.getLogger(__name__)


def push_slot(host: VersionedPolicy) -> PolicySlot:
    """Slot of a policy that takes pushes, keeps no versions and hands none out."""
    loader = Loader(host)
    return PolicySlot(host, loader, PushReceiver(host, loader))


def push_slots(host: VersionedPolicy) -> dict[str, PolicySlot]:
    """`push_slot` of one policy, under its own name."""
    return {host.spec.name: push_slot(host)}


def make_slot(
    host: VersionedPolicy,
    build: Mapping[str, Any],
    registry: Registry | None = None,
    *,
    name: str = "",
    trusted: Trusted | None = None,
    signer: Signer | None = None,
    receiver: Receiver | None = None,
) -> PolicySlot:
    """Slot of a policy whose versions are handed out to edges; with a registry it serves the active version.

    Args:
        host: Of the policy.
        build: `policy` config group that it was made from, in plain values.
        registry: Where versions are kept, and which one is active.
        name: Of the server, in the registry's audit.
        trusted: Refuses pushed versions that no trusted key signed.
        signer: Signs versions that are handed out and have no signature.
        receiver: Takes pushed versions in a `PushReceiver`'s place.

    Raises:
        CorruptFile: The registry has versions, and none is whole.
    """
    if registry is None:
        loader = Loader(host)
        receiver = receiver or PushReceiver(host, loader, trusted=trusted)
        return PolicySlot(host, loader, receiver, VersionServer(host, build=build), build=build)
    switched = audited(registry, host.spec.name, name)
    loader = Loader(host, switched)
    if serve_active(host, registry):
        try:
            switched(Version(0, ""), host.version, "start")
        except EmbodiedError as error:
            log.error("a start could not be written down: %s", error.line())
    receiver = receiver or PushReceiver(host, loader, store=registry, trusted=trusted)
    versions = VersionServer(host, registry=registry, build=build, signer=signer)
    return PolicySlot(host, loader, receiver, versions, RegistryWatcher(host, loader, registry), build=build)


def serve_active(host: VersionedPolicy, registry: Registry) -> bool:
    """Serve a registry's active version; where it cannot be read, log that and serve the newest whole version.

    Returns:
        Whether there is any version.

    Raises:
        CorruptFile: There are some, and none is whole.
    """
    name, damage = host.spec.name, list[DataError]()
    try:
        active = [version for version in (registry.active(name),) if version is not None]
    except CorruptFile as error:
        damage, active = [error], []
    versions = registry.versions(name)
    for version in dict.fromkeys([*active, *reversed(versions)]):
        try:
            host.switch(*registry.read(name, version.label), back=True)
        except DataError as error:
            damage.append(error)
            continue
        for found in damage:
            log.error("policy %s: version %s is served instead: %s", name, version.label, found.line())
        return True
    if damage:
        raise damage[0]
    return False
