"""What readers of formats share, for ``tail`` and backfill: ``LineReader``, ``RecordTally``,
``Rejected`` (how long the text and reason of a rejected line may be), keys, conditions,
``--exclude-key-glob``, ``--strip-query``."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol, TypeVar

from countersink.logs import template
from countersink.logs.errors import Malformed, Misread
from countersink.logs.formats.detection import lacking, without_envelope
from countersink.runtime.dimensions import RowKey, check_dimensions, check_name
from countersink.runtime.limits import check_key

R = TypeVar("R")
FoundKey = str | tuple[str, ...]
"""What a line has for its key: a text, or the values of its dimensions."""
ReadAt = Callable[[int, int], bytes]
"""Gives up to so many bytes of a content, from an offset on; none at its end."""
LONGEST_TEXT: Final = 1_000
"""Bytes that are kept of a rejected line."""
LONGEST_REASON: Final = 255
"""Characters of the reason."""
BLANK: Final = b"\0 \t\r"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that was not counted.

    Attributes:
        line: its number in its file, from 1.
        reason: why, as a phrase.
        text: how it begins; empty where it was too long to be read, or nobody asks.
        misread: an option has to say how it, and all others, are read.
    """

    line: int
    reason: str
    text: bytes = field(default=b"", compare=False)
    misread: bool = field(default=False, compare=False)


@dataclass(eq=False)
class Window:
    """Some records, in order.

    Attributes:
        numbers: of the lines they begin at, from 1; a range where every record is one line.
        records: without their newlines (CSV records may hold others) and the NULs before them; or,
            where every record is one line, all together with a newline after each.
        rejected: lines that are too long to be read; then there are no others.
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
    """What was read so far: amounts by key and bucket, numbers of lines, rejected lines.

    Attributes:
        bucket: the label of the bucket of a whole Unix minute; the minute itself if nothing is
            given. Readers remember what it said, as long as they are given an equal one.
        amounts: label to key or dimensions to amount; a sum may leave 64 bits.
        lines: records looked at, blank lines and a header included.
        counted: those that gave an amount.
        filtered: those that the recipe leaves out.
        rejected: those that could not be counted.
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
        """Note what a line gives.

        Raises:
            Exception: as ``bucket``.
        """
        self.amounts[self.bucket(minute)][key] += amount
        self.counted += 1

    def add(self, other: "RecordTally") -> None:
        """Note what other lines came to."""
        for label, amounts in other.amounts.items():
            self.amounts[label].update(amounts)
        self.lines += other.lines
        self.counted += other.counted
        self.filtered += other.filtered
        self.rejected += other.rejected

    def reject(self, line: int, reason: str | Malformed, text: bytes = b"") -> None:
        """Note that ``line`` could not be counted."""
        misread = isinstance(reason, Misread)
        reason = str(reason)
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 1] + "…"
        self.rejected.append(Rejected(line, reason, text[:LONGEST_TEXT], misread))


class LineReader(Protocol):
    """Reads the lines of one source, in any order of windows once it has looked at what is before.
    Not thread-safe.

    All but ``count`` is for formats with directives, which say how the lines behind them are read;
    in other formats a line means the same wherever it stands.
    """

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to, its rejected ones included."""

    def look_back(self, read: ReadAt, offset: int) -> None:
        """Be ready for lines from ``offset`` on, whatever stands before.

        Raises:
            Exception: what ``read`` raises.
        """
        return

    def see(self, number: int, data: bytes, stop: int) -> None:
        """Look at the lines ``data[:stop]`` from a number on, which another reader counts."""
        return

    def directives(self, number: int) -> object:
        """Directives in force at a line, for :meth:`directed` of another reader of the same source;
        can be pickled.
        """
        return None

    def directed(self, number: int, directives: object) -> None:
        """Be ready for lines from a number on, whose ``directives`` another reader has told."""
        return

    def day_of(self, number: int) -> bytes:
        """The day that a directive says of a line that was counted; empty: the line says all."""
        return b""


def note_window(window: Window, tally: RecordTally) -> None:
    """Count the window's lines, and those of it that were too long to be read as rejected."""
    tally.lines += len(window.numbers) + len(window.rejected)
    for each in window.rejected:
        tally.reject(each.line, each.reason)


