"""Versions of a small policy for tests of registries."""

from pathlib import Path

import numpy as np

from embodied.weights.manifest import Manifest
from embodied.weights.registry import Registry

SPEC = {"name": "mlp", "chunk": 2}
FAULTS = Path(__file__).parents[1] / "faults.py"


def tensors(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.full((4, 3), value, np.float32)}


def publish(registry: Registry, count: int = 1) -> int:
    for _ in range(count):
        number = registry.reserve("mlp")
        registry.publish("mlp", number, tensors(number), SPEC)
    return number


def active(registry: Registry) -> int:
    version = registry.active("mlp")
    return version.number if version else 0


def made_elsewhere(number: int, value: float = 0.5) -> tuple[Manifest, dict[str, np.ndarray]]:
    return Manifest.of("mlp", number, tensors(value), SPEC), tensors(value)
