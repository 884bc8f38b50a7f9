"""Reads records with named fields and lines that are JSON objects: which amounts are whole numbers
(decimal point, thousands), and the reasons why records are rejected."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from countersink.logs.errors import Malformed, Misread
from countersink.logs.formats.json_objects import (
    json_getter,
    json_object,
    json_time,
    optional_text_of,
    text_of,
)
from countersink.logs.formats.reader import (
    BLANK,
    Keys,
    LineReader,
    RecordTally,
    Window,
    note_window,
)
from countersink.logs.times import Clock
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import check_amount

R = TypeVar("R")
_GROUPED: Final = re.compile(
    "[+-]?[1-9][0-9]{0,2}(?:[.,' \u00a0\u202f][0-9]{3})+(?:[.,][0-9]*)?", re.ASCII
)
"""Texts with thousands, or what one country reads so and another as a fraction."""
_EXACT: Final = 2.0**53
"""From here on a float may stand for another whole number than was written."""
_DIGITS: Final = 19
"""Of the largest number of 64 bits."""
_SHOWN: Final = 40


class RecordRule(Generic[R]):
    """Makes a cell of a record.

    Args:
        keys: conditions, key, and which keys are left out.
        field: gives what reads the field of a name as the text of a key; it raises ``Malformed``.
        optional: the same for dimensions and conditions: what is not there is an empty text.
        minute: reads the minute; raises ``Malformed``.
        amount: reads the amount, a text or a number. None: 1 each.
        amounts: makes a whole number of it.
    """

    def __init__(
        self,
        keys: Keys,
        *,
        field: Callable[[str], Callable[[R], str]],
        optional: Callable[[str], Callable[[R], str]],
        minute: Callable[[R], int],
        amount: Callable[[R], object] | None = None,
        amounts: "AmountFormat | None" = None,
    ) -> None:
        self._counter = keys.counter
        self._counter_of = optional(keys.counter_column) if keys.counter_column else None
        self._tests = keys.tests(optional)
        self._key = keys.key_of(field, optional)
        self._finished = keys.finished
        self._first, self._end = keys.minutes or (0, 2**63)
        self._minute = minute
        self._amount = amount
        self._whole = (amounts or AmountFormat()).read

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
        return key, minute, 1 if self._amount is None else self._whole(self._amount(record))


class AmountFormat:
    """Reads the amounts of one source.

    Args:
        decimal_point: what stands before a fraction, which is zeros; '': a point, or a comma if
            thousands have points.
        thousands: what stands between groups of three digits; '': nothing.

    With neither, a text such as ``1.000`` or ``1,234`` is not guessed.
    """

    def __init__(self, decimal_point: str = "", thousands: str = "") -> None:
        self._guess = not (decimal_point or thousands)
        self._thousands = thousands
        point = re.escape(decimal_point or ("," if thousands == "." else "."))
        groups = (
            rf"[1-9][0-9]{{0,2}}(?:{re.escape(thousands)}[0-9]{{3}}){{1,6}}|" if thousands else ""
        )
        ambiguous = rf"(?!{_GROUPED.pattern}\Z)" if self._guess else ""
        self._text = re.compile(
            rf"{ambiguous}([+-]?(?:{groups}[0-9]{{1,{_DIGITS}}}))(?:{point}0{{0,20}})?"
        )

    def read(self, found: object) -> int:
        """The amount that a field holds: a whole number of 64 bits with its sign.

        Text may have zeros behind a point, as columns with gaps are exported, but no exponent:
        programs write so what they have rounded. JSON has no whole numbers of its own: there any
        spelling will do that is read without rounding.

        Raises:
            Misread: it may mean two amounts.
            Malformed: it is something else.
        """
        if isinstance(found, str):
            plain = found.isdecimal() and found.isascii() and len(found) <= _DIGITS
            found = int(found) if plain else self._of_text(found.strip())
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

    def _of_text(self, text: str) -> int:
        if match := self._text.fullmatch(text):
            return int(match[1].replace(self._thousands, "") if self._thousands else match[1])
        if not text:
            raise Malformed("there is no amount")
        if self._guess and _GROUPED.fullmatch(text):
            mark = text.lstrip("+-0123456789")[0]
            raise Misread(
                f"the amount {shown(text)} may have thousands or a fraction: say which, by"
                f" --thousands '{mark}' or --decimal-point '{mark}'"
            )
        raise Malformed(f"the amount {shown(text)} is no whole number of 64 bits")


def _element(line: bytes) -> bytes:
    """A line without what an array has around the object on it."""
    bare = line.strip(BLANK)
    if bare in (b"[", b"]", b"],"):
        return b""
    inner = bare.removeprefix(b"[").removeprefix(b",").removesuffix(b",").removesuffix(b"]")
    inner = inner.strip(BLANK)
    return inner if inner.startswith(b"{") else bare


def is_array(head: bytes) -> bool:
    """Whether what begins so is a JSON array that has not one object on each line."""
    if not head.lstrip(BLANK + b"\n").startswith(b"["):
        return False
    first = next(filter(None, map(_element, head.split(b"\n"))), b"")
    try:
        if first not in (b"", b"[]"):
            json_object(first)
    except Malformed:
        return True
    return False


def shown(text: str) -> str:
    """``text`` as a reason quotes it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


class JsonLines(LineReader):
    """Reads lines that are JSON objects, or those of an array that has an object on each line.

    Args:
        input_format: the name of the objects' format.
        keys: conditions, key, and which keys are left out.
        clock: makes the minute of a time.
        times: the fields that are the time, joined; none: the format's own.
        amount_column: where the amount is; '': each counts 1.
        amounts: makes whole numbers of the amounts.
    """

    quoted = None

    def __init__(
        self,
        input_format: str,
        keys: Keys,
        *,
        clock: Clock,
        times: Sequence[str] = (),
        amount_column: str = "",
        amounts: AmountFormat | None = None,
    ) -> None:
        getter = partial(json_getter, input_format)
        time = json_time(input_format, times)
        self._others_reject = bool(keys.counter_column)
        self._rule: RecordRule[object] = RecordRule(
            keys,
            field=lambda name: text_of(getter(name), name),
            optional=lambda name: optional_text_of(getter(name), name),
            minute=lambda record: clock.minute(time(record)) if time else 0,
            amount=getter(amount_column) if amount_column else None,
            amounts=amounts,
        )

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        note_window(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            record: dict[str, object] | None = None
            try:
                record = _record(line)
                if record is None:
                    continue
                cell = self._rule.cell(record)
            except Malformed as error:
                if self._others_reject and record is None:
                    tally.filtered += 1  # of no counter
                else:
                    tally.reject(number, error, line)
                continue
            if cell is None:
                tally.filtered += 1
            else:
                tally.count(*cell)


def _record(line: bytes) -> dict[str, object] | None:
    """The object on a line; None: there is nothing but blanks, or brackets of an array."""
    try:
        return json_object(line)
    except Malformed:
        bare = _element(line)
        return json_object(bare) if bare else None
