"""``Parser``: from a line to its key and minute or the reason of its rejection, by a format, a key
template and conditions, with a cache; the formats are in ``formats/``.

What a line's key is, a template says: text with fields of the format in it, such as
``{host}{path}``. Conditions leave lines out. Which formats there are is told in
:mod:`countersink.producers.access_log.formats`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from countersink.producers.access_log import template
from countersink.producers.access_log.file import LogFile
from countersink.producers.access_log.formats.detection import (
    AUTO,
    MOST_LINES,
    detect,
    lacking,
    opener,
    untold,
    why_not,
)
from countersink.producers.access_log.formats.json_objects import (
    JSON_FORMATS,
    json_getter,
    json_object,
    json_time,
    optional_text_of,
    text_of,
)
from countersink.producers.access_log.formats.line_format import LineFormat
from countersink.producers.access_log.formats.log_format import format_from_text
from countersink.producers.access_log.formats.named import named_format
from countersink.producers.access_log.formats.w3c import Directives, divided_by_tabs, w3c_format
from countersink.producers.access_log.line import diagnosis
from countersink.producers.access_log.template import Condition
from countersink.producers.access_log.times import Clock, no_day
from countersink.producers.errors import Malformed, UnknownFormat
from countersink.runtime.limits import check_key

Counts = dict[tuple[str, int], int]
"""(key, whole Unix minutes) to hits."""
Cell = tuple[str, int]
ReadCell = Callable[[bytes], Cell | None]
"""Key and minute of a line; None: it is left out. Raises ``Malformed``."""

_CACHED: Final = 50_000
"""Requests and minutes remembered as parsed; beyond that the memory is emptied."""
_LONGEST_CACHED: Final = 1_000
"""Bytes of what is remembered: what clients send does not decide how much memory is used."""
_HEAD: Final = 64 * 1024
"""Bytes of a file that are read to tell its format."""
BLANK: Final = b"\0 \t\r\n"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that was not counted.

    Attributes:
        line: its number in its file, from 1.
        reason: why, as a phrase.
    """

    line: int
    reason: str


