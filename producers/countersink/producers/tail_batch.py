"""Hits on their way from a log's lines to the queue, and what a run reports."""

from dataclasses import dataclass
from typing import Final

from countersink.producers.access_log import Counts, Malformed, Parser, Rejected
from countersink.producers.log_lines import Block

ROWS_PER_STORE: Final = 20_000
"""Distinct (key, minute) from which on a batch is stored."""
LINES_PER_STORE: Final = 200_000
"""Lines from which on a batch is stored."""


@dataclass(slots=True)
class Summary:
    """What a run did.

    Attributes:
        counted: lines counted and stored.
        rejected: lines that could not be counted.
        left: 1 when a last line without newline was left for the next run, else 0.
    """

    counted: int = 0
    rejected: int = 0
    left: int = 0


class Reporter:
    """What a run tells while it goes on; both do nothing here."""

    def notice(self, text: str) -> None:
        """Something a person should know, in a sentence."""

    def rejected(self, path: str, rejected: Rejected) -> None:
        """A line was not counted."""


class Batch:
    """Hits read and not yet stored."""

    def __init__(self, parser: Parser, reporter: Reporter, summary: Summary) -> None:
        self.counts: Counts = {}
        self.lines = 0
        self.summary = summary
        self._parser = parser
        self._reporter = reporter

    @property
    def full(self) -> bool:
        """Whether it is time to store."""
        return len(self.counts) >= ROWS_PER_STORE or self.lines >= LINES_PER_STORE

    def count(self, path: str, block: Block) -> None:
        """Add the lines of ``block``, from the file at ``path``."""
        rejected = block.rejected + self._parser.count(block.lines, block.first, self.counts)
        self.lines += len(block.lines)
        self.summary.rejected += len(rejected)
        for each in rejected:
            self._reporter.rejected(path, each)

    def count_unterminated(self, path: str, rest: bytes, number: int) -> bool:
        """Add the line without newline ``rest`` if it is valid; whether it was."""
        if not rest.strip(b"\0 \t\r"):
            return False
        try:
            cell = self._parser.parse(rest)
        except Malformed as error:
            why = f"left for the next run: it has no newline yet, and {error}"
            self._reporter.rejected(path, Rejected(number, why))
            self.summary.left = 1
            return False
        self.counts[cell] = self.counts.get(cell, 0) + 1
        return True

    def stored(self) -> None:
        """Everything in it is in Redis."""
        self.summary.counted += sum(self.counts.values())
        self.counts.clear()
        self.lines = 0
