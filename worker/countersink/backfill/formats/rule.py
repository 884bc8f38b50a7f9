"""What a record of an export comes to: the same for every format that has named fields."""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from countersink.backfill import conditions, template
from countersink.backfill.formats.keys import Keys
from countersink.backfill.recipe import Recipe
from countersink.producers.access_line import Malformed
from countersink.stream.limits import check_amount

R = TypeVar("R")

_AMOUNT: Final = re.compile(r"([+-]?[0-9]{1,19})(?:\.0{0,20})?")
_EXACT: Final = 2.0**53
"""From here on a float may stand for another whole number than was written."""
_SHOWN: Final = 40


class Rule(Generic[R]):
    """Makes a cell of a record.

    Args:
        recipe: conditions, key, and which keys are left out.
        minutes: half-open range of Unix minutes; records outside are left out. None: all are in.
        field: gives what reads the field of a name as the text of a key; it raises ``Malformed``.
        optional: the same for conditions: what is not there is an empty text.
        minute: reads the minute; raises ``Malformed``.
        amount: reads the amount, a text or an int. None: 1 each.
    """

    def __init__(
        self,
        recipe: Recipe,
        minutes: tuple[int, int] | None,
        *,
        field: Callable[[str], Callable[[R], str]],
        optional: Callable[[str], Callable[[R], str]],
        minute: Callable[[R], int],
        amount: Callable[[R], object] | None,
    ) -> None:
        self._tests = [(optional(each.field), conditions.test(each)) for each in recipe.where]
        if recipe.key_column:
            self._key = field(recipe.key_column)
        else:
            self._key = template.fill(template.parse(recipe.key or "{path}"), field)
        self._finished = Keys(recipe).finished
        self._first, self._end = minutes or (0, 2**63)
        self._minute = minute
        self._amount = amount

    def cell(self, record: R) -> tuple[str, int, int] | None:
        """Key, minute and amount; None where the recipe leaves the record out.

        What is left out for its fields or its time is so whatever else is wrong with it.

        Raises:
            Malformed: it cannot be counted.
        """
        for read, holds in self._tests:
            if not holds(read(record)):
                return None
        minute = self._minute(record)
        if not self._first <= minute < self._end:
            return None
        key = self._finished(self._key(record))
        if key is None:
            return None
        return key, minute, 1 if self._amount is None else amount(self._amount(record))


def amount(found: object) -> int:
    """The amount that a field holds: a whole number of 64 bits with its sign.

    Text may have zeros behind a point, as columns with gaps are exported, but no exponent: programs
    write so what they have rounded. JSON has no whole numbers of its own: there any spelling will
    do that is read without rounding.

    Raises:
        Malformed: it is something else.
    """
    if isinstance(found, str):
        stripped = found.strip()
        if not stripped:
            raise Malformed("there is no amount")
        match = _AMOUNT.fullmatch(stripped)
        if match is None:
            raise Malformed(f"the amount {shown(stripped)} is no whole number of 64 bits")
        found = int(match[1])
    elif isinstance(found, float) and found.is_integer():
        if abs(found) >= _EXACT:
            raise Malformed(f"the amount {found} may be rounded: write it without an exponent")
        found = int(found)
    if found is None:
        raise Malformed("there is no amount")
    try:
        return check_amount(found)
    except TypeError:
        raise Malformed(f"the amount {shown(str(found))} is no whole number") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def shown(text: str) -> str:
    """``text`` as a reason quotes it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
