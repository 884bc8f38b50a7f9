"""What the lines of a source come to."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

LONGEST_TEXT: Final = 1_000
"""Bytes that are kept of a rejected line."""
LONGEST_REASON: Final = 255
"""Characters of the reason."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A line that could not be counted.

    Attributes:
        line: its number in its source, from 1.
        reason: why, as a phrase.
        text: how it begins; empty where it was too long to be read.
    """

    line: int
    reason: str
    text: bytes


@dataclass(slots=True)
class Tally:
    """What was read so far.

    Attributes:
        counts: (key, whole Unix minute) to amount; a sum may leave 64 bits.
        lines: records looked at, blank lines and a header included.
        counted: those that gave an amount.
        filtered: those that the recipe leaves out.
        rejected: those that could not be counted.
    """

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: list[Reject] = field(default_factory=list)

    def reject(self, line: int, reason: str, text: bytes = b"") -> None:
        """Note that ``line`` could not be counted."""
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 1] + "…"
        self.rejected.append(Reject(line, reason, text[:LONGEST_TEXT]))
