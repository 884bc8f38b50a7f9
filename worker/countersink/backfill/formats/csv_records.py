"""CSV with a header: https://www.rfc-editor.org/rfc/rfc4180, and any delimiter.

A quote in the midst of a field that was not opened by one (``5" disk``) is a character like others.
Where such quotes make records of lines that do not belong together, the lines are read one by one;
a record that is spoiled otherwise is rejected as it is.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final

from countersink.backfill.formats import heads
from countersink.backfill.formats.reader import note_window
from countersink.backfill.formats.rule import Rule, shown
from countersink.backfill.formats.tally import Tally
from countersink.backfill.options import BackfillError
from countersink.backfill.recipe import Recipe
from countersink.backfill.spans import LONGEST, Window
from countersink.backfill.times import Clock
from countersink.producers.access_line import PERCENT, Malformed

Row = list[str]

_BLANK: Final = b"\0 \t\r"
_LONGEST_HEADER: Final = 64 * 1024
csv.field_size_limit(max(csv.field_size_limit(), 3 * LONGEST))  # %HH for each byte, at worst


class CsvRecords:
    """Reads CSV for one recipe, which :func:`countersink.backfill.formats.check` has let pass.

    Args:
        recipe: how.
        head: how the source begins, 64 KiB of it or all.
        minutes: half-open range of Unix minutes; records outside are left out. None: all are in.

    Raises:
        BackfillError: the header lacks a column, or is no header.
    """

    quoted = True

    def __init__(self, recipe: Recipe, head: bytes, minutes: tuple[int, int] | None) -> None:
        self._delimiter = recipe.delimiter
        self._header_at, names = self._header(head)
        self._width = len(names)
        self._rule: Rule[Row] | None = None
        if names:  # else nothing but blank lines is there

            def column(name: str) -> Callable[[Row], str]:
                return itemgetter(_place(names, name))

            clock, time = Clock(recipe.time_format, recipe.time_zone), column(recipe.time_column)
            self._rule = Rule(
                recipe,
                minutes,
                field=column,
                optional=column,
                minute=lambda row: clock.minute(time(row)),
                amount=column(recipe.amount_column) if recipe.amount_column else None,
            )

    def count(self, window: Window, tally: Tally) -> None:
        """Add what the records of ``window`` come to."""
        note_window(window, tally)
        rows = self._rows(window.lines)
        for number, line, row in zip(window.numbers, window.lines, rows, strict=True):
            if number == self._header_at:
                continue
            if row is not None:
                self._count(row, number, line, tally)
            elif b"\n" not in line or self._is_one(line):
                self._count_line(number, line, tally)
            else:
                pieces = line.split(b"\n")
                tally.lines += len(pieces) - 1
                for further, piece in enumerate(pieces):
                    self._count_line(number + further, piece, tally)

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

    def _count_line(self, number: int, line: bytes, tally: Tally) -> None:
        """Count a record that stood in a window of which not all were."""
        try:
            text = line.decode("utf-8", PERCENT)
            row = next(csv.reader((text,), delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            tally.reject(number, f"it is no CSV: {error}", line)
        else:
            self._count(row, number, line, tally)

    def _count(self, row: Row, number: int, line: bytes, tally: Tally) -> None:
        if len(row) <= 1 and not line.strip(_BLANK):
            return
        if self._rule is None:
            raise BackfillError("it begins with 64 KiB of blank lines instead of a CSV header")
        if len(row) != self._width:
            tally.reject(number, f"it has {len(row)} columns, the header {self._width}", line)
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

    def _header(self, head: bytes) -> tuple[int, list[str]]:
        """The number of the header's first line, and its names; 0 and none if all is blank."""
        lines = head.removeprefix(heads.BOM).split(b"\n")
        number = next((at for at, line in enumerate(lines, 1) if line.strip(_BLANK)), 0)
        if number == 0:
            return 0, []
        quotes = accumulate(line.count(b'"') for line in lines[number - 1 :])
        height = next((n for n, before in enumerate(quotes, 1) if before % 2 == 0), len(lines))
        record = b"\n".join(lines[number - 1 : number - 1 + height])
        if len(record) >= _LONGEST_HEADER - len(heads.BOM):
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
