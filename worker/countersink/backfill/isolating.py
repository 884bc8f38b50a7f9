"""Counting lines one by one, so that those are found that no total can take."""

from collections.abc import Mapping

from countersink.backfill.formats import Reader
from countersink.backfill.formats.tally import Tally
from countersink.backfill.spans import Window


class IsolatingReader:
    """A reader that rejects the lines of some cells, which the tables cannot take.

    Attributes:
        plain: the reader that reads the lines, and knows nothing of that.
        open_rejected: a line was rejected by this that has no newline yet.

    Args:
        reader: reads the lines.
        cells: (label, key) → why it cannot be counted.
    """

    def __init__(self, reader: Reader, cells: Mapping[tuple[int, str], str]) -> None:
        self.quoted = reader.quoted
        self.plain = reader
        self.open_rejected = False
        self._cells = cells

    def count(self, window: Window, tally: Tally) -> None:
        """As any reader's; slow."""
        if window.rejected:
            self.plain.count(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            one = Tally(tally.bucket)
            self.plain.count(Window([number], [line], [], window.open), one)
            tally.lines += one.lines
            for reason in (
                self._cells[cell]
                for cell in ((label, key) for key, label in one.counts)
                if cell in self._cells
            ):
                tally.reject(number, reason, line)
                self.open_rejected |= window.open
                break
            else:
                for label, amounts in one.amounts.items():
                    tally.amounts[label].update(amounts)
                tally.counted += one.counted
                tally.filtered += one.filtered
                tally.rejected += one.rejected
