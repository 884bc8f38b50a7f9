"""Reader of W3C extended logs (IIS, CloudFront): follows the directives ``#Fields:`` and ``#Date:``
before each line, splits values at spaces or tabs, and refuses lines without a date or time.

A directive is a line that says how the lines after it are read. IIS separates values by spaces;
CloudFront separates them by tabs and URL-encodes them. Times are UTC unless a time zone is given.
https://www.w3.org/TR/WD-logfile.html,
https://learn.microsoft.com/windows/win32/http/w3c-logging and
https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final
from urllib.parse import unquote_to_bytes

from countersink.logs.errors import Malformed
from countersink.logs.formats.access_log import AccessLog
from countersink.logs.formats.line_format import (
    STATUS,
    AccessField,
    Layout,
    LineFormat,
    ValuePlace,
    client_text,
    clock_minute,
    common_names,
)
from countersink.logs.formats.reader import (
    Keys,
    LineReader,
    ReadAt,
    RecordBlock,
    RecordTally,
    RejectingReader,
    note_block,
)
from countersink.logs.line import CLIENT, decoded, path_of
from countersink.logs.times import Clock, no_day

_FIELDS: Final = b"#Fields:"
_DATE_DIRECTIVE: Final = re.compile(rb"#Date:\s*(\d{4}-\d\d-\d\d)\b", re.IGNORECASE)
_ALIASES: Final = {
    "host": ("c-ip", "c-dns"),
    "vhost": ("x-host-header", "cs-host", "cs(host)", "s-computername"),
    "user": ("cs-username",),
    "method": ("cs-method",),
    "target": ("cs-uri",),
    "path": ("cs-uri-stem",),
    "query": ("cs-uri-query",),
    "protocol": ("cs-protocol-version", "cs-version"),
    "status": ("sc-status",),
    "size": ("sc-bytes",),
    "referer": ("cs(referer)",),
    "agent": ("cs(user-agent)",),
}
_DATE: Final = rb"\d{4}-\d\d-\d\d"
_TIME: Final = rb"\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "c-ip": CLIENT,
    "sc-status": rb"(?:" + STATUS + rb"|000?)",
}


@dataclass(frozen=True, slots=True)
class Directives:
    """The directives that apply to a line: the last ``#Fields:`` and the last ``#Date:`` before it.

    Attributes:
        names: the names of the line's fields by ``#Fields:``, in lower case; none without that
            directive.
        date: the day by ``#Date:``, for lines that have a time but no date; '' without that
            directive.
    """

    names: tuple[str, ...] = ()
    date: str = ""

    @property
    def timed(self) -> bool:
        """Whether both the date and the time of the line are known."""
        return "time" in self.names and ("date" in self.names or bool(self.date))

    @property
    def shape(self) -> tuple[tuple[str, ...], str]:
        """The names, and the date, by which the reader of the lines is chosen. In place of the date
        there is '' if lines have their own dates.
        """
        return self.names, "" if "date" in self.names else self.date

    def after(self, line: bytes) -> "Directives":
        """Return the directives that apply after ``line``, which may be a directive or not."""
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line[: len(_FIELDS)].lower() == _FIELDS.lower():
            names = decoded(line[len(_FIELDS) :]).lower().split()
            return replace(self, names=tuple(names))
        found = _DATE_DIRECTIVE.match(line)
        return self if found is None else replace(self, date=found[1].decode())


_CLOUDFRONT: Final = Directives().after(
    b"#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status"
    b" cs(Referer) cs(User-Agent) cs-uri-query"
)
"""The directives that are assumed for lines of CloudFront without any: their first fields."""

_WHOLE: Final = rb"\0*+(?:\xef\xbb\xbf)?(#[^\n]*+)(?=\n)"
_FIRST_DIRECTIVE: Final = re.compile(_WHOLE)
_LATER_DIRECTIVE: Final = re.compile(rb"\n" + _WHOLE)  # fast, as it begins with a literal


def _directives_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each complete directive (line that begins with ``#``) in
    ``data``, which begins where a line begins. NULs and a byte order mark before a directive are
    left out. A directive without a newline at its end is not complete.
    """
    first = _FIRST_DIRECTIVE.match(data)
    for found in chain((first,) if first else (), _LATER_DIRECTIVE.finditer(data)):
        yield found.start(1), found[1]


_TABBED: Final = re.compile(rb"[\0 \t\r]*+[^ \t]*+\t")
"""The pattern of a line whose first value ends with a tab, which shows that its values are
separated by tabs.
"""


