import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.data import Outcome
from embodied.evaluate.cell import Cell
from embodied.evaluate.comparison import LEAST_PAIRS, compare

S, F, T, X = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIME_LIMIT, Outcome.INFRASTRUCTURE_FAULT


def cell(outcomes, first=0):
    count = len(outcomes)
    seeds = np.arange(first, first + count)
    zeros = np.zeros(count, np.int32)
    return Cell("reach", None, seeds, np.array(outcomes, np.uint8), zeros, zeros.astype(np.float32), [1], "")


def test_pairs_are_counted_by_seed_and_faults_left_out():
    found = compare(cell([S, S, F, T, X, S]), cell([S, F, S, F, S, X]), ("a", "b"))
    assert (found.both, found.only_first, found.only_second, found.neither) == (1, 1, 1, 1)
    assert (found.pairs, found.left_out, found.difference, found.p) == (4, 2, 0.0, 1.0)
    assert (
        found.sentence().startswith("too few pairs to tell: a minus b") and "2 left out for faults" in found.sentence()
    )
    assert found.to_dict()["pairs"] == 4


@pytest.mark.parametrize("swapped", [False, True])
def test_the_sentence_says_who_succeeds_more_often(swapped):
    good, bad = cell([S] * 30), cell([S] * 20 + [F] * 10)
    found = compare(bad, good, ("bad", "good")) if swapped else compare(good, bad, ("good", "bad"))
    assert found.p == pytest.approx(2 / 2**10)
    said = found.sentence()
    assert said.startswith("good succeeds more often than bad, by 33.3 points (95 % interval 1")
    assert "30 pairs" in said and "10 only good" in said and "0 only bad" in said


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ([S] * 4, [F] * 4, "too few pairs to tell (interval and test disagree): good minus bad is 100.0 points"),
        ([S] * 2 + [F] * 2, [S] + [F] * 3, "too few pairs to tell: good minus bad"),
        ([S] * 20 + [F] * 20, [F] + [S] * 20 + [F] * 19, "no significant difference: good minus bad is 0.0 points"),
        ([X] * 3, [S] * 3, "no pairs to compare good and bad by, 3 left out for faults"),
    ],
)
def test_what_cannot_be_told_names_nobody(good, bad, said):
    found = compare(cell(good), cell(bad), ("good", "bad"))
    assert found.sentence().startswith(said)


@given(*[st.integers(0, 40)] * 4)
def test_a_sentence_never_contradicts_its_numbers(both, only_first, only_second, neither):
    first = [S] * (both + only_first) + [F] * (only_second + neither)
    second = [S] * both + [F] * only_first + [S] * only_second + [F] * neither
    found = compare(cell(first), cell(second), ("a", "b"))
    said, excluded = found.sentence(), not found.low <= 0 <= found.high
    assert ("more often" in said) == (found.p < 0.05 and excluded)
    assert ("no significant" in said) == (found.p >= 0.05 and not excluded and found.pairs >= LEAST_PAIRS)


def test_cells_of_other_seeds_are_refused():
    with pytest.raises(ValueError):
        compare(cell([S]), cell([S], first=1), ("a", "b"))