class Parser:
    """Reads lines for one template of keys. Remembers what it has seen; not thread-safe.

    Args:
        key: the template, or the name of a field.
        where: conditions, all of which must hold; other lines are left out.
        input_format: the name of a format; ``auto``: told by the first lines.
        log_format: the format in the server's words; then ``input_format`` does not matter.
        envelope: what each line stands in; '': nothing, or told by the first lines.
        time_zone: IANA name for times without one; '': a format that has such is refused.

    Raises:
        ValueError: something cannot be; the message says what to do.
    """

    def __init__(
        self,
        key: str = "path",
        where: Sequence[Condition] = (),
        *,
        input_format: str = AUTO,
        log_format: str = "",
        envelope: str = "",
        time_zone: str = "",
    ) -> None:
        if envelope and input_format == "w3c":
            raise ValueError("--envelope is not for w3c, whose directives stand alone")
        self._parts = template.parse(key)
        if not self._parts:
            raise ValueError("an empty key names no field: path, status, '{vhost}{path}' …")
        template.check_conditions(where)
        self._where = where
        self._time_zone = time_zone
        self._auto = input_format == AUTO and not log_format
        self._asked = self._envelope = envelope
        self._cell: ReadCell = _untold
        self._pattern: PatternLines | None = None  # what else reads a format of one pattern
        self._directives = Directives()
        self._directed: dict[bool, PatternLines] = {}  # by whether tabs divide values
        self._opener = opener(envelope) if envelope else None
        self._told = not self._auto
        self._w3c = input_format == "w3c" and not log_format
        if log_format:
            self._use_pattern(format_from_text(log_format, time_zone))
        elif not self._auto:
            self._use(input_format)

    def begin(self, file: LogFile, offset: int, *, counted: bool = False) -> None:
        """Be ready for a file that is read from ``offset`` on.

        Args:
            file: it, of which nothing was read yet.
            counted: the line at ``offset`` was counted before its newline came.

        Raises:
            UnknownFormat: its first lines are of several formats, or of one that has not a field
                that is asked for, or that needs a time zone.
        """
        self._told = not self._auto
        if self._auto:
            if self._w3c:
                # Unlike other formats it goes by what the file itself says.
                self._cell, self._w3c = _untold, False
            lines = _first_bytes(file, None if counted else offset).split(b"\n")
            self._tell(lines if counted else lines[:-1])
        if self._w3c:
            self._use("w3c")
            self._look_back(file, offset)

    @property
    def knows(self) -> bool:
        """Whether a format is known, be it that of the file before."""
        return self._told or self._cell is not _untold

    def told(self, lines: Sequence[bytes], *, all: bool = False) -> bool:
        """Whether the format is known, at the latest by these lines: the first that are read.

        Args:
            all: no others will come.

        Raises:
            UnknownFormat: as :meth:`begin`; or it is not known, and will not be.
        """
        if not self._told:
            self._tell(lines)
        if self.knows:
            return True
        if not all and len(lines) < MOST_LINES:
            return False
        if reason := untold(lines):
            raise UnknownFormat(reason)
        return True

    def parse(self, line: bytes) -> Cell | None:
        """The key and the whole Unix minute of ``line`` (with or without its newline).

        None: it is left out.

        Raises:
            Malformed: the line has not the format, or gives no valid key.
        """
        if not self._told:
            self._tell([line])
        line = self._opened(line)
        if self._w3c and line.startswith(b"#"):
            raise Malformed("it is a directive")
        return self._cell(line)

    def count(self, lines: Sequence[bytes], first: int, counts: Counts) -> list[Rejected]:
        """Add each line's hit to ``counts`` and return the lines that gave none.

        Blank lines, directives and what the conditions leave out are neither. Runs of NUL before a
        line, as a truncated log has them, are ignored.

        Args:
            lines: without their newlines.
            first: the number of the first of them.
            counts: added to.

        Raises:
            UnknownFormat: as :meth:`begin`, of the first lines.
        """
        if not self._told:
            self._tell(lines)
        pattern = self._pattern
        if pattern and self._opener is None:
            return pattern.count(lines, first, counts)
        rejected: list[Rejected] = []
        for number, line in enumerate(lines, first):
            if not line.strip(BLANK):
                continue
            try:
                inner = self._opened(line)
                if self._w3c and inner.lstrip(b"\0").startswith((b"#", b"\xef\xbb\xbf#")):
                    self._direct(self._directives.after(inner.lstrip(b"\0")))
                    continue
                if pattern:
                    rejected += pattern.count([inner], number, counts)
                    continue
                inner = inner.strip(BLANK)
                cell = self._cell(inner) if inner else None
            except Malformed as error:
                rejected.append(Rejected(number, str(error)))
            else:
                if cell is not None:
                    counts[cell] = counts.get(cell, 0) + 1
        return rejected

    def _opened(self, line: bytes) -> bytes:
        if self._opener is None:
            return line
        inner = self._opener(line.strip(BLANK))
        if inner is None:
            raise Malformed(lacking(self._envelope))
        return inner

    def _tell(self, lines: Sequence[bytes]) -> None:
        """Tell the format by lines; as long as it cannot be told, they are rejected."""
        detected = detect(lines)
        if detected is None:
            return
        self._told = True
        self._envelope = self._asked or detected.envelope
        self._opener = opener(self._envelope) if self._envelope else None
        try:
            self._use(detected.input_format)
        except ValueError as error:
            raise UnknownFormat(str(error)) from None

    def _use(self, input_format: str) -> None:
        self._w3c = input_format == "w3c"
        self._pattern = None
        if self._w3c:
            self._cell, self._directives = _undirected, Directives()
        elif input_format in JSON_FORMATS:
            self._cell = _json_cell(input_format, self._parts, self._where, self._time_zone)
        else:
            self._use_pattern(named_format(input_format, self._time_zone))

    def _use_pattern(self, form: LineFormat) -> None:
        self._pattern = PatternLines(form, self._parts, self._where)
        self._cell = self._pattern.cell

    def _direct(self, directives: Directives) -> None:
        """Go by other directives of a W3C log."""
        if directives.shape != self._directives.shape:
            self._cell = self._directed_cell if directives.names else _undirected
            self._directed.clear()
        self._directives = directives

    def _directed_cell(self, line: bytes) -> Cell | None:
        """Key and minute of a line after directives.

        Raises:
            Malformed: it, or they, cannot be read.
        """
        tabs = divided_by_tabs(line)
        if tabs not in self._directed:
            try:
                form = w3c_format(self._directives, tabs=tabs, time_zone=self._time_zone)
                self._directed[tabs] = PatternLines(form, self._parts, self._where)
            except ValueError as error:  # Malformed is one
                raise Malformed(str(error)) from None
        return self._directed[tabs].cell(line)

    def _look_back(self, file: LogFile, offset: int) -> None:
        """Find the directives that are in force at ``offset``."""
        at, rest, found = 0, b"", Directives()
        while at < offset and (data := file.read(min(4 * _HEAD, offset - at), at)):
            at += len(data)
            whole, newline, rest = (rest + data).rpartition(b"\n")
            found = found.after_all(whole + newline)
        self._direct(found)


def _first_bytes(file: LogFile, end: int | None) -> bytes:
    """The first bytes up to ``end`` (None: as far as it goes), behind the NULs that a log begins
    with which was truncated under its writer.
    """
    at, data = 0, b""
    while wanted := min(_HEAD - len(data), _HEAD if end is None else end - at):
        more = file.read(wanted, at)
        if not more:
            break
        at += len(more)
        data = (data + more).lstrip(b"\0")
    return data


