"""Checkpoints from which a killed run continues.

`<step>/{<policy>/model.safetensors, <policy>/policy.json, learner.pt, state.json}`, written under a temporary name and
renamed, so that a checkpoint is whole or absent. `state.json` holds the size and xxh3-128 of the other files and a hash
of itself; nothing is parsed before these agree. `learner.pt` is read with `weights_only=True`: no code in it ever runs.

Checkpoints of format 1 had one policy, in the folder itself. Their weights are read; a run cannot resume from them.
"""

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from embodied.errors import CorruptFile, SpecMismatch, UserError, nearest
from embodied.files import (
    atomic_dir,
    clean_temporaries,
    disk_errors,
    fsync_dir,
    open_file,
    read_json,
    read_sealed,
    remove,
    sealed,
    temporary_name,
    write_new,
)
from embodied.spec import difference
from embodied.weights.manifest import check_policy_name
from embodied.weights.tensors import read_tensors, write_tensors

FORMAT = 2
WEIGHTS, SPEC, LEARNER, STATE = "model.safetensors", "policy.json", "learner.pt", "state.json"
FIX = "delete this checkpoint's folder and resume from an earlier one"

_ASIDE = ".replaced"
_NAME = re.compile(rf"[0-9]{{8,12}}({re.escape(_ASIDE)})?")
_BLOCK = 2**20


@dataclass(frozen=True)
class SavedPolicy:
    """A policy of a checkpoint: its arrays by name, and its `PolicySpec.to_dict()`."""

    tensors: Mapping[str, NDArray[Any]]
    spec: Mapping[str, Any]


@dataclass
class Loaded:
    """A checkpoint in memory.

    Attributes:
        path: Its folder.
        step: The learner's step at which it was saved.
        policies: Name to policy.
        learner: As saved, with tensors where there were arrays.
        state: The JSON state.
    """

    path: Path
    step: int
    policies: dict[str, SavedPolicy]
    learner: dict[str, Any]
    state: dict[str, Any]


def save(
    folder: Path,
    step: int,
    policies: Mapping[str, SavedPolicy],
    learner_state: Mapping[str, Any],
    state: Mapping[str, Any],
    keep: int = 3,
) -> Path:
    """Write checkpoint `step` and remove all but the newest `keep`.

    Checkpoints of a later step are removed too: they belong to a continuation that was left when the run went back.
    The caller is the run folder's only writer (`run_folder.lock`).

    Args:
        folder: The run's `checkpoints`, made if missing.
        policies: Name to policy.
        learner_state: Nested dicts, lists and tuples of tensors, numpy arrays, numbers, strings, bytes and None.
            Arrays are stored as tensors and come back as tensors, since `weights_only` reads no numpy.
        state: Plain JSON.

    Returns:
        The checkpoint's folder.

    Raises:
        InfrastructureError: No disk space; the older checkpoints stay.
        TypeError: `learner_state` holds something else; names where.
    """
    learner = io.BytesIO()
    torch.save(_plain(learner_state, "learner_state"), learner)
    for name in policies:
        check_policy_name(name)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    clean_temporaries(folder)
    path = folder / f"{step:08d}"
    aside = path.with_name(path.name + _ASIDE)
    try:
        with atomic_dir(path) as part:
            for name, policy in policies.items():
                (part / name).mkdir()
                write_tensors(part / name / WEIGHTS, policy.tensors)
                write_new(part / name / SPEC, [_json(policy.spec)])
                fsync_dir(part / name)
            write_new(part / LEARNER, [learner.getbuffer()])
            files = {name: _checksum(part / name) for name in _files(policies)}
            body = {"format": FORMAT, "step": step, "files": files, "state": dict(state)}
            write_new(part / STATE, [sealed(body)])
            if path.exists():
                # Found by `checkpoints` under this name too, should this process die before the new one has its own.
                _discard(aside)
                path.rename(aside)
    finally:
        if aside.exists() and not path.exists():
            aside.rename(path)
    kept = [other for other in checkpoints(folder) if _order(other) <= _order(path) and other != aside][-max(keep, 1) :]
    for other in checkpoints(folder):
        if other not in kept:
            _discard(other)
    return path


def _discard(path: Path) -> None:
    """Remove a checkpoint; renamed first, so that none is ever half removed."""
    if path.exists():
        gone = temporary_name(path)
        path.rename(gone)
        remove(gone)


def discard_after(folder: Path, step: int) -> None:
    """Remove checkpoints of a later step: they belong to a continuation that is given up."""
    for path in checkpoints(folder):
        if _order(path)[0] > step:
            _discard(path)


def steps(folder: Path) -> set[int]:
    """Steps that have a checkpoint, whole or damaged."""
    return {_order(path)[0] for path in checkpoints(folder)}


def checkpoints(folder: Path) -> list[Path]:
    """Folders that are named as checkpoints, whole or damaged, by step."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def _order(path: Path) -> tuple[int, bool]:
    return int(path.name.removesuffix(_ASIDE)), not path.name.endswith(_ASIDE)


def latest(
    folder: Path,
    specs: Mapping[str, Mapping[str, Any]] | None = None,
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Loaded | None:
    """Load the newest checkpoint that is whole; None if there is none at all.

    Args:
        folder: The run's `checkpoints`.
        specs: As for `load`.
        report: Called with one line for each damaged one that is skipped.

    Raises:
        SpecMismatch: The newest whole one is of another policy.
        UserError: The newest whole one is of format 1.
        CorruptFile: There are checkpoints, and all are damaged; names the newest one's damage.
    """
    damage: list[CorruptFile] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load(path, specs)
        except CorruptFile as error:
            damage.append(error)
            report(f"skipping a damaged checkpoint: {error.line()}")
    if damage:
        raise CorruptFile(f"no whole checkpoint: {damage[0].what}", damage[0].where, "start a new run with name=...")
    return None


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, whole or damaged."""
    return (path / STATE).is_file()


