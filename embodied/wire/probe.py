"""Probe of a served policy as a message: its version, digests of its tensors, and intermediate results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError
from embodied.wire.codecs import Arrays, take_array

PROBE_ROWS = 4
"""Most rows of a probed observation."""

_STEP = "step/"


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe.

    Attributes:
        number, hash: Version served.
        tensors: Name to dtype and digest, see `embodied.weights.examine.fingerprints`.
        steps: Intermediate results in the order of their computation, see `policies.base.Probing`; empty where the
            policy has none.
    """

    number: int
    hash: str
    tensors: Mapping[str, tuple[str, str]]
    steps: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def probe_to_message(probed: ProbeResult) -> tuple[dict[str, Any], Arrays]:
    """Body and arrays of a probe; the list of tensors is an array, since it may be longer than a header."""
    listed = json.dumps({name: list(found) for name, found in probed.tensors.items()}).encode()
    body = {"number": probed.number, "hash": probed.hash, "steps": list(probed.steps)}
    steps = {f"{_STEP}{name}": array for name, array in probed.steps.items()}
    return body, {"tensors": np.frombuffer(listed, np.uint8), **steps}


def probe_from_message(body: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ProbeResult:
    """Probe of a message of `probe_to_message`, checked.

    Raises:
        MessageError: A field is missing or of another type.
    """
    number, digest, names = (body.get(name) for name in ("number", "hash", "steps"))
    listed = take_array(arrays, "tensors", "uint8", (None,)).tobytes()
    try:
        tensors = json.loads(listed)
    except (ValueError, RecursionError):
        tensors = None
    if (
        type(number) is not int
        or type(digest) is not str
        or type(names) is not list
        or not all(type(name) is str and f"{_STEP}{name}" in arrays for name in names)
        or not isinstance(tensors, dict)
        or not all(type(t) is list and list(map(type, t)) == [str, str] for t in tensors.values())
    ):
        raise MessageError("an answer without a probe of a policy", "probe", "run the same version on both sides")
    found = {name: (dtype, hash) for name, (dtype, hash) in tensors.items()}
    return ProbeResult(number, digest, found, {name: arrays[f"{_STEP}{name}"] for name in names})
