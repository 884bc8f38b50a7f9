"""Buckets as days, months and hours of another time zone, and the errors and advice where a
counter's buckets do not add up to them.

Without a time zone, buckets that are days are shown as what they are, so there is always an answer.
Everything else needs every day, month, hour or time that is asked for to begin where no bucket goes
on, be it in another zone or in the counter's own, which may not be whole hours from UTC. Which
buckets there can be follows from the counter alone. Where there may be finer ones, too, it is the
rows, of any key, that say whether one goes on: it is looked for in the snapshot of the sum.
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
"""Seconds from one label to the next, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRange:
    """Buckets of one width, from one label to another.

    Attributes:
        first: the first label, without the number of its width; None for where they begin.
        until: the label before which they end; None for where they end.
        width: theirs.
        mixed: the counter may have buckets of other widths, which lie in between.
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
        """Whether it can hold no bucket."""
        return self.first is not None and self.until is not None and self.first >= self.until

    @property
    def only(self) -> int | None:
        """Its label, if it can hold just one."""
        if self.first is None or self.until is None:
            return None
        return self.first if 0 < self.until - self.first <= _LONGEST[self.width] else None


Ranges = Sequence[LabelRange] | None
"""Buckets in any of these; None for all of the counter's."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a question wants to divide, and where.

    Attributes:
        width: of the bucket that would go on.
        instant: where, in Unix seconds.
        day: the date that begins there, or goes on; None: it is a time.
    """

    width: Width
    instant: int
    day: date | None


class Rows(Protocol):
    """The rows of all counters in one snapshot."""

    def row_in(self, counter: str, where: str, args: Sequence[object]) -> int | None:
        """The label of one of a counter's rows that a condition, from AND on, picks."""

    def pending_labels(self, counter: str) -> Collection[int]:
        """The labels of the buckets to which something is to be added."""


