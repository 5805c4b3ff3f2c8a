"""Comparison of two policies on the same episodes: their difference in success, and whether it may be chance."""

from dataclasses import asdict, dataclass
from typing import Any

from embodied.evaluate.cell import Cell
from embodied.monitor.stats import mcnemar, paired_difference

SIGNIFICANT = 0.05
LEAST_PAIRS = 6
"""Of fewer pairs McNemar's exact test never gives p < 0.05: of five that all fall one way it is 2 / 2^5."""


@dataclass(frozen=True)
class Compared:
    """Two policies on the same seeds of one task under one split.

    Attributes:
        task, split: As in `Cell`.
        first, second: Names of the policies.
        both, only_first, only_second, neither: Episodes by the policies that succeeded.
        left_out: Episodes in which either had an infrastructure fault.
        difference: First success rate minus the second.
        low, high: Its 95 % interval, `embodied.monitor.stats.paired_difference`.
        p: Of McNemar's exact test.
    """

    task: str
    split: str | None
    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    neither: int
    left_out: int
    difference: float
    low: float
    high: float
    p: float

    @property
    def pairs(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    def sentence(self) -> str:
        """The more successful policy, the difference, and its certainty, as one sentence.

        Newcombe's interval and McNemar's exact test are made in different ways, and with few pairs one may find a
        difference where the other finds none: the sentence then says so, and names no better policy.
        """
        if not self.pairs:
            return f"no pairs to compare {self.first} and {self.second} by, {self.left_out} left out for faults"
        points, low, high = (100 * value for value in (self.difference, self.low, self.high))
        better, worse = (self.first, self.second) if points > 0 else (self.second, self.first)
        test, interval = self.p < SIGNIFICANT, not self.low <= 0 <= self.high
        if test and interval:
            if points < 0:
                points, low, high = -points, -high, -low
            said = f"{better} succeeds more often than {worse}, by {points:.1f} points"
        else:
            few = "too few pairs to tell"
            none = few if self.pairs < LEAST_PAIRS else "no significant difference"
            doubt = f"{few} (interval and test disagree)" if test != interval else none
            said = f"{doubt}: {self.first} minus {self.second} is {points:.1f} points"
        p = "p < 0.0001" if self.p < 1e-4 else f"p = {self.p:.2g}"
        counts = f"{self.only_first} only {self.first}, {self.only_second} only {self.second}"
        faults = f", {self.left_out} left out for faults" if self.left_out else ""
        return f"{said} (95 % interval {low:.1f} to {high:.1f}, {p}; {self.pairs} pairs: {counts}{faults})"

    def to_dict(self) -> dict[str, Any]:
        """Its fields, `pairs` and `sentence`, as JSON values."""
        return asdict(self) | {"pairs": self.pairs, "sentence": self.sentence()}


def compare(first: Cell, second: Cell, names: tuple[str, str]) -> Compared:
    """Two cells of the same seeds, pair by pair.

    Raises:
        ValueError: Their seeds differ.
    """
    if first.seeds.tolist() != second.seeds.tolist():
        raise ValueError("cells of other seeds")
    valid = first.valid & second.valid
    a, b = first.succeeded & valid, second.succeeded & valid
    both, only_first, only_second, neither = (int(part.sum()) for part in (a & b, a & ~b, b & ~a, valid & ~a & ~b))
    difference, low, high = paired_difference(both, only_first, only_second, neither)
    return Compared(
        task=first.task,
        split=first.split,
        first=names[0],
        second=names[1],
        both=both,
        only_first=only_first,
        only_second=only_second,
        neither=neither,
        left_out=int((~valid).sum()),
        difference=difference,
        low=low,
        high=high,
        p=mcnemar(only_first, only_second),
    )
