"""Totals: sums of what was counted. ``Totals``, for programs: any question (``ask``), and in short
``total``, ``daily``, ``hourly``, ``minutely``, ``monthly``, ``top``, ``by_key``, ``counters``,
``span``; how a question is answered is in ``answer.py``, the SQL in ``sums.py``."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Unpack

from countersink.counting.totals import sums
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import DIMENSIONS, Answer, Query, Row
from countersink.counting.totals.selection import (
    ANY,
    DayRange,
    KeyMatch,
    Selection,
    TotalsQuestion,
    selection_of,
)
from countersink.counting.totals.series import Unit
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.visitors import Visitors
from countersink.database.sessions import Pool


class Totals:
    """What was counted. Ranges are days, include both ends, and default to all that has data.

    They may be of times: ``start`` and ``end`` as aware datetimes, from the one to before the
    other, or ``last="24h"`` (``"90m"``, ``"7d"``), the window that ends now:
    :mod:`countersink.counting.totals.query`. Where a counter's buckets do not tell, it is an
    InexactZone error that names the resolution which would.

    Days are those of the counter's own time zone (UTC, where nobody has set another), or, with
    ``time_zone``, of any IANA zone: exactly, or with an InexactZone error where the counter's
    buckets do not tell. From quarters every zone's days add up (from 1980 on), from hours those of
    zones that are whole hours from UTC, from days only those that begin at the same instants. Hours
    tell those of the counter's own zone too only where it was whole hours from UTC.

    What retention has rolled up to wider buckets is in every total. A range that takes only a part
    of a month that has any, and a series of days, hours or minutes that is to begin where they are
    rolled up or has no start, is a RolledUp error, whose ``rolled_up_to`` is the first day of which
    everything can still be told.

    :meth:`ask` takes any question and answers what can be told of it, with what limits the answer
    beside it. The other methods give plain values and are ``strict``: what is told in part is an
    error. So is a range that begins before the breakdown that would answer (``where``, :meth:`by`,
    :meth:`unique_by_dimensions`): IncompleteBreakdown, whose ``since`` says from when on to ask.

    Thread-safe and fork-safe. Every method raises UnknownCounter for a counter that was neither
    made nor ever counted (but :meth:`counters`, :meth:`span` and :meth:`rolled_up_to`), ValueError
    for a range that ends before it begins and for an unknown time zone, and what
    :mod:`countersink.database.errors` lists. To ask several questions in one snapshot, see
    :class:`countersink.counting.totals.snapshot.Snapshot`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def ask(self, query: Query) -> Answer:
        """The answer to any question, of one snapshot.

        Raises:
            ValueError: it includes what is still in the queue, which
                :class:`countersink.reads.Reads` reads.
            StoreError, ValueError: as :func:`countersink.counting.totals.answer.answer`.
        """
        if query.include_pending:
            raise ValueError("include_pending needs the queue: ask countersink.reads.Reads")
        return self._pool.read(lambda session: answer(Snapshot(session), query))

    def _rows(self, selection: Selection, by: str, **rest: Any) -> list[Row]:
        return self.ask(Query(selection, by=by, strict=True, **rest)).rows

    def total(self, counter: str, **asked: Unpack[TotalsQuestion]) -> int:
        """The sum over all keys, over one, over several, or over those that match; or, with
        ``where={"country": "DE"}``, over the events with these values of dimensions, as a breakdown
        has counted them (:meth:`by`).
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
        there twice. A counter that is counted by day has no hours: InexactZone.
        """
        return self._rows(selection_of(counter, **asked), "hour")

    def minutely(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[datetime, int]]:
        """(begin of the minute, total) for each minute in order, 0 for minutes without counts; at
        most 100,000 minutes. The rest as :meth:`hourly`; the counter is counted by minute.
        """
        return self._rows(selection_of(counter, **asked), "minute")

    def monthly(self, counter: str, **asked: Unpack[TotalsQuestion]) -> list[tuple[date, int]]:
        """(first day of the month, total) for each month in order, 0 for months without counts; of
        the first and the last month what the range holds of them.
        """
        return self._rows(selection_of(counter, **asked), "month")

    def many(self, counter: str, keys: Iterable[str], **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of many keys at once, in their order; 0 for those without counts."""
        wanted = list(keys)
        found: dict[str, int] = dict(self._rows(selection_of(counter, keys=wanted, **days), "key"))
        return {key: found[key] for key in wanted}

    def top(
        self, counter: str, *, match: KeyMatch = ANY, n: int = 10, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """The ``n`` keys with the largest totals, of those that match: (key, total), largest first,
        then by key.
        """
        return self._rows(selection_of(counter, match=match, **days), "key", top=n)

    def by_key(
        self, counter: str, *, match: KeyMatch = ANY, **days: Unpack[DayRange]
    ) -> list[tuple[str, int]]:
        """(key, total) for every key of the range that matches, largest first, then by key."""
        return self._rows(selection_of(counter, match=match, **days), "key")

    def counters(self, **days: Unpack[DayRange]) -> dict[str, int]:
        """The totals of all counters, by name, each over the days of its own time zone unless one
        is given.
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
        """(values of these dimensions, total) for every combination of them, largest first, then by
        the values; or the first ``n``.

        Args:
            counter: it has declared a breakdown that holds the dimensions of both.
            dimensions: what the rows are by, in this order.
            where: only events that have these values. ``""`` is that of events without one.
            n: so many rows at most.
            days: the range.

        Raises:
            UnknownDimension: no breakdown answers; the message names the one to declare.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, top=n)
        return [(row[:-1], row[-1]) for row in rows]

    def unique(self, counter: str, **asked: Unpack[TotalsQuestion]) -> Visitors:
        """How many different members there are of a counter (``Producer.seen``), of the keys,
        values of dimensions and range that :meth:`total` takes: a union, not a sum. Exact up to 256
        members; else an estimate with its bounds.

        Raises:
            NotUnique: the counter does not count its different members, or those of this range were
                hashed with several salts.
            DamagedSketch: what is stored is not what was written.
            NoSketches: it takes datasketches (``countersink[sketches]``), which is not installed.
        """
        (row,) = self._rows(selection_of(counter, **asked), "total", unique=True)
        return Visitors(*row)

    def unique_by(
        self, counter: str, unit: Unit, **asked: Unpack[TotalsQuestion]
    ) -> list[tuple[date, Visitors]]:
        """The same for each ``day``, ``hour``, ``minute`` or ``month`` in order, as :meth:`daily`
        and its like have them.
        """
        rows = self._rows(selection_of(counter, **asked), unit, unique=True)
        return [(place, Visitors(*found)) for place, *found in rows]

    def unique_by_key(
        self, counter: str, *, match: KeyMatch = ANY, n: int | None = None, **days: Unpack[DayRange]
    ) -> list[tuple[str, Visitors]]:
        """(key, how many different members) of the keys that match and have any, those with most
        first, then by key; or the first ``n``.
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
        """(values of these dimensions, how many different members), those with most first, then by
        the values; or the first ``n``. Arguments and errors are those of :meth:`by`.
        """
        wanted, by = selection_of(counter, where=where, **days), tuple(dimensions)
        rows = self._rows(wanted, DIMENSIONS, dimensions=by, unique=True, top=n)
        return [(row[: len(by)], Visitors(*row[len(by) :])) for row in rows]

    def span(
        self, counter: str, *, key: str | None = None, time_zone: str | None = None
    ) -> tuple[date, date] | None:
        """The first and the last day with counts, of the counter or of a key; None if none has.

        Days that are rolled up count from the first day of their month.
        """
        wanted = Selection(counter, keys=None if key is None else [key], time_zone=time_zone)
        return self._pool.read(lambda session: sums.span(Snapshot(session), wanted))

    def rolled_up_to(self, counter: str) -> date | None:
        """The first day of which everything can still be told: those before it are in months; None
        where nothing is.
        """
        return self._pool.read(lambda session: Snapshot(session).rolled_up_to(counter))
