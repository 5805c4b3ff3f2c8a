"""The policy client, the same for a policy in this process and one behind a socket, and the execution of chunks."""

from embodied.client.base import Manifest, Mode, PolicyClient, Version, version_label
from embodied.client.execution import Ensembling, Executor, RealTime, RecedingHorizon, Step
from embodied.client.local import LocalClient
from embodied.client.pending import Pending
from embodied.client.remote import RemoteClient

__all__ = [
    "Ensembling",
    "Executor",
    "LocalClient",
    "Manifest",
    "Mode",
    "Pending",
    "PolicyClient",
    "RealTime",
    "RecedingHorizon",
    "RemoteClient",
    "Step",
    "Version",
    "version_label",
]
