"""Receding horizon: the first `execute` actions of a chunk, then a new decision; open loop: all of them."""

from dataclasses import dataclass

from embodied.client.execution.kept import Floats, Kept, newest
from embodied.errors import ConfigError


@dataclass(frozen=True)
class RecedingHorizon:
    """Each step executes the newest chunk's action for it; a decision is due after `execute` of them.

    Attributes:
        execute: Actions of a chunk to execute before asking again, 1 to K. While the answer is awaited the rest of
            the chunk is executed; K is open loop, which then has nothing left.
    """

    execute: int
    on_policy = True
    prefixed = False

    def __post_init__(self) -> None:
        if self.execute < 1:
            raise ConfigError(f"execute is {self.execute}", "execute", "give 1 or more")

    def kept(self, chunk: int) -> int:
        return 1

    def choose(self, kept: Kept) -> Floats:
        return newest(kept)