class View:
    """How the buckets of one counter add up to days, months and hours of a time zone.

    Args:
        rows: in which snapshot.
        scheme: the counter's; with its name, for messages.
        time_zone: whose days, months and hours; None for the counter's own.

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
        self.own = time_zone in (None, scheme.time_zone)
        self._days: dict[int, date] = {}

    @property
    def zone(self) -> str:
        """The time zone in which buckets are shown.

        Raises:
            UnknownZone: it is the counter's own, and this machine does not know it.
        """
        return self.time_zone or self.scheme.known_zone()

    def width(self, label: int) -> Width:
        """The width of a bucket.

        Raises:
            Refused: the counter cannot have such buckets; the row is not countersink's.
        """
        number = width_number(label)
        for width in self.widths:
            if NUMBER[width] == number:
                return width
        raise Refused(
            f"{self.counter!r} has a bucket {label_text(label)} of width number {number}, in which"
            " it never counted: `countersink verify` shows what else is wrong"
        )

    def day(self, label: int) -> date:
        """The date of a bucket; of its first event where it lies in several."""
        day = self._days.get(label)
        if day is None:
            if self.plain(self.width(label)):
                day = buckets.own_date(label)
            else:
                day = buckets.date_at(self.zone, self.scheme.starts_at(label))
            self._days[label] = day
        return day

    def last_day(self, label: int) -> date:
        """The date of the last event that a bucket can hold."""
        width = self.width(label)
        if self.plain(width):
            return month_ends(self.day(label)) if width == "month" else self.day(label)
        return buckets.date_at(self.zone, self.scheme.ends_at(label) - 60)

    def ranges(self, start: date | None, end: date | None) -> Ranges:
        """The buckets of the days from ``start`` to ``end``, both inclusive, or from one time to
        before another.

        Where days and buckets do not fit together it is the buckets that begin in them: ask
        :meth:`require_range` first.
        """
        if start is None and end is None:
            return None
        found = (
            replace(of_all, first=first, until=buckets.earlier(until, self._end(of_all)))
            for of_all in self.possible()
            for first, until in self._labels(of_all.width, start, end)
        )
        return tuple(one for one in found if not one.empty)

    def _end(self, of_all: LabelRange) -> int | None:
        """The label before which all buckets of a width are; None: there is none, or there may be
        some behind it, as applications count in a former resolution for a while.
        """
        return None if of_all.width in dict(self.scheme.counted) else of_all.until

    def possible(self) -> list[LabelRange]:
        """The buckets of each width that there can be, the finest first."""
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
        """Whether buckets of some widths with anything from one Unix second to before another, None
        is open, have rows.
        """
        found = []
        for one in self.possible():
            if one.width in widths:
                first, until = self._around(one.width, begin), one.until
                if stop is not None:
                    last = self._around(one.width, stop - 1)
                    until = buckets.earlier(until, None if last is None else last + 60)
                found.append(replace(one, first=first, until=until))
        where, args = condition([one for one in found if not one.empty])
        # From the end: further back there are wider ones.
        last = self._rows.row_in(self.counter, f"{where} ORDER BY bucket DESC", args)
        return last is not None

    def require_days(self, days: Iterable[date]) -> None:
        """Check that each of these days begins where no bucket goes on.

        Raises:
            InexactZone: one does not.
            RolledUp: one lies within a month into which days are rolled up.
        """
        self._refuse(self._cuts_of_days(days))

    def require_series(self, days: Sequence[date]) -> None:
        """The same of days that follow each other. Before the first one nothing was counted, so it
        may begin within a bucket; but where clocks bring it back, none may go on.

        Raises:
            InexactZone, RolledUp: as :meth:`require_days`.
        """
        back = self._cuts_of_days(days[:1], change=1)
        self._refuse([*back, *self._cuts_of_days(days[1:])])

    def require_range(self, start: date | None, end: date | None) -> None:
        """Check that the range begins and ends where no bucket goes on.

        Raises:
            InexactZone, RolledUp: it does not.
        """
        self._refuse(self._cuts_of_range(start, end))

    def first_day(self, start: date) -> date:
        """The earliest date that events of a range which begins so can have: clocks may go back to
        the day before.
        """
        if not isinstance(start, datetime):
            return start
        instant = buckets.unix(start)
        day = buckets.date_at(self.zone, instant)
        back = any(change > instant for change in buckets.date_changes(self.zone, day)[1::2])
        return day - buckets.ONE_DAY if back else day

    def final_day(self, end: date) -> date:
        """The latest date that events of a range which ends so can have."""
        if not isinstance(end, datetime):
            return end
        instant = buckets.unix(end)
        day = buckets.date_at(self.zone, instant - 60)
        after = day + buckets.ONE_DAY
        reached = buckets.date_changes(self.zone, after)[::2]
        return after if any(each < instant for each in reached) else day

    def day_from(self, instant: int) -> date:
        """The first date of which nothing is before an instant."""
        day = buckets.date_at(self.zone, instant)
        return day if buckets.day_begins(self.zone, day) >= instant else day + buckets.ONE_DAY

    def instants(self, edge: date) -> tuple[int, ...]:
        """Unix seconds at which a day begins, or that a time is."""
        return buckets.edges(self.zone, edge)

    def certain(self, width: Width, instant: int) -> bool:
        """Whether whatever was counted from the bucket of an instant on is in such buckets."""
        if width != self.scheme.resolution:
            return False
        begins = self.scheme.starts_at(self.scheme.label_in(width, instant // 60))
        ends = (self.scheme.until(each) for each in self.widths if is_wider(width, each))
        return all(end is not None and end <= begins for end in ends)

    def may_hold(self, label: int) -> bool:
        """Whether there can be anything in a bucket."""
        until = self.scheme.until(self.width(label))
        return until is None or self.scheme.starts_at(label) < until

    def counted_by(self, width: Width) -> str:
        """How the counter came to such buckets."""
        until = self.scheme.until(width)
        if until is None:
            return f"is counted by {width}"
        if self.scheme.rolled_to(width) is None:
            return f"was counted, before {moment_text(until)}, by {width}"
        return f"is rolled up, before {moment_text(until)}, to each {width}"

    def advice(self, width: Width, zone: str) -> str:
        """What to ask instead of a time zone for which buckets of a width do not tell."""
        until, own = self.scheme.until(width), self.scheme.time_zone
        if until is not None:
            return f"ask for the time zone {own}, or from {moment_text(until)} on"
        if width in ("quarter", "minute"):
            return "ask for a range without it, or for another time zone, such as UTC"
        # Of hours UTC's days can always be told; days of their own zone are never refused.
        return (
            f"ask for the time zone {'UTC' if zone == own else own};"
            f" `countersink counter set {self.counter} --resolution quarter` counts so that the"
            " days of every zone add up, from now on"
        )

    def plain(self, width: Width) -> bool:
        """Whether its buckets are the days or months that are shown."""
        return self.own and width in ("day", "month")

    def _labels(
        self, width: Width, start: date | None, end: date | None
    ) -> list[tuple[int | None, int | None]]:
        """[first, until) of the labels whose buckets are of these days."""
        if self.plain(width) and not isinstance(start, datetime) and not isinstance(end, datetime):
            return [(_label_from(width, start), _label_from(width, buckets.following(end)))]
        return [
            (self._first_label(width, begin), self._first_label(width, stop))
            for begin, stop in buckets.intervals(self.zone, start, end)
        ]

    def _first_label(self, width: Width, instant: int | None) -> int | None:
        """The label of the first bucket that begins at this instant or later."""
        if instant is None:
            return None
        label = self.scheme.label_in(width, -(-instant // 60))
        begins = label - NUMBER[width]
        return begins if self.scheme.starts_at(label) >= instant else _next(width, begins)

    def _around(self, width: Width, instant: int | None) -> int | None:
        """The label of the bucket in which an instant lies, or the closest that has events."""
        if instant is None:
            return None
        minute = min(max(0, instant // 60), buckets.MAX_MINUTE)
        return self.scheme.label_in(width, minute) - NUMBER[width]

    def _cuts_of_days(self, days: Iterable[date], change: int = 0) -> Iterator[Cut]:
        """What lies across the changes to or from some days, but for the first ones of each."""
        wanted = tuple(days)
        for width in self.widths:
            for day in wanted:
                if self.plain(width) and (width == "day" or day.day == 1):
                    continue
                for instant in buckets.date_changes(self.zone, day)[change:]:
                    if self._goes_on(width, instant):
                        yield Cut(width, instant, day)

    def _cuts_of_range(self, start: date | None, end: date | None) -> Iterator[Cut]:
        edges = [each for each in (start, buckets.following(end)) if each is not None]
        yield from self._cuts_of_days(each for each in edges if not isinstance(each, datetime))
        for moment in edges:
            if isinstance(moment, datetime):
                instant = buckets.unix(moment)
                for width in self.widths:
                    if self._goes_on(width, instant):
                        yield Cut(width, instant, None)

    def _goes_on(self, width: Width, instant: int) -> bool:
        """Whether an instant lies within a bucket that there can be."""
        until = self.scheme.until(width)
        if until is not None and instant >= until:
            return False
        if width in FINER:
            return instant % (MINUTES[width] * 60) != 0
        zone = self.scheme.known_zone()
        day = buckets.date_at(zone, instant)
        # A day that comes in two pieces goes on after the next one has begun.
        return buckets.date_changes(zone, day) != (instant,) or (width == "month" and day.day != 1)

    def _labels_at(self, cut: Cut) -> Iterator[int]:
        """The bucket that would go on; two, perhaps, where a day comes in two pieces."""
        around = ((cut.instant - 1) // 60, cut.instant // 60)
        for label in {self.scheme.label_in(cut.width, minute) for minute in around}:
            if self.scheme.starts_at(label) < cut.instant < self._last_end(cut.width, label):
                yield label

    def _last_end(self, width: Width, label: int) -> int:
        """Unix seconds at which a bucket has ended for good: its last day may come back."""
        if width in FINER:
            return self.scheme.ends_at(label)
        day = buckets.own_date(label)
        last = month_ends(day) if width == "month" else day
        return buckets.date_changes(self.scheme.known_zone(), last + buckets.ONE_DAY)[-1]

    def _refuse(self, cuts: Iterable[Cut]) -> None:
        """Raise the error for what goes on."""
        doubtful: dict[int, Cut] = {}
        for cut in cuts:
            if self.certain(cut.width, cut.instant):
                raise self._error(cut)
            for label in self._labels_at(cut):
                doubtful.setdefault(label, cut)
        for label in doubtful.keys() & self._rows.pending_labels(self.counter):
            raise self._error(doubtful[label])
        for part in parts(sorted(doubtful), _LABELS_PER_QUERY):
            where, args = labels_where(part)
            held = self._rows.row_in(self.counter, f" AND {where}", args)
            if held is not None:
                raise self._error(doubtful[held])

    def _error(self, cut: Cut) -> StoreError:
        if cut.width == "month":
            return self._rolled_up(cut)
        what = f"{self.counter!r} {self.counted_by(cut.width)}"
        if cut.day is None:
            return InexactZone(
                f"{what}, and {moment_text(cut.instant)} is in the middle of one: ask for a time at"
                f" which one begins{self._finer(cut)}"
            )
        begins = str(datetime_of(cut.instant)).removesuffix(":00")
        return InexactZone(
            f"{what} in {self.scheme.time_zone}, and {begins} UTC, when the date in {self.zone}"
            f" changes to or from {cut.day}, is in the middle of one:"
            f" {self.advice(cut.width, self.zone)}"
        )

    def _finer(self, cut: Cut) -> str:
        """What else to ask for, or which buckets would tell."""
        until = self.scheme.until(cut.width)
        if until is not None:
            return f", or from {moment_text(until)} on"
        return (
            f"; `countersink counter set {self.counter} --resolution"
            f" {buckets.widest(cut.instant // 60)}` counts so that such a time can be told, from"
            " now on"
        )

    def _rolled_up(self, cut: Cut) -> RolledUp:
        until = self.scheme.until("month") or 0
        month = self.scheme.local_day(self.scheme.label_in("month", cut.instant // 60))
        since = self.day_from(until)
        rest = f": ask for whole months, or from {since} on"
        if not self.own:
            advice = f"ask for {self.time_zone} from {since} on, or without a time zone"
            rest = f" of its own time zone: {advice}"
        return RolledUp(
            f"the days of {self.counter!r} before {since} are rolled up to months{rest}; that from"
            f" {month} on would be cut",
            rolled_up_to=since,
        )


def _label_from(width: Width, day: date | None) -> int | None:
    """The label of the first day or month that begins with this date or a later one."""
    if day is None:
        return None
    begins = day_label(day) - NUMBER["day"]
    if width == "day" or day.day == 1:
        return begins
    return _next(width, day_label(day.replace(day=1)) - NUMBER["day"])


def _next(width: Width, label: int) -> int:
    """The label after one."""
    if width == "month":
        first = datetime_of(label).date()
        return label + ((month_ends(first) - first).days + 1) * 86_400
    return label + _LONGEST[width]


def intersected(one: Ranges, other: Ranges) -> Ranges:
    """The buckets that are in both."""
    if one is None or other is None:
        return other if one is None else one
    both = (
        replace(
            each,
            first=buckets.later(each.first, its.first),
            until=buckets.earlier(each.until, its.until),
        )
        for each in one
        for its in other
        if each.width == its.width
    )
    return tuple(each for each in both if not each.empty)


def condition(ranges: Ranges) -> tuple[str, tuple[object, ...]]:
    """The rest of a WHERE clause, from AND on, and its values.

    Columns stand alone wherever an index is to be used; the width only picks among the rows of a
    range.
    """
    if ranges is None:
        return "", ()
    if not ranges:
        return NOTHING, ()
    parts, args = [], []
    for one in ranges:
        terms = []
        if one.only is not None:
            # Not as a range: the rows of one bucket come in the order of their keys, which spares
            # grouping by key a temporary table (a tenth of the time, for 100,000 keys on MariaDB).
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
"""The condition of no buckets."""