def verify(path: Path) -> dict[str, Any]:
    """Check every file's size and hash; returns the content of `state.json`, `format` included.

    Raises:
        UserError: No such folder.
        CorruptFile: A file is missing, truncated or altered; names it.
    """
    if not path.is_dir():
        raise UserError(
            "no such checkpoint", str(path), f"known: {', '.join(p.name for p in checkpoints(path.parent))}"
        )
    file = path / STATE
    body = {"format": 1} | read_sealed(file, FIX)
    if set(body) != {"format", "step", "files", "state"} or not isinstance(body["files"], dict):
        raise CorruptFile("not the state of a checkpoint", str(file), FIX)
    if set(body["files"]) != _files(_policies(body)):
        raise CorruptFile("not the state of a checkpoint", str(file), FIX)
    for name, (size, digest) in body["files"].items():
        try:
            there = (path / name).stat().st_size
            if there != size:
                raise CorruptFile(f"{there} bytes, saved as {size}", str(path / name), FIX)
            same = _checksum(path / name)[1] == digest
        except OSError as error:
            raise CorruptFile(f"cannot be read: {error.strerror}", str(path / name), FIX) from None
        if not same:
            raise CorruptFile("altered: its hash does not fit", str(path / name), FIX)
    return body


def load(path: Path, specs: Mapping[str, Mapping[str, Any]] | None = None) -> Loaded:
    """Read a checkpoint, on the CPU, after `verify`.

    Args:
        path: Its folder.
        specs: Name to `PolicySpec.to_dict()` of the policies that the checkpoint must have; None takes any.

    Raises:
        UserError, CorruptFile: As `verify`.
        UserError: It is of format 1.
        SpecMismatch: The checkpoint is of other policies; names the first field that differs.
    """
    body = verify(path)
    if body["format"] != FORMAT:
        fix = f"start a new run from its weights: warm_start.weights={path}"
        raise UserError(f"a checkpoint of format {body['format']}: a run resumes from format {FORMAT}", str(path), fix)
    policies = {name: _read_policy(path, body, name) for name in _policies(body)}
    if specs is not None:
        for name in sorted(specs.keys() ^ policies.keys()):
            what = f"the checkpoint has {'no' if name in specs else 'a'} policy {name}"
            raise SpecMismatch(what, str(path), "resume with the policies it was trained with, or start a new run")
        for name, spec in specs.items():
            check_spec(policies[name].spec, spec, str(path / name / SPEC))
    try:
        learner = torch.load(path / LEARNER, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; the bytes are as saved, so another torch wrote them
        raise CorruptFile(
            f"this torch ({torch.__version__}) cannot read it: {str(error).splitlines()[0][:200]}",
            str(path / LEARNER),
            "resume with the torch that saved it",
        ) from None
    return Loaded(path, body["step"], policies, learner, body["state"])


def read_policy(path: Path, name: str) -> SavedPolicy:
    """A policy of a checkpoint of any format, after `verify`: the one of this name, or the only one.

    Raises:
        UserError, CorruptFile: As `verify`.
        UserError: The checkpoint has several policies, and none of this name.
    """
    body = verify(path)
    names = _policies(body)
    if name not in names and len(names) != 1:
        raise UserError(f"the checkpoint has no policy {name}", str(path), nearest(name, names))
    return _read_policy(path, body, name if name in names else names[0])


def _policies(body: Mapping[str, Any]) -> list[str]:
    """Names of the policies of a checkpoint; an empty one for that of format 1."""
    if body["format"] == 1:
        return [""]
    return sorted(name.partition("/")[0] for name in body["files"] if name.endswith(f"/{WEIGHTS}"))


def _files(policies: Iterable[str]) -> set[str]:
    """Names of the files of a checkpoint beside its state."""
    return {LEARNER, *(f"{name}/{file}".lstrip("/") for name in policies for file in (WEIGHTS, SPEC))}


def _read_policy(path: Path, body: Mapping[str, Any], name: str) -> SavedPolicy:
    size = body["files"][f"{name}/{WEIGHTS}".lstrip("/")][0]
    spec = read_json(path / name / SPEC, FIX)
    return SavedPolicy(read_tensors(path / name / WEIGHTS, size, FIX), spec)


def check_spec(
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    where: str,
    whose: str = "the checkpoint",
    fix: str = "resume with the task and policy it was trained with, or start a new run with name=...",
) -> None:
    """Raise `SpecMismatch` naming the first field in which two specs, as dictionaries, differ."""
    found = difference(saved, wanted)
    if found:
        field, theirs, ours = found
        raise SpecMismatch(
            f"{whose}'s policy has {field} {theirs}, this run's has {ours}",
            where,
            fix,
        )


def _plain(value: Any, at: str) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, f"{at} key {key!r}"): _plain(item, f"{at}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{at}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(f"{at} is a {type(value).__name__}, which a checkpoint cannot hold: save tensors and plain values")


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _checksum(path: Path) -> tuple[int, str]:
    """Size and xxh3-128 hex digest of a file, read in blocks."""
    digest, size = xxhash.xxh3_128(), 0
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
