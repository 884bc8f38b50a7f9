r"""``CsvRecords`` reads CSV: it finds header, columns and quoted fields, and gives a reason for
each record that it rejects. See ``logs/formats/records.py`` for amounts.

CSV may have any delimiter: https://www.rfc-editor.org/rfc/rfc4180. A quote within an unquoted field
(``5" disk``) is an ordinary character. A quote after a blank at the beginning of a field makes the
record invalid. An invalid record with ``\"`` is read again with backslashes as escapes, as MySQL
and PHP write them. If a misplaced or unclosed quote has joined several lines to one invalid record,
the lines are read one by one. All other invalid records are rejected; but with a counter
column they are left out, because they name no counter (``counter_column.py`` reports them).
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
    RecordBlock,
    RecordTally,
    note_block,
)
from countersink.logs.formats.records import AmountFormat, RecordRule, shown
from countersink.logs.line import PERCENT
from countersink.logs.lines import LONGEST
from countersink.runtime.texts import plural

Fields = list[str]
_LONGEST_HEADER: Final = 64 * 1024
_ESCAPED: Final = re.compile(r'\\(["\\])')
_SPACED: Final = "it is not valid CSV: there is a blank before a quote"
csv.field_size_limit(max(csv.field_size_limit(), 3 * LONGEST))  # %HH for each byte, at worst


class CsvRecords(LineReader):
    """Reader of CSV by a recipe that :func:`countersink.backfill.formats.check` has accepted.

    Args:
        recipe: the options by which the source is read.
        head: the first 64 KiB of the source.
        keys: rule that gives records their keys, and says which records are left out.
        begins: function from a date to the first Unix minute of that day in the counter's time
            zone; None: days begin at midnight in the recipe's time zone.

    Attributes:
        names: names of the columns: those of the recipe, else those of the header; empty if the
            head has only blank lines and comments.

    Raises:
        BackfillError: the header, which is the first record, is no CSV, or is longer than 64 KiB;
            or the columns lack a name that the recipe uses, or have it twice.
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
        self.names, self._width = names, len(names)
        self._rule: RecordRule[Fields] | None = None
        if names:  # else the head has blank lines only

            def column(name: str) -> Callable[[Fields], str]:
                return itemgetter(_column_index(names, name))

            clock = recipe.clock(begins)
            times = [column(name) for name in recipe.times]
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

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the records of ``block`` to ``tally``: as counted, left out or rejected. The header,
        comments and blank lines are only counted as lines that were read.

        Raises:
            BackfillError: there is a record, but no header, because the head has only blank lines
                and comments.
        """
        note_block(block, tally)
        rows = self._rows(block.lines)
        for number, line, row in zip(block.numbers, block.lines, rows, strict=True):
            if number == self._header_at or self._is_comment(line):
                continue
            if (row is None or len(row) != self._width) and b"\n" in line:
                row = self._escaped(line.decode("utf-8", PERCENT)) or row
            if (row is not None and len(row) == self._width) or self._is_one_record(row, line):
                self._count(row, number, line, tally)
            else:
                pieces = line.split(b"\n")
                tally.lines += len(pieces) - 1
                for further, piece in enumerate(pieces):
                    if not self._is_comment(piece):
                        self._count(None, number + further, piece, tally)

    def _is_one_record(self, row: Fields | None, line: bytes) -> bool:
        """Return True if an invalid record is handled as one record. Return False if a wrong quote
        has joined several lines, which must be read one by one.

        Args:
            row: fields of the record, too few or too many; None if the CSV parser refuses the
                record.
            line: its bytes.
        """
        if b"\n" not in line:
            return True
        return b'\\"' not in line if row is not None else self._quotes_are_right(line)

    def _is_comment(self, line: bytes) -> bool:
        return bool(self._comment) and line.startswith(self._comment)

    def _rows(self, lines: Sequence[bytes]) -> Iterator[Fields | None]:
        """Iterate over the fields of each record; a record that the CSV parser refuses gives None.
        ``lines`` has the bytes of the records.
        """
        texts = [line.decode("utf-8", PERCENT) for line in lines]
        try:
            rows: list[Fields] = list(csv.reader(texts, delimiter=self._delimiter, strict=True))
        except csv.Error:
            rows = []
        if len(rows) == len(texts):  # no record continues in the next text
            return iter(rows)
        return (self._row(text) for text in texts)

    def _row(self, text: str, *, blanks: bool = True) -> Fields | None:
        try:
            rows = csv.reader(
                (text,), delimiter=self._delimiter, skipinitialspace=not blanks, strict=True
            )
            return next(rows)
        except csv.Error:
            return None

    def _is_spaced(self, row: Fields, text: str) -> bool:
        """Return True if a field has a blank before its opening quote, so that the CSV parser has
        taken the quotes for a part of the value.
        """
        if ' "' not in text:
            return False
        without = self._row(text, blanks=False) or ()
        return any(
            value.startswith(" ") and value.lstrip(" ").startswith('"') and value not in without
            for value in row
        )

    def _escaped(self, text: str) -> Fields | None:
        r"""Return the fields of a record, with backslashes read as escapes. Return None if there is
        no ``\"``, if the record is invalid even then, or if the number of fields differs from the
        number of columns.
        """
        if '\\"' not in text:
            return None
        row = self._row(_ESCAPED.sub(lambda found: found[1].replace('"', '""'), text))
        return row if row is not None and len(row) == self._width else None

    def _record(self, text: str) -> Fields:
        """Return the fields of a record. Backslashes are read as escapes if this gives one field
        for each column.

        Raises:
            csv.Error: the record is invalid.
        """
        if escaped := self._escaped(text):
            return escaped
        return next(csv.reader((text,), delimiter=self._delimiter, strict=True))

    def _quotes_are_right(self, line: bytes) -> bool:
        """Return True if a record that the CSV parser refuses would be valid with blanks in place
        of carriage returns: then its quotes are right.
        """
        return self._row(line.decode("utf-8", PERCENT).replace("\r", " ")) is not None

    def _count(self, row: Fields | None, number: int, line: bytes, tally: RecordTally) -> None:
        """Count, leave out or reject one record in ``tally``. A blank line is ignored.

        Args:
            row: fields of the record; None if they are not read yet, or could not be read.
            number: number of its first line.
            line: its bytes.
            tally: sums of the records so far.

        Raises:
            BackfillError: the record is not blank, but there is no header.
        """
        if row is None or (len(row) != self._width and b'\\"' in line):
            try:
                row = self._record(line.decode("utf-8", PERCENT))
            except csv.Error as error:
                self._reject(number, f"it is not valid CSV: {error}", line, tally)
                return
        if len(row) <= 1 and not line.strip(BLANK):
            return
        if self._rule is None:
            raise BackfillError("it begins with 64 KiB of blank lines instead of a CSV header")
        if b' "' in line and self._is_spaced(row, line.decode("utf-8", PERCENT)):
            self._reject(number, _SPACED, line, tally)
            return
        if len(row) != self._width:
            reason = f"it has {plural(len(row), 'column')}, the header {self._width}"
            self._reject(number, reason, line, tally)
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

    def _reject(self, number: int, reason: str, line: bytes, tally: RecordTally) -> None:
        if self._others_reject:
            tally.filtered += 1  # counter_column.py reports lines without a counter
        else:
            tally.reject(number, reason, line)

    def _header(self, head: bytes) -> tuple[int, list[str]]:
        """Return the line number and the column names of the header, which is the first record;
        (0, []) if the head has only blank lines and comments.

        Raises:
            BackfillError: the first record is no CSV, or is too long.
        """
        lines = head.removeprefix(BOM).split(b"\n")
        number = next(
            (
                index
                for index, line in enumerate(lines, 1)
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
            raise BackfillError("its first record is longer than 64 KiB, so it is no CSV header")
        text = record.lstrip(b"\0").decode("utf-8", PERCENT)
        names = self._row(text)
        if names is None:
            raise BackfillError(f"its first record {shown(text)} is not valid CSV")
        return number, [name.strip() for name in names]


def _column_index(names: Sequence[str], name: str) -> int:
    """Return the index of the column ``name``.

    Raises:
        BackfillError: no column has this name, or several have it.
    """
    found = [place for place, each in enumerate(names) if each == name.strip()]
    if len(found) == 1:
        return found[0]
    if found:
        raise BackfillError(f"the CSV header has {len(found)} columns named {name!r}: rename one")
    known = ", ".join(each for each in dict.fromkeys(names) if each)
    raise BackfillError(
        f"the CSV header has no column {name!r}; its columns are: {known[:500]}"
        + ("" if len(names) > 1 else " (another --delimiter?)")
    )
