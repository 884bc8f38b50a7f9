"""What found no room among the keys of a counter's day: its key, and the record of how much it was.

Each writer adds to a row of ``counter_keys`` in its own slot, where nobody waits for it.
"""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Final

from countersink.store.buckets import label_of
from countersink.store.connection import Session

OVERFLOW: Final = "__overflow__"
"""The key of what has no room. It is not one of the keys that are counted."""

Place = tuple[str, date]
"""(counter, day of its own time zone)."""

_ROWS_PER_STATEMENT: Final = 200
_DAYS_PER_QUERY: Final = 1000


def write(session: Session, slot: int, rows: Mapping[Place, int]) -> None:
    """Write down how many rows went to :data:`OVERFLOW`, at the end of the transaction that counts
    them.
    """
    clause = session.dialect.upsert_add("counter_keys", "overflown")
    ordered = [(place, number) for place, number in sorted(rows.items()) if number]
    for start in range(0, len(ordered), _ROWS_PER_STATEMENT):
        part = ordered[start : start + _ROWS_PER_STATEMENT]
        values = ", ".join(["(%s, %s, %s, %s)"] * len(part))
        session.execute(
            f"INSERT INTO counter_keys (counter, day, slot, overflown) VALUES {values}{clause}",
            [value for (counter, day), number in part for value in (counter, day, slot, number)],
        )


def by_day(session: Session, *, since: date, counter: str | None = None) -> dict[Place, int]:
    """Rows that went to :data:`OVERFLOW`, by (counter, day), of the days from ``since`` on."""
    one, args = ("", (since,)) if counter is None else (" AND counter = %s", (since, counter))
    return {
        (name, day): int(number)
        for name, day, number in session.query(
            "SELECT counter, day, SUM(overflown) FROM counter_keys"
            f" WHERE day >= %s{one} GROUP BY counter, day HAVING SUM(overflown) > 0",
            args,
        )
    }


def by_counter(session: Session) -> dict[str, int]:
    """The same by counter, of all days from yesterday (in UTC) on; the most first."""
    found = session.query(
        "SELECT counter, SUM(overflown) FROM counter_keys"
        " WHERE day >= UTC_DATE() - INTERVAL 1 DAY GROUP BY counter HAVING SUM(overflown) > 0"
        " ORDER BY SUM(overflown) DESC, counter"
    )
    return {name: int(number) for name, number in found}


def labels(session: Session, counter: str) -> set[int]:
    """The labels of a counter's buckets in which something is in :data:`OVERFLOW`."""
    rows = session.query(
        "SELECT bucket FROM counter_slot FORCE INDEX (by_key)"
        " WHERE counter = %s AND counter_key = %s GROUP BY bucket HAVING SUM(amount) <> 0",
        (counter, OVERFLOW.encode()),
    )
    return {label_of(bucket) for (bucket,) in rows}


def prune(
    session: Session,
    days: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    rest: Callable[[], object] = lambda: None,
) -> tuple[int, bool]:
    """Forget the records of days more than ``days`` ago; of how many, and whether these were all.

    Whoever counts such a day later has its keys counted anew. Each record is deleted in a
    transaction of its own, as workers hold several, in another order.

    Raises:
        StoreError: as any statement.
    """
    deleted = 0
    while True:
        found = session.query(
            "SELECT DISTINCT counter, day FROM counter_keys"
            " WHERE day < UTC_DATE() - INTERVAL %s DAY ORDER BY day LIMIT %s",
            (days, _DAYS_PER_QUERY),
        )
        for counter, day in found:
            if stop():
                return deleted, False
            deleted += session.execute(
                # By the index by which workers lock, so that nobody waits in a circle.
                "DELETE counter_keys FROM counter_keys FORCE INDEX (PRIMARY)"
                " WHERE counter = %s AND day = %s",
                (counter, day),
            )
        if len(found) < _DAYS_PER_QUERY:
            return deleted, True
        rest()
