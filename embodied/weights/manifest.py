"""Manifest of a version of a policy's weights: its number, its tensors and the hash of their content.

The sender makes a `Manifest` of the arrays it publishes; the receiver verifies what arrived against it before anything
is switched. Hashes are xxh3-128 of each tensor's C-order little-endian bytes (fast enough to check every push), and
SHA-256 of the sorted list of names, shapes, dtypes and hashes. They tell content apart; they are no signature.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from embodied.errors import MessageError, WeightsRefused
from embodied.weights.examine import dtype_name, each, examine, numpy_dtype

DTYPES = (
    "bool", "uint8", "int8", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
MAX_TENSORS = 100_000
MAX_NAME = 512
MAX_DIMS = 16
MAX_BYTES = 2**40
MAX_SPEC_BYTES = 2**20
MAX_NUMBER = 2**53
END_OF_TIME = 1e11
"""Seconds since 1970; every calendar goes so far."""

_POLICY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TENSOR_HASH = re.compile(r"[0-9a-f]{32}")
_HASH = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"(0|[1-9][0-9]{0,15})-([0-9a-f]{12})")
_AGAIN = "send the whole version again; the version served so far stays"
_RESEND = "send the dictionary that Manifest.to_dict makes"


class Version(NamedTuple):
    """Identity of weights: a number that only grows, and the first twelve hex digits of their content's hash."""

    number: int
    hash: str

    @property
    def label(self) -> str:
        """Such as `12-ab12cd34ef56`."""
        return f"{self.number}-{self.hash}"

    @classmethod
    def parse(cls, label: str) -> Self:
        """Rebuild from `label`.

        Raises:
            MessageError: It is not `<number>-<twelve hex digits>`.
        """
        found = _LABEL.fullmatch(label)
        if found is None:
            raise MessageError(f"not a version: {label[:80]!r}", "version", "write <number>-<twelve hex digits>")
        return cls(int(found[1]), found[2])


class Tensor(NamedTuple):
    """Shape, name of the dtype (one of `DTYPES`) and xxh3-128 hex digest of one tensor.

    Arrays of uint16 hold the bits of bfloat16 numbers, which numpy has not; torch views them as such.
    """

    shape: tuple[int, ...]
    dtype: str
    hash: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


class Verified(dict[str, NDArray[Any]]):
    """Arrays that `Manifest.verify` has checked and that have not been changed since.

    Attributes:
        hash: Content hash of the manifest they were checked against.
    """

    def __init__(self, tensors: Mapping[str, NDArray[Any]], hash: str) -> None:
        super().__init__(tensors)
        self.hash = hash


