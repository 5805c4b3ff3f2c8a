"""The versions of policies' weights on disk, and the pointers that say which are served.

`<policy>/<number>-<hash12>/{manifest.json, manifest.sig, model.safetensors}`, `numbers.json` (the last number given
out per policy), `active.json` (the pointers), `audit.jsonl` (what happened). One lock serialises writers of all
processes on the machine; readers take none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from embodied.errors import CorruptFile, UserError, WeightsHeld, WeightsRefused
from embodied.files import atomic_dir, remove, sealed, temporary_name, write_new
from embodied.settings import AtLeastOne, Count, Seconds, validated
from embodied.weights.audit import stored
from embodied.weights.manifest import Manifest, Version, check_policy_name
from embodied.weights.numbers import Numbers
from embodied.weights.pointers import Hold
from embodied.weights.tensors import write_tensors
from embodied.weights.version_pointers import VersionPointers
from embodied.weights.versions import MANIFEST, SIGNATURE, TENSORS, Trusted


class Signer(Protocol):
    """Signs what is published."""

    def sign(self, manifest: Manifest) -> str:
        """The signature as hex digits."""
        ...


@dataclass(frozen=True)
class Entry:
    """One version on disk.

    Attributes:
        policy, version, path, bytes: Which, where, and how large.
        pinned, serving, held: Whether it is pinned; whether it is the one to be served; whether it is so because of a
            rollback that stopped publication.
        best: Whether it did best in an evaluation.
        checkpoint: Step of the checkpoint with the same weights; None for none.
        signed: Whether it has a signature, which `ls` does not check.
        manifest: None if it cannot be read, and then `damage` says why in one line.
    """

    policy: str
    version: Version
    path: Path
    bytes: int
    pinned: bool
    serving: bool
    held: bool
    best: bool
    checkpoint: int | None
    signed: bool
    manifest: Manifest | None
    damage: str = ""


class Registry(VersionPointers):
    """Weights under one folder. Opening and reading change nothing on disk.

    Args:
        folder: Made by the first writer, who also removes what killed ones left half-written.
        keep: How many of the newest versions of each policy are kept, at least 1.
        quota_bytes: Size of all versions of one policy beyond which the oldest are deleted; 0 for no limit. Neither
            this nor `keep` deletes a version that is pinned, served, paired with a checkpoint, or the newest.
        lock_s: Seconds to wait for another writer before an error names it.
        signer: Signs every version published here.
        trusted: Refuses versions whose signature it does not know, where they are adopted and where they are read.

    Raises:
        ConfigError: `keep`, `quota_bytes` or `lock_s` is no such number, or out of range.
    """

    @validated("weights", "keep", "quota_bytes", "lock_s")
    def __init__(
        self,
        folder: Path | str,
        keep: AtLeastOne = 5,
        quota_bytes: Count = 0,
        *,
        lock_s: Seconds = 60.0,
        signer: Signer | None = None,
        trusted: Trusted | None = None,
    ) -> None:
        super().__init__(folder, trusted, lock_s)
        self.keep, self.quota_bytes, self.signer = keep, quota_bytes, signer
        self._numbers, self._reserved = Numbers(self.folder), dict[str, range]()

    def reserve(self, policy: str, count: int = 1) -> int:
        """The first of the policy's next `count` version numbers, from 1, which no one else is or was given.

        They are on disk before this returns, so a killed run leaves a gap and never a number that is used twice.

        Raises:
            DeadlineExceeded: Another process kept the lock; names it.
            UserError: There are no more numbers.
            CorruptFile: `numbers.json` is damaged.
            InfrastructureError: No disk space; no number was given out.
        """
        check_policy_name(policy)
        with self._locked(f"reserve a version of {policy}"):
            self._reserved[policy] = self._numbers.reserve(policy, count, self.versions(policy))
            return self._reserved[policy].start

    def publish(
        self,
        policy: str,
        number: int,
        tensors: Mapping[str, NDArray[Any]],
        spec: Mapping[str, Any],
        parent: str = "",
        restored: Hold | None = None,
    ) -> Manifest:
        """Write a reserved version of a policy; it is the newest, whole, when this returns, and served unless pinned.

        Publishing the same content under the same number again does nothing, unless it is damaged: then it is replaced.

        Args:
            restored: A hold that asked for a restore; these are the weights of that checkpoint, and end it.

        Raises:
            WeightsHeld: A rollback stopped publication; says who, when, and how to lift the hold.
            WeightsRefused: The number was never reserved, is older than one published, or names another content; or a
                tensor is not finite or has an unknown dtype.
            DeadlineExceeded, InfrastructureError: As `reserve`; nothing half-written is left.
        """
        manifest = Manifest.of(policy, number, tensors, spec, parent)
        with self._locked(f"publish version {number} of {policy}"):
            versions = self.versions(policy)
            self._check_number(manifest, versions)
            signature = self.signer.sign(manifest) if self.signer else ""
            if manifest.version in versions:
                self._mend(manifest, tensors, signature)
                return self.manifest(policy, number)
            if number not in self._reserved.get(
                policy, ()
            ):  # a number of this registry object is unused: no file need be read
                self._check_content(manifest)
            self._check_not_held(manifest, restored)
            self._write("publish", manifest, tensors, signature)
            self._reserved[policy] = range(number + 1, self._reserved.get(policy, range(0)).stop)
            self._advance(policy, versions, manifest.version)
        return manifest

    def adopt(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str = "") -> None:
        """Store a version that was made elsewhere, under its own number, which is then never given out here.

        The tensors are those of the manifest: the caller has verified them. Adopting it again does nothing, unless
        what is on disk is damaged: then it is replaced.

        Raises:
            WeightsHeld: As `publish`.
            WeightsRefused: The number names, or once named, another content; or is so large that few would be left;
                or the signature is not a trusted one.
            DeadlineExceeded, CorruptFile, InfrastructureError: As `reserve`; nothing half-written is left.
        """
        policy, version = manifest.policy, manifest.version
        if self.trusted is not None:
            self.trusted.check(manifest, signature)
        with self._locked(f"store version {version.label} of {policy}"):
            versions = self.versions(policy)
            if version in versions:
                self._mend(manifest, tensors, signature)
                return
            self._check_same(manifest, versions)
            self._numbers.check_foreign(version, policy)
            if not self._numbers.is_unused(version, policy):
                self._check_content(manifest)
            self._check_not_held(manifest)
            self._numbers.exclude(policy, version.number, versions)
            self._write("adopt", manifest, tensors, signature)
            self._advance(policy, versions, version)

    def ls(self) -> list[Entry]:
        """Every version on disk, damaged ones too, oldest first by policy; tensors are not read.

        Raises:
            CorruptFile: `active.json` is damaged.
        """
        return [self._entry(policy, version) for policy in self.policies() for version in self.versions(policy)]

    def _entry(self, policy: str, version: Version) -> Entry:
        pointers, active = self.pointers(policy), self.active(policy)
        path, manifest, damage = self.path(policy, version), None, ""
        try:
            manifest = self.manifest(policy, version.number)
        except (CorruptFile, WeightsRefused, UserError) as error:
            damage = error.line()
        return Entry(
            policy,
            version,
            path,
            self.size(policy, version),
            pinned=pointers.pinned == version,
            serving=active == version,
            held=pointers.held is not None and pointers.serving == version,
            best=pointers.best == version,
            checkpoint=pointers.paired.get(version),
            signed=(path / SIGNATURE).exists(),
            manifest=manifest,
            damage=damage,
        )

    def _write(self, event: str, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str) -> None:
        more: dict[str, Any] = {"parent": manifest.parent, "bytes": manifest.nbytes, "signed": bool(signature)}
        aside = temporary_name(self.path(manifest.policy, manifest.version))
        with atomic_dir(self.path(manifest.policy, manifest.version)) as part:
            write_tensors(part / TENSORS, tensors)
            write_new(part / MANIFEST, [sealed(manifest.to_dict())])
            if signature:
                write_new(part / SIGNATURE, [signature.encode("ascii")])
            self._audit(event, manifest.policy, manifest.version, **more)
            if event == "mend":
                # As late as can be: a writer killed here leaves no version rather than a damaged one.
                self.path(manifest.policy, manifest.version).rename(aside)
        remove(aside)
        self._remember(manifest.policy, manifest.version, self.state(manifest.policy, manifest.version), None)

    def _mend(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], signature: str) -> None:
        """Write a version anew whose files are not what they were."""
        try:
            self.check(manifest.policy, manifest.version)
        except (CorruptFile, WeightsRefused):
            self._write("mend", manifest, tensors, signature)

    def _advance(self, policy: str, before: list[Version], version: Version) -> None:
        """Take a new version into account: the newest one ends a rollback. Delete the
        oldest."""
        versions = sorted([*before, version])
        try:
            pointers = self.pointers(policy)
        except CorruptFile as error:
            # All versions are kept, since those that must be are unknown; the version just published stays published.
            self._audit("not_pruned", policy, None, why=error.line())
            return
        if (pointers.serving or pointers.held) and version == versions[-1]:
            pointers = self._move(policy, serving=None, held=None)
        self._prune(policy, versions, pointers.named | {version, versions[-1]})

    def _prune(self, policy: str, versions: list[Version], spared: set[Version]) -> None:
        going, over = versions[: -self.keep], 0
        if self.quota_bytes:
            sizes = {version: self.size(policy, version) for version in versions}
            over = sum(sizes.values()) - self.quota_bytes
        for version in versions if over > 0 else going:
            if version in spared or (version not in going and over <= 0):
                continue
            path = self.path(policy, version)
            gone = temporary_name(path)
            # Renamed first, so that no reader finds it half deleted.
            path.rename(gone)
            remove(gone)
            over -= sizes[version] if self.quota_bytes else 0
            self._audit("prune", policy, version, sync=False)

    def _check_not_held(self, manifest: Manifest, restored: Hold | None = None) -> None:
        """Raise `WeightsHeld` if publication is stopped; a damaged `active.json` stops nothing."""
        try:
            held = self.held(manifest.policy)
        except CorruptFile:
            return
        if held is None or (held.restore and held == restored):
            return
        said = "until its checkpoint is restored" if held.restore else str(held)
        raise WeightsHeld(
            f"version {manifest.number} of {manifest.policy} is not taken: a rollback holds publication, {said}",
            str(self.folder),
            f"`embodied weights resume weights={self.folder}` lifts the hold; restore=true: from the paired checkpoint",
        )

    def _check_number(self, manifest: Manifest, versions: list[Version]) -> None:
        number, where = manifest.number, f"policy {manifest.policy} in {self.folder}"
        if number > self._numbers.read().get(manifest.policy, 0):
            raise WeightsRefused(f"version {number} was never reserved", where, "call reserve first")
        self._check_same(manifest, versions)
        newest = versions[-1] if versions else Version(0, "")
        if number < newest.number and manifest.version not in versions:
            raise WeightsRefused(
                f"version {number} is older than {newest.label}, already published", where, "reserve anew"
            )

    def _check_content(self, manifest: Manifest) -> None:
        """Raise unless the number is free for this content, of all that were deleted too."""
        self._check_same(manifest, stored(self.folder, manifest.policy))

    def _check_same(self, manifest: Manifest, known: Iterable[Version]) -> None:
        other = [v for v in known if v.number == manifest.number and v != manifest.version]
        if other:
            raise WeightsRefused(
                f"number {manifest.number} already names {other[0].label}, another content than {manifest.label}",
                f"policy {manifest.policy} in {self.folder}",
                "reserve anew",
            )
