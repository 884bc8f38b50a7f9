"""``Totals``, the interface for programs. ``ask`` takes any question; ``total``, ``daily``, ``by``
and the other methods are short forms. See ``answer.py`` for how a question is answered, and
``sums.py`` for the SQL.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypedDict, Unpack

from countersink.counting.totals import sums
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import DIMENSIONS, Answer, Query, Row
from countersink.counting.totals.selection import (
    ANY,
    KeyMatch,
    Last,
    Selection,
    checked_where,
    wanted_keys,
)
from countersink.counting.totals.series import Unit
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.visitors import Visitors
from countersink.database.sessions import Pool


class DayRange(TypedDict, total=False):
    """The range of a question; by default all times.

    ``start`` and ``end`` are each a day, which is included, or a time (aware ``datetime``, a whole
    minute). A time as ``end`` is excluded. None means that this side has no limit. Or, in place of
    both, ``last`` is the length of a window that ends now: ``"24h"``, ``"90m"``, ``"7d"`` or a
    ``timedelta``. Days are those of ``time_zone``, by default of the counter's own zone.
    """

    start: date | None
    end: date | None
    last: str | timedelta | Last | None
    time_zone: str | None


class TotalsQuestion(DayRange, total=False):
    """The scope of a question: the range, and either keys or ``where``. By default these are all
    events of the counter.

    Keys are ``key``, or those in ``keys`` (an empty list: none), or those that match ``match``.
    Give only one of ``key`` and ``keys``; with ``match``, they are added to its ``keys``.
    ``where`` has values of dimensions that events must have; it excludes the other three.
    """

    key: str | None
    keys: Sequence[str] | None
    match: KeyMatch
    where: Mapping[str, str] | None


def selection_of(counter: str | None, **asked: Unpack[TotalsQuestion]) -> Selection:
    """Return the selection that these arguments describe. Its counter is ``counter``; None selects
    all counters.

    Raises:
        ValueError, TypeError: as for :func:`wanted_keys`, :func:`checked_where`, :meth:`Last.of`
            and :class:`Selection`.
    """
    others: dict[str, Any] = {**asked}
    key, keys, last, where = (others.pop(name, None) for name in ("key", "keys", "last", "where"))
    return Selection(
        counter,
        keys=wanted_keys(key, keys, others.pop("match", ANY)),
        last=None if last is None else Last.of(last),
        where=checked_where(where),
        **others,
    )


class Totals:
    """Totals of counters, read from MySQL. Threads and forked processes may share an object.

    ``pool`` has the sessions; each method reads in one snapshot of one session. A range is as in
    :class:`DayRange`, by default all times. For the window that ends now (``last="24h"``) see
    :mod:`countersink.counting.totals.query`.

    Days are those of the counter's time zone (by default UTC) or, with ``time_zone``, of any IANA
    zone. Totals are exact. If the counter's buckets do not add up to the days or times asked for,
    InexactZone is raised; its message says which resolution would do. Buckets of a quarter of an
    hour add up to the days of every zone (from 1980 on). Buckets of an hour add up to the days of
    zones that are whole hours from UTC, so not even to the days of the counter's own zone if that
    is UTC+05:30. Buckets of a day add up only to days that begin at the same instants.

    Totals include buckets that retention has rolled up. RolledUp is raised for a range that begins
    or ends within a month whose days are rolled up. It is also raised for a series of days, weeks,
    hours or minutes of which some are rolled up to wider buckets (by :meth:`ask` only if the query
    is ``strict``). The error's ``rolled_up_to`` is the first day from which on nothing that was
    asked for is rolled up.

    :meth:`ask` may return a partial answer, and tells where it is partial. The other methods return
    plain values, and raise an error instead of a partial answer. Questions by dimensions
    (``where``, :meth:`by`, :meth:`unique_by_dimensions`) are answered by a breakdown. If the range
    begins before the breakdown counts events, these methods raise IncompleteBreakdown; its
    ``since`` is the time from which on to ask. If a counter has dimensions, and counted none of the
    keys that a question names, UnknownDimension is raised (except by :meth:`span`): the counter's
    events have dimensions in place of keys.

    Every method raises UnknownCounter for a counter that was neither created nor ever counted,
    except :meth:`counters`, :meth:`span` and :meth:`rolled_up_to`. Every method raises ValueError
    for a range that ends before it begins and for an unknown time zone, and the errors of
    :mod:`countersink.database.errors`. (Without a range, :meth:`counters` does not check the time
    zone.) :class:`countersink.counting.totals.snapshot.Snapshot` answers several questions from one
    snapshot.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def ask(self, query: Query) -> Answer:
        """Answer any question, from one snapshot.

        The answer may be partial, unless the query is ``strict``.

        Raises:
            ValueError: the query includes pending increments, which only
                :class:`countersink.reads.Reads` can read.
            StoreError, ValueError: as for :func:`countersink.counting.totals.answer.answer`.
        """
        if query.include_pending:
            raise ValueError("include_pending needs the queue: ask countersink.reads.Reads")
        return self._pool.read(lambda session: answer(Snapshot(session), query))

    def _rows(self, selection: Selection, by: str, **options: Any) -> list[Row]:
        return self.ask(Query(selection, by=by, strict=True, **options)).rows

    def total(self, counter: str, **asked: Unpack[TotalsQuestion]) -> int:
        """Return the sum over all keys, or over the keys that ``key``, ``keys`` or ``match``
        select. With ``where={"country": "DE"}``, return the sum over events with these values of
        dimensions; this needs a breakdown (see :meth:`by`).
        """
        ((found,),) = self._rows(selection_of(counter, **asked), "total")
        return int(found)

    def daily(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """Return (day, total) for each day in order, 0 for days without counts. Without a start,
        the first row is the first day that has counts. Without an end, the last row is the last day
        that has counts. If the start or the end is missing, and no day has counts, the list is
        empty.

        Raises:
            SeriesTooLong: there would be more than 100,000 days.
        """
        return self._rows(selection_of(counter, **asked), "day")

    def weekly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """Return (Monday, total) for each ISO week in order, 0 for weeks without counts. Of the
        first and the last week, only the days in the range are added up. Without a start, the first
        row is the first week that has counts. Without an end, the last row is the last week that
        has counts. As in :meth:`daily`, the list may be empty. SeriesTooLong is raised for more
        than 15,000 weeks.
        """
        return self._rows(selection_of(counter, **asked), "week")

    def hourly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """Return (begin of the hour, total) for each hour in order, 0 for hours without counts.
        Without a start, the first row is the first hour that has counts. Without an end, the last
        row is the last hour that has counts. As in :meth:`daily`, the list may be empty.

        The begin is an aware datetime with the zone's UTC offset at that time. An hour that clocks
        repeat is returned twice.

        Raises:
            SeriesTooLong: there would be more than 100,000 hours.
            InexactZone: the counter is counted by day, or its buckets do not add up to hours of the
                time zone.
        """
        return self._rows(selection_of(counter, **asked), "hour")

    def minutely(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """Return (begin of the minute, total) for each minute in order, 0 for minutes without
        counts. The counter must be counted by minute. In all else, errors included, this is like
        :meth:`hourly`.
        """
        return self._rows(selection_of(counter, **asked), "minute")

    def monthly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """Return (first day of the month, total) for each month in order, 0 for months without
        counts. Of the first and the last month, only the days in the range are added up. Without a
        start, the first row is the first month that has counts. Without an end, the last row is the
        last month that has counts. As in :meth:`daily`, the list may be empty.

        Raises:
            SeriesTooLong: there would be more than 3,600 months.
        """
        return self._rows(selection_of(counter, **asked), "month")

    def many(self, counter: str, keys: Iterable[str], **days: Unpack[DayRange]) -> dict[str, int]:
        """Return the total of each key in ``keys``, by key, in the order given; 0 for keys without
        counts. ``days`` is the range.
        """
        wanted = list(keys)
        found: dict[str, int] = dict(self._rows(selection_of(counter, keys=wanted, **days), "key"))
        return {key: found[key] for key in wanted}

    def top(
        self, counter: str, *, match: KeyMatch = ANY, n: int = 10, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """Return the first ``n`` rows of :meth:`by_key`: (key, total) of the matching keys with the
        largest totals, the largest first. ValueError is raised if ``n`` is less than 1.
        """
        return self._rows(selection_of(counter, match=match, **days), "key", top=n)

    def by_key(
        self, counter: str, *, match: KeyMatch = ANY, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """Return (key, total) of every matching key that has rows in the range, even if the total
        is 0. If ``match`` has ``keys`` and no ``prefix``, those of ``keys`` that match and have
        no rows are returned as well, with 0. The largest total is first; equal totals are in the
        order of keys.
        """
        return self._rows(selection_of(counter, match=match, **days), "key")

    def counters(self, **days: Unpack[DayRange]) -> dict[str, int]:
        """Return the total of each counter by name, in the order of names; 0 for counters without
        counts in the range. Breakdowns are left out. Without ``time_zone``, days are those of each
        counter's own time zone.
        """
        return dict(self._rows(selection_of(None, **days), "total"))

    def by(
        self,
        counter: str,
        dimensions: Sequence[str],
        *,
        where: Mapping[str, str] | None = None,
        n: int | None = None,
        **days: Unpack[DayRange],
    ) -> list[tuple[tuple[str, ...], int]]:
        """Return (values of the dimensions, total) of each combination of values, the largest total
        first; equal totals are in the order of the values. Combinations without rows in the range
        are left out.

        Args:
            counter: a counter that has a breakdown by the dimensions in ``dimensions`` and
                ``where``.
            dimensions: the dimensions of the rows, in order.
            where: only events with these values of dimensions are added up; ``""`` is the value of
                events that do not have the dimension.
            n: maximum number of rows; None for all.
            days: the range.

        Raises:
            UnknownDimension: no breakdown has these dimensions; the message says how to declare
                one.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, top=n)
        return [(row[:-1], row[-1]) for row in rows]

    def unique(self, counter: str, **asked: Unpack[TotalsQuestion]) -> Visitors:
        """Return the number of different members (visitors, say) that ``Producer.seen`` has
        counted. Arguments are as for :meth:`total`. A member that was seen in several keys or
        buckets is counted once. The number is exact if no stored sketch has more than 256 members,
        and there are at most 100,000 different members. Otherwise it is an estimate with bounds.

        Raises:
            NotUnique: the counter does not count different members, or those of this range were
                hashed with several salts.
            DamagedSketch: a stored sketch is damaged or missing.
            NoSketches: the library datasketches is needed, and not installed
                (``countersink[sketches]``).
        """
        (row,) = self._rows(selection_of(counter, **asked), "total", unique=True)
        return Visitors(*row)

    def unique_by(
        self, counter: str, unit: Unit, **asked: Unpack[TotalsQuestion]
    ) -> list[tuple[date, Visitors]]:
        """Return (begin, number of different members) for each day, week, hour, minute or month, in
        order. ``unit`` says which: ``day``, ``week``, ``hour``, ``minute`` or ``month``. The begin
        is the day or time that :meth:`daily`, :meth:`weekly`, :meth:`hourly`, :meth:`minutely` or
        :meth:`monthly` returns; a day (or other unit) without members has the number 0. Errors are
        as for these methods and :meth:`unique`, but several salts are an error only within the
        same day (or other unit).
        """
        rows = self._rows(selection_of(counter, **asked), unit, unique=True)
        return [(place, Visitors(*found)) for place, *found in rows]

    def unique_by_key(
        self, counter: str, *, match: KeyMatch = ANY, n: int | None = None, **days: Unpack[DayRange]
    ) -> list[tuple[str, Visitors]]:
        """Return (key, number of different members) of the matching keys that have members, the
        largest number first; equal numbers are in the order of keys. With ``n``, only the first
        ``n`` are returned. Errors are as for :meth:`unique`, but several salts are an error only
        within the same key.
        """
        rows = self._rows(selection_of(counter, match=match, **days), "key", unique=True, top=n)
        return [(key, Visitors(*found)) for key, *found in rows]

    def unique_by_dimensions(
        self,
        counter: str,
        dimensions: Sequence[str],
        *,
        where: Mapping[str, str] | None = None,
        n: int | None = None,
        **days: Unpack[DayRange],
    ) -> list[tuple[tuple[str, ...], Visitors]]:
        """Return (values of the dimensions, number of different members) of each combination of
        values that has members, the largest number first; equal numbers are in the order of the
        values. Arguments are as for :meth:`by`, errors as for :meth:`by` and :meth:`unique`. But
        several salts are an error only within the same combination.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, unique=True, top=n)
        return [(row[: len(by)], Visitors(*row[len(by) :])) for row in rows]

    def span(
        self, counter: str, *, key: str | None = None, time_zone: str | None = None
    ) -> tuple[date, date] | None:
        """Return the first and the last day that have rows of a counter or, if ``key`` is given,
        of this key. Return None if there are no rows, also for an unknown counter. All days of a
        month that is a single bucket count as days with rows.

        Raises:
            InexactZone: the first or the last bucket is in more than one day of the time zone.
            RolledUp: the first or the last bucket is a month, and ``time_zone`` is not the
                counter's own.
        """
        wanted = Selection(counter, keys=None if key is None else [key], time_zone=time_zone)
        return self._pool.read(lambda session: sums.span(Snapshot(session), wanted))

    def rolled_up_to(self, counter: str) -> date | None:
        """Return the first day of a counter that is not rolled up to a month. Return None if no
        days are rolled up to months, also for an unknown counter.
        """
        return self._pool.read(lambda session: Snapshot(session).rolled_up_to(counter))
