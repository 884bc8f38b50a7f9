"""Reads records with named fields and lines that are JSON objects: which amounts are whole numbers,
and the reasons why records are rejected."""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from countersink.producers.access_log.formats.json_objects import (
    SHALLOW,
    Get,
    json_object,
    may_be_deep,
    optional_text_of,
    text_of,
)
from countersink.producers.access_log.formats.reader import (
    BLANK,
    Independent,
    Keys,
    RecordTally,
    Window,
    note_window,
)
from countersink.producers.access_log.times import Clock
from countersink.producers.errors import Malformed
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import check_amount

R = TypeVar("R")
_AMOUNT: Final = re.compile(r"([+-]?[0-9]{1,19})(?:\.0{0,20})?")
_EXACT: Final = 2.0**53
"""From here on a float may stand for another whole number than was written."""
_SHOWN: Final = 40


class RecordRule(Generic[R]):
    """Makes a cell of a record.

    Args:
        keys: conditions, key, and which keys are left out.
        field: gives what reads the field of a name as the text of a key; it raises ``Malformed``.
        optional: the same for dimensions and conditions: what is not there is an empty text.
        minute: reads the minute; raises ``Malformed``.
        amount: reads the amount, a text or an int. None: 1 each.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        field: Callable[[str], Callable[[R], str]],
        optional: Callable[[str], Callable[[R], str]],
        minute: Callable[[R], int],
        amount: Callable[[R], object] | None = None,
    ) -> None:
        self._counter = keys.counter
        self._counter_of = optional(keys.counter_column) if keys.counter_column else None
        self._tests = keys.tests(optional)
        self._key = keys.key_of(field, optional)
        self._finished = keys.finished
        self._first, self._end = keys.minutes or (0, 2**63)
        self._minute = minute
        self._amount = amount

    def cell(self, record: R) -> tuple[RowKey, int, int] | None:
        """Key or dimensions, minute and amount; None where the recipe leaves the record out.

        What is left out for its fields or its time is so whatever else is wrong with it.

        Raises:
            Malformed: it cannot be counted.
        """
        if self._counter_of is not None and self._counter_of(record) != self._counter:
            return None
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


class JsonLines(Independent):
    """Reads lines that are JSON objects.

    Args:
        getter: gives what reads the value of a name, or path, in an object.
        time: reads the time; None: there is none.
        clock: makes the minute of it.
        keys: conditions, key, and which keys are left out.
        amount_column: where the amount is; '': each counts 1.
        decode: reads an object faster than :func:`json_object`; it raises ``ValueError`` of what it
            cannot read, or gives something else than an object.
    """

    quoted = None

    def __init__(
        self,
        getter: Callable[[str], Get],
        time: Get | None,
        clock: Clock,
        keys: Keys,
        *,
        amount_column: str = "",
        decode: Callable[[bytes], object] | None = None,
    ) -> None:
        self._decode = decode
        self._others_reject = bool(keys.counter_column)
        self._rule: RecordRule[object] = RecordRule(
            keys,
            field=lambda name: text_of(getter(name), name),
            optional=lambda name: optional_text_of(getter(name), name),
            minute=lambda record: clock.minute(time(record)) if time else 0,
            amount=getter(amount_column) if amount_column else None,
        )

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        note_window(window, tally)
        make, decode = self._rule.cell, self._decode
        for number, line in zip(window.numbers, window.lines, strict=True):
            try:
                # What this reads, and it reads faster, json_object reads as well.
                deep = len(line) > SHALLOW and may_be_deep(line)
                record = None if deep or decode is None else decode(line)
            except (ValueError, RecursionError):
                record = None
            try:
                if type(record) is not dict:
                    stripped = line.strip(BLANK)
                    if not stripped:
                        continue
                    record = json_object(stripped)
                cell = make(record)
            except Malformed as error:
                if self._others_reject and type(record) is not dict:
                    tally.filtered += 1  # of no counter
                else:
                    tally.reject(number, str(error), line)
                continue
            if cell is None:
                tally.filtered += 1
            else:
                tally.count(*cell)
