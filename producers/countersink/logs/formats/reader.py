"""Base of the readers of formats, for ``tail`` and backfill: ``LineReader``, ``RecordTally``,
``Rejected`` (longest text and reason of a rejected line), keys, conditions,
``--exclude-key-glob``, ``--strip-query``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol, TypeVar

from countersink.logs import template
from countersink.logs.errors import Malformed, Misread
from countersink.logs.formats.detection import missing_envelope, without_envelope
from countersink.runtime.dimensions import RowKey, check_dimensions, check_name
from countersink.runtime.limits import check_key

R = TypeVar("R")
FoundKey = str | tuple[str, ...]
"""The key of a line, a text, or the values of its dimensions."""
ReadAt = Callable[[int, int], bytes]
"""Function that returns up to so many bytes of a content from an offset on; none at its end."""
LONGEST_TEXT: Final = 1_000
"""Bytes kept of a rejected line."""
LONGEST_REASON: Final = 255
"""Characters kept of a reason."""
BLANK: Final = b"\0 \t\r"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that was not counted.

    Attributes:
        line: its number in its file, from 1.
        reason: a phrase.
        text: the line's beginning; empty where it was too long to be read, or is not needed.
        misread: an option has to say how to read this and all other lines.
    """

    line: int
    reason: str
    text: bytes = field(default=b"", compare=False)
    misread: bool = field(default=False, compare=False)


@dataclass(eq=False)
class Window:
    """Some records, in order.

    Attributes:
        numbers: of their first lines, from 1; a range where every record is one line.
        records: without their newlines (CSV records may hold others) and the NULs before them; or,
            where every record is one line, all together with a newline after each.
        rejected: lines that are too long to be read; then the window has no others.
    """

    numbers: Sequence[int]
    records: list[bytes] | bytes
    rejected: list[Rejected]

    @cached_property
    def lines(self) -> list[bytes]:
        """The records without their newlines."""
        found = self.records
        return found if isinstance(found, list) else found.split(b"\n")[:-1]

    @cached_property
    def data(self) -> bytes:
        """The records with a newline after each."""
        found = self.records
        return found if isinstance(found, bytes) else b"".join([one + b"\n" for one in found])


def _itself(minute: int) -> int:
    return minute


@dataclass(slots=True)
class RecordTally:
    """Counts of the lines read so far: amounts by key and bucket, numbers of lines, rejected lines.

    Attributes:
        bucket: the label of the bucket of a whole Unix minute; by default the minute itself.
            Readers keep its results as long as they get an equal function.
        amounts: label to key or dimensions to amount; a sum may exceed 64 bits.
        lines: records read, blank lines and a header included.
        counted: lines that gave an amount.
        filtered: lines that the recipe leaves out.
        rejected: lines that could not be counted.
    """

    bucket: Callable[[int], int] = _itself
    amounts: defaultdict[int, Counter[RowKey]] = field(default_factory=lambda: defaultdict(Counter))
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def counts(self) -> dict[tuple[RowKey, int], int]:
        """All amounts, by (key, label)."""
        return {
            (key, label): amount
            for label, keys in self.amounts.items()
            for key, amount in keys.items()
        }

    def count(self, key: RowKey, minute: int, amount: int) -> None:
        """Add the amount of a line.

        Raises:
            Exception: as ``bucket``.
        """
        self.amounts[self.bucket(minute)][key] += amount
        self.counted += 1

    def add(self, other: "RecordTally") -> None:
        """Add the counts of other lines."""
        for label, amounts in other.amounts.items():
            self.amounts[label].update(amounts)
        self.lines += other.lines
        self.counted += other.counted
        self.filtered += other.filtered
        self.rejected += other.rejected

    def reject(self, line: int, reason: str | Malformed, text: bytes = b"") -> None:
        """Add a line that could not be counted."""
        misread = isinstance(reason, Misread)
        reason = str(reason)
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 1] + "…"
        self.rejected.append(Rejected(line, reason, text[:LONGEST_TEXT], misread))


