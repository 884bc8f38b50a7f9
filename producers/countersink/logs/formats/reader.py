"""Code that the readers of all formats share, for ``tail`` and backfill: ``LineReader``, the base;
``RecordTally`` and ``Rejected``, the results; ``Keys``, the rule that gives lines their keys, with
conditions, ``--exclude-key-glob`` and ``--strip-query``.
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
"""The text of a line's key, or the texts of its dimensions and visitor, before they are checked."""
ReadAt = Callable[[int, int], bytes]
"""Function of a size and an offset that reads up to so many bytes from there; b"" at the end."""
LONGEST_TEXT: Final = 1_000
"""Number of bytes that are kept of a rejected line."""
LONGEST_REASON: Final = 255
"""Number of characters that are kept of the reason for rejecting a line."""
BLANK: Final = b"\0 \t\r"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that could not be counted.

    Attributes:
        line: the number of the line in its file, from 1.
        reason: a phrase that says why the line could not be counted.
        text: the beginning of the line; empty if the line was too long, or the text is not needed.
        misread: whether the reason was a :class:`Misread`, so that the user must choose an option.
    """

    line: int
    reason: str
    text: bytes = field(default=b"", compare=False)
    misread: bool = field(default=False, compare=False)


@dataclass(eq=False)
class RecordBlock:
    """Successive records of a source, or a single line that is too long to be read.

    Attributes:
        numbers: the number of each record's first line in the source, from 1.
        records: a list of the records, without the newlines at their ends and the NULs before them.
            Or, possible if every record is one line: all as one text, with a newline after each.
        rejected: a list of the line that is too long, else empty; with it, there are no records.
    """

    numbers: Sequence[int]
    records: list[bytes] | bytes
    rejected: list[Rejected]

    @cached_property
    def lines(self) -> list[bytes]:
        """The records, without the newlines at their ends."""
        found = self.records
        return found if isinstance(found, list) else found.split(b"\n")[:-1]

    @cached_property
    def data(self) -> bytes:
        """All records as one text, with a newline after each."""
        found = self.records
        return found if isinstance(found, bytes) else b"".join([one + b"\n" for one in found])


def _itself(minute: int) -> int:
    return minute


@dataclass(slots=True)
class RecordTally:
    """Counts of the lines read so far: amounts by key and bucket, numbers of lines, rejected lines.

    Attributes:
        bucket: takes a whole Unix minute, and returns the label (number) of its bucket; by default
            the minute itself. Readers cache its results as long as tallies have an equal function.
        amounts: the amounts by label, and then by key or dimensions; a sum may exceed 64 bits.
        lines: number of records that were read; blank, too long and header lines included.
        counted: number of lines that gave an amount.
        filtered: number of lines that the options leave out.
        rejected: the lines that could not be counted.
    """

    bucket: Callable[[int], int] = _itself
    amounts: defaultdict[int, Counter[RowKey]] = field(default_factory=lambda: defaultdict(Counter))
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def counts(self) -> dict[tuple[RowKey, int], int]:
        """All amounts, by (key or dimensions, label of the bucket)."""
        return {
            (key, label): amount
            for label, keys in self.amounts.items()
            for key, amount in keys.items()
        }

    def count(self, key: RowKey, minute: int, amount: int) -> None:
        """Count a line: add its amount to the bucket of its minute, and 1 to ``counted``.

        Raises:
            Exception: any error that ``bucket`` raises.
        """
        self.amounts[self.bucket(minute)][key] += amount
        self.counted += 1

    def add(self, other: "RecordTally") -> None:
        """Add the counts and rejected lines of a tally whose ``bucket`` gives the same labels."""
        for label, amounts in other.amounts.items():
            self.amounts[label].update(amounts)
        self.lines += other.lines
        self.counted += other.counted
        self.filtered += other.filtered
        self.rejected += other.rejected

    def reject(self, line: int, reason: str | Malformed, text: bytes = b"") -> None:
        """Add to ``rejected`` the line number ``line``, and the beginnings of reason and text."""
        misread = isinstance(reason, Misread)
        reason = str(reason)
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 1] + "…"
        self.rejected.append(Rejected(line, reason, text[:LONGEST_TEXT], misread))


class LineReader(Protocol):
    """Reader of the lines of one source. Not thread-safe.

    All methods but ``count`` are for formats with directives: lines such as ``#Fields:``, which say
    how the lines after them are read. Blocks may be counted in any order, if the reader knows the
    directives before them. In other formats, they do nothing.
    """

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the counts and rejected lines of ``block`` to ``tally``."""

    def look_back(self, read: ReadAt, offset: int) -> None:
        """Note the directives (lines such as ``#Fields:``) before ``offset``, read by ``read``. By
        default, for formats without directives, do nothing.

        Raises:
            Exception: any error that ``read`` raises.
        """
        return

    def note_directives(self, number: int, data: bytes, stop: int) -> None:
        """Note the directives (lines such as ``#Fields:``) in the lines ``data[:stop]``, of which
        the first has the number ``number``. By default, for formats without, do nothing."""
        return

    def directives(self, number: int) -> object:
        """Return the directives that apply to the line ``number``, for :meth:`set_directives` of
        another reader; they can be pickled. By default, for formats without, return None."""
        return None

    def set_directives(self, number: int, directives: object) -> None:
        """Use ``directives``, which another reader's :meth:`directives` returned for ``number``. By
        default, for formats without directives, do nothing."""
        return

    def day_of(self, number: int) -> bytes:
        """Return a line's day, for its sample, if only a directive gives it; by default, b""."""
        return b""


