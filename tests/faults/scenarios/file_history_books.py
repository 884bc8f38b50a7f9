"""Books of a history of files: which bytes of which source are counted, by which run, and what that
adds up to; and whether a refusal of a backfill has its reason.

Which run has counted which bytes is read from the table of chunks. Whether it may have, and what
follows for the totals, is decided here, from the contents that were given and docs/backfill.md.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from tests.faults.scenarios.file_history_counter import Cell
from tests.faults.scenarios.history_books import day_of
from tests.support.virtual_logs import LogEvent

Days = tuple[date | None, date | None]
"""--from and --to."""
Row = tuple[int, int, int, int, bytes]
"""Of a chunk that is counted: run, source, first byte, end, SHA-256 of its bytes."""
FIGURES: Final = ("lines", "counted", "filtered", "rejected", "amount")
KNOWN_BYTES: Final = 4096
"""First bytes by which a source is found."""
LEAST, PART, FEW = 8, 10, 2048
"""So many known lines, and such a part of those of a chunk, are too many; all lines of a chunk are
compared that has no more than ``FEW``."""


def waits(form: str, *, piped: bool, packed: bool, age_s: int) -> bool:
    """Whether the last line of a source that is added is not counted before it has its newline."""
    return form == "combined" and not (piped or packed) and age_s < 3600


@dataclass(frozen=True, eq=False)
class Given:
    """A content that a backfill was given; ``due`` is what of it is to be counted, without a last
    line that waits.
    """

    name: str
    content: bytes
    due: bytes
    days: Days
    repeats: bool


@dataclass
class Figures:
    """Numbers and amounts of some lines; ``texts`` are those that count, and have their newline."""

    numbers: Counter[str] = field(default_factory=Counter)
    cells: Counter[Cell] = field(default_factory=Counter)
    texts: set[bytes] = field(default_factory=set)

    def add(self, other: "Figures", sign: int = 1) -> None:
        """Add others, or take them away."""
        self.numbers.update({name: sign * number for name, number in other.numbers.items()})
        self.cells.update({cell: sign * amount for cell, amount in other.cells.items()})
        self.texts |= other.texts


@dataclass
class Piece:
    """Bytes of a source that a run has counted."""

    start: int
    end: int
    run: int
    figures: Figures = field(default_factory=Figures)


@dataclass
class KnownSource:
    """A source: its bytes as far as it was read, in pieces, and its first ones as far as they were
    seen, which a last line may follow that waits; ``days`` are what it may have been read by last,
    and with ``repeats`` lines of it count that others have.
    """

    days: set[Days]
    repeats: bool
    text: bytes = b""
    seen: bytes = b""
    pieces: list[Piece] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether any line of it counts; else it may be read anew, by other options."""
        return any(piece.figures.numbers["counted"] for piece in self.pieces)

    def agrees(self, content: bytes) -> bool:
        """Whether a content is it: the same, grown, or an older copy."""
        size = min(len(content), len(self.seen))
        known = content.startswith(self.text) or self.text.startswith(content)
        return known and content[:size] == self.seen[:size]

    def may_be_read(self, days: Days) -> bool:
        """Whether it may be read on for these days: it was read so, or they begin later."""
        start = days[0] or date.min
        return any(days[1] == last and (first or date.min) <= start for first, last in self.days)

    def put(self, piece: Piece, content: bytes) -> None:
        """Enter bytes of a content, none of which may be counted yet."""
        assert piece.start == len(self.text), f"{piece} does not follow {len(self.text)}"
        self.text = content[: piece.end]
        self.pieces.append(piece)

    def undo(self, runs: Collection[int]) -> list[Piece]:
        """Take away the last pieces, which are of some runs; there are no others of these."""
        undone = list[Piece]()
        while self.pieces and self.pieces[-1].run in runs:
            undone.append(self.pieces.pop())
        assert not any(piece.run in runs for piece in self.pieces), f"{runs} of {self.pieces}"
        if undone:
            self.text, self.seen = self.text[: undone[-1].start], self.seen[: undone[-1].start]
        return undone

    def ends_within_chunk(self, content: bytes) -> bool:
        """Whether a content, which begins alike, ends within a chunk, so that nobody can tell."""
        head = min(len(content), len(self.text), KNOWN_BYTES)
        return content[:head] == self.text[:head] and any(
            one.start < len(content) < one.end and content.startswith(self.text[: one.start])
            for one in self.pieces
        )

    def goes_on_within_line(self, content: bytes, detail: str) -> bool:
        """Whether a content goes on in a line that was counted, by the run that is told."""
        size = len(self.text)
        follows = content.startswith(self.text) and content[size : size + 1] not in (b"", b"\n")
        last = [piece.run for piece in self.pieces[-1:]]
        told = any(f"`countersink backfills undo {run}`, then" in detail for run in last)
        return follows and self.text[-1:] != b"\n" and told


