"""Signatures of versions: who published these weights, whichever machines they came through.

A signature is ed25519 over the canonical JSON of a manifest, which holds the hash of every tensor. On the wire and in
`manifest.sig` it is 192 hex digits: the signer's public key, then the signature. A folder of credentials may hold
`signing.key_secret` (64 hex digits), and then what it publishes is signed, and `signing.key` and further
`signing*.key` (64 hex digits each), and then what it takes must be signed by one of them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from embodied.errors import CorruptFile, UserError, WeightsRefused
from embodied.files import private, read_bytes, warn_of_mode, write_bytes
from embodied.weights.manifest import Manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

PUBLIC, SECRET = "signing.key", "signing.key_secret"

_DOMAIN = b"embodied-weights-1\n"
_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{192}")
_LIMIT = 4096
_MAKE = "make signing keys with `embodied credentials create FOLDER`"
_HOLDS = "publish with credentials that hold signing.key_secret, such as `embodied train client.credentials=FOLDER`"


class Signer:
    """Signs what is published.

    Args:
        path: A `signing.key_secret`.

    Raises:
        UserError: It cannot be read, or is no secret key; or the package cryptography is missing.
    """

    def __init__(self, path: Path | str) -> None:
        secret = _read_key(Path(path))
        warn_of_mode(Path(path), secret=True)
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self._public = self._key.public_key().public_bytes_raw()

    @classmethod
    def from_folder(cls, folder: Path | str | None) -> Self | None:
        """The signer of a folder of credentials; None without a folder, or without a `signing.key_secret` in it."""
        path = Path(folder) / SECRET if folder else None
        return cls(path) if path is not None and path.exists() else None

    @property
    def public(self) -> str:
        """The public key, 64 hex digits."""
        return self._public.hex()

    def sign(self, manifest: Manifest) -> str:
        """The signature of a manifest, 192 hex digits."""
        return (self._public + self._key.sign(_signed(manifest))).hex()


class Trusted:
    """The keys whose signatures are taken.

    Args:
        keys: Public keys: files such as `signing.key`, or 64 hex digits each.

    Raises:
        UserError: A file cannot be read, or is no public key; there are none; or the package cryptography is missing.
    """

    def __init__(self, keys: Iterable[Path | str]) -> None:
        keys = list(keys)
        for key in keys:
            if isinstance(key, Path):
                warn_of_mode(key, secret=False)
        listed = [_read_key(key) if isinstance(key, Path) else _parse_key(key, "trusted keys") for key in keys]
        if not listed:
            raise UserError("no key is trusted", "trusted keys", _MAKE)
        make = _ed25519().Ed25519PublicKey.from_public_bytes
        self._keys: dict[str, ed25519.Ed25519PublicKey] = {key.hex(): make(key) for key in listed}

    @classmethod
    def from_folder(cls, folder: Path | str | None) -> Self | None:
        """Trust every `signing*.key` in a folder of credentials; None without a folder or without one of them."""
        paths = sorted(Path(folder).glob("signing*.key")) if folder else []
        return cls(paths) if paths else None

    def check(self, manifest: Manifest, signature: str) -> None:
        """Return only if a trusted key signed this very manifest.

        Raises:
            WeightsRefused: It is unsigned, signed by a key that is not trusted, or manifest or signature was altered.
        """
        from cryptography.exceptions import InvalidSignature

        where = f"version {manifest.label} of policy {manifest.policy}"
        if not signature:
            raise WeightsRefused("it is not signed", where, _HOLDS)
        if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
            raise WeightsRefused("its signature is not 192 hex digits", where, "send what Signer.sign returned")
        public, signed = signature[:64], bytes.fromhex(signature[64:])
        key = self._keys.get(public)
        if key is None:
            raise WeightsRefused(
                f"it is signed with the key {public[:16]}..., which is not trusted here",
                where,
                f"{_HOLDS}, or add that key to the folder of credentials as signing-NAME.key",
            )
        try:
            key.verify(signed, _signed(manifest))
        except InvalidSignature:
            raise WeightsRefused(
                "its signature does not fit: the manifest or the signature was altered", where, "publish it again"
            ) from None


def create_signing_keys(folder: Path) -> None:
    """Write a new pair of signing keys into a folder; the secret one is readable by its owner only.

    Raises:
        UserError: There are some already, or the package cryptography is missing.
        InfrastructureError: The disk is full, or not writable.
    """
    for name in (SECRET, PUBLIC):
        if (folder / name).exists():
            raise UserError("signing keys exist already", str(folder / name), "choose another folder")
    key = _ed25519().Ed25519PrivateKey.generate()
    with private():
        write_bytes(folder / SECRET, key.private_bytes_raw().hex().encode() + b"\n")
    write_bytes(folder / PUBLIC, key.public_key().public_bytes_raw().hex().encode() + b"\n")


def _signed(manifest: Manifest) -> bytes:
    """The bytes that a signature is over; the same for equal manifests, whichever way they travelled."""
    fields = {**manifest.to_dict(), "created": float(manifest.created)}
    return _DOMAIN + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _read_key(path: Path) -> bytes:
    try:
        text = read_bytes(path, _LIMIT, _MAKE).decode("ascii", "replace")
    except CorruptFile as error:
        raise UserError(f"cannot read a signing key: {error.what}", str(path), _MAKE) from None
    return _parse_key(text.strip(), str(path))


def _parse_key(text: str, where: str) -> bytes:
    if not _KEY.fullmatch(text):
        raise UserError("no signing key: it is not 64 hex digits", where, _MAKE)
    return bytes.fromhex(text)


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise UserError(
            "signatures need the package cryptography", "this environment", "pip install -e '.[serve]' in the clone"
        ) from None
    return ed25519
