"""Snapshots: weights that a run keeps apart from its versions, which are pruned; one folder each, sealed.

write_snapshot(run / "clone", tensors, spec)
tensors = read_snapshot(run / "clone", limit, fix="start a new run")
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


def write_snapshot(folder: Path, tensors: Mapping[str, NDArray[Any]], spec: PolicySpec) -> None:
    """Replace the snapshot in `folder` by these weights.

    Raises:
        WeightsRefused: A tensor is not finite; names it.
        InfrastructureError: No disk space.
    """
    manifest = Manifest.of(spec.name, 0, tensors, spec.to_dict())
    remove(folder)
    with atomic_dir(folder) as made:
        write_tensors(made / TENSORS, tensors)
        write_new(made / MANIFEST, [sealed(manifest.to_dict())])


def has_snapshot(folder: Path) -> bool:
    """Whether `folder` has a snapshot, whole or not."""
    return (folder / TENSORS).is_file()


def read_snapshot(folder: Path, limit: int, fix: str) -> dict[str, NDArray[Any]]:
    """The weights of a snapshot, every byte verified.

    Args:
        folder: Of the snapshot.
        limit: Most bytes of its tensors.
        fix: Remedy for a damaged one, as in errors.

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
    """The manifest of a snapshot or a version.

    Raises:
        CorruptFile: Missing or altered.
    """
    path = folder / MANIFEST
    try:
        return Manifest.from_dict(read_sealed(path, fix))
    except MessageError as error:
        raise CorruptFile(error.what, str(path), fix) from None
