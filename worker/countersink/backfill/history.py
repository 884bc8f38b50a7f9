"""Reads past backfills: runs, their sources, first rejected lines and corrections; how they are
shown is in ``cli/commands/backfills.py``. The row of a run in ``backfill_run``: its states
and sums, and the name of its process.

Corrections are read in pages, each in its own transaction, in the order of the primary key: a run
may have millions.
"""

import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Any, Final

from countersink.backfill.errors import BackfillError, RunEnded
from countersink.backfill.options import BackfillOptions, Drift, Recipe, SourceReport
from countersink.counting.apply.control import read_control
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import load_scheme
from countersink.database.session import Session
from countersink.database.sql import label_of

_LONGEST_ERROR: Final = 1000
_NOW: Final = "UTC_TIMESTAMP(3)"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Bytes, lines and amounts of a chunk, or of several: read, counted, filtered, rejected.

    Attributes:
        size_bytes: uncompressed.
        lines, counted, filtered, rejected: lines.
        amount: what was added in all.
    """

    size_bytes: int = 0
    lines: int = 0
    counted: int = 0
    filtered: int = 0
    rejected: int = 0
    amount: int = 0

    def __add__(self, other: "LineCounts") -> "LineCounts":
        return LineCounts(*map(operator.add, astuple(self), astuple(other)))

    def report(self, source: str, outcome: str, detail: str) -> SourceReport:
        """What became of a source."""
        return SourceReport(
            source=source,
            outcome=outcome,
            detail=detail,
            lines=self.lines,
            counted=self.counted,
            filtered=self.filtered,
            rejected=self.rejected,
            amount=self.amount,
        )


def begin(
    session: Session, options: BackfillOptions, sources: Sequence[str], holder: str
) -> tuple[int, Resolution]:
    """A new run, ``running``: its number, and the resolution in which it reconciles. Where the
    outcome was unknown, call it again.

    Args:
        sources: as they are named to people.
        holder: a name that no other process has, its own for every run.
    """
    ask = "SELECT id, resolution FROM backfill_run WHERE counter = %s AND holder = %s"
    with session.transaction():
        read_control(session)  # its lock keeps the resolution as it is
        if not session.query(ask, (options.counter, holder)):
            own = load_scheme(session, options.counter)
            session.execute(
                "INSERT INTO backfill_run"
                " (counter, mode, state, options, sources, holder, resolution, started, seen)"
                f" VALUES (%s, %s, 'running', %s, %s, %s, %s, {_NOW}, {_NOW})",
                (
                    options.counter,
                    options.mode,
                    options.recipe.to_json(),
                    json.dumps([printable(name) for name in sources], ensure_ascii=False),
                    holder,
                    own.resolution if options.mode == "reconcile" else None,
                ),
            )
        ((number, resolution),) = session.query(ask, (options.counter, holder))
    return int(number), resolution


def record(session: Session, run: int, counted: LineCounts, corrections: int = 0) -> None:
    """Note in a run's row what a chunk came to, or corrections, at the end of their transaction.

    At the end, since every chunk of the run needs this row: it is locked for a moment only.

    Raises:
        RunEnded: it must not be counted any more: undo the transaction.
    """
    changed = session.execute(
        "UPDATE backfill_run SET size_bytes = size_bytes + %s, lines_read = lines_read + %s,"
        " counted = counted + %s, filtered = filtered + %s, rejected = rejected + %s,"
        " amount = amount + %s, corrections = corrections + %s,"
        f" seen = {_NOW} WHERE id = %s AND state = 'running'",
        (*astuple(counted), corrections, run),
    )
    # No row is changed either if all of it is 0, within a millisecond.
    if not changed:
        require_running(session, run)


def require_running(session: Session, run: int) -> None:
    """Hold a run's row until the transaction ends, and see that nobody has ended the run.

    Raises:
        RunEnded: somebody has.
    """
    found = session.query("SELECT state FROM backfill_run WHERE id = %s FOR UPDATE", (run,))
    state = found[0][0] if found else "gone"
    if state != "running":
        raise RunEnded(
            f"backfill {run} is {state} by now, so nothing more is counted or corrected by it: run"
            " this again if that is wanted"
        )


def end(session: Session, run: int, state: str, error: str = "") -> None:
    """Give a run that is running its last state."""
    session.execute(
        f"UPDATE backfill_run SET state = %s, error = %s, seen = {_NOW}, ended = {_NOW}"
        " WHERE id = %s AND state = 'running'",
        (state, printable(error)[:_LONGEST_ERROR] or None, run),
    )


def rejects_of(session: Session, run: int) -> int:
    """How many lines a run has rejected so far."""
    ((number,),) = session.query(
        "SELECT COALESCE(SUM(rejected), 0) FROM backfill_chunk WHERE run = %s", (run,)
    )
    return int(number)


def printable(text: str) -> str:
    """``text`` where bytes of a file's name that are no UTF-8 are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


