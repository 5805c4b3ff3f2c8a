"""Parent links between a registry's versions, pruned ones included, read from `audit.jsonl`."""

import os
from pathlib import Path
from typing import NamedTuple

from embodied.errors import MessageError
from embodied.files import open_file
from embodied.weights.audit import NAME, STORED, TAIL, parse_lines
from embodied.weights.manifest import Version


class Link(NamedTuple):
    """A stored version and the label of its parent; empty for weights that came from no version."""

    version: Version
    parent: str


class Lineage:
    """Parent links of every policy, as far back as the last 16 MiB of the audit. Only appended lines are read again.

    Args:
        folder: Of the registry.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._offset = folder / NAME, 0
        self._links: dict[str, dict[int, Link]] = {}

    def find(self, policy: str, number: int) -> Version | None:
        """The version that has this number, deleted or not; None for one that was never stored."""
        link = self._links.get(policy, {}).get(number)
        if link is None:
            self._read()
            link = self._links.get(policy, {}).get(number)
        return link.version if link else None

    def lag(self, policy: str, older: int, newer: int) -> int | None:
        """As `Versions.lag`."""
        count, number = 0, newer
        while number > older:
            if self.find(policy, number) is None:
                return None
            version, label = self._links[policy][number]
            parent = Version.parse(label) if label else Version(0, "")
            count += parent.hash != version.hash
            if parent.number >= number:  # only in a damaged audit
                return None
            number = parent.number
        return count if number == older else None

    def _read(self) -> None:
        """Take in the lines appended since the last call; a line that is still being written is left for later."""
        try:
            with open_file(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # another file
                    self._offset = 0
                file.seek(max(self._offset, size - TAIL))
                start, data = file.tell(), file.read(TAIL)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = start + len(whole)
        for line in parse_lines(whole):
            policy, label, parent = line.get("policy"), line.get("version"), line.get("parent", "")
            if line.get("event") not in STORED:
                continue
            if not (isinstance(policy, str) and isinstance(label, str) and isinstance(parent, str)):
                continue
            try:
                version = Version.parse(label)
                if parent:
                    Version.parse(parent)
            except MessageError:
                continue
            self._links.setdefault(policy, {})[version.number] = Link(version, parent)