def _has_tabs(line: bytes) -> bool | None:
    """Return whether tabs separate the values of a line, that is, a tab follows its first value.
    Return False also for a line with one value, and None for a directive (``#`` line).
    """
    if line.startswith((b"#", b"\xef\xbb\xbf#")):
        return None
    return _TABBED.match(line) is not None


def _w3c_format(directives: Directives, *, tabs: bool, time_zone: str = "") -> LineFormat:
    """Make the format of lines by the directives (``#Fields:``, ``#Date:``) before them.

    Args:
        directives: the directives that apply to the lines.
        tabs: whether tabs separate the values of a line, not spaces.
        time_zone: the IANA name of the zone of times; '' stands for UTC, as the standard says.

    Raises:
        Malformed: the directives tell no time, or no date.
        ValueError: the time zone does not exist.
    """
    names = directives.names
    if not directives.timed:
        raise Malformed(
            "the #Fields: before it do not name date and time"
            if "time" not in names
            else "the #Fields: before it name no date, and there is no #Date:"
        )
    value = rb"[^\t\r\n]++" if tabs else rb'(?:"[^"\n]*+(?>(?:""[^"\n]*+)*)"|[^ \r\n]++)'
    divider = rb"\t" if tabs else rb" +"
    source: list[ValuePlace] = []
    groups: dict[str, str] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, f"g{number}")
        pattern = _PATTERNS.get(name, value)
        if number:
            source.append(ValuePlace("", divider, "the separator"))
        source.append(ValuePlace(f"g{number}", pattern, name))
    layout = Layout(tuple(source), rb"(?:\t.*)?" if directives is _CLOUDFRONT else rb"[ \t]*+")
    read = _decoded if tabs else _unquoted
    fields = {name: AccessField((group,), read) for name, group in groups.items()}
    if "c-ip" in groups:
        fields["c-ip"] = AccessField((groups["c-ip"],), client_text)
    # No date without a time: it would be the time of a line that does not match.
    clock = clock_minute(Clock(time_zone=time_zone or "UTC", begins=no_day))
    date = () if "date" in groups else (directives.date.encode(),)

    def minute(found: Sequence[bytes]) -> int:
        return clock((*date, *found))

    return LineFormat(
        name="w3c",
        pattern=layout.pattern,
        fields=common_names(fields, _ALIASES, read, path_of) | fields,
        times=(groups["date"], groups["time"]) if "date" in groups else (groups["time"],),
        minute=minute,
        diagnosis=layout.diagnosis,
    )


def _unquoted(raw: bytes) -> str:
    if len(raw) >= 2 and raw[:1] == raw[-1:] == b'"':
        raw = raw[1:-1].replace(b'""', b'"')
    return decoded(raw)


def _decoded(raw: bytes) -> str:
    """Return the text of a value that CloudFront has URL-encoded, decoded once: escapes that the
    client sent stay.
    """
    return decoded(unquote_to_bytes(raw))


_READ: Final = 1024 * 1024
_READERS: Final = 16
"""Most readers kept at once. A log without dates in its lines needs one for each date of a
``#Date:`` directive.
"""
_UNDIRECTED: Final = RejectingReader(lambda line: "there is no #Fields: directive before it")


