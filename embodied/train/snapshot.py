"""Weights that a run keeps beside its versions, which are pruned: one folder each, with a sealed manifest.

keep(run / "clone", tensors, spec)
tensors = read(run / "clone", limit, fix="start a new run")
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied.errors import CorruptFile, MessageError, WeightsRefused
from embodied.files import atomic_dir, read_sealed, remove, sealed, write_new
from embodied.spec import PolicySpec
from embodied.weights.manifest import Manifest
from embodied.weights.tensors import read_tensors, write_tensors
from embodied.weights.versions import MANIFEST, TENSORS


def keep(folder: Path, tensors: Mapping[str, NDArray[Any]], spec: PolicySpec) -> None:
    """Replace what `folder` holds by these weights.

    Raises:
        WeightsRefused: A tensor is not finite; names it.
        InfrastructureError: No disk space.
    """
    manifest = Manifest.of(spec.name, 0, tensors, spec.to_dict())
    remove(folder)
    with atomic_dir(folder) as made:
        write_tensors(made / TENSORS, tensors)
        write_new(made / MANIFEST, [sealed(manifest.to_dict())])


def has(folder: Path) -> bool:
    """Whether weights are kept there, whole or not."""
    return (folder / TENSORS).is_file()


def read(folder: Path, limit: int, fix: str) -> dict[str, NDArray[Any]]:
    """The weights kept there, every byte verified.

    Args:
        limit: Bytes that they may take.
        fix: What to do where they are damaged.

    Raises:
        CorruptFile: Missing, truncated or altered.
    """
    manifest = read_manifest(folder, fix)
    tensors = read_tensors(folder / TENSORS, limit, fix)
    try:
        return manifest.verify(tensors)
    except WeightsRefused as error:
        raise CorruptFile(error.what, str(folder / TENSORS), fix) from None


def read_manifest(folder: Path, fix: str) -> Manifest:
    """What is told of the weights kept there, or of a version.

    Raises:
        CorruptFile: Missing or altered.
    """
    path = folder / MANIFEST
    try:
        return Manifest.from_dict(read_sealed(path, fix))
    except MessageError as error:
        raise CorruptFile(error.what, str(path), fix) from None
