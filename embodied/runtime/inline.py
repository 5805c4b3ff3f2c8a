"""The inline runtime: every stage in one thread of one process. A seed repeats bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from embodied.monitor.progress import Progress
from embodied.runs.settings import Settings
from embodied.train.loop import Loop
from embodied.train.parts import make_parts
from embodied.train.protocol import check_protocol
from embodied.train.warm_start import warm_start


class InlineRuntime:
    """Runs a loop in this process.

    Args:
        settings: Of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        torch.set_num_threads(settings.runtime.threads)

    @contextmanager
    def open(self, folder: Path, attempt: int, progress: Progress) -> Iterator[Loop]:
        """Make the loop of a run, and close it at the end of the context.

        Args:
            folder: Run folder, locked by this process.
            attempt: 0 for the first start, one more with each resume.
            progress: Shows the state of the run.
        """
        parts = make_parts(self.settings, folder, attempt, progress)
        loop = Loop(parts)
        try:
            if self.settings.compare.split is not None:
                check_protocol(self.settings)
            yield loop
        finally:
            loop.close()

    def run(self, loop: Loop, resumed: bool) -> None:
        """Train until the loop is finished; a run that was not resumed begins with its warm start."""
        if not resumed:
            warm_start(loop)
            loop.checkpoint()
        while not loop.finished:
            loop.update()
        loop.checkpoint()
