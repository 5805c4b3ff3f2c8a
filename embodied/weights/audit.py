"""Events of a registry's versions: `audit.jsonl`, one JSON object a line, only ever appended to."""

import json
import os
import time
from pathlib import Path
from typing import Any

from embodied.errors import CorruptFile, MessageError
from embodied.files import append_line, open_file
from embodied.weights.manifest import Version

NAME = "audit.jsonl"
STORED = ("publish", "adopt", "mend")
"""Events after which a version is on disk."""
TAIL = 16 * 2**20
"""Bytes at the end of the file that are read."""


def write_audit(folder: Path, event: str, policy: str, version: Version | None, sync: bool = True, **more: Any) -> None:
    """Append an event; the caller holds the registry's lock.

    Args:
        sync: Whether it survives a power cut once this returns; it survives `kill -9` in any case.
        more: Further members of the line; `time`, Unix seconds, for what happened earlier.

    Raises:
        InfrastructureError: No disk space.
    """
    label = version.label if version else ""
    line: dict[str, Any] = {
        "time": time.time(),
        "event": event,
        "policy": policy,
        "version": label,
        "pid": os.getpid(),
        **more,
    }
    append_line(folder / NAME, json.dumps(line), sync)


def read_audit(folder: Path) -> list[dict[str, Any]]:
    """Events, oldest first, of the last 16 MiB; a line torn by a killed writer is left out.

    Raises:
        CorruptFile: The file cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return []
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return parse_lines(file.read(TAIL))
    except OSError as error:
        raise CorruptFile(f"cannot be read: {error.strerror}", str(path), "move it away") from None


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """The events of whole lines; what is no line of an audit is left out."""
    events = []
    for line in data.split(b"\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def stored(folder: Path, policy: str) -> set[Version]:
    """Versions that were ever stored, deleted ones too, as far back as `read_audit` goes."""
    found = set()
    for line in read_audit(folder):
        if line.get("policy") == policy and line.get("event") in STORED:
            try:
                found.add(Version.parse(str(line.get("version"))))
            except MessageError:
                continue
    return found
