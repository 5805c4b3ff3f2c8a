"""Spec of the policy that a file of weights belongs to, from a checkpoint's or a version's sidecar file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.errors import SpecMismatch
from embodied.files import read_json, read_sealed
from embodied.spec import difference
from embodied.weights.manifest import Manifest
from embodied.weights.versions import MANIFEST

FIX = "give weights of a policy with this task and policy, or the policy.* they were trained with"
_SPEC = "policy.json"  # of a checkpoint
_DAMAGED = "give other weights"
_FREE = ("name", "execute", "control_hz")  # of a spec, what no weight depends on


def check_sidecar(path: Path, spec: Mapping[str, Any], fix: str = FIX) -> None:
    """Compare the spec that lies beside a file of tensors, if any does, with `PolicySpec.to_dict()` of who takes them.

    Raises:
        SpecMismatch: They are of another policy; names the first field that differs.
        CorruptFile, MessageError: What lies there is damaged.
    """
    if (path.parent / _SPEC).is_file():
        check_spec(read_json(path.parent / _SPEC, _DAMAGED), spec, str(path), fix)
    elif (path.parent / MANIFEST).is_file():
        manifest = Manifest.from_dict(read_sealed(path.parent / MANIFEST, _DAMAGED))
        check_spec(manifest.spec, spec, str(path), fix)


def check_spec(saved: Mapping[str, Any], spec: Mapping[str, Any], where: str, fix: str = FIX) -> None:
    """Raise `SpecMismatch` unless weights of a policy with the spec `saved` fit one with `spec`."""
    theirs, ours = ({k: v for k, v in each.items() if k not in _FREE} for each in (saved, spec))
    if found := difference(theirs, ours):
        field, given, wanted = found
        raise SpecMismatch(f"the weights' policy has {field} {given}, this one has {wanted}", where, fix)
