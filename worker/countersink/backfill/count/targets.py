"""Targets to which a chunk's amounts are added: the counter, with a journal for undo, or, for a
reconcile, ``backfill_correction``. Further functions refuse days that a reconcile has set, and
counters with breakdowns.

The journal (``backfill_journal``) has the cells that each chunk added, so that an undo can subtract
them. ``backfill_correction`` has the *truth* of a reconcile: the sums of its sources
(``should_be``), in buckets of the resolution that the counter had when the run began. A correction
also writes the former total (``had``) there; :func:`discard_truth` deletes the rows without it.

The sources of a reconcile have all events of the days that it sets. So no run in mode ``add`` adds
to these days until the reconcile is undone. A chunk is counted under the share lock of the control
row, and days are marked under the exclusive lock. So a chunk that is committed before the marks is
in the totals that the reconcile reads. A later chunk that would add to these days is refused.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Final

from countersink.backfill.errors import BackfillError
from countersink.backfill.history import after_correction
from countersink.counting.apply import cells
from countersink.counting.apply.amounts import Amounts
from countersink.counting.counters import breakdowns
from countersink.counting.counters.buckets import ONE_DAY, Resolution
from countersink.counting.counters.catalog import Scheme, last_reconciles
from countersink.counting.ledger.balance import JournalEntry, journal_entries
from countersink.counting.visitors.rows import CellPlace
from countersink.database import sql
from countersink.database.session import Session, rerun

_CELLS_PER_PIECE: Final = 20_000
"""Number of cells in a piece of a journal. A piece takes some hundred kilobytes compressed, at most
6 MB.
"""
_FASTEST: Final = 1
_ROWS_PER_DELETE: Final = 5000
_RANGES_NAMED: Final = 10


class CounterTarget:
    """Target of chunks that are added: the totals of the counter, its ledger, and the journal for
    undo.

    Attributes:
        truth_of: value of ``backfill_source.truth_of`` for sources that are added: 0. For sources
            of a reconcile, it is the number of the reconcile's run.
    """

    truth_of = 0

    def scheme(self, scheme: Scheme) -> Scheme:
        """Return ``scheme``, the counter's scheme, unchanged: lines are counted by it."""
        return scheme

    def add(
        self,
        session: Session,
        amounts: Amounts,
        source: int,
        start_at: int,
        members: Mapping[CellPlace, Sequence[bytes]] = cells.NO_MEMBERS,
    ) -> None:
        """Add the amounts and visitors of a chunk to the counter, and insert the chunk's journal,
        in the caller's transaction. This transaction must also insert the chunk's row, and hold the
        share lock of the control row.

        Args:
            session: session in the transaction.
            amounts: amounts of the chunk, for cells of the counter and of its breakdowns.
            source, start_at: primary key of the chunk.
            members: cell → hashes of its visitors in the chunk; empty if lines have no visitors.

        Raises:
            RefusedMembers: the visitors of some cells cannot be counted; the caller must roll the
                transaction back.
            StoreError: MySQL failed.
        """
        cells.add(session, cells.slot_of(session), amounts, members)
        write_journal(session, source, start_at, amounts)


