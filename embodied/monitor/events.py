"""TensorBoard event files, written by tensorboard's own writer and without torch."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from embodied.files import disk_errors


class EventLog:
    """Scalars for TensorBoard in one folder. Make it with `open`, which gives None where tensorboard is not installed.

    Args:
        folder: Where event files are put; a resumed run adds one.
        after: Last step that stays valid; TensorBoard hides later ones of earlier files.
        writer, event: tensorboard's `EventFileWriter` and its `event_pb2` module.
        summary: tensorboard's `summary_pb2` module.
    """

    def __init__(self, folder: Path, after: float, writer: Any, event: Any, summary: Any) -> None:
        self._folder, self._event, self._summary = folder, event, summary
        with disk_errors(folder):
            self._writer = writer(str(folder), max_queue_size=1000, flush_secs=5)
        if math.isfinite(after):
            self.forget_after(int(after))

    @classmethod
    def open(cls, folder: Path, after: float = -math.inf) -> Self | None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            return None
        return cls(folder, after, EventFileWriter, event_pb2, summary_pb2)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Summary.Value(tag=name, simple_value=float(v)) for name, v in values.items()]
        self._add(step, summary=self._summary.Summary(value=scalars))

    def forget_after(self, step: int) -> None:
        """Tell TensorBoard that a run starts again after `step`."""
        self._add(step + 1, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

    def close(self) -> None:
        with disk_errors(self._folder):
            self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        with disk_errors(self._folder):
            self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))
