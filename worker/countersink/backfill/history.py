"""The history of backfills. This module writes a running backfill's row of ``backfill_run``, and
reads past runs with their sources, first rejected lines and corrections. See
``cli/commands/backfills.py`` for the output.

A run may have millions of corrections, so they are read in pages: each page in its own transaction,
in the order of the primary key.
"""

import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Any, Final

from countersink.backfill.errors import BackfillError, RunEnded
from countersink.backfill.options import LINE_NUMBERS, BackfillOptions, Drift, Recipe, SourceReport
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.all_counters import insert_rows
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import load_scheme
from countersink.database.session import Session
from countersink.database.sql import label_of

_LONGEST_ERROR: Final = 1000
_NOW: Final = "UTC_TIMESTAMP(3)"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Numbers of lines and bytes, and the sum of the amounts, of one or more chunks.

    Attributes:
        size_bytes: uncompressed bytes.
        lines: lines (with CSV: records) that were read, with blank lines and headers.
        counted: lines that gave an amount.
        filtered: lines that the options leave out.
        rejected: lines that could not be counted.
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
        """Return the report of a source that has these numbers. See :class:`SourceReport` for the
        arguments.
        """
        numbers: dict[str, Any] = {name: getattr(self, name) for name in LINE_NUMBERS}
        return SourceReport(source=source, outcome=outcome, detail=detail, **numbers)


def begin(
    session: Session, options: BackfillOptions, sources: Sequence[str], holder: str
) -> tuple[int, Resolution]:
    """Insert the row of a new run, in the state ``running``; also the counter's row in ``counter``,
    if there is none. Returns the run's number, and the resolution in which a reconcile sums up its
    sources (None in mode ``add``).

    A second call with the same counter and ``holder`` inserts nothing and returns the same values.
    So call it again if the outcome of a call is unknown.

    Args:
        session: session outside a transaction.
        options: options of the run.
        sources: names of its sources.
        holder: a name of this process that no other run has.
    """
    ask = "SELECT id, resolution FROM backfill_run WHERE counter = %s AND holder = %s"
    with session.transaction():
        control = read_control(session)  # its lock keeps the resolution from changing
        if not session.query(ask, (options.counter, holder)):
            # Otherwise a change of the defaults would apply to the rest of the run.
            insert_rows(session, [options.counter], control.defaults)
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
    """Add the sums of a chunk, or of some corrections, to the row of their run.

    Call it at the end of the transaction: every transaction of the run must lock this row, so each
    should hold the lock for a moment only.

    Args:
        session: session in the transaction.
        run: number of the run.
        counted: sums to add.
        corrections: number of corrections to add.

    Raises:
        RunEnded: the run is not running any more; the caller must roll the transaction back.
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
        RunEnded: the run is not running any more.
    """
    found = session.query("SELECT state FROM backfill_run WHERE id = %s FOR UPDATE", (run,))
    state = found[0][0] if found else "missing"
    if state != "running":
        raise RunEnded(
            f"backfill {run} is {state} now, so it counts and corrects nothing more: run this again"
            " to count or correct the rest"
        )


def end(session: Session, run: int, state: str, error: str = "") -> None:
    """End a run: set its last state (``done``, ``stopped`` or ``failed``), and the error that ended
    it ('' for none), which is cut after 1,000 characters. A run that is not running any more stays
    as it is."""
    session.execute(
        f"UPDATE backfill_run SET state = %s, error = %s, seen = {_NOW}, ended = {_NOW}"
        " WHERE id = %s AND state = 'running'",
        (state, printable(error)[:_LONGEST_ERROR] or None, run),
    )


def rejects_of(session: Session, run: int) -> int:
    """Return the number of rejected lines in the chunks of a run, without chunks that an undo has
    taken back."""
    ((number,),) = session.query(
        "SELECT COALESCE(SUM(rejected), 0) FROM backfill_chunk WHERE run = %s", (run,)
    )
    return int(number)


def printable(text: str) -> str:
    """Return ``text`` with escapes for bytes that are not UTF-8, which names of files may have."""
    return text.encode("utf-8", "backslashreplace").decode()


PAGE: Final = 1000
"""Number of corrections that one query reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of ``countersink backfill``, as its row of ``backfill_run`` describes it.

    Attributes:
        id: number of the run.
        counter: name of the counter.
        mode: ``add`` or ``reconcile``.
        state: ``running``, ``done``, ``stopped``, ``failed``, ``undoing``, ``undone``, or
            ``deleted`` if its counter was deleted. A run whose process died stays ``running`` (see
            ``seen``). But a running reconcile that has committed nothing for an hour is set to
            ``failed`` when another run of its counter ends.
        recipe: the options by which its lines were read, as the command gave them: ``input_format``
            is ``auto`` if the format of each source was detected.
        sources: names of its sources.
        holder: name of the process that began it.
        started, seen, ended: times of its beginning, of its last commit (or its undo's), and of its
            end, naive UTC. ``ended`` is None before the end.
        size_bytes, lines, counted, filtered, rejected: see :class:`LineCounts`. An undo does not
            change these numbers, nor the two below.
        amount: sum of the added amounts, or of the corrections.
        corrections: number of cells that a reconcile has corrected.
        error: reason why it failed or stopped, or None.
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
    """Sums of those chunks of one source that one run has counted.

    Attributes:
        id: number of the source.
        path: path of the file that was last read as this source.
        name: name from ``--source-name``, which distinguishes sources with the same content; '' if
            none was given.
        chunks: number of the chunks.
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
    """A line that could not be counted, in the form for users.

    Attributes:
        source: path of its source.
        line: its number in the source, from 1.
        reason: why it could not be counted.
        text: its first 1,000 bytes, with escapes for bytes that are not UTF-8.
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
    """Return all runs, or the runs of one counter, the latest first."""
    where, args = (" WHERE counter = %s", (counter,)) if counter is not None else ("", ())
    return [_run(row) for row in session.query(f"{_RUN}{where} ORDER BY id DESC", args)]


def run(session: Session, number: int, *, lock: bool = False) -> Run:
    """Return the run whose number is ``number``. With ``lock``, its row is locked exclusively until
    the transaction ends.

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
    """Return the sources of which a run has counted chunks, ordered by their numbers. Chunks that
    an undo has taken back are left out, and so are sources without other chunks.
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
    """Return the first rejected lines of a run, which are stored in its row: up to ten; none after
    the run was undone, or if there is no such run."""
    found = session.query("SELECT rejects FROM backfill_run WHERE id = %s", (number,))
    return [RejectedLine(**one) for one in json.loads((found and found[0][0]) or "[]")]


def drift(session: Session, number: int) -> Iterator[Drift]:
    """Iterate over the corrections of a run, one for each cell, ordered by bucket and key.
    Corrections that an undo has taken back are left out. A run that was no reconcile has none.

    Raises:
        BackfillError: there is no such run; raised when the first item is read.
    """
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
    """Return an SQL condition, and its values, for the rows of ``backfill_correction`` that come
    after ``place`` in the order of the primary key. The condition does not select the run: the
    query needs another condition for that.

    Args:
        place: (bucket, width, key) of the last row that was read; None to begin with the run's
            first row: then the condition is ''.
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
