"""``Reader``, what every format implements; ``RecordTally``, to which it adds; ``Reject``, how long
the text and reason of a rejected line may be; and ``--exclude-key-glob``, ``--strip-query``."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import Quoting, Span, Window
from countersink.backfill.options import Recipe
from countersink.producers.access_log import template
from countersink.producers.access_log.formats.detection import lacking, opener
from countersink.producers.errors import Malformed
from countersink.runtime.limits import check_key

LONGEST_TEXT: Final = 1_000
"""Bytes that are kept of a rejected line."""
LONGEST_REASON: Final = 255
"""Characters of the reason."""
_BLANK = b"\0 \t\r"


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
class RecordTally:
    """What was read so far: amounts by key and bucket, numbers of lines, rejected lines.

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


class Reader(Protocol):
    """Reads the lines of one source, in any order of windows once it has looked at what is before.
    Not thread-safe.
    """

    @property
    def quoted(self) -> Quoting | None:
        """How records are told apart that may hold newlines; None: each is a line."""

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to, its rejected ones included."""

    def look_back(self, content: Content, offset: int) -> None:
        """Be ready for lines from ``offset`` on, whatever stands before.

        Raises:
            Unreadable: the content cannot be read up to there.
        """

    def look_at(self, window: Window) -> None:
        """Be ready for lines of a window of which not all are counted."""

    def passed(self, span: Span) -> None:
        """All whole lines of a span have been counted."""


class Independent:
    """Base of readers for which a line means the same wherever it stands."""

    def look_back(self, content: Content, offset: int) -> None:
        """Nothing."""

    def look_at(self, window: Window) -> None:
        """Nothing."""

    def passed(self, span: Span) -> None:
        """Nothing."""


def note_window(window: Window, tally: RecordTally) -> None:
    """Count the window's lines, and those of it that were too long to be read as rejected."""
    tally.lines += len(window.numbers) + len(window.rejected)
    for each in window.rejected:
        tally.reject(each.line, each.reason)


class Opened(Independent):
    """Takes lines out of their envelope for another reader.

    Args:
        reader: reads what stands in it; one for which a line means the same wherever it stands.
        envelope: its name.
    """

    quoted = None

    def __init__(self, reader: Reader, envelope: str) -> None:
        self._reader = reader
        self._envelope = envelope
        self._open = opener(envelope)

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        lines = window.lines
        inner: list[bytes] = []
        rejected = len(tally.rejected)
        for number, line in zip(window.numbers, lines, strict=True):
            found = self._open(line.strip(_BLANK))
            if found is None and line.strip(_BLANK):
                tally.reject(number, lacking(self._envelope), line)
            inner.append((found or b"").replace(b"\n", b" "))
        lacked = {each.line for each in tally.rejected[rejected:]}
        self._reader.count(Window(window.numbers, inner, window.rejected, window.open), tally)
        texts = dict(zip(window.numbers, lines, strict=True))
        tally.rejected[rejected:] = sorted(
            (
                each
                if each.line in lacked or each.line not in texts
                else replace(each, text=texts[each.line][:LONGEST_TEXT])
                for each in tally.rejected[rejected:]
            ),
            key=lambda each: each.line,
        )


class Keys:
    """Cuts, checks and leaves out keys as a recipe says."""

    def __init__(self, recipe: Recipe) -> None:
        self._strip_query = recipe.strip_query
        self._excluded = tuple(template.shell_pattern(glob) for glob in recipe.exclude_keys)

    def finished(self, key: str) -> str | None:
        """The key that is counted; None where the recipe leaves it out.

        Raises:
            Malformed: it is no text that has a UTF-8 form.
        """
        if self._strip_query:
            key = key.partition("?")[0]
        for excluded in self._excluded:
            if excluded(key):
                return None
        try:
            return check_key(key)
        except ValueError as error:
            raise Malformed(str(error)) from None