class PatternLines:
    """Lines that one pattern matches."""

    def __init__(
        self,
        form: LineFormat,
        parts: Sequence[str | template.Field],
        where: Sequence[Condition],
    ) -> None:
        self._form = form
        fields = {
            name: form.field(name)
            for name in (*template.fields(parts), *(each.field for each in where))
        }
        groups = sorted({group for field in fields.values() for group in field.groups})
        self._line = re.compile(form.pattern({*form.times, *groups}) + rb"\s*")
        index = self._line.groupindex
        self._groups = tuple(index[name] for name in groups)
        self._times = tuple(index[name] for name in form.times)

        def getter(name: str) -> Callable[[Sequence[bytes]], str]:
            return fields[name].getter(groups)

        self._read_key = template.fill(parts, getter)
        self._tests = [(getter(each.field), template.condition_test(each)) for each in where]
        self._keys: dict[object, str | None] = {}
        self._minutes: dict[object, int] = {}

    def cell(self, line: bytes) -> Cell | None:
        match = self._line.fullmatch(line)
        if match is None:
            raise Malformed(why_not(self._form, line))
        key = self._key(match.group(*self._groups))
        if key is None:
            return None
        return key, self._minute(match.group(*self._times), match)

    def count(self, lines: Iterable[bytes], first: int, counts: Counts) -> list[Rejected]:
        rejected: list[Rejected] = []
        fullmatch, groups, times = self._line.fullmatch, self._groups, self._times
        keys, minutes = self._keys, self._minutes
        # Asking for groups one by one is faster.
        group = groups[0] if len(groups) == 1 else 0
        first_time, second_time = times if len(times) == 2 else (0, 0)
        for number, line in enumerate(lines, first):
            match = fullmatch(line)
            try:
                if match is None:
                    stripped = line.strip(BLANK)
                    if not stripped:
                        continue
                    cell = self.cell(stripped)
                    if cell is None:
                        continue
                else:
                    raw: object = match[group] if group else match.group(*groups)
                    when: object = (
                        match[first_time] + match[second_time]
                        if first_time
                        else match.group(*times)
                    )
                    key = keys[raw] if raw in keys else self._key(raw)
                    if key is None:
                        continue
                    minute = minutes[when] if when in minutes else self._minute(when, match)
                    cell = key, minute
            except Malformed as error:
                rejected.append(Rejected(number, str(error)))
            else:
                counts[cell] = counts.get(cell, 0) + 1
        return rejected

    def _key(self, raw: object) -> str | None:
        if raw in self._keys:
            return self._keys[raw]
        found = _groups_of(raw)
        key = None
        if all(holds(read(found)) for read, holds in self._tests):
            key = _checked(self._read_key(found))
        if sum(map(len, found)) <= _LONGEST_CACHED:
            if len(self._keys) >= _CACHED:
                self._keys.clear()
            self._keys[raw] = key
        return key

    def _minute(self, raw: object, match: re.Match[bytes]) -> int:
        minute = self._minutes.get(raw)
        if minute is None:
            minute = self._form.minute([match[time] or b"" for time in self._times])
            if len(self._minutes) >= _CACHED:
                self._minutes.clear()
            self._minutes[raw] = minute
        return minute


def _groups_of(raw: object) -> tuple[bytes, ...]:
    """What ``match.group`` gave, of one group or of several; what did not match is empty."""
    if isinstance(raw, tuple):
        return tuple([each or b"" for each in raw])
    assert isinstance(raw, bytes) or raw is None
    return (raw or b"",)


def _checked(key: str) -> str:
    try:
        return check_key(key)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _untold(line: bytes) -> Cell | None:
    """Of a line whose format is not told: in none that is known, not even in the commonest."""
    raise Malformed(diagnosis(line))


def _undirected(line: bytes) -> Cell | None:
    """Of a line of a W3C log before its first ``#Fields:``."""
    raise Malformed("no #Fields: directive stands before it")


def _json_cell(
    input_format: str,
    parts: Sequence[str | template.Field],
    where: Sequence[Condition],
    time_zone: str,
) -> ReadCell:
    """What reads lines that are JSON objects."""
    read_key = template.fill(parts, lambda name: text_of(json_getter(input_format, name), name))
    tests = [
        (
            optional_text_of(json_getter(input_format, each.field), each.field),
            template.condition_test(each),
        )
        for each in where
    ]
    clock = Clock(time_zone=time_zone, begins=no_day)
    time = json_time(input_format)

    def cell(line: bytes) -> Cell | None:
        record = json_object(line)
        if not all(holds(read(record)) for read, holds in tests):
            return None
        minute = clock.minute(time(record))
        return _checked(read_key(record)), minute

    return cell