class LineReader(Protocol):
    """Reader of the lines of one source, in any order of windows once it knows the lines before.
    Not thread-safe.

    All methods but ``count`` are for formats with directives, which say how the lines behind them
    are read; in other formats, lines do not depend on other lines.
    """

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``window``."""

    def look_back(self, read: ReadAt, offset: int) -> None:
        """Prepare for lines from ``offset`` on, by the directives before it.

        Raises:
            Exception: as ``read``.
        """
        return

    def note_directives(self, number: int, data: bytes, stop: int) -> None:
        """Note the directives in ``data[:stop]``, whose first line has this number; another reader
        counts the lines.
        """
        return

    def directives(self, number: int) -> object:
        """Directives in force at a line, for :meth:`set_directives` of another reader of the
        source; can be pickled.
        """
        return None

    def set_directives(self, number: int, directives: object) -> None:
        """Prepare for lines from a number on, with the ``directives`` of another reader."""
        return

    def day_of(self, number: int) -> bytes:
        """The day that a directive gives a counted line; empty: the line has its date."""
        return b""


def note_window(window: Window, tally: RecordTally) -> None:
    """Count the window's lines, and reject its lines that are too long."""
    tally.lines += len(window.numbers) + len(window.rejected)
    for each in window.rejected:
        tally.reject(each.line, each.reason)


