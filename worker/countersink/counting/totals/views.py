"""Views: the buckets of a counter, seen as days, months and hours of some time zone. If buckets do
not add up to these, a view raises an error with advice.

Day buckets always add up to days of the counter's own zone. In all other cases each day, month,
hour or time of a question must begin at the edge of a bucket. A *cut* is an instant within a bucket
at which a day, month, hour or time of the question begins. The counter's own zone can have cuts,
too, if it is not whole hours from UTC.

A cut is an error if its bucket exists. The scheme tells which buckets are possible. If the bucket
of a cut is possible, but finer buckets are possible as well, the view looks up whether the bucket
has rows (of any key). It does so in the snapshot in which the totals are read.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final, Protocol

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import (
    FINER,
    MINUTES,
    NUMBER,
    Width,
    is_wider,
    month_ends,
)
from countersink.counting.counters.catalog import Scheme
from countersink.counting.errors import InexactZone, RolledUp
from countersink.database.errors import Refused, StoreError
from countersink.database.sql import (
    datetime_of,
    day_label,
    label_text,
    labels_where,
    parts,
    width_number,
)
from countersink.runtime.texts import moment_text

_LABELS_PER_QUERY: Final = 1_000
_LONGEST: Final[dict[Width, int]] = {
    **{width: minutes * 60 for width, minutes in MINUTES.items()},
    "month": 31 * 86_400,
}
"""Maximum seconds from the label of a bucket to the label of the next, by width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRange:
    """A range of buckets of one width. A bucket's label is its start plus the number of its width.

    Attributes:
        first: label of the first bucket, without the number of the width; None to begin with the
            earliest bucket.
        until: label of the bucket before which the range ends, also without that number; None if it
            has no end.
        width: the width of the buckets.
        mixed: whether the counter may have buckets of other widths, too: SQL then checks the width.
    """

    first: int | None
    until: int | None
    width: Width
    mixed: bool

    def __contains__(self, label: int) -> bool:
        return (
            width_number(label) == NUMBER[self.width]
            and (self.first is None or label >= self.first)
            and (self.until is None or label < self.until)
        )

    @property
    def empty(self) -> bool:
        """Whether the range has no buckets."""
        return self.first is not None and self.until is not None and self.first >= self.until

    @property
    def only(self) -> int | None:
        """The label of the range's only bucket, without the number of its width; None if the range
        is empty or may have several buckets.
        """
        if self.first is None or self.until is None:
            return None
        return self.first if 0 < self.until - self.first <= _LONGEST[self.width] else None


Ranges = Sequence[LabelRange] | None
"""Buckets that are in any of these ranges; None for all buckets of the counter."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An instant within a bucket, at which a day or month of a question begins, or at which the
    question's range begins or ends.

    Attributes:
        width: the width of the bucket.
        instant: the instant in Unix seconds.
        day: the date that begins at the instant, or that ends there because clocks go back to the
            date before; None if the question names a time.
    """

    width: Width
    instant: int
    day: date | None


class Rows(Protocol):
    """The data that a view reads: rows of any counter, all in one snapshot."""

    def row_in(self, counter: str, where: str, args: Sequence[object]) -> int | None:
        """Return the bucket's label of any row of a counter that meets the SQL conditions
        ``where``, which begin with AND; ``args`` are their values. None without such a row."""

    def pending_labels(self, counter: str) -> Collection[int]:
        """Return the labels of those buckets of a counter that have pending amounts."""


