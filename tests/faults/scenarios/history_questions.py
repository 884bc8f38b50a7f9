"""Questions about what a history has counted: drawn, answered by its books, and compared; and which
of them may be refused.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from operator import itemgetter
from typing import Any, Final

from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals import Totals
from tests.faults.scenarios.history_books import (
    DAY,
    MINUTES,
    Book,
    Event,
    bucket,
    changes,
    clock_changes,
    day_of,
    is_wider,
    local,
    month_of,
    offset_of,
)

UNITS: Final = {
    "daily": "day",
    "weekly": "week",
    "hourly": "hour",
    "minutely": "minute",
    "monthly": "month",
}
ASKED: Final = ("total", "total", "many", "by_key", "counters", *UNITS, "daily")
Unit = date | tuple[int, int]
"""The first day of a unit of days; of hours and minutes the first minute and the UTC offset."""
_HOURS: Final = 240
"""Minutes after a time in which clocks may go back to the day before."""
_LONGEST: Final = {"hourly": 12 * 1440, "minutely": 600}
"""Minutes of a range, where a series is long."""


@dataclass(frozen=True)
class Question:
    """What is asked of a counter; of ``counters`` of all.

    Attributes:
        ask: the method.
        keys: these alone; None: all.
        start, end: days or times; None: open.
        zone: whose days; None: the counter's own.
    """

    ask: str
    counter: str
    keys: tuple[str, ...] | None = None
    start: date | None = None
    end: date | None = None
    zone: str | None = None
    last: int = 0
    """So many days that end today, instead of the range, which they are."""

    @property
    def unit(self) -> str | None:
        """Of a series, by what it is."""
        return UNITS.get(self.ask)

    def has(self, zone: str, minute: int) -> bool:
        """Whether a minute is in the range."""
        day = day_of(zone, minute)
        if isinstance(self.start, datetime):
            begun = minute >= _minute(self.start)
        else:
            begun = self.start is None or day >= self.start
        if isinstance(self.end, datetime):
            return begun and minute < _minute(self.end)
        return begun and (self.end is None or day <= self.end)

    def edges(self, zone: str) -> Iterator[int]:
        """The minutes at which the range begins and ends; more, where a date comes in pieces."""
        if isinstance(self.start, datetime):
            yield _minute(self.start)
        elif self.start is not None:
            yield from changes(zone, self.start)
        if isinstance(self.end, datetime):
            yield _minute(self.end)
        elif self.end is not None:
            yield from changes(zone, self.end + DAY)

    @property
    def in_days(self) -> bool:
        """Whether the range, and the series, are of whole days."""
        times = isinstance(self.start, datetime) or isinstance(self.end, datetime)
        return not times and self.unit not in ("hour", "minute")

    def asked(self) -> dict[str, Any]:
        """The arguments of the range."""
        given: dict[str, Any] = {"start": self.start, "end": self.end, "time_zone": self.zone}
        if self.last:
            given = {"last": f"{self.last}d", "time_zone": self.zone}
        return {name: value for name, value in given.items() if value is not None}


@dataclass
class Reader:
    """Asks, and compares the answers with the books.

    Attributes:
        totals: who is asked.
        books: by counter.
        answered, refused: how many questions were.
    """

    totals: Totals
    books: Mapping[str, Book]
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def ask(self, question: Question) -> None:
        """Ask, and compare; a refusal has to have a reason."""
        found, refusal = None, None
        try:
            found = self._found(question)
        except (InexactZone, RolledUp) as error:
            refusal = error
        if refusal is not None:
            asked = self.books if question.ask == "counters" else (question.counter,)
            assert any(may_refuse(self.books[each], question) for each in asked), (
                f"refused without a reason: {question}: {refusal}; {[*map(self._said, asked)]}"
            )
            self.refused[question.ask] += 1
            return
        expected, found = self._compared(question, found)
        assert found == expected, f"{question}: got {found}, counted {expected}"
        self.answered[question.ask] += 1

    def _said(self, counter: str) -> str:
        """What is known of a counter, but for what was counted of it."""
        book = self.books[counter]
        held = sorted(book.held(), key=lambda each: each[1])
        steps = (book.zone, book.resolution, book.steps, book.counted, book.rolled)
        return f"{counter}: {steps}, {held}"

    def _found(self, question: Question) -> Any:
        method, asked = getattr(self.totals, question.ask), question.asked()
        if question.ask == "counters":
            return method(**asked)
        if question.ask == "many":
            return method(question.counter, question.keys or (), **asked)
        if question.ask == "by_key":
            found = method(question.counter, **asked)
            assert self.totals.top(question.counter, n=3, **asked) == found[:3], question
            return found
        return method(question.counter, keys=question.keys, **asked)

    def _compared(self, question: Question, found: Any) -> tuple[Any, Any]:
        """What should have been found, and what was, without what is 0 for either reason."""
        if question.ask == "counters":
            sums = {
                name: sum(_amounts(book, question).values()) for name, book in self.books.items()
            }
            return sums, found
        book = self.books[question.counter]
        amounts = _amounts(book, question)
        if question.ask == "total":
            return sum(amounts.values()), found
        by_key = Counter[str]()
        for (key, _), amount in amounts.items():
            by_key[key] += amount
        if question.ask == "many":
            return {key: by_key[key] for key in question.keys or ()}, found
        if question.ask == "by_key":
            ranked = sorted(by_key.items(), key=lambda pair: (-pair[1], pair[0].encode()))
            return [each for each in ranked if each[1]], [each for each in found if each[1]]
        return self._series(question, amounts, found)

    def _series(
        self, question: Question, amounts: Counter[Event], found: list[tuple[Any, int]]
    ) -> tuple[Any, Any]:
        zone = question.zone or self.books[question.counter].zone
        by_unit = Counter[Unit]()
        for (_, minute), amount in amounts.items():
            by_unit[_unit(question.ask, zone, minute)] += amount
        units = [_comparable(unit) for unit, _ in found]
        expected = _units(question, zone) or _filled(question, units)
        assert units == expected, f"{question}: got {found}"
        of_found = {_comparable(unit): amount for unit, amount in found if amount}
        return {unit: amount for unit, amount in by_unit.items() if amount}, of_found


def _minute(moment: datetime) -> int:
    return round(moment.timestamp()) // 60


def _amounts(book: Book, question: Question) -> Counter[Event]:
    zone = question.zone or book.zone
    return Counter(
        {
            event: amount
            for event, amount in book.amounts.items()
            if (question.keys is None or event[0] in question.keys) and question.has(zone, event[1])
        }
    )


_FIRST: Final[dict[str, Callable[[date], date]]] = {
    "daily": lambda day: day,
    "weekly": lambda day: day - timedelta(days=day.weekday()),
    "monthly": month_of,
}
"""Of series by days: the day that a day is part of."""


# -- series ------------------------------------------------------------------------------------


def _unit(ask: str, zone: str, minute: int) -> Unit:
    """What of a series a minute belongs to."""
    if ask in _FIRST:
        return _FIRST[ask](day_of(zone, minute))
    begins = minute - local(zone, minute).minute if ask == "hourly" else minute
    return begins, offset_of(zone, minute)


def _comparable(unit: date) -> Unit:
    if not isinstance(unit, datetime):
        return unit
    offset = unit.utcoffset()
    assert offset is not None
    return _minute(unit), offset // timedelta(minutes=1)


def _units(question: Question, zone: str) -> list[Any]:
    """All of a series whose range has both ends; [] of others, and where dates come in pieces."""
    edges = sorted(set(question.edges(zone)))
    if question.start is None or question.end is None or len(edges) != 2:
        return []
    if question.unit in ("hour", "minute"):
        step = 1 if question.unit == "minute" else 15
        minutes = (edges[0], *range(-(-edges[0] // step) * step, edges[1], step))
        # In the order in which they come: two may begin at one instant, so to speak.
        return [*dict.fromkeys(_unit(question.ask, zone, minute) for minute in minutes)]
    first, last = question.start, question.end
    if isinstance(first, datetime):
        first = min(day_of(zone, minute) for minute in range(edges[0], edges[0] + _HOURS))
    if isinstance(last, datetime):
        last = max(day_of(zone, minute) for minute in range(edges[1] - _HOURS, edges[1]))
    return _days(question, first, last)


def _days(question: Question, first: date, last: date) -> list[Any]:
    days = [first + number * DAY for number in range((last - first).days + 1)]
    return sorted({_FIRST[question.ask](day) for day in days})


def _filled(question: Question, units: list[Any]) -> list[Any]:
    """A series from its first to its last one, without gaps."""
    if question.ask in _FIRST:
        return _days(question, units[0], units[-1]) if units else []
    return sorted(dict.fromkeys(units), key=itemgetter(0))


# -- refusals ----------------------------------------------------------------------------------


def may_refuse(book: Book, question: Question) -> bool:
    """Whether there is a reason: a bucket that may have rows, or is one of those that are counted
    from now on, is not on one side of an edge of the range, or not in one day of the series.
    """
    zone = question.zone or book.zone
    return any(_divides(question, book.zone, zone, *each) for each in book.held()) or _would_divide(
        book, question, zone
    )


def _divides(question: Question, own: str, zone: str, width: str, first: int, last: int) -> bool:
    """Whether a question divides a bucket, from its first to its last minute."""
    within = [edge for edge in question.edges(zone) if first < edge <= last]
    inside = question.has(zone, first) or question.has(zone, last) or bool(within)
    if own == zone and question.in_days and width in ("day", "month"):
        starts = question.start, question.end and question.end + DAY
        day = day_of(own, first) if width == "month" else None
        cut = any(at and at.day != 1 and month_of(at) == day for at in starts)
        return cut or (width == "month" and inside and question.unit in ("day", "week"))
    if within:
        return True
    if not inside or question.unit is None:
        return False
    if question.unit in ("hour", "minute") and is_wider(width, question.unit):
        return True
    return _unit(question.ask, zone, first) != _unit(question.ask, zone, last)


def _would_divide(book: Book, question: Question, zone: str) -> bool:
    """The same of buckets in which events would be counted now, where there may be no finer ones:
    nobody looks whether they have rows.
    """
    width, unit = book.resolution, question.unit
    if not (book.zone == zone and question.in_days and width == "day"):
        for edge in question.edges(zone):
            # Also of a day that goes on after the next one has begun, where clocks go back to it.
            around = [bucket(book.zone, width, minute) for minute in (edge - 1, edge)]
            if any(
                first < edge <= last and book.told_before(width) <= first for first, last in around
            ):
                return True
    if unit is None or (book.zone == zone and question.in_days and width == "day"):
        return False
    first, last = _span(book, question, zone)
    if unit in ("hour", "minute") and is_wider(width, unit):
        # Zeros of what is not counted would be no answer: single ones have to be there.
        return last >= book.told_before(unit) or not _has_narrow(book, question, zone, unit)
    if last < book.told_before("day" if unit == "week" else unit):
        return False
    if unit in ("hour", "minute"):
        odd = (offset_of(zone, first), offset_of(zone, last), *clock_changes(zone, first, last))
        return any(each % MINUTES[width] for each in odd)
    days = range(first, last + 1440, 1440)
    return width == "day" or any(
        change % MINUTES[width]
        for day in {day_of(zone, at) for at in days}
        for change in changes(zone, day)
    )


def _has_narrow(book: Book, question: Question, zone: str, unit: str) -> bool:
    return any(
        question.has(zone, first) and not is_wider(width, unit) for width, first, _ in book.filled()
    )


def _span(book: Book, question: Question, zone: str) -> tuple[int, int]:
    """The first and the last minute of a series."""
    edges = [*question.edges(zone)]
    held = [at for _, first, last in book.held() for at in (first, last)] or [0]
    first = min(edges) if question.start is not None else min(held)
    return first, max(edges) if question.end is not None else max(held)


# -- drawing -----------------------------------------------------------------------------------


def drawn(
    draw: random.Random,
    books: Mapping[str, Book],
    zones: Sequence[str],
    keys: Sequence[str],
    now: int,
) -> Question:
    """A question at random, about when something was counted, or the last days."""
    counter = draw.choice(sorted(books))
    book, ask = books[counter], draw.choice(ASKED)
    zone = draw.choice((None, None, None, book.zone, draw.choice(zones)))
    some = tuple(draw.sample(keys, draw.randrange(1, 4)))
    if ask in ("counters", "by_key") or (ask != "many" and draw.random() < 0.6):
        some = ()
    if draw.random() < 0.1 and ask not in ("counters", *_LONGEST):
        last, today = draw.randrange(1, 40), day_of(zone or book.zone, now)
        return Question(ask, counter, some or None, today - (last - 1) * DAY, today, zone, last)
    minutes = sorted({minute for _, minute in book.amounts})
    start, end = _range(draw, ask, zone or book.zone, minutes)
    return Question(ask, counter, some or None, start, end, zone)


def _range(
    draw: random.Random, ask: str, zone: str, minutes: Sequence[int]
) -> tuple[date | None, date | None]:
    if not minutes or (draw.random() < 0.2 and ask not in _LONGEST):
        return None, None
    minute = draw.choice(minutes) + draw.randrange(-2, 3)
    length = draw.choice((1, 30, 60, 360, 1440, 4320, 44_640, 400_000))
    length = min(length, _LONGEST.get(ask, length))
    if draw.random() < 0.6:
        start: date = day_of(zone, minute) - draw.choice((0, 0, 1)) * DAY
        end: date = start + length // 1440 * DAY
        if draw.random() < 0.3:
            start, end = month_of(start), month_of(end + 31 * DAY) - DAY
        if ask in _LONGEST:
            end = min(end, start + _LONGEST[ask] // 1440 * DAY)
    else:
        begin = _snapped(draw, zone, minute)
        start, end = _time(begin), _time(max(begin + 1, _snapped(draw, zone, begin + length)))
    open_ended = 0 if ask in _LONGEST else draw.random()
    return (None if open_ended > 0.9 else start), (None if 0.8 < open_ended <= 0.9 else end)


def _snapped(draw: random.Random, zone: str, minute: int) -> int:
    """The begin of a minute, quarter, hour or day around a minute."""
    width = draw.choice(("minute", "quarter", "hour", "day", "day"))
    return bucket(zone, width, minute)[0]


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, timezone(timedelta(hours=1)))


def plain(counter: str) -> Iterator[Question]:
    """What is always answered: all there is of a counter, and the sums of its keys."""
    yield Question("total", counter)
    yield Question("by_key", counter)
