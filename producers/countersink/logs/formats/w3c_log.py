"""Reads W3C logs (IIS, CloudFront), by the directives that stand before each line; the format
itself is in ``w3c.py``."""

from bisect import bisect_left
from dataclasses import replace
from itertools import groupby
from typing import Final

from countersink.logs.formats.access_log import AccessLog
from countersink.logs.formats.reader import (
    Keys,
    LineReader,
    ReadAt,
    RecordTally,
    RejectingReader,
    Window,
    note_window,
)
from countersink.logs.formats.w3c import (
    CLOUDFRONT,
    Directives,
    directives_in,
    divided_by_tabs,
    w3c_format,
)

_READ: Final = 1024 * 1024
_READERS: Final = 16
"""Kept at once: a log without dates has another one for each #Date: directive."""
_UNDIRECTED: Final = RejectingReader(lambda line: "no #Fields: directive stands before it")


def _divided_by_tabs(line: bytes) -> bool | None:
    """Whether the values of a line are; None: it is a directive."""
    return None if line.startswith((b"#", b"\xef\xbb\xbf#")) else divided_by_tabs(line)


class W3cLog:
    """Reads W3C extended logs. Directives are known by their lines' numbers, so that windows may
    come in any order once those before them were seen.

    Args:
        keys: which keys lines have.
        time_zone: IANA name; '': UTC, as the standard says.
    """

    quoted = None

    def __init__(self, keys: Keys, time_zone: str = "") -> None:
        self._keys = keys
        self._time_zone = time_zone
        self._at: list[int] = []
        self._directives: list[Directives] = []
        self._readers: dict[tuple[object, bool], LineReader] = {}
        self._seen = 0  # bytes
        self._seen_lines = 0

    def begin(self, head: bytes) -> str:
        """Look at how the source begins.

        Returns:
            Why lines after the first directives cannot be read; '': they can, or there are none.
        """
        self._see(head[: head.rfind(b"\n") + 1])
        named = [each for each in self._directives if each.names]
        if not named:
            return ""
        # #Date: may follow #Fields:.
        first = next((each for each in named if each.timed), named[0])
        found = self._reader(first, tabs=b"\t" in head)
        return found.reason(head) if isinstance(found, RejectingReader) else ""

    def look_back(self, read: ReadAt, offset: int) -> None:
        """Look for directives in what stands before ``offset``."""
        rest = b""
        while (at := self._seen + len(rest)) < offset:
            data = read(min(_READ, offset - at), at)
            if not data:
                break
            whole, newline, rest = (rest + data).rpartition(b"\n")
            self._see(whole + newline)

    def passed(self, start: int, end: int, next_line: int) -> None:
        """Directives up to there were seen with its lines."""
        if start <= self._seen < end:
            self._seen, self._seen_lines = end, next_line - 1

    def directives(self, number: int) -> Directives:
        """Directives in force at a line."""
        return self._in_force(number)

    def directed(self, number: int, directives: object) -> None:
        """Nothing but these directives stands before the line."""
        assert isinstance(directives, Directives)
        self._at, self._directives = [number - 1], [directives]

    def day_of(self, number: int) -> bytes:
        """The day that ``#Date:`` says of a line, where ``#Fields:`` names no date."""
        return self._in_force(number).shape[1].encode()

    def _in_force(self, number: int) -> Directives:
        place = bisect_left(self._at, number)
        return self._directives[place - 1] if place else Directives()

    def see(self, number: int, data: bytes, stop: int) -> None:
        """Note the directives in the lines ``data[:stop]`` that begin with that number."""
        for at, line in directives_in(data[:stop]):
            self._note(number + data.count(b"\n", 0, at), line)

    def _see(self, data: bytes) -> None:
        """Note the directives in the lines that come next."""
        self.see(self._seen_lines + 1, data, len(data))
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
        mixed = b"\t" in data and b" " in data
        if not (directed or mixed or b"\n\xef\xbb\xbf#" in data):
            # Where there is neither in a line, it is the same whatever divides its one value.
            self._count_alike(window, tally, tabs=b"\t" in data)
            return
        numbers, lines = window.numbers, window.lines
        first = 0
        for tabs, some in groupby(map(_divided_by_tabs, lines)):
            end = first + len(list(some))
            part = Window(numbers[first:end], lines[first:end], [])
            if tabs is None:
                for number, line in zip(part.numbers, part.lines, strict=True):
                    self._note(number, line)
                tally.lines += end - first
            else:
                self._count_alike(part, tally, tabs=tabs)
            first = end

    def _count_alike(self, window: Window, tally: RecordTally, *, tabs: bool) -> None:
        """Count lines whose values are all divided by tabs, or all by spaces."""
        directives = self._in_force(window.numbers[0])
        if tabs and not directives.names:
            directives = CLOUDFRONT
        reader = self._reader(directives, tabs=tabs) if directives.names else _UNDIRECTED
        reader.count(window, tally)

    def _reader(self, directives: Directives, *, tabs: bool) -> LineReader:
        """What reads, or refuses, the lines after directives."""
        known = directives if directives is CLOUDFRONT else directives.shape, tabs
        if known not in self._readers:
            if len(self._readers) >= _READERS:
                self._readers.clear()
            try:
                form = w3c_format(directives, tabs=tabs, time_zone=self._time_zone)
                if directives is CLOUDFRONT:
                    form = replace(form, diagnosis=_UNDIRECTED.reason)
                self._readers[known] = AccessLog(self._keys, form)
            except ValueError as error:
                reason = str(error)
                self._readers[known] = RejectingReader(lambda line: reason)
        return self._readers[known]
