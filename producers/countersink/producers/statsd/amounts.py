"""How much a StatsD line counts: values and sample rates as exact numbers.

A client that sends one of ten events says ``@0.1``, and each line stands for 10. Amounts are kept
in billionths, as whole numbers, so that nothing is rounded on the way but what a rate such as 0.3
leaves in the tenth digit.
"""

import re
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Final

UNIT: Final = 10**9
"""Billionths in a whole."""
SNAP: Final = Fraction(1, 10**6)
"""How far the inverse of a rate may be, relatively, from a whole number that it is taken for: what
printing 1/3 with six digits or more leaves."""

_DIGITS: Final = 30
"""Of a number, before its point and behind it."""
_EXACT: Final = Context(prec=300, traps=[Inexact])
"""Digits enough for the sum of the largest and the smallest number that :func:`number` takes."""
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
)


def number(text: str) -> int | Decimal | None:
    """A decimal number, a whole one written as such as an integer; ``None`` for all else, NaN and
    infinity among it.
    """
    digits = text[1:] if text.startswith(("-", "+")) else text
    if digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS:
        return int(text)
    return Decimal(text) if _NUMBER.fullmatch(text) is not None else None


def total(texts: list[str]) -> int | Decimal | None:
    """The exact sum of numbers; ``None``: one of them is none."""
    added: int | Decimal = 0
    for text in texts:
        found = number(text)
        if found is None:
            return None
        if isinstance(found, int) and isinstance(added, int):
            added += found
        else:
            added = _EXACT.add(added, found)
    return added


def times(rate: str) -> int | Fraction | None:
    """How many events a line with this sample rate stands for; ``None``: it is no rate above 0 and
    up to 1.
    """
    share = number(rate)
    if share is None or not 0 < share <= 1:
        return None
    inverse = 1 / Fraction(share)
    whole = round(inverse)
    return whole if abs(inverse - whole) <= SNAP * whole else inverse


def billionths(amount: int | Decimal, factor: int | Fraction) -> int:
    """``amount`` times ``factor`` in units of 1/10⁹, rounded."""
    if isinstance(amount, int) and isinstance(factor, int):
        return amount * factor * UNIT
    return round(Fraction(amount) * factor * UNIT)
