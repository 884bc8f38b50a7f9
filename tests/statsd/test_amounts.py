"""Values and sample rates as exact numbers."""

from decimal import Decimal
from fractions import Fraction

import pytest

from countersink.statsd.line import UNIT, billionths, number, times, total


@pytest.mark.parametrize(
    "text",
    ["", "nan", "NaN", "inf", "-inf", "1_000", " 1", "1 ", "0x10", "1,5", "--1", "+", ".", "1e",
     "1e100", "٣", "1" * 31, "1/2", "1e-100"],
)  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", Fraction(1)), ("-3", Fraction(-3)), ("+2", Fraction(2)), ("0.5", Fraction(1, 2)),
     (".5", Fraction(1, 2)), ("5.", Fraction(5)), ("1e3", Fraction(1000)), ("007", Fraction(7)),
     ("2.5E-1", Fraction(1, 4))],
)  # fmt: skip
def test_numbers(text: str, value: Fraction) -> None:
    assert number(text) == value


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 9, 10, 11, 13, 100, 333, 997, 1000, 99_991])
def test_one_of_n_stands_for_n_exactly(n: int) -> None:
    # as clients print it: all digits, or as many as C's %f and %g leave
    for text in (repr(1 / n), f"{1 / n:.12f}", f"{1 / n:.8g}"):
        assert times(text) == n


def test_other_rates_are_taken_as_they_are_written() -> None:
    assert times("0.3") == Fraction(10, 3)
    assert times("0.33") == Fraction(100, 33)
    assert times("0.75") == Fraction(4, 3)


@pytest.mark.parametrize("text", ["0", "0.0", "-0.1", "1.1", "2", "nan", "", "@", "1e-99999"])
def test_what_is_no_rate(text: str) -> None:
    assert times(text) is None


def test_billionths_are_rounded() -> None:
    assert billionths(1, 1) == UNIT
    assert billionths(1, Fraction(10, 3)) == 3_333_333_333
    assert billionths(-2, Fraction(10, 3)) == -6_666_666_667
    assert billionths(Decimal("-0.25"), 2) == -UNIT // 2
    assert billionths(Decimal("1e-20"), 1) == 0


@pytest.mark.parametrize("text", ["1", "-3", "+2", "007", "9" * 30])
def test_whole_numbers_are_integers(text: str) -> None:
    assert type(number(text)) is int


def test_sums_are_exact() -> None:
    assert total(["1", "-3", "7"]) == 5
    assert total(["0.1"] * 1000) == 100
    large, small = "9" * 30 + "." + "9" * 30 + "e99", "0." + "0" * 29 + "1e-99"
    found = total([large, small, "-" + large])
    assert found is not None
    assert Fraction(found) == Fraction(small)
    assert total(["1", "x"]) is None
