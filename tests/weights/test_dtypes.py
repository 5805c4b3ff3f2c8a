"""Versions with bfloat16 and uint64 tensors, from a learner's arrays to disk and back, and in ranges."""

from pathlib import Path

import numpy as np
import pytest

from embodied.errors import WeightsRefused
from embodied.weight_sync.sources import FileSource
from embodied.weights.manifest import Manifest
from embodied.weights.registry import Registry
from embodied.weights.signing import PUBLIC, SECRET, Signer, Trusted, create_signing_keys
from embodied.weights.transfer import Content, empty, views
from embodied.weights.versions import TENSORS

SPEC = {"name": "half"}


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "weight": (draw.normal(size=(50, 7)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "empty": np.zeros((0, 3), np.uint16),
        "steps": np.array([0, 2**64 - 1], np.uint64),
        "bias": draw.normal(size=7).astype(np.float32),
        "flag": np.array(True),
    }


def test_halves_and_counts_are_published_signed_read_and_fetched(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    create_signing_keys(tmp_path / "keys")
    registry = Registry(
        tmp_path / "weights",
        signer=Signer(tmp_path / "keys" / SECRET),
        trusted=Trusted([tmp_path / "keys" / PUBLIC]),
    )
    given = tensors()
    manifest = registry.publish("half", registry.reserve("half"), given, SPEC)
    assert {name: t.dtype for name, t in manifest.tensors.items()} == {
        "weight": "bfloat16", "empty": "bfloat16", "steps": "uint64", "bias": "float32", "flag": "bool",
    }  # fmt: skip
    assert manifest.nbytes == 350 * 2 + 16 + 28 + 1
    read_manifest, read = Registry(tmp_path / "weights", trusted=registry.trusted).read("half", "latest")
    assert read_manifest == Manifest.from_dict(manifest.to_dict()) == manifest
    for name, array in given.items():
        assert (read[name].dtype == array.dtype and read[name].flags.writeable) or not array.size
        np.testing.assert_array_equal(read[name], array)
    path = registry.path("half", manifest.version) / TENSORS
    source, arrays = FileSource(path, manifest, ""), empty(manifest.tensors)
    content = Content(arrays)
    for start in range(0, manifest.nbytes, 100):
        content.write(start, source.read(start, min(100, manifest.nbytes - start)))
    manifest.verify(arrays)
    manifest.verify(views(source.read(0, manifest.nbytes), manifest.tensors))


def test_bfloat16_and_float16_are_told_apart() -> None:
    given = {"w": np.zeros(3, np.uint16)}
    manifest = Manifest.of("half", 1, given, SPEC)
    with pytest.raises(WeightsRefused, match="has dtype float16, published as bfloat16"):
        manifest.verify({"w": np.zeros(3, np.float16)})
    with pytest.raises(WeightsRefused, match="not finite"):
        Manifest.of("half", 1, {"w": np.array([0x7F80], np.uint16)}, SPEC)


def test_torch_views_the_bits_as_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([1.0, -2.5, 3.0e38, 1e-40], dtype=torch.bfloat16)
    bits = numbers.view(torch.int16).numpy().view(np.uint16)
    assert Manifest.of("half", 1, {"w": bits}, SPEC).tensors["w"].dtype == "bfloat16"
    assert torch.equal(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), numbers)
