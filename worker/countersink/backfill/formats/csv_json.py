"""Reads CSV and NDJSON: header, quotes, columns, which amounts are whole numbers, and the reasons
why records are rejected.

CSV has a header and any delimiter: https://www.rfc-editor.org/rfc/rfc4180. A quote in the midst of
a field that was not opened by one (``5" disk``) is a character like others. Where quotes that are
never closed, or in the wrong place, make records of lines that do not belong together, the lines
are read one by one; a record that is spoiled otherwise is rejected as it is.

NDJSON has an object on every line: https://github.com/ndjson/ndjson-spec. Access logs of JSON
objects are read in the same way.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from operator import itemgetter
from typing import Final, Generic, TypeVar

import msgspec

from countersink.backfill.errors import BackfillError
from countersink.backfill.formats.reader import Independent, Keys, RecordTally, note_window
from countersink.backfill.input.spans import LONGEST, Window, quoting
from countersink.backfill.options import Recipe
from countersink.producers.access_log import template
from countersink.producers.access_log.file import BOM
from countersink.producers.access_log.formats import json_objects
from countersink.producers.access_log.formats.json_objects import (
    SHALLOW,
    json_getter,
    json_object,
    json_time,
    may_be_deep,
    optional_text_of,
    text_of,
)
from countersink.producers.access_log.line import PERCENT
from countersink.producers.access_log.times import Clock, no_day
from countersink.producers.errors import Malformed
from countersink.runtime.limits import check_amount

Row = list[str]
_BLANK: Final = b"\0 \t\r"
_LONGEST_HEADER: Final = 64 * 1024
csv.field_size_limit(max(csv.field_size_limit(), 3 * LONGEST))  # %HH for each byte, at worst
R = TypeVar("R")
_AMOUNT: Final = re.compile(r"([+-]?[0-9]{1,19})(?:\.0{0,20})?")
_EXACT: Final = 2.0**53
"""From here on a float may stand for another whole number than was written."""
_SHOWN: Final = 40


class RecordRule(Generic[R]):
    """Makes a cell of a record.

    Args:
        recipe: conditions, key, and which keys are left out.
        minutes: half-open range of Unix minutes; records outside are left out. None: all are in.
        field: gives what reads the field of a name as the text of a key; it raises ``Malformed``.
        optional: the same for conditions: what is not there is an empty text.
        minute: reads the minute; raises ``Malformed``.
        amount: reads the amount, a text or an int. None: 1 each.
        counter: whose records count, where the recipe has a column of counters.
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
        counter: str = "",
    ) -> None:
        self._counter = counter
        self._counter_of = optional(recipe.counter_column) if recipe.counter_column else None
        self._tests = [
            (optional(each.field), template.condition_test(each)) for each in recipe.where
        ]
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