PAGE: Final = 1000
"""Rows that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of ``countersink backfill``: a row of ``backfill_run``.

    Attributes:
        id: its number.
        counter: as asked.
        mode: ``add`` or ``reconcile``.
        state: ``running`` (also of a process that died: see ``seen``), ``done``, ``stopped``,
            ``failed``, ``undoing``, ``undone`` or ``deleted`` (with its counter).
        recipe: how its sources are read.
        sources: as they were named.
        holder: the process that began it.
        started, seen, ended: naive UTC; ``seen`` is the last sign of life.
        size_bytes: uncompressed bytes that were read.
        lines, counted, filtered, rejected: lines.
        amount: what was added, or that of the corrections.
        corrections: reconcile: how many (key, bucket) differed.
        error: why it failed or stopped.
    """

    id: int
    counter: str
    mode: str
    state: str
    recipe: Recipe
    sources: tuple[str, ...]
    holder: str
    started: datetime
    seen: datetime
    ended: datetime | None
    size_bytes: int
    lines: int
    counted: int
    filtered: int
    rejected: int
    amount: int
    corrections: int
    error: str | None


@dataclass(frozen=True, slots=True)
class RunSource:
    """What a run counted of a source.

    Attributes:
        id: the source's number.
        path: where it was last.
        name: tells sources of the same content apart; '' mostly.
        chunks: of this run.
        size_bytes: uncompressed.
        lines, counted, filtered, rejected, amount: of the same.
    """

    id: int
    path: str
    name: str
    chunks: int
    size_bytes: int
    lines: int
    counted: int
    filtered: int
    rejected: int
    amount: int


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line that could not be counted.

    Attributes:
        source: where it was read.
        line: its number, from 1.
        reason: for people.
        text: how it begins, up to 1,000 bytes; those that are no UTF-8 are escaped.
    """

    source: str
    line: int
    reason: str
    text: str


_RUN: Final = (
    "SELECT id, counter, mode, state, options, sources, holder, started, seen, ended, size_bytes,"
    " lines_read, counted, filtered, rejected, amount, corrections, error FROM backfill_run"
)


def runs(session: Session, counter: str | None = None) -> list[Run]:
    """All runs, or those of one counter; the latest first."""
    where, args = "", tuple[str, ...]()
    if counter is not None:
        where, args = " WHERE counter = %s", (counter,)
    return [_run(row) for row in session.query(f"{_RUN}{where} ORDER BY id DESC", args)]


def run(session: Session, number: int, *, lock: bool = False) -> Run:
    """One run, with ``lock`` alone until the transaction ends.

    Raises:
        BackfillError: there is none of this number.
    """
    # The driver would send a larger one all the same, and MySQL compares it as a decimal.
    held = " FOR UPDATE" if lock else ""
    found = session.query(f"{_RUN} WHERE id = %s{held}", (number,)) if 0 < number < 2**64 else []
    if not found:
        raise BackfillError(
            f"there is no backfill {number}: `countersink backfills list` shows all"
        )
    return _run(found[0])


def sources_of(session: Session, number: int) -> list[RunSource]:
    """The sources that a run read anything new of, in the order in which they were first seen; what
    was taken back of them is not there any more.
    """
    columns = "end_at - c.start_at", "lines_read", "counted", "filtered", "rejected", "amount"
    sums = ", ".join(f"SUM(c.{column})" for column in columns)
    found = session.query(
        f"SELECT s.id, s.path, s.name, COUNT(*), {sums}"
        " FROM backfill_chunk AS c JOIN backfill_source AS s ON s.id = c.source"
        " WHERE c.run = %s GROUP BY s.id, s.path, s.name ORDER BY s.id",
        (number,),
    )
    return [
        RunSource(source, path, name, *map(int, numbers)) for source, path, name, *numbers in found
    ]


def rejects(session: Session, number: int) -> list[RejectedLine]:
    """The first of the lines that a run could not count."""
    found = session.query("SELECT rejects FROM backfill_run WHERE id = %s", (number,))
    return [RejectedLine(**one) for one in json.loads((found and found[0][0]) or "[]")]


def drift(session: Session, number: int) -> Iterator[Drift]:
    """What a run corrected, by bucket and key; nothing of what was taken back since."""
    scheme = load_scheme(session, run(session, number).counter)
    place: tuple[object, ...] | None = None
    while True:
        after, args = after_correction(place)
        page = session.query(
            "SELECT bucket, width, counter_key, had, should_be FROM backfill_correction"
            f" WHERE run = %s{after} AND had IS NOT NULL"
            " ORDER BY bucket, width, counter_key LIMIT %s",
            (number, *args, PAGE),
        )
        for bucket, width, key, had, should_be in page:
            label = label_of(bucket, width)
            yield Drift.of(scheme.local_day(label), label, bytes(key), int(had), int(should_be))
        if len(page) < PAGE:
            return
        place = page[-1][:3]


def after_correction(place: tuple[object, ...] | None) -> tuple[str, tuple[object, ...]]:
    """The condition for rows of ``backfill_correction`` behind a (bucket, width, key) of a run, in
    the order of the primary key, and its values; None: all.
    """
    if place is None:
        return "", ()
    bucket, width, key = place
    sql = " AND (bucket > %s OR bucket = %s AND (width > %s OR width = %s AND counter_key > %s))"
    return sql, (bucket, bucket, width, width, key)


def _run(row: tuple[Any, ...]) -> Run:
    found = dict(zip((one.name for one in fields(Run)), row, strict=True))
    found["recipe"] = Recipe.from_json(found["recipe"])
    found["sources"] = tuple(json.loads(found["sources"]))
    found["amount"] = int(found["amount"])
    return Run(**found)
