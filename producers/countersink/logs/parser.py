"""``Parser``: from lines to their keys and minutes or the reasons of their rejection, by a format,
a key template and conditions; the formats and their readers are in ``formats/``.

What a line's key is, a template says: text with fields of the format in it, such as
``{host}{path}``. Conditions leave lines out. Which formats there are is told in
:mod:`countersink.logs.formats`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from countersink.logs.errors import UnknownFormat
from countersink.logs.file import LogFile
from countersink.logs.formats import line_reader
from countersink.logs.formats.detection import AUTO, MOST_LINES, detect, untold
from countersink.logs.formats.reader import (
    Keys,
    LineReader,
    RecordTally,
    Rejected,
    RejectingReader,
    Window,
)
from countersink.logs.formats.records import JsonLines
from countersink.logs.formats.w3c import W3cLog
from countersink.logs.line import diagnosis
from countersink.logs.template import Condition
from countersink.logs.times import Clock, no_day
from countersink.runtime.dimensions import RowKey

Counts = dict[tuple[RowKey, int], int]
"""(key or dimensions, whole Unix minutes) to hits."""

_HEAD: Final = 64 * 1024
"""Bytes that are read at once to tell the format of a file."""


class Parser:
    """Reads lines for one template of keys. Remembers what it has seen; not thread-safe.

    Args:
        key: the template, or the name of a field.
        where: conditions, all of which must hold; other lines are left out.
        dimensions: (name, field) pairs, in the place of ``key``.
        visitor: fields that together say who was seen.
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
        dimensions: Sequence[tuple[str, str]] = (),
        visitor: Sequence[str] = (),
        input_format: str = AUTO,
        log_format: str = "",
        envelope: str = "",
        time_zone: str = "",
    ) -> None:
        if not (key or dimensions):
            raise ValueError("an empty key names no field: path, status, '{vhost}{path}' …")
        clock = Clock(time_zone=time_zone, begins=no_day, advises=False)
        self._reader_of = partial(
            line_reader,
            keys=Keys(key, where, dimensions=dimensions, visitor=visitor),
            json_lines=partial(JsonLines, clock=clock),
            log_format=log_format,
            time_zone=time_zone,
        )
        self._auto = input_format == AUTO and not log_format
        self._asked = envelope
        self._told = not self._auto
        self._reader: LineReader = RejectingReader(diagnosis)
        self._untold = self._reader
        if self._told:
            self._reader = self._reader_of(input_format, envelope=envelope)

    def begin(self, file: LogFile, offset: int) -> None:
        """Be ready for a file that is read from ``offset`` on.

        Args:
            file: it, of which nothing was read yet.

        Raises:
            UnknownFormat: its first lines are of several formats, or of one that has not a field
                that is asked for, or that needs a time zone.
        """
        self._told = not self._auto
        if isinstance(self._reader, W3cLog):
            # Unlike other formats it goes by what the file itself says.
            self._reader = self._untold if self._auto else self._reader_of("w3c")
        if self._auto:
            self._tell(_first_bytes(file, offset).split(b"\n")[:-1])
        self._reader.look_back(file.read, offset)

    @property
    def knows(self) -> bool:
        """Whether a format is known, be it that of the file before."""
        return self._told or self._reader is not self._untold

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
        tally = RecordTally()
        bare = [line.lstrip(b"\0") for line in lines]
        self._reader.count(Window(range(first, first + len(bare)), bare, []), tally)
        for cell, amount in tally.counts.items():
            counts[cell] = counts.get(cell, 0) + amount
        return tally.rejected

    def _tell(self, lines: Sequence[bytes]) -> None:
        """Tell the format by lines; as long as it cannot be told, they are rejected."""
        detected = detect(lines)
        if detected is None:
            return
        self._told = True
        try:
            envelope = self._asked or detected.envelope
            self._reader = self._reader_of(detected.input_format, envelope=envelope)
        except ValueError as error:
            raise UnknownFormat(str(error)) from None


def _first_bytes(file: LogFile, end: int) -> bytes:
    """The first bytes up to ``end``, of as many lines as tell a format, behind the NULs that a log
    begins with which was truncated under its writer.
    """
    at, data = 0, b""
    while data.count(b"\n") < MOST_LINES:
        more = file.read(min(_HEAD, end - at), at)
        if not more:
            break
        at += len(more)
        data = (data + more).lstrip(b"\0")
    return data
