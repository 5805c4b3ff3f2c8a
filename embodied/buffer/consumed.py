"""Segments that each update of the learner consumed: one line per update beside the episodes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied.files import append_line, read_bytes

NAME = "consumed.jsonl"
LIMIT = 2**30


@dataclass(frozen=True)
class Consumed:
    """One update.

    Attributes:
        update: The learner's RL step.
        version: The version it published.
        segments: Ids of the segments it consumed.
    """

    update: int
    version: int
    segments: tuple[str, ...]


def record_consumed(folder: Path, update: int, version: int, segments: Sequence[str]) -> None:
    """Append an update to `folder/consumed.jsonl`; it survives `kill -9` once this returns.

    Raises:
        InfrastructureError: No disk space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    line = {"update": update, "version": version, "segments": list(segments)}
    append_line(folder / NAME, json.dumps(line), sync=False)


def read_consumed(folder: Path) -> list[Consumed]:
    """All updates, in the order they were made; lines torn by a kill are left out.

    Raises:
        CorruptFile: The file cannot be read or is beyond reason large.
    """
    path = folder / NAME
    if not path.exists():
        return []
    updates = []
    for line in read_bytes(path, LIMIT, "delete it; episodes stay readable without it").split(b"\n"):
        try:
            row = json.loads(line)
            updates.append(Consumed(int(row["update"]), int(row["version"]), tuple(map(str, row["segments"]))))
        except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError):
            continue
    return updates
