"""Runs of backfills: writes the row of a running one in ``backfill_run``; reads past runs with
their sources, first rejected lines and corrections. See ``cli/commands/backfills.py`` for the
output.

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
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import load_scheme
from countersink.database.session import Session
from countersink.database.sql import label_of

_LONGEST_ERROR: Final = 1000
_NOW: Final = "UTC_TIMESTAMP(3)"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Sums of one chunk or of several.

    Attributes:
        size_bytes: uncompressed bytes.
        lines: lines read.
        counted, filtered, rejected: lines counted, left out by the recipe, rejected.
        amount: sum of all amounts.
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
        """The report of a source with these sums."""
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
    """Insert a run in the state ``running``; returns its number, and the resolution in which it
    reconciles. If the outcome is unknown, call it again.

    Args:
        sources: their names.
        holder: a name of the process, unique to this run.
    """
    ask = "SELECT id, resolution FROM backfill_run WHERE counter = %s AND holder = %s"
    with session.transaction():
        read_control(session)  # its lock keeps the resolution from changing
        if not session.query(ask, (options.counter, holder)):
            scheme = load_scheme(session, options.counter)
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
                    scheme.resolution if options.mode == "reconcile" else None,
                ),
            )
        ((number, resolution),) = session.query(ask, (options.counter, holder))
    return int(number), resolution


def record(session: Session, run: int, counted: LineCounts, corrections: int = 0) -> None:
    """Add the sums of a chunk, or of corrections, to the row of their run.

    Call it at the end of the transaction: every chunk of the run needs this row, so it should be
    locked for a moment only.

    Raises:
        RunEnded: the run has ended: roll the transaction back.
    """
    changed = session.execute(
        "UPDATE backfill_run SET size_bytes = size_bytes + %s, lines_read = lines_read + %s,"
        " counted = counted + %s, filtered = filtered + %s, rejected = rejected + %s,"
        " amount = amount + %s, corrections = corrections + %s,"
        f" seen = {_NOW} WHERE id = %s AND state = 'running'",
        (*astuple(counted), corrections, run),
    )
    # MySQL also changes no row if all sums are 0 and ``seen`` stays within the same millisecond.
    if not changed:
        require_running(session, run)


def require_running(session: Session, run: int) -> None:
    """Lock a run's row until the transaction ends, and check that the run is running.

    Raises:
        RunEnded: another process has ended it.
    """
    found = session.query("SELECT state FROM backfill_run WHERE id = %s FOR UPDATE", (run,))
    state = found[0][0] if found else "missing"
    if state != "running":
        raise RunEnded(
            f"backfill {run} is {state} now, so it counts and corrects nothing more: run this again"
            " to count or correct the rest"
        )


def end(session: Session, run: int, state: str, error: str = "") -> None:
    """Set the last state of a run, if the run is running."""
    session.execute(
        f"UPDATE backfill_run SET state = %s, error = %s, seen = {_NOW}, ended = {_NOW}"
        " WHERE id = %s AND state = 'running'",
        (state, printable(error)[:_LONGEST_ERROR] or None, run),
    )


def rejects_of(session: Session, run: int) -> int:
    """Number of lines that a run has rejected so far."""
    ((number,),) = session.query(
        "SELECT COALESCE(SUM(rejected), 0) FROM backfill_chunk WHERE run = %s", (run,)
    )
    return int(number)


def printable(text: str) -> str:
    """``text`` with escapes for bytes that are not UTF-8, such as those of a file's name."""
    return text.encode("utf-8", "backslashreplace").decode()


PAGE: Final = 1000
"""Corrections of one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of ``countersink backfill``: a row of ``backfill_run``.

    Attributes:
        id: its number.
        counter: its name.
        mode: ``add`` or ``reconcile``.
        state: ``running`` (also of a process that died: see ``seen``), ``done``, ``stopped``,
            ``failed``, ``undoing``, ``undone`` or ``deleted`` (with its counter).
        recipe: of the options.
        sources: their names.
        holder: name of the process that began it.
        started, seen, ended: naive UTC; ``seen`` is the time of its last commit.
        size_bytes, lines, counted, filtered, rejected: see :class:`LineCounts`.
        amount: sum of the added amounts, or of the corrections.
        corrections: of a reconcile: number of cells that differed.
        error: reason why it failed or stopped.
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
    """Sums of the chunks that a run counted of a source.

    Attributes:
        id: the source's number.
        path: of the file last read.
        name: distinguishes sources of the same content; mostly ''.
        chunks: their number.
        size_bytes, lines, counted, filtered, rejected, amount: see :class:`LineCounts`.
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
        source: path of its source.
        line: its number, from 1.
        reason: for users.
        text: its first 1,000 bytes; bytes that are not UTF-8 are escaped.
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
    """All runs, or the runs of one counter; the latest first."""
    where, args = (" WHERE counter = %s", (counter,)) if counter is not None else ("", ())
    return [_run(row) for row in session.query(f"{_RUN}{where} ORDER BY id DESC", args)]


def run(session: Session, number: int, *, lock: bool = False) -> Run:
    """A run by its number. ``lock``: exclusive until the transaction ends.

    Raises:
        BackfillError: there is no such run.
    """
    # The driver would send a larger number as well, and MySQL compare it as a decimal.
    held = " FOR UPDATE" if lock else ""
    found = session.query(f"{_RUN} WHERE id = %s{held}", (number,)) if 0 < number < 2**64 else []
    if not found:
        raise BackfillError(
            f"there is no backfill {number}: `countersink backfills list` shows all"
        )
    return _run(found[0])


def sources_of(session: Session, number: int) -> list[RunSource]:
    """The sources with chunks of a run, in the order of their numbers; without chunks that were
    taken back.
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
    """The first rejected lines of a run."""
    found = session.query("SELECT rejects FROM backfill_run WHERE id = %s", (number,))
    return [RejectedLine(**one) for one in json.loads((found and found[0][0]) or "[]")]


def drift(session: Session, number: int) -> Iterator[Drift]:
    """The corrections of a run by bucket and key, without those that were taken back."""
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
            yield Drift.make(scheme.local_day(label), label, bytes(key), int(had), int(should_be))
        if len(page) < PAGE:
            return
        place = page[-1][:3]


def after_correction(place: tuple[object, ...] | None) -> tuple[str, tuple[object, ...]]:
    """SQL condition, and its values, for rows of ``backfill_correction`` after a (bucket, width,
    key) of a run, in the order of the primary key; None: all rows.
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
