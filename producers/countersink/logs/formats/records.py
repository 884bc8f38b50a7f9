"""Records with named fields, and lines that are JSON objects: which key, minute and amount a record
gives, which texts and numbers are amounts (decimal point, thousands), and why a record is rejected.
"""

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
    RecordBlock,
    RecordTally,
    note_block,
)
from countersink.logs.times import Clock
from countersink.runtime.dimensions import RowKey
from countersink.runtime.limits import check_amount

R = TypeVar("R")
_GROUPED: Final = re.compile(
    "[+-]?[1-9][0-9]{0,2}(?:[.,' \u00a0\u202f][0-9]{3})+(?:[.,][0-9]*)?", re.ASCII
)
"""The pattern of an amount with separators of thousands, such as ``1,234``; where the separator is
a decimal point, the same text is a fraction.
"""
_EXACT: Final = 2.0**53
"""A float of this size or more may have been rounded from another whole number."""
_DIGITS: Final = 19
"""Number of digits of the largest 64-bit integer."""
_SHOWN: Final = 40


class RecordRule(Generic[R]):
    """Rule by which a record gives a key, a minute and an amount.

    Args:
        keys: the rule that gives records their keys, with conditions and excluded keys.
        field: takes the name of a field, and returns a function that reads its text from a record.
            That function raises ``Malformed`` where the field is missing.
        optional: the same for all fields but the key's; a missing field reads as ''.
        minute: reads the Unix minute from a record; raises ``Malformed``.
        amount: reads the amount from a record, a text or a number; with None, each record counts 1.
        amounts: parses what ``amount`` reads; None for an :class:`AmountFormat` without options.
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
        """Return the key or dimensions, the Unix minute and the amount of a record.

        Returns None for a record that the options leave out. The parts of the record are
        read in this order: counter, conditions, time, key, amount. The first part that leaves the
        record out, or that cannot be read, decides.

        Raises:
            Malformed: the record cannot be counted.
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
    """Parser of the amounts of one source. An amount is a whole number; a fraction must be zeros.

    If both arguments are '', ``1.00`` is read as 1, but ``1.000`` and ``1,234`` are rejected as
    :class:`Misread`, because the separator may begin a fraction or may separate thousands.

    Args:
        decimal_point: the character before a fraction; '' stands for a point, or for a comma if
            ``thousands`` is a point.
        thousands: the separator of groups of three digits; '' for none.
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
        """Return the amount in a field, which is a text or a number, as a signed 64-bit integer.

        A text may have zeros after a decimal point, because some programs export whole numbers so
        (``12.0``). A text with an exponent is refused, because programs write exponents for rounded
        numbers. A JSON number may be written in any way that is exact.

        Raises:
            Misread: the text may mean either of two amounts.
            Malformed: the field has no amount, or one that is not a whole number of 64 bits, or is
                a JSON number that may have been rounded.
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
        fraction = re.fullmatch("[+-]?[0-9]+[.,][0-9]+", text)
        hint = "; count a smaller unit, such as cents" if fraction else ""
        raise Malformed(f"the amount {shown(text)} is no whole number of 64 bits{hint}")


def _element(line: bytes) -> bytes:
    """Return the JSON object in a line of an array, without the array's brackets and commas. Return
    b"" for a line with a bracket alone, and the stripped line if it has no object.
    """
    bare = line.strip(BLANK)
    if bare in (b"[", b"]", b"],"):
        return b""
    inner = bare.removeprefix(b"[").removeprefix(b",").removesuffix(b",").removesuffix(b"]")
    inner = inner.strip(BLANK)
    return inner if inner.startswith(b"{") else bare


def is_array(head: bytes) -> bool:
    """Return True if a source is a JSON array without one object on each line, which
    :class:`JsonLines` cannot read: ``head``, its beginning, begins with ``[``, and the first line
    with more than a bracket has no complete object. Return False for any other source, also for an
    empty array.
    """
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
    """Return ``text`` in quotes and shortened, as reasons for rejecting a line show it."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


class JsonLines(LineReader):
    """Reader of lines that are JSON objects, or of a JSON array with one object on each line.

    Args:
        input_format: the name of the objects' format.
        keys: the rule that gives objects their keys, with conditions and excluded keys.
        clock: parses times.
        times: the fields that make up the time, joined; if empty, the format's own field is read.
            The format ``ndjson`` has no such field, and every minute would be 0; so callers must
            require ``times`` for it.
        amount_column: the field that has the amount; with '', each line counts 1.
        amounts: parses amounts; None for an :class:`AmountFormat` without options.
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

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``block`` to ``tally``. If the keys have a counter
        column, a line that is no object is left out, not rejected, because it names no counter.
        """
        note_block(block, tally)
        for number, line in zip(block.numbers, block.lines, strict=True):
            record: dict[str, object] | None = None
            try:
                record = _record(line)
                if record is None:
                    continue
                cell = self._rule.cell(record)
            except Malformed as error:
                if self._others_reject and record is None:
                    tally.filtered += 1  # it names no counter
                else:
                    tally.reject(number, error, line)
                continue
            if cell is None:
                tally.filtered += 1
            else:
                tally.count(*cell)


def _record(line: bytes) -> dict[str, object] | None:
    """Return the JSON object on a line, or in a line of an array; None if the line is blank, or has
    only the bracket that begins or ends an array.

    Raises:
        Malformed: the line has no JSON object.
    """
    try:
        return json_object(line)
    except Malformed:
        bare = _element(line)
        return json_object(bare) if bare else None