class RejectingReader(LineReader):
    """Rejects all lines that are not blank.

    Args:
        reason: says of a line why.
    """

    def __init__(self, reason: Callable[[bytes], str]) -> None:
        self.reason = reason

    def count(self, window: Window, tally: RecordTally) -> None:
        """Reject the lines of ``window``."""
        note_window(window, tally)
        for number, line in zip(window.numbers, window.lines, strict=True):
            if line.strip(BLANK):
                tally.reject(number, self.reason(line), line)


class Opened(LineReader):
    """Takes lines out of their envelope for another reader.

    Args:
        reader: reads what stands in it; one for which a line means the same wherever it stands.
        envelope: its name.
    """

    quoted = None

    def __init__(self, reader: LineReader, envelope: str) -> None:
        self._reader = reader
        self._envelope = envelope

    def count(self, window: Window, tally: RecordTally) -> None:
        """Add what the lines of ``window`` come to."""
        lines = window.lines
        inner: list[bytes] = []
        rejected = len(tally.rejected)
        for number, line in zip(window.numbers, lines, strict=True):
            found = without_envelope(line.strip(BLANK), self._envelope)
            if found is None and line.strip(BLANK):
                tally.reject(number, lacking(self._envelope), line)
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
"""Names the visitor among the dimensions of a line; a dimension cannot have this name."""


def with_visitor(key: RowKey, visitor: str) -> RowKey:
    """A key, or dimensions, and who was seen there."""
    pairs = (("", key),) if isinstance(key, str) else key
    return (*pairs, (_VISITOR, visitor))


def without_visitor(key: RowKey) -> tuple[RowKey, str | None]:
    """What :func:`with_visitor` was given; None: there is no visitor."""
    if isinstance(key, str) or key[-1][0] != _VISITOR:
        return key, None
    visitor = key[-1][1]
    return (key[0][1] if key[0][0] == "" else key[:-1]), visitor


class Keys:
    """Which keys lines have, and which lines are left out.

    Args:
        key: the template, or the name of a field; '': the path.
        where: conditions, all of which must hold.
        exclude: shell patterns of keys that are left out.
        strip_query: keys, and values of dimensions, end before their ``?``.
        dimensions: (name, field) pairs; with any, lines have their values instead of a key.
        visitor: fields that together say who was seen; of a line whose visitor is asked for, what
            is counted is what :func:`with_visitor` makes.
        column: of records: the field that is the key; '': what the template says.
        counter_column: of records: the field that says whose a record is; '': all count.
        counter: whose records count.
        minutes: half-open range of Unix minutes; lines outside are left out. None: all are in.

    Attributes:
        leaves_out: whether some lines may be left out.
        counter_column, counter, minutes: as given.

    Raises:
        ValueError: something cannot be; the message says what to do.
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
                "--dimension stands in the place of a key: leave out --key, --key-column and"
                " --exclude-key-glob; --where leaves lines out"
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
        """The names of the fields, each once, in their order: so the same one is said not to be
        there, every time.
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
        """What reads the key of a record, or the values of its dimensions.

        Args:
            getter: gives what reads the field of that name in a record.
            optional: the same, of a field that may be missing.
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
        """Of each condition, what reads its field in a record and what says whether it holds.

        Args:
            getter: gives what reads the field of that name in a record.
        """
        return [(getter(each.field), template.condition_test(each)) for each in self._where]

    def finished(self, found: FoundKey) -> RowKey | None:
        """What is counted: the key, or the dimensions; None where the recipe leaves it out.

        Raises:
            Malformed: it is no text that has a UTF-8 form.
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
    """Pairs of names and fields, of which each name is there once."""
    names = [check_name(name) for name, _ in dimensions]
    check_dimensions(dict.fromkeys(names, ""))  # no more than there may be
    for name, read in dimensions:
        if names.count(name) > 1:
            raise ValueError(f"the dimension {name} is given twice")
        if not read:
            raise ValueError(f"the dimension {name} names no field")
    return dimensions
