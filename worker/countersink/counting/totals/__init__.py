"""``Totals``, the interface for programs: any question (``ask``), and in short ``total``,
``daily``, ``hourly``, ``minutely``, ``monthly``, ``top``, ``by_key``, ``counters``, ``span``. See
``answer.py`` for how a question is answered, ``sums.py`` for the SQL."""

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
    """A range of days, both included, or of times (aware ``datetime``, ``end`` excluded); or a
    window that ends now (``last``): ``"24h"``, ``"90m"``, ``"7d"``, a ``timedelta``. Default: all
    times. Days are of ``time_zone``, by default the counter's own.
    """

    start: date | None
    end: date | None
    last: str | timedelta | Last | None
    time_zone: str | None


class TotalsQuestion(DayRange, total=False):
    """Keys of a counter (one, several, or a match; default: all) or values of its dimensions, and a
    range.
    """

    key: str | None
    keys: Sequence[str] | None
    match: KeyMatch
    where: Mapping[str, str] | None


def selection_of(counter: str | None, **asked: Unpack[TotalsQuestion]) -> Selection:
    """The selection of one counter, or of all, from keyword arguments.

    Raises:
        ValueError, TypeError: as :func:`wanted_keys`, :meth:`Last.of` and :class:`Selection`.
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
    """Totals of counters. Ranges are days, include both ends, and default to all times.

    Ranges may also be times: ``start`` (inclusive) and ``end`` (exclusive) as aware datetimes, or
    ``last="24h"`` (``"90m"``, ``"7d"``), the window that ends now:
    :mod:`countersink.counting.totals.query`.

    Days are those of the counter's time zone (by default UTC) or, with ``time_zone``, of any IANA
    zone. Totals are exact: where the counter's buckets do not add up to the days or times asked
    for, InexactZone says which resolution would. Quarters add up to the days of every zone (from
    1980 on), hours to those of zones that are whole hours from UTC, days only to days that begin at
    equal instants. This holds for hours in the counter's own zone, too.

    Totals include buckets that retention has rolled up. RolledUp is raised for a range that cuts
    through a month into which days are rolled up, and for a series of days, hours or minutes that
    begins where these are rolled up, or has no start; its ``rolled_up_to`` is the first day that
    still has buckets of its own.

    :meth:`ask` takes any question and returns a possibly partial answer with its limits. The other
    methods return plain values and are ``strict``: a partial answer is an error, also for a range
    that begins before the breakdown that answers (``where``, :meth:`by`,
    :meth:`unique_by_dimensions`): IncompleteBreakdown, whose ``since`` says from when on to ask.

    Thread-safe and fork-safe. Every method raises UnknownCounter for a counter that was neither
    created nor ever counted (except :meth:`counters`, :meth:`span` and :meth:`rolled_up_to`),
    ValueError for a range that ends before it begins and for an unknown time zone, and the errors
    of :mod:`countersink.database.errors`. To ask several questions in one snapshot, see
    :class:`countersink.counting.totals.snapshot.Snapshot`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def ask(self, query: Query) -> Answer:
        """The answer to any question, from one snapshot.

        Raises:
            ValueError: the query includes pending increments, which only
                :class:`countersink.reads.Reads` can read.
            StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
        """
        if query.include_pending:
            raise ValueError("include_pending needs the queue: ask countersink.reads.Reads")
        return self._pool.read(lambda session: answer(Snapshot(session), query))

    def _rows(self, selection: Selection, by: str, **options: Any) -> list[Row]:
        return self.ask(Query(selection, by=by, strict=True, **options)).rows

    def total(self, counter: str, **asked: Unpack[TotalsQuestion]) -> int:
        """The sum over all keys, one key, several keys, or keys that match; or, with
        ``where={"country": "DE"}``, over events with these values of dimensions, counted by a
        breakdown (:meth:`by`).
        """
        ((found,),) = self._rows(selection_of(counter, **asked), "total")
        return int(found)

    def daily(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """(day, total) for each day in order, 0 for days without counts; at most 100,000 days."""
        return self._rows(selection_of(counter, **asked), "day")

    def hourly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """(begin of the hour, total) for each hour in order, 0 for hours without counts; at most
        100,000 hours.

        The begin is aware, with the zone's UTC offset at the time: an hour that clocks repeat is
        returned twice. A counter that is counted by day has no hours: InexactZone.
        """
        return self._rows(selection_of(counter, **asked), "hour")

    def minutely(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """(begin of the minute, total) for each minute in order, 0 for minutes without counts; at
        most 100,000 minutes. As :meth:`hourly`, for a counter that is counted by minute.
        """
        return self._rows(selection_of(counter, **asked), "minute")

    def monthly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """(first day of the month, total) for each month in order, 0 for months without counts; the
        first and the last month only as far as the range includes them.
        """
        return self._rows(selection_of(counter, **asked), "month")

    def many(self, counter: str, keys: Iterable[str], **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of many keys by key, in their order; 0 for keys without counts."""
        wanted = list(keys)
        found: dict[str, int] = dict(self._rows(selection_of(counter, keys=wanted, **days), "key"))
        return {key: found[key] for key in wanted}

    def top(
        self, counter: str, *, match: KeyMatch = ANY, n: int = 10, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """(key, total) of the ``n`` matching keys with the largest totals, largest first, then by
        key.
        """
        return self._rows(selection_of(counter, match=match, **days), "key", top=n)

    def by_key(
        self, counter: str, *, match: KeyMatch = ANY, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """(key, total) of every matching key with rows in the range, largest first, then by key."""
        return self._rows(selection_of(counter, match=match, **days), "key")

    def counters(self, **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of all counters by name, over days of each counter's time zone unless one is
        given.
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
        """(values of the dimensions, total) of every combination of values, largest first, then by
        the values; or the first ``n``.

        Args:
            counter: a counter with a breakdown by the dimensions of ``dimensions`` and ``where``.
            dimensions: dimensions of the rows, in order.
            where: only events with these values; ``""`` is the value of events without one.
            n: maximum number of rows.
            days: the range.

        Raises:
            UnknownDimension: no breakdown has these dimensions; the message says how to declare it.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, top=n)
        return [(row[:-1], row[-1]) for row in rows]

    def unique(self, counter: str, **asked: Unpack[TotalsQuestion]) -> Visitors:
        """The number of different members (``Producer.seen``) for arguments as of :meth:`total`: of
        a union, not a sum. Exact up to 256 members; beyond that an estimate with bounds.

        Raises:
            NotUnique: the counter does not count different members, or those of this range were
                hashed with several salts.
            DamagedSketch: a stored sketch is damaged or missing.
            NoSketches: datasketches (``countersink[sketches]``) is needed and not installed.
        """
        (row,) = self._rows(selection_of(counter, **asked), "total", unique=True)
        return Visitors(*row)

    def unique_by(
        self, counter: str, unit: Unit, **asked: Unpack[TotalsQuestion]
    ) -> list[tuple[date, Visitors]]:
        """(place, number of different members) for each ``day``, ``hour``, ``minute`` or ``month``
        in order; places as of :meth:`daily`, :meth:`hourly`, :meth:`minutely`, :meth:`monthly`.
        """
        rows = self._rows(selection_of(counter, **asked), unit, unique=True)
        return [(place, Visitors(*found)) for place, *found in rows]

    def unique_by_key(
        self, counter: str, *, match: KeyMatch = ANY, n: int | None = None, **days: Unpack[DayRange]
    ) -> list[tuple[str, Visitors]]:
        """(key, number of different members) of the matching keys with members, largest first, then
        by key; or the first ``n``.
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
        """(values of the dimensions, number of different members), largest first, then by the
        values; or the first ``n``. Arguments and errors as of :meth:`by`.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, unique=True, top=n)
        return [(row[: len(by)], Visitors(*row[len(by) :])) for row in rows]

    def span(
        self, counter: str, *, key: str | None = None, time_zone: str | None = None
    ) -> tuple[date, date] | None:
        """The first and the last day with rows of a counter or a key; None: no rows. A month counts
        from its first to its last day.
        """
        wanted = Selection(counter, keys=None if key is None else [key], time_zone=time_zone)
        return self._pool.read(lambda session: sums.span(Snapshot(session), wanted))

    def rolled_up_to(self, counter: str) -> date | None:
        """The first day that still has a bucket of its own, as earlier days are in months; None: no
        days are in months.
        """
        return self._pool.read(lambda session: Snapshot(session).rolled_up_to(counter))
