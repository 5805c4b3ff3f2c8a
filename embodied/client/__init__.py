"""The policy client, the same for a policy in this process and one behind a socket."""

from embodied.client.base import Manifest, Mode, PolicyClient, Version
from embodied.client.chunks import ChunkCursor
from embodied.client.local import LocalClient
from embodied.client.remote import RemoteClient

__all__ = ["ChunkCursor", "LocalClient", "Manifest", "Mode", "PolicyClient", "RemoteClient", "Version"]