class FileBook:
    """The books of one counter, for what lines say, of which only those count that are ``web`` if
    it is ``filtered``: what its totals are, and days that reconciles have set.
    """

    def __init__(self, said: Mapping[bytes, LogEvent], zone: str, *, filtered: bool) -> None:
        self.cells, self.marks = Counter[Cell](), set[date]()
        self._sources: dict[int, KnownSource] = {}
        self._said, self._zone, self._filtered = said, zone, filtered
        self._before: dict[int, set[bytes]] = {}

    def figures(self, data: bytes, days: Days) -> Figures:
        """Numbers and amounts of lines; the last one counts as it stands."""
        found, (first, last) = Figures(), days
        for line in data.splitlines(keepends=True):
            said = self._said.get(line.removesuffix(b"\n"))
            day = None if said is None else day_of(self._zone, said.minute)
            found.numbers["lines"] += 1
            if said is None or day is None:
                found.numbers["rejected"] += 1
            elif not (first or day) <= day <= (last or day) or (self._filtered and not said.web):
                found.numbers["filtered"] += 1
            elif said.amount is None:
                found.numbers["rejected"] += 1
            else:
                found.numbers.update({"counted": 1, "amount": said.amount})
                found.cells[day, said.key] += said.amount
                found.texts |= {line} if line.endswith(b"\n") else set()
        return found

    def undo(self, runs: Collection[int]) -> None:
        """Take back what some runs have added."""
        for source in self._sources.values():
            for piece in source.undo(runs):
                self.cells.subtract(piece.figures.cells)

    def enter(
        self,
        ended: Mapping[int, Sequence[Given]],
        rows: Iterable[Row],
        undone: Collection[int] = (),
    ) -> Mapping[Given, Figures]:
        """Enter what ended runs have counted; ``undone`` are those that were undone meanwhile."""
        self._before = self._lines()
        self.undo(undone)
        certain = self._lines(first=True)
        found: defaultdict[Given, Figures] = defaultdict(Figures)
        for row in rows:
            run, number, start, end, _ = row
            one = self._given(row, ended[run])
            source = self._source(number, one, start)
            figures = self._between(one, start, end)
            others = (lines for other, lines in certain.items() if other != number)
            known, all_lines = len(figures.texts & set().union(*others)), len(figures.texts)
            few = known < max(LEAST, all_lines / PART) or one.repeats or source.repeats
            assert few or all_lines > FEW, f"{known} lines of {one.name} count in other sources"
            assert not self._set(figures), f"{self._set(figures)} were set: {one.name}"
            source.put(Piece(start, end, run, figures), one.due)
            source.seen = max(source.seen, one.content[:KNOWN_BYTES], key=len)
            source.days = {one.days}
            self.cells.update(figures.cells)
            found[one].add(figures)
        for source in self._sources.values():
            for one in (each for given in ended.values() for each in given):
                if source.agrees(one.content):
                    source.repeats |= one.repeats
                    source.days |= {one.days} if source.may_be_read(one.days) else set()
        return found

    def check(self, one: Given, counted: Figures, told: Mapping[str, Any], *, alone: bool) -> None:
        """Check what is reported of a source; ``alone``: nothing was undone meanwhile."""
        assert Counter({name: told[name] for name in FIGURES}) == counted.numbers, (told, counted)
        if told["outcome"] == "failed":
            assert not alone or self._may_refuse(one, told["detail"]), f"without a reason: {told}"
        elif alone and one.due:
            assert any(source.text.startswith(one.due) for source in self._sources.values()), (
                f"not all of it is counted: {told}"
            )

    def _given(self, row: Row, given: Sequence[Given]) -> Given:
        """The content that a chunk is of."""
        _, number, start, end, digest = row
        known = self._sources[number].text[:start] if number in self._sources else b""
        for one in (each for each in given if len(each.due) >= end):
            same = hashlib.sha256(one.due[start:end]).digest() == digest
            if same and one.due.startswith(known):
                return one
        raise AssertionError(f"{row}: nothing of these bytes was to be counted")

    def _source(self, number: int, one: Given, start: int) -> KnownSource:
        """The source that a chunk is of."""
        if number not in self._sources:
            for other, source in self._sources.items():
                known = source.counts and source.agrees(one.content)
                assert not known, f"{one.name} is source {other}, and counted as {number}"
            self._sources[number] = KnownSource({one.days}, one.repeats)
        source = self._sources[number]
        assert not source.counts or source.may_be_read(one.days), f"now {one.days}, was {source}"
        if not source.counts and start == 0:
            source.text, source.pieces = b"", []
        return source

    def _between(self, one: Given, start: int, end: int) -> Figures:
        """What the bytes of a chunk add, whose lines are whole; its first newline may be that of a
        line that was counted.
        """
        due, begin = one.due, one.due.rfind(b"\n", 0, start) + 1
        assert due[end - 1 : end] == b"\n" or end == len(due), f"{end} is within a line"
        assert begin == start or due[start : start + 1] == b"\n", f"{start} is within a line"
        found = self.figures(due[begin:end], one.days)
        found.add(self.figures(due[begin:start], one.days), -1)
        return found

    def _set(self, figures: Figures) -> set[date]:
        """The days of lines that reconciles have set."""
        return self.marks & {day for (day, _), amount in figures.cells.items() if amount}

    def _lines(self, *, first: bool = False) -> dict[int, set[bytes]]:
        """Lines that count, by source; ``first``: of its first chunk, if all are remembered."""
        found: dict[int, set[bytes]] = {}
        for number, source in self._sources.items():
            pieces = [one.figures.texts for one in source.pieces if not (first and one.start)]
            found[number] = set().union(*(each for each in pieces if not first or len(each) <= FEW))
        return found

    def _may_refuse(self, one: Given, detail: str) -> bool:
        """Whether the reason that is told for a refusal is there."""
        own = {number: each for number, each in self._sources.items() if each.agrees(one.content)}
        if "different lines that were compared" in detail:
            of_all = [*self._before.items(), *self._lines().items()]
            others = set[bytes]().union(*(lines for number, lines in of_all if number not in own))
            left = [one.due[len(source.text) :] for source in own.values()] or [one.due]
            known = [len(others & self.figures(part, one.days).texts) for part in left]
            return "--count-repeats" in detail and max(known) >= LEAST
        if "with other options" in detail:
            return any(source.days != {one.days} for source in own.values())
        if "has set" in detail:
            return bool(self._set(self.figures(one.due, one.days)))
        if "which begins with the same bytes" in detail:
            return any(source.ends_within_chunk(one.content) for source in self._sources.values())
        return any(source.goes_on_within_line(one.content, detail) for source in own.values())
