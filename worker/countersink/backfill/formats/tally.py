"""What the lines of a source come to."""

from collections import Counter, defaultdict
from collections.abc import Callable
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


def _itself(minute: int) -> int:
    return minute


@dataclass(slots=True)
class Tally:
    """What was read so far.

    Attributes:
        bucket: the label of the bucket of a whole Unix minute; the minute itself if nothing is
            given. Raises Refused where it cannot be told. Readers remember what it said, as long as
            they are given an equal one.
        amounts: label to key to amount; a sum may leave 64 bits.
        lines: records looked at, blank lines and a header included.
        counted: those that gave an amount.
        filtered: those that the recipe leaves out.
        rejected: those that could not be counted.
    """

    bucket: Callable[[int], int] = _itself
    amounts: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: list[Reject] = field(default_factory=list)

    @property
    def counts(self) -> dict[tuple[str, int], int]:
        """All amounts, by (key, label)."""
        return {
            (key, label): amount
            for label, keys in self.amounts.items()
            for key, amount in keys.items()
        }

    def count(self, key: str, minute: int, amount: int) -> None:
        """Note what a line gives.

        Raises:
            Refused: as ``bucket``.
        """
        self.amounts[self.bucket(minute)][key] += amount
        self.counted += 1

    def reject(self, line: int, reason: str, text: bytes = b"") -> None:
        """Note that ``line`` could not be counted."""
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 1] + "…"
        self.rejected.append(Reject(line, reason, text[:LONGEST_TEXT]))
