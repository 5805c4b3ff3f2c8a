"""Receding horizon: the first `execute` actions of a chunk, then a new decision; open loop: all of them."""

from embodied.client.execution.kept import Floats, Kept, newest
from embodied.settings import AtLeastOne, settings


@settings()
class RecedingHorizon:
    """Each step executes the newest chunk's action for it; a decision is due after `execute` of them.

    Attributes:
        execute: Actions of a chunk to execute before asking again, 1 to K. While the answer is awaited the rest of
            the chunk is executed; K is open loop, which then has nothing left.
    """

    execute: AtLeastOne
    on_policy = True
    prefixed = False

    def kept(self, chunk: int) -> int:
        return 1

    def choose(self, kept: Kept) -> Floats:
        return newest(kept)