@dataclass(frozen=True, slots=True)
class TruthTarget:
    """Target of a reconcile's chunks: sums in ``backfill_correction``. Totals do not change.

    Attributes:
        truth_of: number of the run. Its sources have rows of their own in ``backfill_source``.
        resolution: resolution of the counter when the run began.
    """

    truth_of: int
    resolution: Resolution

    def scheme(self, scheme: Scheme) -> Scheme:
        """Return the scheme by which lines are counted: ``scheme``, the counter's scheme, but with
        the resolution that the counter had when the run began.
        """
        return replace(scheme, resolution=self.resolution)

    def add(
        self,
        session: Session,
        amounts: Amounts,
        source: int,
        start_at: int,
        members: Mapping[CellPlace, Sequence[bytes]] = cells.NO_MEMBERS,
    ) -> None:
        """Add the amounts of a chunk to the sums of the reconcile, in the caller's transaction,
        which holds the share lock of the control row. A reconcile has no journal and no visitors,
        so the arguments after ``amounts`` are not used.

        Raises:
            StoreError: MySQL failed.
        """
        clause = session.dialect.upsert_add("backfill_correction", "should_be")
        for some in amounts.chunks(sql.CELLS_PER_STATEMENT):
            places = {
                bucket: f"'{sql.label_text(bucket)}', {sql.width_number(bucket):d}"
                for bucket in {bucket for _, bucket, _, _ in some}
            }
            values = ", ".join(
                f"({self.truth_of:d}, {places[bucket]}, X'{key.encode().hex()}', {amount:d})"
                for _, bucket, key, amount in some
            )
            session.execute(
                "INSERT INTO backfill_correction (run, bucket, width, counter_key, should_be)"
                f" VALUES {values}{clause}"
            )


Target = CounterTarget | TruthTarget


def write_journal(session: Session, source: int, start_at: int, amounts: Amounts) -> None:
    """Insert the journal of a chunk, in the caller's transaction.

    Args:
        session: session in the transaction.
        source, start_at: primary key of the chunk.
        amounts: amounts of one counter and its breakdowns; those of breakdowns are written with
            their name, which has a ``#``.
    """
    for number, some in enumerate(amounts.chunks(_CELLS_PER_PIECE)):
        entries: list[JournalEntry] = [
            (bucket, key, amount, name) if "#" in name else (bucket, key, amount)
            for name, bucket, key, amount in some
        ]
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
        session.execute(
            "INSERT INTO backfill_journal (source, start_at, piece, cells) VALUES (%s, %s, %s, %s)",
            (source, start_at, number, zlib.compress(text.encode(), _FASTEST)),
        )


def read_journal(session: Session, counter: str, source: int, start_at: int, added: int) -> Amounts:
    """Return the amounts that a chunk added to the counter and its breakdowns, so that an undo can
    subtract them. Amounts of breakdowns that were removed since are left out.

    Args:
        session: session in a transaction.
        counter: name of the counter.
        source, start_at: primary key of the chunk.
        added: sum of the amounts that the chunk added to the counter, to check the journal.

    Raises:
        BackfillError: the journal cannot be read, or its sum is not ``added``.
    """
    amounts = Amounts()
    ask = "SELECT cells FROM backfill_journal WHERE source = %s AND start_at = %s ORDER BY piece"
    try:
        for (piece,) in session.query(ask, (source, start_at)):
            for bucket, key, amount, *breakdown in journal_entries(piece):
                amounts.add(breakdown[0] if breakdown else counter, bucket, key, amount)
        if (found := amounts.sums().get(counter, 0)) != added:
            raise ValueError(f"its sum is {found:,}, but {added:,} was added")
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise BackfillError(
            f"the journal of source {source}, chunk at byte {start_at:,}, cannot be read ({error}):"
            " this chunk was not taken back; restore the table backfill_journal from a backup"
        ) from error
    dimensioned = breakdowns.read_dimensioned(session, counter).get(counter)
    existing = {counter, *(each.name for each in (dimensioned.breakdowns if dimensioned else ()))}
    return amounts.without(set(amounts.counters) - existing)


def refuse_breakdowns(session: Session, counter: str) -> None:
    """Check that a counter has no breakdowns: a reconcile would not change their totals.

    Raises:
        BackfillError: it has breakdowns.
    """
    dimensioned = breakdowns.read_dimensioned(session, counter).get(counter)
    if dimensioned is not None and dimensioned.breakdowns:
        raise BackfillError(
            f"{counter} has breakdowns, which a reconcile cannot set: add with --mode add, or"
            f" remove its breakdowns first (`countersink counter set {counter} --breakdowns none`)"
        )


