"""How much a StatsD line counts: values and sample rates as exact numbers.

A client that sends one of ten events says ``@0.1``, and each line stands for 10. Amounts are kept
in billionths, as whole numbers, so that nothing is rounded on the way but what a rate such as 0.3
leaves in the tenth digit.
"""

import re
from fractions import Fraction
from typing import Final

UNIT: Final = 10**9
"""Billionths in a whole."""
SNAP: Final = Fraction(1, 10**6)
"""How far the inverse of a rate may be, relatively, from a whole number that it is taken for: what
printing 1/3 with six digits or more leaves."""

_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
)


def number(text: str) -> Fraction | None:
    """A decimal number; ``None`` for all else, NaN and infinity among it."""
    return Fraction(text) if _NUMBER.fullmatch(text) is not None else None


def times(rate: str) -> Fraction | None:
    """How many events a line with this sample rate stands for; ``None``: it is no rate above 0 and
    up to 1.
    """
    share = number(rate)
    if share is None or not 0 < share <= 1:
        return None
    inverse = 1 / share
    whole = round(inverse)
    return Fraction(whole) if abs(inverse - whole) <= SNAP * whole else inverse


def billionths(amount: Fraction) -> int:
    """``amount`` in units of 1/10⁹, rounded."""
    return round(amount * UNIT)
