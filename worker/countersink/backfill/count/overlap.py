"""Repeated lines: how many lines in a row must match to count as repeated, what is left out, which
part of known lines makes a file doubtful, which is refused (``_PART``), and the texts with
``--count-repeats``."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from countersink.backfill.count import chunks, sources
from countersink.backfill.count.line_marks import (
    SIZE,
    LineMarks,
    MarkedLines,
    MarkedPart,
    MatchedBlock,
    blocks_of,
    matches_of,
    small_matches,
)
from countersink.backfill.count.line_marks import repeats as own_repeats
from countersink.backfill.errors import RepeatedLines
from countersink.backfill.options import Recipe
from countersink.store.connection import Session
from countersink.store.errors import Conflict

Ranges = tuple[tuple[int, int], ...]
"""Indexes of lines, half-open."""

_SURE: Final = 8
"""Different lines in a row that are taken for the same ones, however short they are."""
_SURE_FEW: Final = 4
"""The same where they are long."""
_SURE_BYTES: Final = 256
_DOUBTFUL: Final = 4
"""Different lines that are known, and must not be a tenth of those of the chunk."""
_PART: Final = 10
_DAY_S: Final = 86_400
"""By which labels of the same moment may differ, where a counter's time zone was changed."""
_WITHIN_LINES: Final = 16 * 1024 * 1024
"""Lines of the same days that are looked through for how a source begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a chunk, as they are to be judged.

    Attributes:
        marks: theirs.
        source: whose.
        start_at: the chunk.
        size_bytes: of it.
        buckets: the labels of the first and the last bucket that it adds to; None: to none.
        begins: nothing of the source is known to stand before it, or the content ends with it.
        goes_on: the first line begins in the chunk before.
        whole_to: how many lines may be left out, from the first one on.
        header: the first line may be a header.
        first_left_out: the first line is one that the chunk before has left out.
    """

    marks: LineMarks
    source: int
    start_at: int
    size_bytes: int
    buckets: tuple[int, int] | None
    begins: bool
    goes_on: bool
    whole_to: int
    header: bool
    first_left_out: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of a chunk is not to be counted.

    Attributes:
        left_out: which lines.
        of: (source, start_at, run) of the chunk that has them → how many.
        samples: those that are in the index.
        related: it has lines that were counted.
    """

    left_out: Ranges = ()
    of: dict[tuple[int, int, int], int] = field(default_factory=dict)
    samples: frozenset[bytes] = frozenset()
    related: bool = False


class CountedLines:
    """The lines that were counted within a scope, as the tables have them."""

    def __init__(self, session: Session, scope: bytes) -> None:
        self._session = session
        self._scope = scope

    def pieces(self, first: int, last: int) -> list[MarkedLines]:
        """Those in the buckets from ``first`` to ``last``, and a day more."""
        found = self._session.query(
            "SELECT source, start_at, piece, IF(to_end, end_at, NULL), from_start, goes_on, run,"
            " line_count, head FROM backfill_lines"
            " WHERE scope = %s AND last_bucket >= %s AND first_bucket <= %s"
            " ORDER BY source, start_at, piece",
            (self._scope, first - _DAY_S, last + _DAY_S),
        )
        return chunks.put_together([chunks.MarkedRow(*row) for row in found])

    def marks(self, piece: MarkedLines) -> bytes:
        """The marks of a piece."""
        found = b""
        for number, part in enumerate(piece.parts):
            rows = self._session.query(
                "SELECT marks, goes_on FROM backfill_lines"
                " WHERE source = %s AND start_at = %s AND piece = %s",
                part[:3],
            )
            for own, goes_on in rows:
                found = (found[:-SIZE] if goes_on and number else found) + own
        return found

    def owners(self, samples: Iterable[bytes]) -> dict[bytes, int]:
        """Samples that are there → the source whose line counts; 0: it is being taken back."""
        return chunks.sample_owners(self._session, frozenset(samples))

    def still_counts(self, run: int) -> bool:
        """Whether what a run has counted is not being taken back; it stays so until the transaction
        ends.
        """
        found = self._session.query(
            f"SELECT state IN ({chunks.COUNTS}) FROM backfill_run WHERE id = %s LOCK IN SHARE MODE",
            (run,),
        )
        return bool(found and found[0][0])

    def left_out_before(self, source: int, start_at: int) -> list[tuple[int, int, int]]:
        """The (source, start_at, run) of the chunks whose lines a source's chunk before
        ``start_at`` has left out.
        """
        return self._session.query(
            "SELECT of_source, of_start_at, of_run FROM backfill_left_out WHERE source = %s"
            " AND start_at = (SELECT MAX(start_at) FROM backfill_chunk"
            " WHERE source = %s AND start_at < %s) ORDER BY of_source, of_start_at",
            (source, source, start_at),
        )

    def about(self, source: int) -> tuple[str, Recipe | None]:
        """The path of a source, and how it was read; None: as this one."""
        found = sources.read(self._session, source)
        return ("a source that is gone", None) if found is None else (found.path, found.recipe)


def judge(lines: Lines, counted: CountedLines, recipe: Recipe, run: int) -> Verdict:
    """Which lines of a chunk are not to be counted, as another source has them.

    Args:
        counted: what was counted, this chunk not.
        recipe: by which it is read.
        run: that reads it.

    Raises:
        Repeated: some were counted, and it cannot be told whether they are the same events; or by
            another recipe.
    """
    if lines.buckets is None:
        return Verdict()
    owners = counted.owners(lines.marks.samples.values())
    blocks = _blocks(lines, counted, run, owners)
    sure = [block for block in blocks if block.explained and _is_sure(block, lines, owners)]
    doubtful = [block for block in blocks if block not in sure]
    for block in sure:
        for match in block.matches:
            _same_recipe(counted, match.piece.source, recipe)
    left_out = tuple(
        (block.start, min(block.end, lines.whole_to))
        for block in sure
        if block.start < lines.whole_to
    )
    of = Counter[tuple[int, int, int]]()
    if lines.first_left_out:
        left_out = ((0, 1), *left_out)
        # Which of them has the line is not known: none is taken back before this.
        before = counted.left_out_before(lines.source, lines.start_at)
        of.update({chunk: int(number == 0) for number, chunk in enumerate(before)})
    _refuse_doubtful(lines, counted, left_out, doubtful, owners)
    for block in sure:
        for match in block.matches:
            of.update(match.parts(lines.whole_to))
    return Verdict(left_out, dict(of), frozenset(owners), bool(owners or blocks))


def kept(
    lines: Lines, verdict: Verdict, *, end_at: int, run: int
) -> tuple[list[tuple[chunks.MarkedRow, bytes]], set[bytes]]:
    """What is kept of the lines of a chunk that count: rows with their marks, and new samples.

    Args:
        end_at: where the chunk ends.
        run: that counts it.
    """
    if lines.buckets is None:
        return [], set()
    marks, total = lines.marks, len(lines.marks.sums)
    rest = _rest(verdict.left_out, total)
    samples = {
        sample
        for at, sample in marks.samples.items()
        if sample not in verdict.samples and _holds(rest, at)
    }
    rows: list[tuple[chunks.MarkedRow, bytes]] = []
    for number, (start, end) in enumerate(rest):
        own = marks.packed(start, end)
        row = chunks.MarkedRow(
            source=lines.source,
            start_at=lines.start_at,
            piece=number,
            end_at=end_at if end == total else None,
            from_start=start == 0,
            goes_on=lines.goes_on and start == 0,
            run=run,
            lines=end - start,
            head=own[: chunks.HEAD_BYTES],
        )
        rows.append((row, own))
    return rows, samples


def write(
    session: Session, lines: Lines, verdict: Verdict, *, scope: bytes, end_at: int, run: int
) -> None:
    """Write down what is kept of the lines of a chunk, and which are left out, in the transaction
    that counts it.

    Raises:
        Conflict: another has counted some of these lines meanwhile: judge again.
    """
    if lines.buckets is None:
        return
    rows, samples = kept(lines, verdict, end_at=end_at, run=run)
    if not chunks.insert_samples(session, lines.source, lines.start_at, samples):
        raise Conflict("lines of this chunk were counted by another process meanwhile")
    for row, marks in rows:
        chunks.insert_lines(
            session, row, scope=scope, end_at=end_at, buckets=lines.buckets, marks=marks
        )
    chunks.insert_left_out(session, lines.source, lines.start_at, verdict.of)


def _blocks(
    lines: Lines, counted: CountedLines, run: int, owners: dict[bytes, int]
) -> list[MatchedBlock]:
    """The lines that stand in what was counted, in the same order."""
    assert lines.buckets is not None
    total = len(lines.marks.sums)
    marks = lines.marks.packed()
    pieces = counted.pieces(*lines.buckets)
    load = lru_cache(maxsize=64)(counted.marks)
    within = (bool(owners) or lines.begins) and sum(
        piece.lines for piece in pieces
    ) <= _WITHIN_LINES
    found = matches_of(marks, pieces, load, within=within, header=lines.header)
    own = MarkedLines((MarkedPart(lines.source, lines.start_at, 0, run, total),), marks[:64])
    found += own_repeats(marks, own)

    def is_of(line: int, piece: MarkedLines) -> bool:
        sample = lines.marks.samples.get(line, b"")
        return owners.get(sample) == piece.source

    found += small_matches(marks, pieces, load, is_of, header=lines.header)
    if lines.goes_on:
        # What the first line adds is the difference to what it was before.
        found = [match for match in found if match.start > 0]
    runs = {part.run for match in found for part in match.piece.parts} - {run}
    gone = {number for number in sorted(runs) if not counted.still_counts(number)}
    found = [match for match in found if not any(part.run in gone for part in match.piece.parts)]
    return blocks_of(found, total, header=lines.header)


def _is_sure(block: MatchedBlock, lines: Lines, owners: dict[bytes, int]) -> bool:
    samples = lines.marks.samples.items()
    chosen = [
        sample for at, sample in samples if block.start <= at < block.end and lines.marks.chosen(at)
    ]
    known = owners.keys() | {sample for at, sample in samples if at < block.start}
    # By chance the short marks of other lines may agree, those of samples never do. Some may have
    # been another source's that was taken back.
    if 2 * sum(sample in known for sample in chosen) < len(chosen):
        return False
    distinct = lines.marks.distinct([(block.start, block.end)])
    size = lines.size_bytes * (block.end - block.start) // len(lines.marks.sums)
    if 2 * distinct < block.end - block.start:
        return False  # the same few lines, again and again
    own = any(match.piece.source == lines.source for match in block.matches)
    return distinct >= _SURE or (distinct >= _SURE_FEW and size >= _SURE_BYTES and not own)


def _same_recipe(counted: CountedLines, source: int, recipe: Recipe) -> None:
    path, other = counted.about(source)
    if other is not None and other != recipe:
        raise RepeatedLines(
            f"lines of it were counted with other options (as {path}): then {other.described()},"
            f" now {recipe.described()}. --count-repeats counts them all the same"
        )


def _refuse_doubtful(
    lines: Lines,
    counted: CountedLines,
    left_out: Ranges,
    doubtful: Sequence[MatchedBlock],
    owners: dict[bytes, int],
) -> None:
    """Check that not many of the lines that are left are known.

    Raises:
        Repeated: they are.
    """
    others = [block for block in doubtful if block.matches[0].piece.source != lines.source]
    if not others and not {*owners.values()} - {0, lines.source}:
        return
    rest = _rest(left_out, len(lines.marks.sums))
    in_order = lines.marks.distinct([(block.start, block.end) for block in others])
    names = Counter(
        {match.piece.source: match.end - match.start for block in others for match in block.matches}
    )
    samples = {
        sample: lines.marks.chosen(at)
        for at, sample in lines.marks.samples.items()
        if _holds(rest, at) and at >= int(lines.header)
    }
    known = [sample for sample in samples if owners.get(sample, 0) not in (0, lines.source)]
    names.update(owners[sample] for sample in known)
    # Where a part was surely counted, none of the others ought to have been.
    many = bool(left_out and known)
    many |= in_order >= _DOUBTFUL and in_order * _PART >= lines.marks.distinct(rest)
    chosen = sum(samples.values())
    known_chosen = sum(samples[sample] for sample in known)
    if len(known) >= _DOUBTFUL and len(known) * _PART >= len(samples):
        many = True
    if known_chosen >= _DOUBTFUL and known_chosen * _PART >= chosen:
        many = True
    if known_chosen >= 2 and known_chosen * 2 >= chosen:
        many = True
    if not many:
        return
    paths = [counted.about(source)[0] for source, _ in names.most_common(3)]
    raise RepeatedLines(
        f"lines of it were counted before, as lines of {' and '.join(dict.fromkeys(paths))}, but"
        " not all of them in a row, so it cannot be told whether they are the same events. If they"
        " are, leave it out, or give the originals that were not counted; if not (as where two"
        " servers wrote equal lines), --count-repeats counts all of them"
    )


def _rest(left_out: Ranges, total: int) -> list[tuple[int, int]]:
    """The lines that are not left out, as ranges."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, end in (*left_out, (total, total)):
        if at < start:
            found.append((at, start))
        at = end
    return found


def _holds(ranges: Sequence[tuple[int, int]], at: int) -> bool:
    return any(start <= at < end for start, end in ranges)