def note_block(block: RecordBlock, tally: RecordTally) -> None:
    """Add to ``tally`` how many lines a block has, and reject the line that is too long, if any."""
    tally.lines += len(block.numbers) + len(block.rejected)
    for each in block.rejected:
        tally.reject(each.line, each.reason)


class RejectingReader(LineReader):
    """Reader that rejects all lines that are not blank.

    Args:
        reason: takes a line, and returns the reason for rejecting it.
    """

    def __init__(self, reason: Callable[[bytes], str]) -> None:
        self.reason = reason

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the lines of ``block`` that are not blank to ``tally``, as rejected lines."""
        note_block(block, tally)
        for number, line in zip(block.numbers, block.lines, strict=True):
            if line.strip(BLANK):
                tally.reject(number, self.reason(line), line)


class EnvelopeReader(LineReader):
    """Reader that takes each line out of its envelope, and passes it to another reader.

    Args:
        reader: the other reader, of a format without directives.
        envelope: the text around each line, such as ``syslog``; non-blank others are rejected.
    """

    quoted = None

    def __init__(self, reader: LineReader, envelope: str) -> None:
        self._reader = reader
        self._envelope = envelope

    def count(self, block: RecordBlock, tally: RecordTally) -> None:
        """Add the counts and rejected lines (with their envelopes) of ``block`` to ``tally``."""
        lines = block.lines
        inner: list[bytes] = []
        rejected = len(tally.rejected)
        for number, line in zip(block.numbers, lines, strict=True):
            found = without_envelope(line.strip(BLANK), self._envelope)
            if found is None and line.strip(BLANK):
                tally.reject(number, missing_envelope(self._envelope), line)
            inner.append((found or b"").replace(b"\n", b" "))
        self._reader.count(RecordBlock(block.numbers, inner, block.rejected), tally)
        texts = dict(zip(block.numbers, lines, strict=True))
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
    """Join a line's key or dimensions and its visitor to one tuple, by which tallies count."""
    pairs = (("", key),) if isinstance(key, str) else key
    return (*pairs, (_VISITOR, visitor))


def without_visitor(key: RowKey) -> tuple[RowKey, str | None]:
    """Return (key or dimensions, visitor) as :func:`with_visitor` joined them; else (key, None)."""
    if isinstance(key, str) or key[-1][0] != _VISITOR:
        return key, None
    visitor = key[-1][1]
    return (key[0][1] if key[0][0] == "" else key[:-1]), visitor


class Keys:
    """Rule that gives lines their keys, and says which lines are left out.

    Args:
        key: the key template, or the name of a field; '' stands for ``path``.
        where: the conditions; a line is counted only if all of them hold.
        exclude: shell patterns; lines whose key matches one of them are left out.
        strip_query: whether keys, and values of dimensions, are cut before their first ``?``.
        dimensions: pairs of a dimension's name and the field with its value, in place of a key.
        visitor: fields that identify a visitor; if any are given, :func:`with_visitor` makes keys.
        column: the field of a record that is its key; with '', the template makes the key.
        counter_column: the field of a record that names its counter; with '', all records count.
        counter: the counter; records with another name in ``counter_column`` are left out.
        minutes: half-open range of Unix minutes; lines outside it are left out. None for no limits.

    Attributes:
        leaves_out: whether ``where``, ``exclude`` or ``minutes`` may leave lines out.
        counter_column, counter, minutes: the arguments of these names.

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
        """The fields that template, dimensions, conditions and visitor read (but no columns), each
        once. Their order is fixed, so that an error names the same missing field every time.
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
        """Return a function that takes a record, and returns the argument of :meth:`finished`: a
        text, the key; or, with dimensions or a visitor, a tuple: the key, or the values of the
        dimensions, and then the values of the visitor's fields, if any.

        Args:
            getter: takes the name of a field of the key; returns a function that reads the field.
            optional: the same for fields of dimensions and visitor, which may be missing.
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
        """Return a pair of functions for each condition: the first reads the condition's field
        from a record, the second says whether the condition holds for the text.

        Args:
            getter: takes the name of a field, and returns a function that reads it from a record.
        """
        return [(getter(each.field), template.condition_test(each)) for each in self._where]

    def finished(self, found: FoundKey) -> RowKey | None:
        """Return the key or dimensions in ``found``, the result of a function of :meth:`key_of`,
        joined with the visitor if there is one. Texts are cut to 255 bytes; with ``strip_query``,
        those of key or dimensions also before ``?``. Return None if the key is excluded.

        Raises:
            Malformed: a text has no UTF-8 form."""
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
    """Check dimensions and return them unchanged.

    Raises:
        ValueError: there are more than 8, a name is invalid or occurs twice, or a field is ''.
    """
    names = [check_name(name) for name, _ in dimensions]
    if names:
        check_dimensions(dict.fromkeys(names, ""))  # not too many
    for name, read in dimensions:
        if names.count(name) > 1:
            raise ValueError(f"the dimension {name} is given twice")
        if not read:
            raise ValueError(f"the dimension {name} names no field")
    return dimensions