class RejectingReader(LineReader):
    """Reader that rejects all lines that are not blank.

    Args:
        reason: returns the reason for a line.
    """

    def __init__(self, reason: Callable[[bytes], str]) -> None:
        self.reason = reason

    def count(self, window: Window, tally: RecordTally) -> None:
        """Reject the lines of ``window``."""
        note_window(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            if line.strip(BLANK):
                tally.reject(number, self.reason(line), line)


class EnvelopeReader(LineReader):
    """Reader that takes lines out of their envelope for another reader.

    Args:
        reader: of a format without directives.
        envelope: its name.
    """

    quoted = None

    def __init__(self, reader: LineReader, envelope: str) -> None:
        self._reader = reader
        self._envelope = envelope

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``window``."""
        lines = window.lines
        inner: list[bytes] = []
        rejected = len(tally.rejected)
        for number, line in zip(window.numbers, lines, strict=True):
            found = without_envelope(line.strip(BLANK), self._envelope)
            if found is None and line.strip(BLANK):
                tally.reject(number, missing_envelope(self._envelope), line)
            inner.append((found or b"").replace(b"\n", b" "))
        self._reader.count(Window(window.numbers, inner, window.rejected), tally)
        texts = dict(zip(window.numbers, lines, strict=True))
        tally.rejected[rejected:] = sorted(
            (
                replace(each, text=texts.get(each.line, each.text)[:LONGEST_TEXT])
                for each in tally.rejected[rejected:]
            ),
            key=lambda each: each.line,
        )


_VISITOR: Final = "\0visitor"
"""The name of the visitor among the dimensions of a line; no dimension can have this name."""


def with_visitor(key: RowKey, visitor: str) -> RowKey:
    """A key, or dimensions, together with a visitor."""
    pairs = (("", key),) if isinstance(key, str) else key
    return (*pairs, (_VISITOR, visitor))


def without_visitor(key: RowKey) -> tuple[RowKey, str | None]:
    """The arguments of :func:`with_visitor`; None: no visitor."""
    if isinstance(key, str) or key[-1][0] != _VISITOR:
        return key, None
    visitor = key[-1][1]
    return (key[0][1] if key[0][0] == "" else key[:-1]), visitor


class Keys:
    """Keys of lines, and the conditions that leave lines out.

    Args:
        key: the template, or the name of a field; '': the path.
        where: conditions, all of which must hold.
        exclude: shell patterns of keys that are left out.
        strip_query: keys, and values of dimensions, end before their ``?``.
        dimensions: (name, field) pairs; if any, lines have their values instead of a key.
        visitor: fields that together identify a visitor; if any, keys are of :func:`with_visitor`.
        column: of records: the field that is the key; '': the template applies.
        counter_column: of records: the field with the counter's name; '': all records count.
        counter: the name that counts.
        minutes: half-open range of Unix minutes; lines outside are left out. None: no limits.

    Attributes:
        leaves_out: whether some lines may be left out.
        counter_column, counter, minutes: as given.

    Raises:
        ValueError: an argument cannot be used; the message says what to do.
    """

    def __init__(
        self,
        key: str = "",
        where: Sequence[template.Condition] = (),
        exclude: Sequence[str] = (),
        *,
        strip_query: bool = False,
        dimensions: Sequence[tuple[str, str]] = (),
        visitor: Sequence[str] = (),
        column: str = "",
        counter_column: str = "",
        counter: str = "",
        minutes: tuple[int, int] | None = None,
    ) -> None:
        self._parts = () if dimensions or column else template.parse(key or "{path}")
        self._dimensions = _checked(dimensions)
        self._visitor = tuple(visitor)
        if dimensions and (key or column or exclude):
            raise ValueError(
                "--dimension takes the place of a key: do not give --key, --key-column or"
                " --exclude-key-glob with it; --where leaves lines out"
            )
        template.check_conditions(where)
        self.leaves_out = bool(where or exclude or minutes)
        self._column = column
        self.counter_column = counter_column
        self.counter = counter
        self.minutes = minutes
        self._where = where
        self._strip_query = strip_query
        self._excluded = tuple(template.shell_pattern(glob) for glob in exclude)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, each once, in their order, so that errors name the same missing
        field every time.
        """
        names = [
            *template.fields(self._parts),
            *(field for _, field in self._dimensions),
            *(each.field for each in self._where),
            *self._visitor,
        ]
        return tuple(dict.fromkeys(names))

    def key_of(
        self,
        getter: Callable[[str], Callable[[R], str]],
        optional: Callable[[str], Callable[[R], str]],
    ) -> Callable[[R], FoundKey]:
        """The reader of the key of a record, or of the values of its dimensions.

        Args:
            getter: returns the reader of a field of a record, by the field's name.
            optional: as ``getter``, for a field that may be missing.
        """
        readers = [optional(field) for _, field in self._dimensions]
        if not self._dimensions:
            key = getter(self._column) if self._column else template.fill(self._parts, getter)
            if not self._visitor:
                return key
            readers = [key]
        readers += [optional(field) for field in self._visitor]
        return lambda record: tuple([read(record) for read in readers])

    def tests(
        self, getter: Callable[[str], Callable[[R], str]]
    ) -> list[tuple[Callable[[R], str], Callable[[str], bool]]]:
        """For each condition, the reader of its field and the test of its text.

        Args:
            getter: returns the reader of a field of a record, by the field's name.
        """
        return [(getter(each.field), template.condition_test(each)) for each in self._where]

    def finished(self, found: FoundKey) -> RowKey | None:
        """The checked key or dimensions; None where the recipe leaves the line out.

        Raises:
            Malformed: the text has no UTF-8 form.
        """
        try:
            if self._visitor and not isinstance(found, str):
                visitor = " ".join([check_key(value) for value in found[-len(self._visitor) :]])
                rest = found[: -len(self._visitor)]
                counted = self._finished(rest if self._dimensions else rest[0])
                return None if counted is None else with_visitor(counted, visitor)
            return self._finished(found)
        except ValueError as error:
            raise Malformed(str(error)) from None

    def _finished(self, found: FoundKey) -> RowKey | None:
        if not isinstance(found, str):
            values = map(self._stripped, found)
            names = (name for name, _ in self._dimensions)
            return check_dimensions(dict(zip(names, values, strict=True)))
        key = self._stripped(found)
        if any(excluded(key) for excluded in self._excluded):
            return None
        return check_key(key)

    def _stripped(self, text: str) -> str:
        return text.partition("?")[0] if self._strip_query else text


def _checked(dimensions: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Pairs of names and fields, checked: each name is there once."""
    names = [check_name(name) for name, _ in dimensions]
    check_dimensions(dict.fromkeys(names, ""))  # not too many
    for name, read in dimensions:
        if names.count(name) > 1:
            raise ValueError(f"the dimension {name} is given twice")
        if not read:
            raise ValueError(f"the dimension {name} names no field")
    return dimensions