@dataclass(frozen=True)
class Manifest:
    """One version of one policy's weights.

    Attributes:
        policy: Name of the policy; letters, digits, dot, dash, underscore.
        number: Version number, at least 0.
        hash: SHA-256 hex digest of the content.
        tensors: Name to shape, dtype and hash.
        spec: `PolicySpec.to_dict()` of the policy the weights are for.
        parent: Label of the version they were trained from; empty for the first.
        created: Unix time in seconds.
    """

    policy: str
    number: int
    hash: str
    tensors: Mapping[str, Tensor]
    spec: Mapping[str, Any]
    parent: str = ""
    created: float = 0.0

    @property
    def version(self) -> Version:
        return Version(self.number, self.hash[:12])

    @property
    def label(self) -> str:
        """Such as `12-ab12cd34ef56`."""
        return self.version.label

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def spec_hash(self) -> str:
        """Twelve hex digits that change with any field of the spec."""
        return hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def of(
        cls,
        policy: str,
        number: int,
        tensors: Mapping[str, NDArray[Any]],
        spec: Mapping[str, Any],
        parent: str = "",
    ) -> Self:
        """The manifest of arrays about to be published.

        Raises:
            WeightsRefused: A tensor is not finite or of a dtype outside `DTYPES`; names it.
            MessageError: The policy's name, the number or a tensor's name is not allowed.
        """
        where = f"version {number} of policy {policy}"
        for name, array in tensors.items():
            if dtype_name(array.dtype) not in DTYPES:
                raise WeightsRefused(
                    f"tensor {name} has dtype {dtype_name(array.dtype)}",
                    f"policy {policy}",
                    f"publish one of {', '.join(DTYPES)}",
                )

        def listing(item: tuple[str, NDArray[Any]]) -> Tensor:
            name, array = item
            flaw, digest = examine(array)
            if flaw:
                raise WeightsRefused(f"tensor {name} holds {flaw}", where, "restore the last good checkpoint")
            return Tensor(array.shape, dtype_name(array.dtype), digest)

        listed = dict(zip(tensors, each(listing, tensors.items(), tensors.values()), strict=True))
        made = cls(policy, number, content_hash(listed), listed, json.loads(json.dumps(spec)), parent, time.time())
        return cls.from_dict(made.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """JSON and msgpack types only."""
        return {
            "policy": self.policy,
            "number": self.number,
            "hash": self.hash,
            "tensors": {name: [list(t.shape), t.dtype, t.hash] for name, t in self.tensors.items()},
            "spec": dict(self.spec),
            "parent": self.parent,
            "created": self.created,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Rebuild from `to_dict`, trusting nothing.

        Raises:
            MessageError: A field is missing, of a wrong type or beyond its bound, or the hash is not that of the list.
        """
        fields = _dict(data, "a manifest")
        unknown = set(fields) ^ set(cls.__dataclass_fields__)
        if unknown:
            raise MessageError(
                f"manifest fields missing or unknown: {sorted(map(str, unknown))[:5]}", "manifest", _RESEND
            )
        policy, number, parent, created = (fields[k] for k in ("policy", "number", "parent", "created"))
        check_policy_name(policy)
        _require(type(number) is int and 0 <= number <= MAX_NUMBER, f"version number {str(number)[:40]}")
        _require(isinstance(parent, str) and (not parent or _LABEL.fullmatch(parent)), f"parent {str(parent)[:80]!r}")
        _require(type(created) in (int, float) and 0 <= created < END_OF_TIME, f"creation time {str(created)[:40]}")
        spec = _dict(fields["spec"], "a spec")
        try:
            size = len(json.dumps(spec))
        except (TypeError, ValueError, RecursionError):
            raise MessageError("the manifest's spec is not plain JSON", "manifest", _RESEND) from None
        _require(size <= MAX_SPEC_BYTES, f"spec of {size} bytes")
        listed = _dict(fields["tensors"], "a list of tensors")
        _require(len(listed) <= MAX_TENSORS, f"{len(listed)} tensors")
        tensors = {name: _tensor(name, value) for name, value in listed.items()}
        total = sum(tensor.nbytes for tensor in tensors.values())
        _require(total <= MAX_BYTES, f"tensors of {total} bytes")
        given = fields["hash"]
        _require(isinstance(given, str) and _HASH.fullmatch(given), "content hash")
        _require(given == content_hash(tensors), "content hash that is not the hash of the tensors listed")
        return cls(policy, number, given, tensors, spec, parent, float(created))

    def match(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Compare names, shapes and dtypes, but no content; raises as `verify`."""
        where = f"version {self.label} of policy {self.policy}"
        missing, extra = self.tensors.keys() - tensors.keys(), tensors.keys() - self.tensors.keys()
        if missing:
            raise _refused(f"{_count(missing)} missing", where)
        if extra:
            raise _refused(f"{_count(extra)} not in the manifest", where)
        for name, wanted in self.tensors.items():
            array = tensors[name]
            if array.shape != wanted.shape:
                raise _refused(f"tensor {name} has shape {array.shape}, published as {wanted.shape}", where)
            if dtype_name(array.dtype) != wanted.dtype:
                raise _refused(f"tensor {name} has dtype {dtype_name(array.dtype)}, published as {wanted.dtype}", where)

    def verify(self, tensors: Mapping[str, NDArray[Any]], into: Mapping[str, NDArray[Any]] | None = None) -> Verified:
        """Check arrays that arrived against this manifest; return only if every one is what was published.

        Args:
            tensors: What arrived.
            into: Contiguous arrays like those of the manifest. Then every block is first copied there and the copy is
                checked and returned: for tensors that another process could change meanwhile.

        Raises:
            WeightsRefused: Names the version, the first tensor that differs, and what differs: missing, extra, shape,
                dtype, content, or numbers that are not finite.
        """
        self.match(tensors)
        where = f"version {self.label} of policy {self.policy}"

        def check(item: tuple[str, Tensor]) -> None:
            name, wanted = item
            flaw, digest = examine(tensors[name], None if into is None else into[name])
            if flaw:
                raise _refused(f"tensor {name} holds {flaw}", where)
            if digest != wanted.hash:
                raise _refused(f"tensor {name} has other content than was published", where)

        each(check, self.tensors.items(), tensors.values())
        return Verified(tensors if into is None else into, self.hash)


def check_policy_name(name: Any) -> None:
    """Raise `MessageError` unless `name` can name a folder: letters, digits, dot, dash, underscore, at most 64."""
    _require(isinstance(name, str) and _POLICY.fullmatch(name), f"policy name {str(name)[:80]!r}")


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 hex digest over the sorted (name, shape, dtype, hash)."""
    rows = [[name, list(t.shape), t.dtype, t.hash] for name, t in sorted(tensors.items())]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _refused(what: str, where: str) -> WeightsRefused:
    return WeightsRefused(what, where, _AGAIN)


def _count(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"tensor {first} is" if not rest else f"tensor {first} and {len(rest)} more are"


def _require(good: object, what: str) -> None:
    if not good:
        raise MessageError(f"manifest with {what}", "manifest", _RESEND)


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MessageError(f"not {what}: {type(value).__name__}", "manifest", _RESEND)
    return value


def _tensor(name: str, value: Any) -> Tensor:
    _require(0 < len(name) <= MAX_NAME and name != "__metadata__", f"tensor name {name[:80]!r}")
    _require(isinstance(value, list | tuple) and len(value) == 3, f"tensor {name}: not [shape, dtype, hash]")
    shape, dtype, digest = value
    _require(isinstance(shape, list | tuple) and len(shape) <= MAX_DIMS, f"tensor {name}: its shape")
    _require(all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape), f"tensor {name}: its shape")
    _require(isinstance(dtype, str) and dtype in DTYPES, f"tensor {name}: dtype {str(dtype)[:40]}")
    _require(isinstance(digest, str) and _TENSOR_HASH.fullmatch(digest), f"tensor {name}: its hash")
    return Tensor(tuple(shape), dtype, digest)