class CsvRecords(Independent):
    """Reads CSV for one recipe, which :func:`countersink.backfill.formats.check` has let pass.

    Args:
        recipe: how.
        head: how the source begins, 64 KiB of it or all.
        minutes: half-open range of Unix minutes; records outside are left out. None: all are in.
        begins: the first minute of a day of the counter.
        counter: whose records count, where the recipe has a column of counters.

    Raises:
        BackfillError: the header lacks a column, or is no header.
    """

    def __init__(
        self,
        recipe: Recipe,
        head: bytes,
        minutes: tuple[int, int] | None,
        begins: Callable[[date], int] | None = None,
        counter: str = "",
    ) -> None:
        self._others_reject = bool(recipe.counter_column)
        self._delimiter = recipe.delimiter
        self._comment = recipe.comment.encode()
        self.quoted = quoting(recipe.delimiter, recipe.comment)
        self._header_at, names = 0, list(recipe.columns)
        if not names:
            self._header_at, names = self._header(head)
        self._width = len(names)
        self._rule: RecordRule[Row] | None = None
        if names:  # else nothing but blank lines is there

            def column(name: str) -> Callable[[Row], str]:
                return itemgetter(_place(names, name))

            clock = Clock(recipe.time_format, recipe.time_zone, begins)
            columns = (recipe.time_column, *recipe.more_time_columns)
            times = [column(name) for name in columns if name]
            self._rule = RecordRule(
                recipe,
                minutes,
                field=column,
                optional=column,
                minute=lambda row: (
                    clock.minute(" ".join([time(row) for time in times])) if times else 0
                ),
                amount=column(recipe.amount_column) if recipe.amount_column else None,
                counter=counter,
            )

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the records of ``window`` come to."""
        note_window(window, tally)
        rows = self._rows(window.lines)
        for number, line, row in zip(window.numbers, window.lines, rows, strict=True):
            if number == self._header_at or self._is_comment(line):
                continue
            if row is not None:
                self._count(row, number, line, tally)
            elif b"\n" not in line or self._is_one(line):
                self._count_line(number, line, tally)
            else:
                pieces = line.split(b"\n")
                tally.lines += len(pieces) - 1
                for further, piece in enumerate(pieces):
                    if not self._is_comment(piece):
                        self._count_line(number + further, piece, tally)

    def _is_comment(self, line: bytes) -> bool:
        return bool(self._comment) and line.startswith(self._comment)

    def _rows(self, lines: Sequence[bytes]) -> Iterator[Row | None]:
        """Each record's fields; None for those that are no record."""
        texts = [line.decode("utf-8", PERCENT) for line in lines]
        try:
            rows: list[Row] = list(csv.reader(texts, delimiter=self._delimiter, strict=True))
        except csv.Error:
            rows = []
        if len(rows) == len(texts):  # so none was continued in the next
            return iter(rows)
        return (self._row(text) for text in texts)

    def _row(self, text: str) -> Row | None:
        try:
            return next(csv.reader((text,), delimiter=self._delimiter, strict=True))
        except csv.Error:
            return None

    def _is_one(self, line: bytes) -> bool:
        """Whether nothing is wrong with its quotes: what spoils it is a carriage return."""
        return self._row(line.decode("utf-8", PERCENT).replace("\r", " ")) is not None

    def _count_line(self, number: int, line: bytes, tally: RecordTally) -> None:
        """Count a record that stood in a window of which not all were."""
        try:
            text = line.decode("utf-8", PERCENT)
            row = next(csv.reader((text,), delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            self._no_record(number, f"it is no CSV: {error}", line, tally)
        else:
            self._count(row, number, line, tally)

    def _count(self, row: Row, number: int, line: bytes, tally: RecordTally) -> None:
        if len(row) <= 1 and not line.strip(_BLANK):
            return
        if self._rule is None:
            raise BackfillError("it begins with 64 KiB of blank lines instead of a CSV header")
        if len(row) != self._width:
            reason = f"it has {len(row)} columns, the header {self._width}"
            self._no_record(number, reason, line, tally)
            return
        try:
            cell = self._rule.cell(row)
        except Malformed as error:
            tally.reject(number, str(error), line)
            return
        if cell is None:
            tally.filtered += 1
        else:
            tally.count(*cell)

    def _no_record(self, number: int, reason: str, line: bytes, tally: RecordTally) -> None:
        if self._others_reject:
            tally.filtered += 1  # of no counter: see countersink.backfill.counter_column
        else:
            tally.reject(number, reason, line)

    def _header(self, head: bytes) -> tuple[int, list[str]]:
        """The number of the header's first line, and its names; 0 and none if all is blank."""
        lines = head.removeprefix(BOM).split(b"\n")
        number = next(
            (
                at
                for at, line in enumerate(lines, 1)
                if line.strip(_BLANK) and not self._is_comment(line)
            ),
            0,
        )
        if number == 0:
            return 0, []
        record = b"\n".join(lines[number - 1 :])
        if found := self.quoted.record.match(record):
            record = found[0][:-1]
        if len(record) >= _LONGEST_HEADER - len(BOM):
            raise BackfillError("its first record is longer than 64 KiB: that is no CSV header")
        names = self._row(record.lstrip(b"\0").decode("utf-8", PERCENT))
        if names is None:
            raise BackfillError(
                f"its first record {shown(record.decode('utf-8', PERCENT))} is no CSV"
            )
        return number, [name.strip() for name in names]


def _place(names: Sequence[str], name: str) -> int:
    """Where the column of that name stands."""
    found = [place for place, each in enumerate(names) if each == name.strip()]
    if len(found) == 1:
        return found[0]
    if found:
        raise BackfillError(f"the CSV's header has {len(found)} columns {name!r}: rename one")
    known = ", ".join(each for each in dict.fromkeys(names) if each)
    raise BackfillError(
        f"the CSV's header has no column {name!r}; it has: {known[:500]}"
        + ("" if len(names) > 1 else " (another --delimiter?)")
    )


class JsonLines(Independent):
    """Counts the JSON objects of lines by a rule."""

    quoted = None

    def __init__(self, rule: RecordRule[object], *, others_reject: bool = False) -> None:
        self._rule = rule
        self._others_reject = others_reject
        self._decode = msgspec.json.Decoder().decode

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        note_window(window, tally)
        make = self._rule.cell
        for number, line in zip(window.numbers, window.lines, strict=True):
            try:
                # What this reads, and it reads faster, json_object reads as well.
                deep = len(line) > SHALLOW and may_be_deep(line)
                record = None if deep else self._decode(line)
            except (ValueError, RecursionError):
                record = None
            try:
                if type(record) is not dict:
                    stripped = line.strip(_BLANK)
                    if not stripped:
                        continue
                    record = json_object(stripped)
            except Malformed as error:
                if self._others_reject:
                    tally.filtered += 1  # of no counter: see countersink.backfill.counter_column
                else:
                    tally.reject(number, str(error), line)
                continue
            try:
                cell = make(record)
            except Malformed as error:
                tally.reject(number, str(error), line)
                continue
            if cell is None:
                tally.filtered += 1
            else:
                tally.count(*cell)


def _times(recipe: Recipe) -> tuple[str, ...]:
    return tuple(name for name in (recipe.time_column, *recipe.more_time_columns) if name)


def _joined(times: list[Callable[[object], object]]) -> Callable[[object], object]:
    """What reads a time that stands in one place or, to be joined, in several."""
    if len(times) == 1:
        return times[0]
    return lambda record: " ".join([json_objects.as_text(time(record), "time") for time in times])


def access_json(
    recipe: Recipe, minutes: tuple[int, int] | None, begins: Callable[[date], int] | None
) -> JsonLines:
    """Reads access logs of JSON objects for a recipe that
    :func:`countersink.backfill.formats.check` has let pass.
    """
    getter = partial(json_getter, recipe.input_format)

    own = _joined([getter(name) for name in _times(recipe)]) if recipe.time_column else None
    clock = Clock(recipe.time_format, recipe.time_zone, begins if own else no_day)
    time = json_time(recipe.input_format, own)
    return JsonLines(
        RecordRule(
            recipe,
            minutes,
            field=lambda name: text_of(getter(name), name),
            optional=lambda name: optional_text_of(getter(name), name),
            minute=lambda record: clock.minute(time(record)),
            amount=getter(recipe.amount_column) if recipe.amount_column else None,
        )
    )


def ndjson(
    recipe: Recipe,
    minutes: tuple[int, int] | None,
    begins: Callable[[date], int] | None,
    counter: str,
) -> JsonLines:
    """Reads NDJSON for a recipe that :func:`countersink.backfill.formats.check` has let pass."""
    clock = Clock(recipe.time_format, recipe.time_zone, begins)
    time = _joined([json_objects.getter(name) for name in _times(recipe)])
    return JsonLines(
        RecordRule(
            recipe,
            minutes,
            field=lambda name: text_of(json_objects.getter(name), name),
            optional=lambda name: optional_text_of(json_objects.getter(name), name),
            minute=lambda record: clock.minute(time(record)) if recipe.time_column else 0,
            amount=json_objects.getter(recipe.amount_column) if recipe.amount_column else None,
            counter=counter,
        ),
        others_reject=bool(recipe.counter_column),
    )
