"""Comparisons of the ledger, for ``verify``: with the rows of counters, and with the records of
backfills (chunks, corrections, sources). Also reads the journal of a backfill's chunk.

The server adds up both sides of a comparison, and returns one row for each counter.

Backfills add to slots that nobody else uses. So for each counter, in any snapshot, the ledger's sum
of these slots equals the sum of the counter's chunks and corrections. (A reconcile makes
corrections. Those that were undone are left out, and so are the chunks of a reconcile.) And the
chunks of a source cover every byte that was read of the source exactly once.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from countersink.counting.counters.all_counters import is_breakdown
from countersink.counting.ledger import CHECKSUM, LEDGER_CHECKSUM, MODULUS, Difference
from countersink.database.session import Session
from countersink.database.sql import BACKFILL_SLOTS, marks
from countersink.runtime.texts import plural

_TABLES: Final = {
    "counter_slot": ("counter, bucket, counter_key, width, slot", CHECKSUM),
    "counter_ledger": ("counter, bucket, width, slot", LEDGER_CHECKSUM),
}
"""The primary key of each table, and the SQL for the checksum of its rows."""


@dataclass(frozen=True, slots=True)
class Side:
    """Side of a comparison, that of ``counter_slot`` or that of the ledger: the number of a
    counter's rows, the sum of their amounts, and their checksum.
    """

    rows: int = 0
    amount: int = 0
    checksum: int = 0


def between(after: str | None, last: str | None) -> tuple[str, list[object]]:
    """Return an SQL condition, and its values, for the counters whose names come after ``after``
    and up to ``last``, included. None for ``after`` or ``last`` means no limit on this side.
    """
    where, values = "TRUE", list[object]()
    for comparison, name in ((">", after), ("<=", last)):
        if name is not None:
            where += f" AND counter {comparison} %s"
            values.append(name)
    return where, values


def last_of_next(session: Session, after: str | None, rows: int) -> str | None:
    """Return the last name in the next part of the counters. Counters are compared part by part, in
    the order of names. A part ends with the counter that brings it to ``rows`` rows, in
    ``counter_slot`` or in the ledger, whichever is first. Return None if each table has fewer
    than ``rows`` rows left: then the part has all counters that are left.

    Args:
        session: in a transaction or not.
        after: last name in the previous part; None for the first part.
        rows: number of rows at which a part ends. All rows of its last counter belong to it, so it
            may have more.
    """
    where, args = between(after, None)
    ends = [
        name
        for table, (order, _) in _TABLES.items()
        for (name,) in session.query(
            f"SELECT counter FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1:d}",
            args,
        )
    ]
    return min(ends, default=None)


def read(session: Session, where: str, args: Sequence[object]) -> dict[str, tuple[Side, Side]]:
    """Return two sides for each counter, by name: first that of its rows in ``counter_slot``, then
    that of its rows in the ledger. A side without rows has zeros. Counters without any rows, in
    both tables, are left out.

    Args:
        session: in a snapshot.
        where: SQL condition for the counters, a range of the primary keys, as :func:`between`
            returns it.
        args: the values of the condition.
    """
    found: defaultdict[str, dict[str, Side]] = defaultdict(dict)
    for table, (_, checksum) in _TABLES.items():
        for name, rows, amount, total in session.query(
            f"SELECT counter, COUNT(*), SUM(amount), {checksum}"
            f" FROM {table} FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter",
            args,
        ):
            found[name][table] = Side(int(rows), int(amount), int(total) % MODULUS)
    return {
        name: (sides.get("counter_slot", Side()), sides.get("counter_ledger", Side()))
        for name, sides in sorted(found.items())
    }


_EXAMPLES: Final = 3

JournalEntry = tuple[int, str, int] | tuple[int, str, int, str]
"""(bucket's label, key, amount) from a journal. The entry of a breakdown's cell also has the
breakdown's name."""


def journal_entries(piece: bytes) -> Iterator[JournalEntry]:
    """Yield amounts that a chunk of a backfill has added, so that an undo can subtract them, as
    (bucket's label, key, amount). An entry for a breakdown also has the breakdown's name. These are
    the entries of one row of ``backfill_journal``, whose compressed bytes are ``piece``. (A chunk
    may have several rows there.)

    Raises:
        ValueError, TypeError, zlib.error, RecursionError: the bytes are damaged.
    """
    entries: Any = json.loads(zlib.decompress(piece))
    for entry in entries:
        bucket, key, amount, *breakdown = entry
        # ``type``, as isinstance takes True for a number.
        if (type(bucket), type(key), type(amount)) != (int, str, int):
            raise ValueError("an entry is not a bucket, a key and an amount")
        if not all(type(each) is str and is_breakdown(each) for each in breakdown):
            raise ValueError("an entry has an invalid name of a breakdown")
        yield (bucket, key, amount, breakdown[0]) if breakdown else (bucket, key, amount)


def mismatches(session: Session, where: str, args: Sequence[object]) -> Iterator[Difference]:
    """Yield a problem for each counter with wrong records of backfills: their sum differs from the
    ledger's sum of the slots of backfills, or chunks do not cover all that was read of a source.
    Arguments are as for :func:`read`.
    """
    backfilled = session.query(
        f"SELECT counter FROM backfill_source WHERE {where}"
        f" UNION SELECT counter FROM backfill_run WHERE {where}",
        (*args, *args),
    )
    names = sorted(name for (name,) in backfilled)
    if not names:
        return
    added = session.query(
        "SELECT s.counter, SUM(c.amount) FROM backfill_source AS s"
        " JOIN backfill_chunk AS c ON c.source = s.id"
        f" WHERE s.counter IN ({marks(names)}) AND s.truth_of = 0"
        " GROUP BY s.counter",
        names,
    )
    corrected = session.query(
        "SELECT r.counter, SUM(d.should_be - d.had) FROM backfill_run AS r"
        " JOIN backfill_correction AS d ON d.run = r.id AND d.had IS NOT NULL"
        f" WHERE r.counter IN ({marks(names)}) AND r.state <> 'undone' GROUP BY r.counter",
        names,
    )
    recorded = dict.fromkeys(names, 0)
    for name, amount in (*added, *corrected):
        recorded[name] += int(amount)
    ledger = session.query(
        "SELECT counter, SUM(amount) FROM counter_ledger"
        f" WHERE counter IN ({marks(names)}) AND slot BETWEEN %s AND %s GROUP BY counter",
        (*names, BACKFILL_SLOTS[0], BACKFILL_SLOTS[-1]),
    )
    in_ledger: dict[str, Any] = dict(ledger)
    uncovered = _broken_sources(session, names)
    for name in names:
        total, held = recorded[name], int(in_ledger.get(name, 0))
        details = []
        if total != held:
            details.append(
                f"the ledger of slots {BACKFILL_SLOTS[0]} to {BACKFILL_SLOTS[-1]} differs by"
                f" {held - total:+,} from the records of backfills"
            )
        if sources := uncovered.get(name):
            number, ids = plural(len(sources), "source"), ", ".join(map(str, sources[:_EXAMPLES]))
            details.append(f"chunks do not cover all that was read of {number} ({ids})")
        if details:
            yield Difference(name, "backfill", total, held, "; ".join(details))


def _broken_sources(session: Session, names: Sequence[str]) -> dict[str, list[int]]:
    """Return, by counter, the ids of sources whose chunks have gaps or overlap, or end before or
    after the point up to which the source was read. ``names`` are the counters to look at; those
    without such sources are left out.
    """
    found: dict[str, list[int]] = {}
    for name, source in session.query(
        "SELECT s.counter, s.id FROM backfill_source AS s LEFT JOIN"
        " (SELECT source, start_at, end_at,"
        " COALESCE(LAG(end_at) OVER (PARTITION BY source ORDER BY start_at), 0) AS one_before"
        " FROM backfill_chunk WHERE source IN"
        f" (SELECT id FROM backfill_source WHERE counter IN ({marks(names)}))) AS c"
        f" ON c.source = s.id WHERE s.counter IN ({marks(names)})"
        " GROUP BY s.counter, s.id, s.read_to HAVING COALESCE(MAX(c.end_at), 0) <> s.read_to"
        " OR SUM(COALESCE(c.start_at <> c.one_before, 0)) > 0 ORDER BY s.id",
        (*names, *names),
    ):
        found.setdefault(name, []).append(int(source))
    return found
