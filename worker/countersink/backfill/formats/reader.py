"""What reads the lines of a source, whatever its format."""

from typing import Protocol

from countersink.backfill.formats.tally import Tally
from countersink.backfill.spans import Window


class Reader(Protocol):
    """Reads the lines of one source, in any order of windows. Not thread-safe.

    Attributes:
        quoted: whether a record may hold newlines between double quotes.
    """

    quoted: bool

    def count(self, window: Window, tally: Tally) -> None:
        """Add what the lines of ``window`` come to, its rejected ones included."""


def note_window(window: Window, tally: Tally) -> None:
    """Count the window's lines, and those of it that were too long to be read as rejected."""
    tally.lines += len(window.numbers) + len(window.rejected)
    for each in window.rejected:
        tally.reject(each.line, each.reason)
