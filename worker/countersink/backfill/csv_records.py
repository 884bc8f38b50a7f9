r"""Reads CSV: header, quotes, columns, and the reasons why lines are no records; amounts
are read in ``logs/formats/records.py``.

CSV has a header and any delimiter: https://www.rfc-editor.org/rfc/rfc4180. A quote in the midst of
a field that was not opened by one (``5" disk``) is a character like others; one behind a blank at
its beginning spoils the record. A record that is none, and holds ``\"``, is read with backslashes
before quotes, as MySQL and PHP write it. Where quotes
that are never closed, or in the wrong place, make records of lines that do not belong together, the
lines are read one by one; a record that is spoiled otherwise is rejected as it is.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from operator import itemgetter
from typing import Final

from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Recipe
from countersink.backfill.spans import quoting
from countersink.logs.errors import Malformed
from countersink.logs.file import BOM
from countersink.logs.formats.reader import (
    BLANK,
    Keys,
    LineReader,
    RecordTally,
    Window,
    note_window,
)
from countersink.logs.formats.records import AmountFormat, RecordRule, shown
from countersink.logs.line import PERCENT
from countersink.logs.lines import LONGEST
from countersink.logs.times import Clock

Row = list[str]
_LONGEST_HEADER: Final = 64 * 1024
_ESCAPED: Final = re.compile(r'\\(["\\])')
_SPACED: Final = "it is no CSV: a blank stands before a quote"
csv.field_size_limit(max(csv.field_size_limit(), 3 * LONGEST))  # %HH for each byte, at worst


def times_of(recipe: Recipe) -> tuple[str, ...]:
    """Where a record's time is, in one place or, to be joined, in several."""
    return tuple(name for name in (recipe.time_column, *recipe.more_time_columns) if name)


def clock_of(recipe: Recipe, begins: Callable[[date], int] | None) -> Clock:
    """What reads the times of a recipe; its reasons name their columns."""
    return Clock(recipe.time_format, recipe.time_zone, begins, " ".join(times_of(recipe)))


class CsvRecords(LineReader):
    """Reads CSV for one recipe, which :func:`countersink.backfill.formats.check` has let pass.

    Args:
        recipe: how.
        head: how the source begins, 64 KiB of it or all.
        keys: which keys records have.
        begins: the first minute of a day of the counter.

    Raises:
        BackfillError: the header lacks a column, or is no header.
    """

    def __init__(
        self,
        recipe: Recipe,
        head: bytes,
        keys: Keys,
        begins: Callable[[date], int] | None = None,
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

            clock = clock_of(recipe, begins)
            times = [column(name) for name in times_of(recipe)]
            self._rule = RecordRule(
                keys,
                field=column,
                optional=column,
                minute=lambda row: (
                    clock.minute(" ".join([time(row) for time in times])) if times else 0
                ),
                amount=column(recipe.amount_column) if recipe.amount_column else None,
                amounts=AmountFormat(recipe.decimal_point, recipe.thousands),
            )

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the records of ``window`` come to."""
        note_window(window, tally)
        rows = self._rows(window.lines)
        for number, line, row in zip(window.numbers, window.lines, rows, strict=True):
            if number == self._header_at or self._is_comment(line):
                continue
            if (row is None or len(row) != self._width) and b"\n" in line:
                row = self._escaped(line.decode("utf-8", PERCENT)) or row
            if (row is not None and len(row) == self._width) or self._is_whole(row, line):
                self._count(row, number, line, tally)
            else:
                pieces = line.split(b"\n")
                tally.lines += len(pieces) - 1
                for further, piece in enumerate(pieces):
                    if not self._is_comment(piece):
                        self._count(None, number + further, piece, tally)

    def _is_whole(self, row: Row | None, line: bytes) -> bool:
        """Whether the line, or lines, are one record, which has not the header's columns."""
        if b"\n" not in line:
            return True
        return b'\\"' not in line if row is not None else self._is_one(line)

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

    def _row(self, text: str, *, blanks: bool = True) -> Row | None:
        try:
            rows = csv.reader(
                (text,), delimiter=self._delimiter, skipinitialspace=not blanks, strict=True
            )
            return next(rows)
        except csv.Error:
            return None

    def _is_spaced(self, row: Row, text: str) -> bool:
        """Whether a blank stands before a field's quotes, which are part of its value then."""
        if ' "' not in text:
            return False
        without = self._row(text, blanks=False) or ()
        return any(
            value.startswith(" ") and value.lstrip(" ").startswith('"') and value not in without
            for value in row
        )

    def _escaped(self, text: str) -> Row | None:
        """The fields of a record with backslashes before quotes; None: it is none."""
        if '\\"' not in text:
            return None
        row = self._row(_ESCAPED.sub(lambda found: found[1].replace('"', '""'), text))
        return row if row is not None and len(row) == self._width else None

    def _record(self, text: str) -> Row:
        """A record's fields, which may have backslashes before quotes if it has none otherwise.

        Raises:
            csv.Error: it is none.
        """
        if escaped := self._escaped(text):
            return escaped
        return next(csv.reader((text,), delimiter=self._delimiter, strict=True))

    def _is_one(self, line: bytes) -> bool:
        """Whether nothing is wrong with its quotes: what spoils it is a carriage return."""
        return self._row(line.decode("utf-8", PERCENT).replace("\r", " ")) is not None

    def _count(self, row: Row | None, number: int, line: bytes, tally: RecordTally) -> None:
        """Count a record; one without its fields stood in a window of which not all were."""
        if row is None or (len(row) != self._width and b'\\"' in line):
            try:
                row = self._record(line.decode("utf-8", PERCENT))
            except csv.Error as error:
                self._no_record(number, f"it is no CSV: {error}", line, tally)
                return
        if len(row) <= 1 and not line.strip(BLANK):
            return
        if self._rule is None:
            raise BackfillError("it begins with 64 KiB of blank lines instead of a CSV header")
        if b' "' in line and self._is_spaced(row, line.decode("utf-8", PERCENT)):
            self._no_record(number, _SPACED, line, tally)
            return
        if len(row) != self._width:
            reason = f"it has {len(row)} columns, the header {self._width}"
            self._no_record(number, reason, line, tally)
            return
        try:
            cell = self._rule.cell(row)
        except Malformed as error:
            tally.reject(number, error, line)
            return
        if cell is None:
            tally.filtered += 1
        else:
            tally.count(*cell)

    def _no_record(self, number: int, reason: str, line: bytes, tally: RecordTally) -> None:
        if self._others_reject:
            tally.filtered += 1  # of no counter: see countersink.backfill.count.targets
        else:
            tally.reject(number, reason, line)

    def _header(self, head: bytes) -> tuple[int, list[str]]:
        """The number of the header's first line, and its names; 0 and none if all is blank."""
        lines = head.removeprefix(BOM).split(b"\n")
        number = next(
            (
                at
                for at, line in enumerate(lines, 1)
                if line.strip(BLANK) and not self._is_comment(line)
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
        text = record.lstrip(b"\0").decode("utf-8", PERCENT)
        names = self._row(text)
        if names is None:
            raise BackfillError(f"its first record {shown(text)} is no CSV")
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
