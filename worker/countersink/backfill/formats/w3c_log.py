"""Reads W3C logs (IIS, CloudFront) for a backfill, by the directives that stand before each line;
the format itself is in ``producers/access_log/formats/w3c.py``."""

from bisect import bisect_left
from itertools import groupby
from typing import Final

from countersink.backfill.errors import BackfillError
from countersink.backfill.formats.access_log import AccessLog
from countersink.backfill.formats.reader import RecordTally, note_window
from countersink.backfill.input.content import Content
from countersink.backfill.input.spans import Span, Window
from countersink.backfill.options import Recipe
from countersink.producers.access_log.formats.w3c import (
    Directives,
    directives_in,
    divided_by_tabs,
    w3c_format,
)
from countersink.producers.errors import Malformed

_READ: Final = 1024 * 1024
_BLANK: Final = b"\0 \t\r"
_NO_DIRECTIVE: Final = "no #Fields: directive stands before it"


class W3cLog:
    """Reads W3C extended logs for a recipe. Directives are known by their lines' numbers, so that
    windows may come in any order once those before them were seen.

    Args:
        recipe: how.
        head: how the source begins.
        minutes: half-open range of Unix minutes; lines outside are left out. None: all are in.

    Raises:
        BackfillError: the first directive has not a field that the recipe names.
    """

    quoted = None

    def __init__(self, recipe: Recipe, head: bytes, minutes: tuple[int, int] | None) -> None:
        self._recipe = recipe
        self._minutes = minutes
        self._at: list[int] = []
        self._directives: list[Directives] = []
        self._readers: dict[tuple[object, bool], AccessLog | str] = {}
        self._seen = 0  # bytes
        self._seen_lines = 0
        self._see(head[: head.rfind(b"\n") + 1])
        named = [each for each in self._directives if each.names]
        if named:
            # #Date: may follow #Fields:.
            first = next((each for each in named if each.timed), named[0])
            found = self._reader(first, tabs=b"\t" in head)
            if isinstance(found, str):
                raise BackfillError(found)

    def look_back(self, content: Content, offset: int) -> None:
        """Look for directives in what stands before ``offset``."""
        if offset <= self._seen:
            return
        content.seek(self._seen)
        rest = b""
        while self._seen + len(rest) < offset:
            data = content.read(min(_READ, offset - self._seen - len(rest)))
            if not data:
                break
            whole, newline, rest = (rest + data).rpartition(b"\n")
            self._see(whole + newline)

    def passed(self, span: Span) -> None:
        """Directives up to there were seen when its lines were counted."""
        if span.start <= self._seen < span.end:
            self._seen, self._seen_lines = span.end, span.next_line - 1

    def look_at(self, window: Window) -> None:
        """Note the directives of a window."""
        if b"#" not in window.data:
            return
        for number, line in zip(window.numbers, window.lines, strict=True):
            if not window.open:
                self._note(number, line)

    def _see(self, data: bytes) -> None:
        """Note the directives in the lines that come next."""
        for at, line in directives_in(data):
            self._note(self._seen_lines + data.count(b"\n", 0, at) + 1, line)
        self._seen += len(data)
        self._seen_lines += data.count(b"\n")

    def _note(self, number: int, line: bytes) -> None:
        place = bisect_left(self._at, number)
        before = self._directives[place - 1] if place else Directives()
        after = before.after(line)
        if after != before and (place == len(self._at) or self._at[place] != number):
            self._at.insert(place, number)
            self._directives.insert(place, after)

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        if not window.numbers:
            note_window(window, tally)
            return
        data = window.data
        directed = data.startswith((b"#", b"\xef\xbb\xbf#")) or b"\n#" in data
        if not (directed or b"\n\xef\xbb\xbf#" in data):
            self._count(window, tally)
            return
        numbers, lines = window.numbers, window.lines
        first = 0
        for place, line in enumerate(lines):
            if line.startswith((b"#", b"\xef\xbb\xbf#")):
                if place > first:
                    self._count(
                        Window(numbers[first:place], lines[first:place], [], window.open), tally
                    )
                if not window.open:
                    self._note(numbers[place], line)
                tally.lines += 1
                first = place + 1
        if first < len(lines):
            self._count(Window(numbers[first:], lines[first:], [], window.open), tally)

    def _count(self, window: Window, tally: RecordTally) -> None:
        """Count lines of which none is a directive."""
        data = window.data
        if b"\t" not in data or b" " not in data:
            # Where there is neither in a line, it is the same whatever divides its one value.
            self._count_alike(window, tally, tabs=b"\t" in data)
            return
        numbers, lines = window.numbers, window.lines
        tabbed = map(divided_by_tabs, lines)
        first = 0
        for tabs, some in groupby(tabbed):
            end = first + len(list(some))
            part = Window(numbers[first:end], lines[first:end], [], window.open)
            self._count_alike(part, tally, tabs=tabs)
            first = end

    def _count_alike(self, window: Window, tally: RecordTally, *, tabs: bool) -> None:
        """Count lines whose values are all divided by tabs, or all by spaces."""
        number = window.numbers[0]
        place = bisect_left(self._at, number)
        found: AccessLog | str = _NO_DIRECTIVE
        if place and self._directives[place - 1].names:
            found = self._reader(self._directives[place - 1], tabs=tabs)
        if isinstance(found, AccessLog):
            found.count(window, tally)
            return
        note_window(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            if line.strip(_BLANK):
                tally.reject(number, found, line)

    def _reader(self, directives: Directives, *, tabs: bool) -> AccessLog | str:
        """What reads the lines after directives; a text: why they cannot be read."""
        known = directives.shape, tabs
        if known not in self._readers:
            try:
                form = w3c_format(directives, tabs=tabs, time_zone=self._recipe.time_zone)
                self._readers[known] = AccessLog(self._recipe, self._minutes, form)
            except (Malformed, ValueError) as error:
                self._readers[known] = str(error)
        return self._readers[known]
