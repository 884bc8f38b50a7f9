"""Compares rows of counters with the ledger for ``verify``. Compares what backfills wrote down
(chunks, corrections, journals) with the ledger, for ``verify``; reads the entries of a journal.

The server adds up both sides, of which it tells one row per counter.

What backfills add goes into slots of their own. So for each counter, in any snapshot: the ledger of
these slots = the sum of the chunks that were added and not taken back + the corrections of its
reconciles that were not. And the chunks of a source cover what was read of it, every byte once.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from countersink.counting.apply.cells import FIRST_SLOT
from countersink.counting.counters.breakdowns import is_breakdown
from countersink.counting.ledger import CHECKSUM, MODULUS, Difference, Posting
from countersink.database.app_connection import FIRST_PRIVATE
from countersink.database.session import Session
from countersink.database.sql import marks

_ORDER: Final = {
    "counter_slot": "counter, bucket, counter_key, width, slot",
    "counter_ledger": "counter, slot",
}
_CHECKSUMS: Final = {"counter_slot": CHECKSUM, "counter_ledger": "SUM(checksum)"}


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of a counter in one of the tables, added up in one snapshot.

    Attributes:
        rows: how many.
        sum: of them.
    """

    rows: int = 0
    sum: Posting = field(default_factory=Posting)


def between(after: str | None, last: str | None) -> tuple[str, list[object]]:
    """The condition for counters whose names lie after one (None: none is before them) and up to
    another (None: none is behind them), and its values.
    """
    where, values = "TRUE", list[object]()
    for comparison, name in ((">", after), ("<=", last)):
        if name is not None:
            where += f" AND counter {comparison} %s"
            values.append(name)
    return where, values


def last_of_next(session: Session, after: str | None, rows: int) -> str | None:
    """The last of the next counters, which are as many as have so many rows in one of the tables;
    None: all that are left.

    Args:
        session: in a transaction or not.
        after: the name before them; None: begin.
        rows: of all counters but the last, which may have any number.
    """
    where, args = between(after, None)
    ends = [
        name
        for table, order in _ORDER.items()
        for (name,) in session.query(
            f"SELECT counter FROM {table} FORCE INDEX (PRIMARY) WHERE {where}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1:d}",
            args,
        )
    ]
    return min(ends, default=None)


def read(session: Session, where: str, args: Sequence[object]) -> dict[str, tuple[Side, Side]]:
    """What tables and ledger hold of each counter that has any, in the snapshot that the caller
    began.

    Args:
        session: in a snapshot.
        where: which counters: a stretch of the primary keys, in whose order they are grouped.
        args: the values in it.
    """
    found: defaultdict[str, dict[str, Side]] = defaultdict(dict)
    for table, checksum in _CHECKSUMS.items():
        for name, rows, amount, total in session.query(
            f"SELECT counter, COUNT(*), SUM(amount), {checksum}"
            f" FROM {table} FORCE INDEX (PRIMARY) WHERE {where} GROUP BY counter",
            args,
        ):
            found[name][table] = Side(int(rows), Posting(int(amount), int(total) % MODULUS))
    held, posted = _CHECKSUMS
    none = Side()
    return {
        name: (sides.get(held, none), sides.get(posted, none))
        for name, sides in sorted(found.items())
    }


_EXAMPLES: Final = 3

JournalEntry = tuple[int, str, int] | tuple[int, str, int, str]
"""(bucket's label, key, amount) of a journal; of a breakdown also the name of its counter."""


def journal_entries(piece: bytes) -> Iterator[JournalEntry]:
    """What a row of ``backfill_journal`` says that a chunk added.

    Raises:
        ValueError, TypeError, zlib.error, RecursionError: it is damaged.
    """
    entries: Any = json.loads(zlib.decompress(piece))
    for entry in entries:
        bucket, key, amount, *breakdown = entry
        # ``type``: True is a number to isinstance.
        if (type(bucket), type(key), type(amount)) != (int, str, int):
            raise ValueError("an entry is not a bucket, a key and an amount")
        if not all(type(each) is str and is_breakdown(each) for each in breakdown):
            raise ValueError("an entry is of a breakdown that has no name of one")
        yield (bucket, key, amount, breakdown[0]) if breakdown else (bucket, key, amount)


def mismatches(session: Session, where: str, args: Sequence[object]) -> Iterator[Difference]:
    """What is wrong with the backfills of some counters, chosen as for
    :func:`countersink.counting.ledger.balance.read`, in the snapshot that the caller began.
    """
    had_any = session.query(
        f"SELECT counter FROM backfill_source WHERE {where}"
        f" UNION SELECT counter FROM backfill_run WHERE {where}",
        (*args, *args),
    )
    names = sorted(name for (name,) in had_any)
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
    written_down = dict.fromkeys(names, 0)
    for name, amount in (*added, *corrected):
        written_down[name] += int(amount)
    ledger = session.query(
        "SELECT counter, SUM(amount) FROM counter_ledger"
        f" WHERE counter IN ({marks(names)}) AND slot BETWEEN %s AND %s GROUP BY counter",
        (*names, FIRST_SLOT, FIRST_PRIVATE - 1),
    )
    in_ledger: dict[str, Any] = dict(ledger)
    uncovered = _broken_sources(session, names)
    for name in names:
        said, held = written_down[name], int(in_ledger.get(name, 0))
        details = []
        if said != held:
            details.append(
                f"the ledger of slots {FIRST_SLOT} to {FIRST_PRIVATE - 1} holds {held - said:+,}"
                " against what backfills wrote down"
            )
        if sources := uncovered.get(name):
            some = ", ".join(map(str, sources[:_EXAMPLES]))
            details.append(
                f"the chunks of {len(sources):,} sources, such as {some}, do not cover what was"
                " read of them"
            )
        if details:
            yield Difference(name, "backfill", said, held, "; ".join(details))


def _broken_sources(session: Session, names: Sequence[str]) -> dict[str, list[int]]:
    """Sources in whose chunks there are gaps, or that do not end where reading has."""
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