def discard_truth(session: Session, run: int) -> None:
    """Delete what an ended reconcile does not need any more: the samples of its sources, and its
    rows of ``backfill_correction`` that corrected nothing. Then set the run's ``resolution`` to
    NULL, so that ``clear_reconciles`` (``backfill/run.py``) skips the run. Uses several
    transactions; may be called again.
    """
    for (source,) in session.query("SELECT id FROM backfill_source WHERE truth_of = %s", (run,)):
        forget = "DELETE FROM backfill_sample WHERE source = %s"
        rerun(partial(session.execute, forget, (source,)))
    place: tuple[object, ...] | None = None
    finished = False
    while not finished:
        # After the last deleted row: there may be millions of corrections between the rows.
        after, args = after_correction(place)
        where = f"FROM backfill_correction WHERE run = %s{after} AND had IS NULL"
        order = "ORDER BY bucket, width, counter_key"
        ends = session.query(
            f"SELECT bucket, width, counter_key {where} {order} LIMIT 1 OFFSET %s",
            (run, *args, _ROWS_PER_DELETE - 1),
        )
        delete = f"DELETE {where} {order} LIMIT {_ROWS_PER_DELETE:d}"
        rerun(partial(session.execute, delete, (run, *args)))
        finished, place = not ends, ends[0] if ends else None
    forgotten = "UPDATE backfill_run SET resolution = NULL WHERE id = %s"
    rerun(partial(session.execute, forgotten, (run,)))


def refuse_set_days(session: Session, counter: str, days: Iterable[date]) -> None:
    """Check that no reconcile has set days to which lines would be added.

    Args:
        session: session in a transaction that holds the share lock of the control row, so that no
            day is marked meanwhile; in a dry run outside a transaction.
        counter: name of the counter.
        days: days in its time zone.

    Raises:
        BackfillError: a reconcile that is not undone has set some of the days.
        StoreError: MySQL failed.
    """
    found = last_reconciles(session, counter, days)
    if found:
        run = max(found.values())
        raise BackfillError(
            f"backfill {run} has set {_days_set_by(found, run)} of {counter} to the sums of its"
            " sources: adding to these days could count events twice. Reconcile them again, with"
            f" all their sources; or run `countersink backfills undo {run}` first; or leave these"
            " days out, by --from and --to"
        )


def later_set_notices(
    session: Session, counter: str, days: Iterable[date], run: int
) -> tuple[str, ...]:
    """Return notices for users about days that an undo has changed, although a reconcile that is
    not undone has set them: their totals no longer match the sources of that reconcile. Each
    notice names one reconcile, and the days of which it is the last reconcile.

    Args:
        session: session outside a transaction.
        counter: name of the counter.
        days: days whose totals the undo has changed.
        run: number of the undone run if it was a reconcile; then earlier reconciles are ignored. 0
            if the undone run had the mode ``add``; then no reconcile is ignored.
    """
    found = last_reconciles(session, counter, days, later_than=run)
    return tuple(
        f"backfill {later} has set {_days_set_by(found, later)} since, and the totals no longer"
        " match its sources: reconcile these days again, with all their sources"
        for later in sorted(set(found.values()))
    )


def _days_set_by(found: Mapping[date, int], run: int) -> str:
    """Return the days of ``found`` whose run is ``run``, as text for users. ``found``: day → number
    of the last reconcile that has set it.
    """
    return days_text(day for day, by in found.items() if by == run)


def days_text(some: Iterable[date]) -> str:
    """Return days, sorted, as text with ranges: ``2026-03-14, 2026-03-16 to 2026-03-20``. Only ten
    ranges are named; if there are more, the text ends with the number of further ranges."""
    ranges: list[list[date]] = []
    for day in sorted(some):
        if ranges and day - ONE_DAY == ranges[-1][1]:
            ranges[-1][1] = day
        else:
            ranges.append([day, day])
    texts = [f"{one}" if one == other else f"{one} to {other}" for one, other in ranges]
    more = len(texts) - _RANGES_NAMED
    return ", ".join(texts[:_RANGES_NAMED]) + (f" and {more:,} more" if more > 0 else "")
