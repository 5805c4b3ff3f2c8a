"""Version numbers in use: `numbers.json`, the last one reserved per policy."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from embodied.errors import CorruptFile, UserError, WeightsRefused
from embodied.files import read_sealed, sealed, write_bytes
from embodied.weights.audit import stored
from embodied.weights.manifest import MAX_NUMBER, Version

_LAST_FOREIGN = MAX_NUMBER - 2**20  # what is made elsewhere leaves numbers to publish under


class Numbers:
    """The file, in the folder of a registry, whose lock the caller holds."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "numbers.json"

    def read(self) -> dict[str, int]:
        """Policy to the last number given out.

        Raises:
            CorruptFile: The file is damaged.
        """
        fix = "delete it; numbers then continue after the last version stored"
        numbers = read_sealed(self._path, fix).get("numbers") if self._path.exists() else {}
        if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
            raise CorruptFile("not a table of numbers", str(self._path), fix)
        return numbers

    def reserve(self, policy: str, count: int, versions: Iterable[Version]) -> range:
        """Give out the next `count` numbers of a policy with these `versions` on disk.

        Raises:
            UserError: There are not so many.
            CorruptFile, InfrastructureError: The file is damaged, or cannot be written.
        """
        numbers = self.read()
        last = self._last(policy, numbers, versions)
        if last + count > MAX_NUMBER:
            raise UserError(
                f"fewer than {count} version numbers are left after {last}",
                f"policy {policy} in {self._folder}",
                "choose another folder of weights",
            )
        self._write({**numbers, policy: last + count})
        return range(last + 1, last + 1 + count)

    def is_unused(self, version: Version, policy: str) -> bool:
        """Tell whether the file says that the number was never reserved. Raises as `read`."""
        numbers = self.read()
        return policy in numbers and version.number > numbers[policy]

    def exclude(self, policy: str, number: int, versions: Iterable[Version]) -> None:
        """Never give out a number, nor one below it; raises as `read`, or if the file cannot be written."""
        numbers = self.read()
        if numbers.get(policy, 0) < number:
            self._write({**numbers, policy: max(self._last(policy, numbers, versions), number)})

    def check_foreign(self, version: Version, policy: str) -> None:
        """Raise `WeightsRefused` for a number from elsewhere after which hardly any could be given out."""
        if version.number > _LAST_FOREIGN:
            raise WeightsRefused(
                f"version number {version.number} is beyond {_LAST_FOREIGN}: hardly any would be left after it",
                f"policy {policy} in {self._folder}",
                "number versions from 1",
            )

    def _last(self, policy: str, numbers: Mapping[str, int], versions: Iterable[Version]) -> int:
        """The last number in use; where the file does not say, the audit knows of versions that are gone."""
        known = versions if policy in numbers else [*versions, *stored(self._folder, policy)]
        return max(numbers.get(policy, 0), *(version.number for version in known), 0)

    def _write(self, numbers: Mapping[str, int]) -> None:
        write_bytes(self._path, sealed({"numbers": numbers}))
