"""Totals of a snapshot and what is pending beside it, put together.

Each function asks :mod:`countersink.store.totals_sql` and adds; a counter that is only pending is
known here.
"""

from collections.abc import Sequence
from datetime import date

from countersink.reads.pending import Pending
from countersink.store import totals_sql
from countersink.store.connection import Session
from countersink.store.errors import UnknownCounter


def known(session: Session, counter: str, pending: Pending) -> bool:
    """Whether MySQL knows the counter; False where only pending entries do.

    Raises:
        UnknownCounter: neither does.
    """
    try:
        totals_sql.require_counter(session, counter)
    except UnknownCounter:
        if counter not in pending.counters:
            raise
        return False
    return True


def total(
    session: Session,
    counter: str,
    pending: Pending,
    keys: Sequence[str] | None,
    start: date | None,
    end: date | None,
) -> int:
    """The sum over all keys, or over ``keys``."""
    stored = 0
    if known(session, counter, pending):
        stored = totals_sql.total(session, counter, keys=keys, start=start, end=end)
    return stored + pending.total()


def daily(
    session: Session,
    counter: str,
    pending: Pending,
    keys: Sequence[str] | None,
    start: date | None,
    end: date | None,
) -> list[tuple[date, int]]:
    """(day, total) for each day of the range, by default from the first with data to the last."""
    stored = known(session, counter, pending)
    added = pending.by_day()
    if start is None or end is None:
        days = list(added)
        if stored:
            days += totals_sql.span(session, counter, keys=keys) or ()
        if not days:
            return []
        start, end = start or min(days), end or max(days)
        if end < start:
            return []
    if stored:
        series = totals_sql.daily(session, counter, keys=keys, start=start, end=end)
    else:
        series = [(day, 0) for day in totals_sql.series_days(start, end)]
    return [(day, amount + added.get(day, 0)) for day, amount in series]


def by_key(
    session: Session,
    counter: str,
    pending: Pending,
    start: date | None,
    end: date | None,
    limit: int | None = None,
) -> list[tuple[str, int]]:
    """(key, total), largest first, then by key; all of them, or the first ``limit``."""
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    added = pending.by_key()
    totals: dict[str, int] = {}
    if known(session, counter, pending):
        # Of the keys that nothing is added to, none beyond the first `limit` can get into the
        # result; those that something is added to can come from anywhere, also from above.
        wanted = None if limit is None else limit + len(added)
        totals = dict(totals_sql.by_key(session, counter, start=start, end=end, limit=wanted))
        if wanted is not None and len(totals) == wanted:
            beyond = [key for key in added if key not in totals]
            totals |= totals_sql.many(session, counter, beyond, start=start, end=end)
    for key, amount in added.items():
        totals[key] = totals.get(key, 0) + amount
    ordered = sorted(totals.items(), key=lambda pair: (-pair[1], totals_sql.key_bytes(pair[0])))
    return ordered[:limit]


def many(
    session: Session,
    counter: str,
    pending: Pending,
    keys: Sequence[str],
    start: date | None,
    end: date | None,
) -> dict[str, int]:
    """The totals of ``keys``, in their order; 0 for those without counts."""
    totals = dict.fromkeys(keys, 0)
    if known(session, counter, pending):
        totals = totals_sql.many(session, counter, keys, start=start, end=end)
    for key, amount in pending.by_key().items():
        totals[key] += amount
    return totals


def counters(
    session: Session, pending: Pending, start: date | None, end: date | None
) -> dict[str, int]:
    """The totals of all counters, by name."""
    totals = totals_sql.counters(session, start=start, end=end)
    for name in pending.counters:
        totals.setdefault(name, 0)
    for name, amount in pending.by_counter().items():
        totals[name] += amount
    return dict(sorted(totals.items()))