class View:
    """The buckets of one counter, seen as days, months and hours of a time zone.

    Args:
        rows: the stored rows and pending amounts of the snapshot.
        scheme: the counter's scheme, with the counter's name for messages.
        time_zone: the time zone of days, months and hours; None for the counter's own.

    Raises:
        ValueError: there is no such time zone.
    """

    def __init__(self, rows: Rows, scheme: Scheme, time_zone: str | None) -> None:
        if time_zone is not None:
            buckets.zone(time_zone)
        self._rows = rows
        self.scheme = scheme
        self.counter = scheme.counter
        self.time_zone = time_zone
        self.widths = scheme.widths
        self.in_own_zone = time_zone in (None, scheme.time_zone)
        self._days: dict[int, date] = {}

    @property
    def zone(self) -> str:
        """The time zone of days, months and hours.

        Raises:
            UnknownZone: it is the counter's own, and this machine does not know it.
        """
        return self.time_zone or self.scheme.known_zone()

    def width(self, label: int) -> Width:
        """Return the width of the bucket with this label.

        Raises:
            Refused: the counter cannot have buckets of this width, so countersink did not write the
                row.
        """
        number = width_number(label)
        for width in self.widths:
            if NUMBER[width] == number:
                return width
        raise Refused(
            f"{self.counter!r} has a bucket {label_text(label)} of width number {number}, in which"
            " it was never counted: run `countersink verify` to find further problems"
        )

    def day(self, label: int) -> date:
        """Return the date on which the bucket with this label begins in the view's time zone."""
        day = self._days.get(label)
        if day is None:
            if self.plain(self.width(label)):
                day = buckets.label_date(label)
            else:
                day = buckets.date_at(self.zone, self.scheme.starts_at(label))
            self._days[label] = day
        return day

    def last_day(self, label: int) -> date:
        """Return the date of the last minute of the bucket with this label, in the view's zone."""
        width = self.width(label)
        if self.plain(width):
            return month_ends(self.day(label)) if width == "month" else self.day(label)
        return buckets.date_at(self.zone, self.scheme.ends_at(label) - 60)

    def ranges(self, start: date | None, end: date | None) -> Ranges:
        """Return the buckets that begin on the days from ``start`` to ``end``, both included, or at
        times from ``start`` to before ``end``. None means that this side has no limit. If both are
        None, return None, which stands for all buckets. Call :meth:`require_range` first: it raises
        an error if an edge of the range is within a bucket."""
        if start is None and end is None:
            return None
        found = (
            replace(possible, first=first, until=buckets.earlier(until, self._end(possible)))
            for possible in self.possible()
            for first, until in self._labels(possible.width, start, end)
        )
        return tuple(each for each in found if not each.empty)

    def _end(self, possible: LabelRange) -> int | None:
        """Return the label before which to end a range of possible buckets: its ``until``, or None
        (no end) for the width of a former resolution, because applications still count by it for a
        while."""
        return None if possible.width in dict(self.scheme.counted) else possible.until

    def possible(self) -> list[LabelRange]:
        """Return the range of all possible buckets of each width, the finest width first."""
        mixed = len(self.widths) > 1
        return [
            LabelRange(
                first=None,
                until=self._first_label(width, self.scheme.until(width)),
                width=width,
                mixed=mixed,
            )
            for width in self.widths
        ]

    def holds(self, widths: Iterable[Width], begin: int | None, stop: int | None) -> bool:
        """Return whether there are stored rows (of any key) in possible buckets of these widths
        that overlap the span from ``begin`` to before ``stop`` (Unix seconds). None means that this
        side has no limit."""
        found = []
        for each in self.possible():
            if each.width in widths:
                first, until = self._around(each.width, begin), each.until
                if stop is not None:
                    last = self._around(each.width, stop - 1)
                    until = buckets.earlier(until, None if last is None else last + 60)
                found.append(replace(each, first=first, until=until))
        where, args = condition([each for each in found if not each.empty])
        # From the end, as earlier rows are of wider buckets.
        return self._rows.row_in(self.counter, f"{where} ORDER BY bucket DESC", args) is not None

    def require_days(self, days: Iterable[date]) -> None:
        """Raise an error if one of the days begins within a bucket.

        Raises:
            InexactZone: a day begins within a bucket.
            RolledUp: a day begins within a month that is a single bucket.
        """
        self._refuse(self._cuts_of_days(days))

    def require_series(self, days: Sequence[date]) -> None:
        """Raise an error if a day of a series begins within a bucket. ``days`` are in order; months
        are given by their first days.

        The first day may begin within a bucket: the start of a range was checked before, and a
        series without a start begins with the first day that has counts. If clocks go back so that
        this day begins twice, the instants after its first begin are checked.

        Raises:
            InexactZone, RolledUp: as for :meth:`require_days`.
        """
        repeated = self._cuts_of_days(days[:1], change=1)
        self._refuse([*repeated, *self._cuts_of_days(days[1:])])

    def require_range(self, start: date | None, end: date | None) -> None:
        """Raise an error if a range of days or times begins or ends within a bucket. None means
        that this side has no limit, so that nothing is checked there.

        Raises:
            InexactZone, RolledUp: as for :meth:`require_days`."""
        self._refuse(self._cuts_of_range(start, end))

    def first_day(self, start: date) -> date:
        """Return the earliest date of events in a range from ``start`` on: the date of ``start``,
        or the day before it, if ``start`` is a time and clocks go back to that day later."""
        if not isinstance(start, datetime):
            return start
        instant = buckets.unix(start)
        day = buckets.date_at(self.zone, instant)
        back = any(change > instant for change in buckets.date_changes(self.zone, day)[1::2])
        return day - buckets.ONE_DAY if back else day

    def final_day(self, end: date) -> date:
        """Return the latest date of events in a range to the day, or before the time, ``end``."""
        if not isinstance(end, datetime):
            return end
        instant = buckets.unix(end)
        day = buckets.date_at(self.zone, instant - 60)
        after = day + buckets.ONE_DAY
        begins = buckets.date_changes(self.zone, after)[::2]
        return after if any(each < instant for each in begins) else day

    def day_from(self, instant: int) -> date:
        """Return the first date that begins at an instant (Unix seconds) or later."""
        day = buckets.date_at(self.zone, instant)
        return day if buckets.day_begins(self.zone, day) >= instant else day + buckets.ONE_DAY

    def instants(self, edge: date) -> tuple[int, ...]:
        """Return the Unix seconds of ``edge`` if it is a time, or those at which it begins if it is
        a day. (If clocks go back over midnight, a day begins twice; the instant at which they go
        back is also returned.)"""
        return buckets.edges(self.zone, edge)

    def certain(self, width: Width, instant: int) -> bool:
        """Return whether ``width`` is the resolution, and all possible finer buckets end before the
        bucket of this width that contains an instant (Unix seconds), or where it begins. All events
        in that bucket, and all later events, are then in buckets of this width or wider ones, so
        that a cut at the instant is an error, even without rows."""
        if width != self.scheme.resolution:
            return False
        begins = self.scheme.starts_at(self.scheme.label_in(width, instant // 60))
        ends = (self.scheme.until(each) for each in self.widths if is_wider(width, each))
        return all(end is not None and end <= begins for end in ends)

    def may_hold(self, label: int) -> bool:
        """Return whether the bucket with this label can have rows, by the counter's scheme."""
        until = self.scheme.until(self.width(label))
        return until is None or self.scheme.starts_at(label) < until

    def counted_by(self, width: Width) -> str:
        """Return how the counter got buckets of this width, as words for messages, such as "is
        counted by day".
        """
        until = self.scheme.until(width)
        if until is None:
            return f"is counted by {width}"
        if self.scheme.rolled_to(width) is None:
            return f"was counted, before {moment_text(until)}, by {width}"
        return f"is rolled up, before {moment_text(until)}, to each {width}"

    def advice(self, width: Width, zone: str) -> str:
        """Return advice for the error message that buckets of this width do not add up to days,
        hours or minutes of ``zone``.
        """
        until, own_zone = self.scheme.until(width), self.scheme.time_zone
        if until is not None:
            return f"ask for the time zone {own_zone}, or from {moment_text(until)} on"
        if width in ("quarter", "minute"):
            return "ask for a range without it, or for another time zone, such as UTC"
        # Hours always add up to days in UTC; day buckets are never refused in their own zone.
        return (
            f"ask for the time zone {'UTC' if zone == own_zone else own_zone}, or have later events"
            f" counted by quarter, for the days of every zone, with `countersink counter set"
            f" {self.counter} --resolution quarter`"
        )

    def plain(self, width: Width) -> bool:
        """Return whether buckets of this width are the days or months of the view's time zone."""
        return self.in_own_zone and width in ("day", "month")

    def _labels(
        self, width: Width, start: date | None, end: date | None
    ) -> list[tuple[int | None, int | None]]:
        """Return (first label, label before which they end), without the number of the width, of
        the buckets that begin in a range of days or times; several where clocks repeat a day. None
        means that this side has no limit, also in the result."""
        if self.plain(width) and not isinstance(start, datetime) and not isinstance(end, datetime):
            return [(_label_from(width, start), _label_from(width, buckets.following(end)))]
        return [
            (self._first_label(width, begin), self._first_label(width, stop))
            for begin, stop in buckets.intervals(self.zone, start, end)
        ]

    def _first_label(self, width: Width, instant: int | None) -> int | None:
        """Return the label, without the number of its width, of the first bucket that begins at an
        instant (Unix seconds) or later. None gives None.
        """
        if instant is None:
            return None
        label = self.scheme.label_in(width, -(-instant // 60))
        begins = label - NUMBER[width]
        return begins if self.scheme.starts_at(label) >= instant else _next(width, begins)

    def _around(self, width: Width, instant: int | None) -> int | None:
        """Return the label of the bucket that contains an instant (Unix seconds), minus the number
        of its width. Instants before or after all possible events are taken as the first or the
        last minute of events. None gives None.
        """
        if instant is None:
            return None
        minute = min(max(0, instant // 60), buckets.MAX_MINUTE)
        return self.scheme.label_in(width, minute) - NUMBER[width]

    def _cuts_of_days(self, days: Iterable[date], change: int = 0) -> Iterator[Cut]:
        """Yield a cut for each instant within a bucket at which one of ``days`` begins, or at which
        clocks go back from it to the day before. Of each day, the first ``change`` of these
        instants are skipped; instants at the edge of a bucket are included in this number."""
        wanted = tuple(days)
        for width in self.widths:
            for day in wanted:
                if self.plain(width) and (width == "day" or day.day == 1):
                    continue
                for instant in buckets.date_changes(self.zone, day)[change:]:
                    if self._is_within(width, instant):
                        yield Cut(width, instant, day)

    def _cuts_of_range(self, start: date | None, end: date | None) -> Iterator[Cut]:
        edges = [each for each in (start, buckets.following(end)) if each is not None]
        yield from self._cuts_of_days(each for each in edges if not isinstance(each, datetime))
        for moment in edges:
            if isinstance(moment, datetime):
                instant = buckets.unix(moment)
                for width in self.widths:
                    if self._is_within(width, instant):
                        yield Cut(width, instant, None)

    def _is_within(self, width: Width, instant: int) -> bool:
        """Return whether an instant is inside a possible bucket of this width, not at its edge."""
        until = self.scheme.until(width)
        if until is not None and instant >= until:
            return False
        if width in FINER:
            return instant % (MINUTES[width] * 60) != 0
        zone = self.scheme.known_zone()
        day = buckets.date_at(zone, instant)
        # A day that clocks repeat in part continues after the next day has begun.
        return buckets.date_changes(zone, day) != (instant,) or (width == "month" and day.day != 1)

    def _labels_at(self, cut: Cut) -> Iterator[int]:
        """Yield the label of the bucket that contains the instant of a cut. If clocks repeat a part
        of the day, there may be two such buckets.
        """
        around = ((cut.instant - 1) // 60, cut.instant // 60)
        for label in {self.scheme.label_in(cut.width, minute) for minute in around}:
            if self.scheme.starts_at(label) < cut.instant < self._last_end(cut.width, label):
                yield label

    def _last_end(self, width: Width, label: int) -> int:
        """Return the Unix seconds at which a bucket ends for the last time. (Clocks may repeat a
        part of its last day.)
        """
        if width in FINER:
            return self.scheme.ends_at(label)
        day = buckets.label_date(label)
        last = month_ends(day) if width == "month" else day
        return buckets.date_changes(self.scheme.known_zone(), last + buckets.ONE_DAY)[-1]

    def _refuse(self, cuts: Iterable[Cut]) -> None:
        """Raise an error if a cut is within a bucket that has rows or pending amounts, or within a
        bucket of a width for which :meth:`certain` is True (a cut is an error there even without
        rows). The error is RolledUp for a bucket of a month, else InexactZone."""
        possible: dict[int, Cut] = {}
        for cut in cuts:
            if self.certain(cut.width, cut.instant):
                raise self._error(cut)
            for label in self._labels_at(cut):
                possible.setdefault(label, cut)
        for label in possible.keys() & self._rows.pending_labels(self.counter):
            raise self._error(possible[label])
        for part in parts(sorted(possible), _LABELS_PER_QUERY):
            where, args = labels_where(part)
            stored = self._rows.row_in(self.counter, f" AND {where}", args)
            if stored is not None:
                raise self._error(possible[stored])

    def _error(self, cut: Cut) -> StoreError:
        if cut.width == "month":
            return self._rolled_up(cut)
        problem = f"{self.counter!r} {self.counted_by(cut.width)}"
        if cut.day is None:
            return InexactZone(
                f"{problem}, and {moment_text(cut.instant)} is in the middle of a bucket: ask for"
                f" a time at which a bucket begins{self._time_advice(cut)}"
            )
        begins = str(datetime_of(cut.instant)).removesuffix(":00")
        return InexactZone(
            f"{problem} in {self.scheme.time_zone}, and {begins} UTC, when the date in {self.zone}"
            f" changes to or from {cut.day}, is in the middle of a bucket:"
            f" {self.advice(cut.width, self.zone)}"
        )

    def _time_advice(self, cut: Cut) -> str:
        """Return further advice for the error message about a time that is within a bucket."""
        until = self.scheme.until(cut.width)
        if until is not None:
            return f", or from {moment_text(until)} on"
        finer = buckets.widest(cut.instant // 60)
        return (
            f", or have later events counted by {finer} with `countersink counter set"
            f" {self.counter} --resolution {finer}`"
        )

    def _rolled_up(self, cut: Cut) -> RolledUp:
        until = self.scheme.until("month") or 0
        month = self.scheme.local_day(self.scheme.label_in("month", cut.instant // 60))
        since = self.day_from(until)
        rest = f": ask for whole months, or from {since} on"
        if not self.in_own_zone:
            advice = f"ask for {self.time_zone} from {since} on, or without a time zone"
            rest = f" of its own time zone: {advice}"
        return RolledUp(
            f"the days of {self.counter!r} before {since} are rolled up to months{rest}; the month"
            f" from {month} on would be cut",
            rolled_up_to=since,
        )


def _label_from(width: Width, day: date | None) -> int | None:
    """Return the label, without the number of its width, of the first bucket (``width`` is day or
    month) that begins on this date or later. None gives None.
    """
    if day is None:
        return None
    begins = day_label(day) - NUMBER["day"]
    if width == "day" or day.day == 1:
        return begins
    return _next(width, day_label(day.replace(day=1)) - NUMBER["day"])


def _next(width: Width, label: int) -> int:
    """Return the label of the bucket after ``label``, both without the number of the width."""
    if width == "month":
        first = datetime_of(label).date()
        return label + ((month_ends(first) - first).days + 1) * 86_400
    return label + _LONGEST[width]


def intersected(left: Ranges, right: Ranges) -> Ranges:
    """Return the buckets that are in both ``left`` and ``right``; empty if there are none. None
    stands for all buckets of the counter."""
    if left is None or right is None:
        return right if left is None else left
    both = (
        replace(
            one,
            first=buckets.later(one.first, other.first),
            until=buckets.earlier(one.until, other.until),
        )
        for one in left
        for other in right
        if one.width == other.width
    )
    return tuple(each for each in both if not each.empty)


def condition(ranges: Ranges) -> tuple[str, tuple[object, ...]]:
    """Return SQL conditions for the buckets in any of some ranges, beginning with AND, and their
    values. For all buckets (None), the conditions are an empty text; without a range, they are
    :data:`NOTHING`, ``AND FALSE``. No column is in an expression, so that an index can be used."""
    if ranges is None:
        return "", ()
    if not ranges:
        return NOTHING, ()
    parts, args = [], []
    for one in ranges:
        terms = []
        if one.only is not None:
            # Not a range: rows of one bucket are read in the order of their keys, so that grouping
            # by key needs no temporary table (a tenth of the time, for 100,000 keys on MariaDB).
            terms.append("bucket = %s")
            args.append(datetime_of(one.only))
        else:
            if one.first is not None:
                terms.append("bucket >= %s")
                args.append(datetime_of(one.first))
            if one.until is not None:
                terms.append("bucket < %s")
                args.append(datetime_of(one.until))
        if one.mixed:
            terms.append(f"width = {NUMBER[one.width]:d}")
        parts.append(" AND ".join(terms))
    if not all(parts):
        return "", ()
    joined = parts[0] if len(parts) == 1 else f"(({') OR ('.join(parts)}))"
    return f" AND {joined}", tuple(args)


NOTHING: Final = " AND FALSE"
"""The condition for no buckets."""
