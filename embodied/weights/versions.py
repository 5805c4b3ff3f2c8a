"""Reading the versions of policies' weights: `<policy>/<number>-<hash12>/{manifest.json, manifest.sig, ...}`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from embodied.errors import Busy, CorruptFile, MessageError, UserError, WeightsRefused, nearest
from embodied.files import read_bytes, read_sealed
from embodied.weights.lineage import Lineage
from embodied.weights.manifest import Manifest, Version
from embodied.weights.tensors import read_tensors

MANIFEST, SIGNATURE, TENSORS = "manifest.json", "manifest.sig", "model.safetensors"
LATEST = "latest"

_TRIES = 10
_SIGNATURE_BYTES = 4096
_REMEMBERED = 256

State = tuple[tuple[int, int, int], ...]

T = TypeVar("T")


class Trusted(Protocol):
    """Signers whose versions are taken."""

    def check(self, manifest: Manifest, signature: str) -> None:
        """Raise `WeightsRefused` unless `signature` is a trusted signer's for this manifest."""
        ...


class Versions:
    """Versions under one folder, for readers. A version appears by one rename and never changes, so none takes a lock.

    Args:
        folder: May be missing.
        trusted: Refuses versions without a signature it knows; None takes every whole one.
    """

    def __init__(self, folder: Path | str, trusted: Trusted | None = None) -> None:
        self.folder, self.trusted = Path(folder), trusted
        self._found: dict[Path, tuple[State, CorruptFile | None]] = {}
        self._lineage = Lineage(self.folder)

    def policies(self) -> list[str]:
        """Names of the policies that have versions, sorted."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path.name for path in found if path.is_dir() and self.versions(path.name))

    def versions(self, policy: str) -> list[Version]:
        """Versions on disk by number, ascending; names that are none are skipped."""
        found = []
        try:
            for path in (self.folder / policy).iterdir():
                try:
                    found.append(Version.parse(path.name))
                except MessageError:
                    continue
        except OSError:
            return []
        return sorted(found)

    def has(self, policy: str, version: Version) -> bool:
        """Tell whether a version is on disk and not known to be damaged; nothing is read."""
        path = self.path(policy, version)
        state, damage = self._found.get(path, ((), None))
        return path.is_dir() and (damage is None or state != self.state(policy, version))

    def check(self, policy: str, version: Version) -> None:
        """Read a version, every byte, unless it has been read here before and its files are the same since.

        Raises as `read`.
        """
        state, damage = self._found.get(self.path(policy, version), ((), None))
        if not state or state != self.state(policy, version):
            self.read(policy, version.label)
        elif damage is not None:
            raise type(damage)(damage.what, damage.where, damage.fix)

    def state(self, policy: str, version: Version) -> State:
        """Changes with a version's files, as far as a look at the disk can tell."""
        return tuple(_stat(self.path(policy, version) / name) for name in (MANIFEST, SIGNATURE, TENSORS))

    def find(self, policy: str, number: int | str) -> Version:
        """The version with this number or label, or for `latest` the newest.

        Raises:
            UserError: No such policy; names the nearest.
            WeightsRefused: The policy has no such version; names those kept.
        """
        versions = self.versions(policy) if policy not in ("", ".", "..") and "/" not in policy else []
        if not versions:
            raise UserError(f"no weights of policy {policy}", str(self.folder), nearest(policy, self.policies()))
        found = versions[-1:] if number == LATEST else [v for v in versions if number in (v.number, v.label)]
        if not found:
            kept = ", ".join(str(v.number) for v in versions[-10:])
            what = f"version {str(number)[:80]} of {policy} is not kept"
            refusal = WeightsRefused(what, str(self.folder), f"versions kept: {kept}")
            refusal.exit_status = UserError.exit_status  # no file is damaged: the caller named it
            raise refusal
        return found[0]

    def read(self, policy: str, number: int | str) -> tuple[Manifest, dict[str, NDArray[Any]]]:
        """The manifest and tensors of a version, or of `latest`, every byte verified.

        Raises:
            UserError, WeightsRefused: As `find`, or its signature is missing or not a trusted one.
            CorruptFile: Truncated or altered.
        """
        return self._retried(policy, number, self._read)

    def manifest(self, policy: str, number: int | str) -> Manifest:
        """A version's manifest alone, its signature not looked at; raises as `find` and `read`."""
        return self._retried(policy, number, self._read_manifest)

    def newest_whole(self, policy: str, say: Callable[[str], object]) -> Manifest:
        """The manifest of the newest version whose manifest is whole.

        Args:
            say: Told of each newer one that is damaged.

        Raises:
            UserError: As `find`.
            CorruptFile: None is whole.
        """
        self.find(policy, LATEST)
        damage: CorruptFile | None = None
        for version in reversed(self.versions(policy)):
            try:
                manifest = self.manifest(policy, version.label)
            except CorruptFile as error:
                damage = damage or error
                say(f"an older version is taken: {error.line()}")
                continue
            return manifest
        assert damage is not None
        raise damage

    def signature(self, policy: str, number: int | str) -> str:
        """A version's signature as hex digits; empty for one that is not signed. Raises as `find` and `read`."""
        return self._retried(policy, number, self._read_signature)

    def lag(self, policy: str, older: int, newer: int) -> int | None:
        """Updates along the lineage from one version to another; versions that were pruned count too.

        Each parent link from `newer` back to `older` is one update, but for a version with its parent's content, such
        as one published again after a resume. Numbers may jump; a version of a branch that was rolled back is no
        ancestor of what came after.

        Args:
            older, newer: Version numbers; 0 for initial weights that have no version.

        Returns:
            The count, 0 for one version twice; None where `older` is not an ancestor of `newer`, or where the last
            16 MiB of the audit do not say.
        """
        return self._lineage.lag(policy, older, newer)

    def stored(self, policy: str, number: int) -> Version | None:
        """The version stored under a number, deleted or not; None where the last 16 MiB of the audit name none."""
        return self._lineage.find(policy, number)

    def path(self, policy: str, version: Version) -> Path:
        """Folder of a version, whether it exists or not."""
        return self.folder / policy / version.label

    def size(self, policy: str, version: Version) -> int:
        """Bytes of a version's files; 0 for one that is gone."""
        total = 0
        for name in (MANIFEST, SIGNATURE, TENSORS):
            try:
                total += (self.path(policy, version) / name).stat().st_size
            except OSError:
                continue
        return total

    def _retried(self, policy: str, number: int | str, read: Callable[[str, Version], T]) -> T:
        """Read again where a version was deleted between finding and reading it: `latest` is then another one."""
        for _ in range(_TRIES):
            version = self.find(policy, number)
            try:
                return read(policy, version)
            except CorruptFile:
                if self.path(policy, version).exists():
                    raise
        raise Busy(
            f"{_TRIES} versions of {policy} were deleted while they were read", str(self.folder), "keep more versions"
        )

    def _read_manifest(self, policy: str, version: Version) -> Manifest:
        path, fix = self.path(policy, version) / MANIFEST, self._fix(policy, version)
        try:
            manifest = Manifest.from_dict(read_sealed(path, fix))
        except MessageError as error:
            raise CorruptFile(error.what, str(path), fix) from None
        if (manifest.policy, manifest.version) != (policy, version):
            raise CorruptFile(f"holds {manifest.policy} {manifest.label}", str(path), fix)
        return manifest

    def _read_signature(self, policy: str, version: Version) -> str:
        path, fix = self.path(policy, version) / SIGNATURE, self._fix(policy, version)
        if not path.exists() and path.parent.exists():
            return ""
        try:
            return read_bytes(path, _SIGNATURE_BYTES, fix).decode("ascii").strip()
        except UnicodeDecodeError:
            raise CorruptFile("not hex digits", str(path), fix) from None

    def _read(self, policy: str, version: Version) -> tuple[Manifest, dict[str, NDArray[Any]]]:
        state = self.state(policy, version)
        try:
            found = self._verified(policy, version)
        except CorruptFile as error:
            self._remember(policy, version, state, error)
            raise
        self._remember(policy, version, state, None)
        return found

    def _remember(self, policy: str, version: Version, state: State, damage: CorruptFile | None) -> None:
        while len(self._found) >= _REMEMBERED:  # several threads do this at once
            self._found.pop(next(iter(tuple(self._found)), Path()), None)
        self._found[self.path(policy, version)] = state, damage

    def _verified(self, policy: str, version: Version) -> tuple[Manifest, dict[str, NDArray[Any]]]:
        manifest = self._read_manifest(policy, version)
        if self.trusted is not None:
            self.trusted.check(manifest, self._read_signature(policy, version))
        path, fix = self.path(policy, version) / TENSORS, self._fix(policy, version)
        tensors = read_tensors(path, manifest.nbytes, fix)
        try:
            return manifest, manifest.verify(tensors)
        except WeightsRefused as error:
            raise CorruptFile(error.what, str(path), fix) from None

    def _fix(self, policy: str, version: Version) -> str:
        return f"delete {self.path(policy, version)} and use another version"


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
