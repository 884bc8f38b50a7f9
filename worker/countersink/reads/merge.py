"""Totals of a snapshot and what is pending beside it, put together.

Each function asks :mod:`countersink.store.totals_sql` or :mod:`countersink.store.series` and adds;
a counter that is only pending is known here.
"""

from collections.abc import Sequence
from datetime import date
from typing import TypedDict

from countersink.reads.pending import Pending
from countersink.reads.wanted import Wanted
from countersink.store import series, totals_sql
from countersink.store.connection import Session
from countersink.store.hours import Series
from countersink.store.key_match import ANY, KeyMatch
from countersink.store.keys import key_bytes
from countersink.store.shapes import counter_names


class _Range(TypedDict):
    start: date | None
    end: date | None
    time_zone: str | None
    known: bool


def total(session: Session, wanted: Wanted, pending: Pending) -> int:
    """The sum over all keys, or over those wanted."""
    counter = _counter(wanted)
    stored = totals_sql.total(session, counter, keys=wanted.keys, **_range(wanted, pending))
    return stored + pending.total()


def daily(session: Session, wanted: Wanted, pending: Pending) -> list[tuple[date, int]]:
    """(day, total) for each day of the range, by default from the first with data to the last."""
    return series.daily(
        session,
        _counter(wanted),
        keys=wanted.keys,
        added=pending.by_label(),
        **_range(wanted, pending),
    )


def hourly(session: Session, wanted: Wanted, pending: Pending) -> Series:
    """(begin of the hour, total) for each hour, by default from the first with data to the last."""
    return series.hourly(
        session,
        _counter(wanted),
        keys=wanted.keys,
        added=pending.by_label(),
        **_range(wanted, pending),
    )


def monthly(session: Session, wanted: Wanted, pending: Pending) -> list[tuple[date, int]]:
    """(first day, total) for each month, by default from the first with data to the last."""
    return series.monthly(
        session,
        _counter(wanted),
        keys=wanted.keys,
        added=pending.by_label(),
        **_range(wanted, pending),
    )


def by_key(
    session: Session,
    wanted: Wanted,
    pending: Pending,
    limit: int | None = None,
    match: KeyMatch = ANY,
) -> list[tuple[str, int]]:
    """(key, total) of the keys that match, largest first, then by key; all of them, or the first
    ``limit``.
    """
    if limit is not None and limit < 1:
        raise ValueError("ask for 1 key or more")
    counter, days = _counter(wanted), _range(wanted, pending)
    added = {key: amount for key, amount in pending.by_key().items() if key in match}
    # Of the keys that nothing is added to, none beyond the first `limit` can get into the result;
    # those that something is added to can come from anywhere, also from above.
    asked = None if limit is None else limit + len(added)
    totals = dict(totals_sql.by_key(session, counter, limit=asked, match=match, **days))
    if asked is not None and len(totals) == asked:
        beyond = [key for key in added if key not in totals]
        totals |= totals_sql.many(session, counter, beyond, **days)
    for key, amount in added.items():
        totals[key] = totals.get(key, 0) + amount
    ordered = sorted(totals.items(), key=lambda pair: (-pair[1], key_bytes(pair[0])))
    return ordered[:limit]


def many(session: Session, wanted: Wanted, pending: Pending, keys: Sequence[str]) -> dict[str, int]:
    """The totals of ``keys``, in their order; 0 for those without counts."""
    totals = totals_sql.many(session, _counter(wanted), keys, **_range(wanted, pending))
    for key, amount in pending.by_key().items():
        totals[key] += amount
    return totals


def counters(session: Session, wanted: Wanted, pending: Pending) -> dict[str, int]:
    """The totals of all counters, by name."""
    totals = totals_sql.counters(
        session,
        start=wanted.start,
        end=wanted.end,
        time_zone=wanted.time_zone,
        known=pending.counters,
        visible=wanted.visible,
    )
    for name, amount in pending.by_counter().items():
        if name in totals:
            totals[name] += amount
    return totals


def names(session: Session, wanted: Wanted, pending: Pending) -> list[str]:
    """The names of all counters, in order."""
    return sorted(filter(wanted.visible, {*counter_names(session), *pending.counters}))


def _counter(wanted: Wanted) -> str:
    assert wanted.counter is not None
    return wanted.counter


def _range(wanted: Wanted, pending: Pending) -> _Range:
    return {
        "start": wanted.start,
        "end": wanted.end,
        "time_zone": wanted.time_zone,
        "known": wanted.counter in pending.counters,
    }