class W3cLog(LineReader):
    """Reader of W3C extended logs. It notes the directives (``#Fields:``, ``#Date:``) with their
    line numbers. So blocks of lines may be counted in any order, once the directives before them
    are noted.

    Args:
        keys: the rule that gives lines their keys, or leaves lines out.
        time_zone: the IANA name of the zone of times; '' stands for UTC, as the standard says.
    """

    quoted = None

    def __init__(self, keys: Keys, time_zone: str = "") -> None:
        self._keys = keys
        self._time_zone = time_zone
        self._at: list[int] = []
        self._directives: list[Directives] = []
        self._readers: dict[tuple[object, bool], LineReader] = {}

    def begin(self, head: bytes) -> str:
        """Note the directives (``#Fields:``, ``#Date:``) in ``head``, the beginning of the source.

        Returns:
            The reason why lines after these directives cannot be read; '' where they can be, or
            where there is no ``#Fields:``. The check uses the first directives that give date
            and time or, if none do, the first with ``#Fields:``.
        """
        self.note_directives(1, head, head.rfind(b"\n") + 1)
        named = [each for each in self._directives if each.names]
        if not named:
            return ""
        # #Date: may follow #Fields:.
        first = next((each for each in named if each.timed), named[0])
        found = self._reader(first, tabs=b"\t" in head)
        return found.reason(head) if isinstance(found, RejectingReader) else ""

    def look_back(self, read: ReadAt, offset: int) -> None:
        """Read the source by ``read`` up to ``offset``, and note the directives in its complete
        lines (``#Fields:``, ``#Date:``).
        """
        at, number, data = 0, 1, b""
        while at < offset and (more := read(min(_READ, offset - at), at)):
            at += len(more)
            data += more
            stop = data.rfind(b"\n") + 1
            self.note_directives(number, data, stop)
            number += data.count(b"\n", 0, stop)
            data = data[stop:]

    def directives(self, number: int) -> Directives:
        """Return the directives (``#Fields:``, ``#Date:``) that apply to the line ``number``: the
        last ones noted before it, or empty :class:`Directives` if there are none.
        """
        place = bisect_left(self._at, number)
        return self._directives[place - 1] if place else Directives()

    def set_directives(self, number: int, directives: object) -> None:
        """Replace all noted directives by ``directives``, which apply to the line ``number``.
        Another reader has noted them.
        """
        assert isinstance(directives, Directives)
        self._at, self._directives = [number - 1], [directives]

    def day_of(self, number: int) -> bytes:
        """Return the day that ``#Date:`` gives to the line, such as b"2015-05-17"; b"" if lines
        have their own dates, or there is no ``#Date:``.
        """
        return self.directives(number).shape[1].encode()

    def note_directives(self, number: int, data: bytes, stop: int) -> None:
        """Note the directives (``#Fields:``, ``#Date:``) in the lines ``data[:stop]``; the first of
        these lines has the number ``number``.
        """
        for at, line in _directives_in(data[:stop]):
            self._note(number + data.count(b"\n", 0, at), line)

    def _note(self, number: int, line: bytes) -> None:
        place, before = bisect_left(self._at, number), self.directives(number)
        after = before.after(line)
        if after != before and (place == len(self._at) or self._at[place] != number):
            self._at.insert(place, number)
            self._directives.insert(place, after)

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``block`` to ``tally``, and note the directives in
        ``block`` (``#Fields:``, ``#Date:``).
        """
        if not block.numbers:
            note_block(block, tally)
            return
        data = block.data
        directed = data.startswith((b"#", b"\xef\xbb\xbf#")) or b"\n#" in data
        mixed = b"\t" in data and b" " in data
        if not (directed or mixed or b"\n\xef\xbb\xbf#" in data):
            # A line with neither has one value, so its separator does not matter.
            self._count_separated(block, tally, tabs=b"\t" in data)
            return
        numbers, lines = block.numbers, block.lines
        first = 0
        for tabs, some in groupby(map(_has_tabs, lines)):
            end = first + len(list(some))
            part = RecordBlock(numbers[first:end], lines[first:end], [])
            if tabs is None:
                for number, line in zip(part.numbers, part.lines, strict=True):
                    self._note(number, line)
                tally.lines += end - first
            else:
                self._count_separated(part, tally, tabs=tabs)
            first = end

    def _count_separated(self, block: RecordBlock, tally: RecordTally, *, tabs: bool) -> None:
        """Count a block without directives, whose values are all separated by tabs or, if ``tabs``
        is false, by spaces. Without ``#Fields:`` before them, lines with tabs are read as
        CloudFront's, and others are rejected.
        """
        directives = self.directives(block.numbers[0])
        if tabs and not directives.names:
            directives = _CLOUDFRONT
        reader = self._reader(directives, tabs=tabs) if directives.names else _UNDIRECTED
        reader.count(block, tally)

    def _reader(self, directives: Directives, *, tabs: bool) -> LineReader:
        """Return the reader of lines to which ``directives`` apply, and whose values are separated
        by tabs or, if ``tabs`` is false, by spaces. The reader rejects all lines that are not blank
        if the directives lack the time, the date or a requested field, or if the time zone does not
        exist.
        """
        known = directives if directives is _CLOUDFRONT else directives.shape, tabs
        if known not in self._readers:
            if len(self._readers) >= _READERS:
                self._readers.clear()
            try:
                form = _w3c_format(directives, tabs=tabs, time_zone=self._time_zone)
                if directives is _CLOUDFRONT:
                    form = replace(form, diagnosis=_UNDIRECTED.reason)
                self._readers[known] = AccessLog(self._keys, form)
            except ValueError as error:
                reason = str(error)
                self._readers[known] = RejectingReader(lambda line: reason)
        return self._readers[known]
