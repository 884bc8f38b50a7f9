"""Totals: sums of what was counted. ``Totals``, for programs: ``total``, ``daily``, ``hourly``,
``monthly``, ``top``, ``by_key``, ``counters``, ``span``; the SQL is in ``sums.py``."""

from collections.abc import Iterable
from datetime import date, datetime
from typing import Unpack

from countersink.store.sessions import Pool
from countersink.store.totals import many_counters, series, shapes, sums
from countersink.store.totals.selection import (
    ANY,
    DayRange,
    KeyMatch,
    Selection,
    TotalsQuestion,
    picked,
)


class Totals:
    """What was counted. Ranges are days, include both ends, and default to all that has data.

    Days are those of the counter's own time zone (UTC, where nobody has set another), or, with
    ``time_zone``, of any IANA zone: exactly, or with an InexactZone error where the counter's
    buckets do not tell. From quarters every zone's days add up (from 1980 on), from hours those of
    zones that are whole hours from UTC, from days only those that begin at the same instants. Hours
    tell those of the counter's own zone too only where it was whole hours from UTC.

    What retention has rolled up to months is in every total. A range that takes only a part of such
    a month, and a series of days or hours that is to begin there or has no start, is a RolledUp
    error, whose ``rolled_up_to`` is the first day of which everything can still be told.

    Thread-safe and fork-safe. Every method raises UnknownCounter for a counter that was neither
    made nor ever counted (but :meth:`counters`, :meth:`span` and :meth:`rolled_up_to`), ValueError
    for a range that ends before it begins and for an unknown time zone, and what
    :mod:`countersink.store.errors` lists. To ask several questions in one snapshot, call the
    functions of :mod:`countersink.store.totals.sums` and :mod:`countersink.store.totals.series` on
    a session.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def total(self, counter: str, **asked: Unpack[TotalsQuestion]) -> int:
        """The sum over all keys, over one, over several, or over those that match."""
        wanted = picked(counter, **asked)
        return self._pool.read(lambda session: sums.total(session, wanted))

    def daily(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """(day, total) for each day in order, 0 for days without counts; at most 100,000 days."""
        wanted = picked(counter, **asked)
        return self._pool.read(lambda session: series.daily(session, wanted))

    def hourly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """(begin of the hour, total) for each hour in order, 0 for hours without counts; at most
        100,000 hours.

        The begin is aware, with the zone's UTC offset at the time: an hour that clocks repeat is
        there twice. A counter that is counted by day has no hours: InexactZone.
        """
        wanted = picked(counter, **asked)
        return self._pool.read(lambda session: series.hourly(session, wanted))

    def monthly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """(first day of the month, total) for each month in order, 0 for months without counts; of
        the first and the last month what the range holds of them.
        """
        wanted = picked(counter, **asked)
        return self._pool.read(lambda session: series.monthly(session, wanted))

    def many(self, counter: str, keys: Iterable[str], **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        wanted = Selection(counter, keys=list(keys), **days)
        return self._pool.read(lambda session: sums.many(session, wanted))

    def top(
        self, counter: str, *, match: KeyMatch = ANY, n: int = 10, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """The ``n`` keys with the largest totals, of those that match: (key, total), largest first,
        then by key.
        """
        wanted = Selection(counter, keys=match, **days)
        return self._pool.read(lambda session: sums.by_key(session, wanted, limit=n))

    def by_key(
        self, counter: str, *, match: KeyMatch = ANY, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """(key, total) for every key of the range that matches, largest first, then by key."""
        wanted = Selection(counter, keys=match, **days)
        return self._pool.read(lambda session: sums.by_key(session, wanted))

    def counters(self, **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of all counters, by name, each over the days of its own time zone unless one
        is given.
        """
        wanted = Selection(**days)
        return self._pool.read(lambda session: many_counters.counters(session, wanted))

    def span(
        self, counter: str, *, key: str | None = None, time_zone: str | None = None
    ) -> tuple[date, date] | None:
        """The first and the last day with counts, of the counter or of a key; None if none has.

        Days that are rolled up count from the first day of their month.
        """
        wanted = Selection(counter, keys=None if key is None else [key], time_zone=time_zone)
        return self._pool.read(lambda session: sums.span(session, wanted))

    def rolled_up_to(self, counter: str) -> date | None:
        """The first day of which everything can still be told: those before it are in months; None
        where nothing is.
        """
        return self._pool.read(lambda session: shapes.rolled_up_to(session, counter))
