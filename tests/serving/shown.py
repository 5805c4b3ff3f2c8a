"""The tiny policy with a look into it, and its server in a process of its own."""

from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from embodied.data import Observation
from embodied.runtime.slots import push_slots
from embodied.serving.server import serve
from embodied.serving.versioned_policy import VersionedPolicy
from tests.serving.tiny import TinyPolicy


class ShownPolicy(TinyPolicy):
    def probe(self, observation: Observation) -> dict[str, NDArray[np.generic]]:
        state, camera = observation.streams["joint_pos"], observation.streams["camera"]
        keys = observation.rows.noise_keys(0)
        return {
            "pictures/camera": np.repeat(camera, 99, axis=1),  # too large to share a frame
            "state": state.astype(np.float32),
            "compute_dtype": np.frombuffer(b"float32", np.uint8),
            "network/actions": self.act(observation, keys, "mean").actions,
        }


def serve_shown(address: str, pipe: Connection) -> None:
    """A target for `tiny.start_server`."""
    serve(
        push_slots(VersionedPolicy(ShownPolicy())), address, announce=lambda line: pipe.send(line.rpartition(" at ")[2])
    )
