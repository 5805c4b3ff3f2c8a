"""Weights to begin with: of another run, a checkpoint or a file."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied.errors import UserError, WeightsRefused, nearest
from embodied.files import read_json
from embodied.runs import checkpoint, run_folder
from embodied.runs.published import find_version
from embodied.train.snapshot import read_manifest, read_snapshot
from embodied.weights.registry import Registry
from embodied.weights.sidecar import FIX, check_spec
from embodied.weights.tensors import read_tensors
from embodied.weights.versions import MANIFEST, TENSORS
from policies.base import Policy

_DAMAGED = "give other weights"


def find_weights(source: str, runs: Path, policy: str) -> str:
    """`source` resolved: an absolute path, or `<run folder>:<version number>`.

    Args:
        source: `run`, `run:version`, a checkpoint's folder, or a safetensors file.
        runs: Folder of all runs.
        policy: Name of the policy, for a run with several.

    Raises:
        UserError: `source` names nothing that exists.
        WeightsRefused: The run does not keep that version.
    """
    path = Path(source)
    if run_folder.is_there(path) and (path.is_file() or checkpoint.is_checkpoint(path)):
        return str(path.resolve())
    run, _, version = source.rpartition(":") if ":" in source else (source, "", "latest")
    folder = run_folder.resolve(run, runs)
    registry = Registry(folder / "weights")
    names = registry.policies()
    if not names:
        raise UserError(f"the run {folder.name} has published no version", str(folder), "choose another run")
    if policy not in names and len(names) > 1:
        raise UserError(f"the run {folder.name} has no policy {policy}", str(folder), nearest(policy, names))
    return f"{folder}:{find_version(registry, policy if policy in names else names[0], version).number}"


def read_weights(source: str, policy: Policy) -> dict[str, NDArray[Any]]:
    """The tensors that `find_weights` names, verified where a checksum exists, and fit for `policy`.

    Raises:
        UserError, CorruptFile: They are gone or damaged.
        SpecMismatch: They are of another policy; names the first field that differs.
        WeightsRefused: A parameter is missing, unknown or of another shape; names it.
    """
    path = Path(source)
    own = policy.tensors()
    limit = 2 * sum(array.nbytes for array in own.values())
    if path.is_file():
        tensors = _read_file(path, policy, limit)
    elif checkpoint.is_checkpoint(path):
        saved = checkpoint.read_policy(path, policy.spec.name)
        check_spec(saved.spec, policy.spec.to_dict(), str(path))
        tensors = dict(saved.tensors)
    else:
        folder, _, version = source.rpartition(":")
        registry = Registry(Path(folder) / "weights")
        names = registry.policies()
        name = policy.spec.name if policy.spec.name in names else next(iter(names), policy.spec.name)
        manifest, tensors = registry.read(name, int(version))
        check_spec(manifest.spec, policy.spec.to_dict(), source)
    check_tensors(tensors, own, source)
    return tensors


def check_tensors(tensors: dict[str, NDArray[Any]], own: dict[str, NDArray[Any]], source: str) -> None:
    """Raise `WeightsRefused` unless `tensors` have the names and shapes of a policy's `own`."""
    for name in sorted(own.keys() ^ tensors.keys()):
        what = "missing" if name in own else "none of this policy's"
        raise WeightsRefused(f"parameter {name} is {what}", source, FIX)
    for name, array in own.items():
        theirs = tensors[name]
        if theirs.shape != array.shape:
            what = f"parameter {name} has shape {list(theirs.shape)}, this policy's has {list(array.shape)}"
            raise WeightsRefused(what, source, FIX)


def _read_file(path: Path, policy: Policy, limit: int) -> dict[str, NDArray[Any]]:
    """Tensors of a file; one of a checkpoint or a version is verified, and its spec compared."""
    beside, whole = path.parent, path.name == TENSORS
    for folder in (beside, beside.parent):
        if whole and checkpoint.is_checkpoint(folder) and (beside / "policy.json").is_file():
            checkpoint.verify(folder)
    if (beside / "policy.json").is_file():
        check_spec(read_json(beside / "policy.json", _DAMAGED), policy.spec.to_dict(), str(path))
    elif (beside / MANIFEST).is_file():
        manifest = read_manifest(beside, _DAMAGED)
        check_spec(manifest.spec, policy.spec.to_dict(), str(path))
        if whole:
            return read_snapshot(beside, limit, _DAMAGED)
    return read_tensors(path, limit, f"{_DAMAGED}: a run, run:version, a checkpoint's folder, or a safetensors file")
