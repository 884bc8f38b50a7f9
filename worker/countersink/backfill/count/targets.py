"""Where a chunk's amounts go: to the counter with a journal for undo, or to ``backfill_correction``
for a reconcile; and refusals of days set by a reconcile and of tracked tables; the notice of an
undo about days that a later reconcile has set.

The journal (``backfill_journal``) says what each chunk added, so that it can be taken back.
``backfill_correction`` holds what the sources of a reconcile say in all, before anything is
corrected, in buckets of the resolution that the run began with.

Nothing is added to days that a reconcile has set, by whatever source, until it is undone: what its
sources say is all there was on them. A chunk is counted under the share lock of control, and marks
are made under the exclusive one: a chunk that is committed before them is in what the reconcile
sums up, and one that comes after them is refused.
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
from countersink.counting.apply.amounts import Amounts, Cell
from countersink.counting.counters import breakdowns
from countersink.counting.counters.breakdowns import is_breakdown
from countersink.counting.counters.buckets import ONE_DAY, Resolution
from countersink.counting.counters.catalog import Scheme, last_reconciles
from countersink.counting.ledger.balance import JournalEntry, journal_entries
from countersink.counting.visitors.rows import CellPlace
from countersink.database import sql
from countersink.database.session import Session, rerun
from countersink.row_counts.definitions import tracked_names

_CELLS: Final = 20_000
"""Cells per piece of a journal: some hundred kilobytes, compressed; 6 MB at the most."""
_FASTEST: Final = 1
_ROWS_PER_DELETE: Final = 5000
_RANGES_NAMED: Final = 10


class CounterTarget:
    """The counter itself: its totals, its ledger, and the journal by which it is taken back.

    Attributes:
        truth_of: what ``backfill_source.truth_of`` is for its sources.
    """

    truth_of = 0

    def scheme(self, own: Scheme) -> Scheme:
        """How lines go into buckets: as the counter's events do."""
        return own

    def add(
        self,
        session: Session,
        amounts: Amounts,
        source: int,
        start_at: int,
        members: Mapping[CellPlace, Sequence[bytes]] = cells.NO_MEMBERS,
    ) -> None:
        """Take the amounts of the chunk of ``source`` that begins at ``start_at``, and who was seen
        there, in the transaction that also writes down that it was taken, and holds the share lock
        of control.

        Raises:
            RefusedMembers: those of some cells cannot be united; the transaction is to be undone.
            StoreError: as any statement.
        """
        cells.add(session, cells.slot_of(session), amounts, members)
        write_journal(session, source, start_at, amounts)


