"""Totals for programs: each method is one question, answered in one snapshot of the database."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime

from countersink.store import series, shapes, totals_sql
from countersink.store.connection import Session
from countersink.store.keys import chosen_keys
from countersink.store.pool import Pool


class Totals:
    """What was counted. Ranges are days, include both ends, and default to all that has data.

    Days are those of the counter's own time zone (UTC, where nobody has set another), or, with
    ``time_zone``, of any IANA zone: exactly, or with an InexactZone error where the counter's
    buckets do not tell. From quarters every zone's days add up (from 1980 on), from hours those of
    zones that are whole hours from UTC, from days only those that begin at the same instants. Hours
    tell those of the counter's own zone too only where it was whole hours from UTC.

    What retention has rolled up to months is in every total. A range that takes only a part of such
    a month, and a series of days or hours that is to begin there, is a RolledUp error, whose
    ``rolled_up_to`` is the first day of which everything can still be told.

    Thread-safe and fork-safe. Every method raises UnknownCounter for a counter that was neither
    made nor ever counted (but :meth:`counters`, :meth:`span` and :meth:`rolled_up_to`), ValueError
    for a range that ends before it begins and for an unknown time zone, and what
    :mod:`countersink.store.errors` lists. To ask several questions in one snapshot, call the
    functions of :mod:`countersink.store.totals_sql` and :mod:`countersink.store.series` on a
    session.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def total(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> int:
        """The sum over all keys, over one, or over several."""
        chosen = chosen_keys(key, keys)

        def work(session: Session) -> int:
            return totals_sql.total(
                session, counter, keys=chosen, start=start, end=end, time_zone=time_zone
            )

        return self._pool.read(work)

    def daily(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> list[tuple[date, int]]:
        """(day, total) for each day in order, 0 for days without counts; at most 100,000 days."""
        chosen = chosen_keys(key, keys)

        def work(session: Session) -> list[tuple[date, int]]:
            return series.daily(
                session, counter, keys=chosen, start=start, end=end, time_zone=time_zone
            )

        return self._pool.read(work)

    def hourly(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> list[tuple[datetime, int]]:
        """(begin of the hour, total) for each hour in order, 0 for hours without counts; at most
        100,000 hours.

        The begin is aware, with the zone's UTC offset at the time: an hour that clocks repeat is
        there twice. A counter that is counted by day has no hours: InexactZone.
        """
        chosen = chosen_keys(key, keys)

        def work(session: Session) -> list[tuple[datetime, int]]:
            return series.hourly(
                session, counter, keys=chosen, start=start, end=end, time_zone=time_zone
            )

        return self._pool.read(work)

    def monthly(
        self,
        counter: str,
        *,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> list[tuple[date, int]]:
        """(first day of the month, total) for each month in order, 0 for months without counts; of
        the first and the last month what the range holds of them.
        """
        chosen = chosen_keys(key, keys)

        def work(session: Session) -> list[tuple[date, int]]:
            return series.monthly(
                session, counter, keys=chosen, start=start, end=end, time_zone=time_zone
            )

        return self._pool.read(work)

    def many(
        self,
        counter: str,
        keys: Iterable[str],
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> dict[str, int]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        chosen = list(keys)

        def work(session: Session) -> dict[str, int]:
            return totals_sql.many(
                session, counter, chosen, start=start, end=end, time_zone=time_zone
            )

        return self._pool.read(work)

    def top(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
        n: int = 10,
    ) -> list[tuple[str, int]]:
        """The ``n`` keys with the largest totals: (key, total), largest first, then by key."""

        def work(session: Session) -> list[tuple[str, int]]:
            return totals_sql.by_key(
                session, counter, start=start, end=end, time_zone=time_zone, limit=n
            )

        return self._pool.read(work)

    def by_key(
        self,
        counter: str,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> list[tuple[str, int]]:
        """(key, total) for every key of the range, largest first, then by key."""

        def work(session: Session) -> list[tuple[str, int]]:
            return totals_sql.by_key(session, counter, start=start, end=end, time_zone=time_zone)

        return self._pool.read(work)

    def counters(
        self,
        *,
        start: date | None = None,
        end: date | None = None,
        time_zone: str | None = None,
    ) -> dict[str, int]:
        """The totals of all counters, by name, each over the days of its own time zone unless one
        is given.
        """

        def work(session: Session) -> dict[str, int]:
            return totals_sql.counters(session, start=start, end=end, time_zone=time_zone)

        return self._pool.read(work)

    def span(
        self, counter: str, *, key: str | None = None, time_zone: str | None = None
    ) -> tuple[date, date] | None:
        """The first and the last day with counts, of the counter or of a key; None if none has.

        Days that are rolled up count from the first day of their month.
        """

        def work(session: Session) -> tuple[date, date] | None:
            return totals_sql.span(
                session, counter, keys=chosen_keys(key, None), time_zone=time_zone
            )

        return self._pool.read(work)

    def rolled_up_to(self, counter: str) -> date | None:
        """The first day of which everything can still be told: those before it are in months; None
        where nothing is.
        """

        def work(session: Session) -> date | None:
            return shapes.rolled_up_to(session, counter)

        return self._pool.read(work)