@dataclass(frozen=True, slots=True)
class TruthTarget:
    """Where the chunks of a reconcile go: added up beside the counter, whose totals stay as they
    are.

    Attributes:
        truth_of: the run: its sources are known apart from those that were added.
        resolution: of the counter when the run began.
    """

    truth_of: int
    resolution: Resolution

    def scheme(self, own: Scheme) -> Scheme:
        """How lines go into buckets, whatever the counter's resolution is by now."""
        return replace(own, resolution=self.resolution)

    def add(
        self,
        session: Session,
        amounts: Amounts,
        source: int,
        start_at: int,
        members: Mapping[CellPlace, Sequence[bytes]] = cells.NO_MEMBERS,
    ) -> None:
        """Add a chunk in the open transaction, which holds the share lock of control; members of a
        truth there are none.

        Raises:
            StoreError: as any query.
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
    """Write down the amounts of a chunk, all of one counter and its breakdowns, in the caller's
    transaction.
    """
    for number, some in enumerate(amounts.chunks(_CELLS)):
        text = json.dumps([*map(_entry, some)], ensure_ascii=False, separators=(",", ":"))
        session.execute(
            "INSERT INTO backfill_journal (source, start_at, piece, cells) VALUES (%s, %s, %s, %s)",
            (source, start_at, number, zlib.compress(text.encode(), _FASTEST)),
        )


def _entry(cell: Cell) -> JournalEntry:
    counter, bucket, key, amount = cell
    if is_breakdown(counter):
        return bucket, key, amount, counter
    return bucket, key, amount


def read_journal(session: Session, counter: str, source: int, start_at: int, added: int) -> Amounts:
    """What a chunk added, without what it added to breakdowns that were removed since.

    Args:
        added: to the counter, in all.

    Raises:
        BackfillError: it is damaged.
    """
    amounts = Amounts()
    ask = "SELECT cells FROM backfill_journal WHERE source = %s AND start_at = %s ORDER BY piece"
    try:
        for (piece,) in session.query(ask, (source, start_at)):
            for bucket, key, amount, *breakdown in journal_entries(piece):
                amounts.add(breakdown[0] if breakdown else counter, bucket, key, amount)
        if (found := amounts.sums().get(counter, 0)) != added:
            raise ValueError(f"it says {found:,} where {added:,} was added")
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise BackfillError(
            f"the journal of source {source} from byte {start_at:,} on cannot be read ({error}):"
            " nothing of that chunk was taken back; restore table backfill_journal from a backup"
        ) from error
    own = breakdowns.read_dimensioned(session, counter).get(counter)
    there = {counter, *(each.name for each in own.breakdowns)} if own is not None else {counter}
    return amounts.without(set(amounts.counters) - there)


def refuse_tracked(session: Session, counter: str) -> None:
    """See that no table's triggers count a counter.

    Raises:
        BackfillError: they do.
    """
    if counter in tracked_names(session):
        raise BackfillError(
            f"{counter} is the row count of a tracked table: only its triggers count it, and"
            " `countersink verify` says whether they are right"
        )


def refuse_breakdowns(session: Session, counter: str) -> None:
    """See that a reconcile sets no counter that has breakdowns: they would keep what it had.

    Raises:
        BackfillError: it has.
    """
    own = breakdowns.read_dimensioned(session, counter).get(counter)
    if own is not None and own.breakdowns:
        raise BackfillError(
            f"{counter} has breakdowns, which a reconcile cannot set: add with --mode add, or"
            f" remove its breakdowns first (`countersink counter set {counter} --breakdowns none`)"
        )


def discard_truth(session: Session, run: int) -> None:
    """Forget what the sources of a run said, but for what was corrected, and by what their lines
    are known; outside a transaction, in steps. May be run again.
    """
    for (source,) in session.query("SELECT id FROM backfill_source WHERE truth_of = %s", (run,)):
        forget = "DELETE FROM backfill_sample WHERE source = %s"
        rerun(partial(session.execute, forget, (source,)))
    place: tuple[object, ...] | None = None
    finished = False
    while not finished:
        # Behind the step before: there may be millions of corrections among them.
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
    """Check that days may be added to.

    Args:
        session: in a transaction that holds the share lock of control, so that it stays so; or
            outside of one, to say what would be.
        counter: whose.
        days: in its time zone.

    Raises:
        BackfillError: a reconcile that is not undone has set some of them.
        StoreError: as any query.
    """
    found = last_reconciles(session, counter, days)
    if found:
        run = max(found.values())
        raise BackfillError(
            f"backfill {run} has set {_set_by(found, run)} of {counter} to what its sources say,"
            " and adding to that would count some of it twice. Reconcile these days again, with all"
            f" their sources; or `countersink backfills undo {run}` first; or leave these days out,"
            " by --from and --to"
        )


def set_days_after(
    session: Session, counter: str, days: Iterable[date], run: int
) -> tuple[str, ...]:
    """What to say where days were set after what was taken back of them.

    Args:
        run: name runs after this one; 0: all, as nothing was added to what was set.
    """
    found = last_reconciles(session, counter, days, later_than=run)
    return tuple(
        f"backfill {later} has set {_set_by(found, later)} after it, and the totals are not what"
        " its sources say any more: reconcile these days again, with all their sources"
        for later in sorted(set(found.values()))
    )


def _set_by(found: Mapping[date, int], run: int) -> str:
    """The days of those that a run has set, for people."""
    return days_text(day for day, by in found.items() if by == run)


def days_text(some: Iterable[date]) -> str:
    """Days as ranges: ``2026-03-14, 2026-03-16 to 2026-03-20``."""
    ranges: list[list[date]] = []
    for day in sorted(some):
        if ranges and day - ONE_DAY == ranges[-1][1]:
            ranges[-1][1] = day
        else:
            ranges.append([day, day])
    texts = [f"{one}" if one == other else f"{one} to {other}" for one, other in ranges]
    more = len(texts) - _RANGES_NAMED
    return ", ".join(texts[:_RANGES_NAMED]) + (f" and {more:,} more" if more > 0 else "")
