"""Books of a history: its counts in plain dictionaries; local days by ``zoneinfo`` alone."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

MINUTES: Final = {"minute": 1, "quarter": 15, "hour": 60, "day": 1440, "month": 44_640}
"""Minutes of a bucket, about; the finest first."""
WIDTHS: Final = tuple(MINUTES)
FINER: Final = WIDTHS[:3]
DAY: Final = timedelta(days=1)
EPOCH: Final = date(1970, 1, 1)
_LONGEST_CHANGE: Final = 180
"""Minutes around a midnight in which clocks are changed by less than a day."""

Event = tuple[str, int]
"""Key and Unix minute."""
Bucket = tuple[str, int, int]
"""Width, first and last minute."""


@lru_cache(maxsize=2**20)
def local(zone: str, minute: int) -> datetime:
    """Local time of a zone at a Unix minute."""
    return datetime.fromtimestamp(minute * 60, ZoneInfo(zone))


def day_of(zone: str, minute: int) -> date:
    """The local date."""
    return local(zone, minute).date()


def offset_of(zone: str, minute: int) -> int:
    """How many minutes local time is ahead of UTC."""
    offset = local(zone, minute).utcoffset()
    assert offset is not None
    return offset // timedelta(minutes=1)


def clock_changes(zone: str, first: int, last: int) -> list[int]:
    """The minutes up to a last one at which clocks are changed."""
    found = []
    for hour in range(first, last, 60):
        end = min(hour + 60, last)
        if offset_of(zone, hour) != offset_of(zone, end):
            minutes = range(hour + 1, end + 1)
            found += [m for m in minutes if offset_of(zone, m - 1) != offset_of(zone, m)]
    return found


@lru_cache(maxsize=2**16)
def first_minute(zone: str, day: date) -> int:
    """The first minute of this date, or of a later one."""
    for minute in _around_midnight(zone, day):
        if day_of(zone, minute) >= day:
            return minute
    raise AssertionError(f"{day} does not begin in {zone}")


@lru_cache(maxsize=2**16)
def last_minute(zone: str, day: date) -> int:
    """The last minute of this date, or of an earlier one."""
    for minute in reversed(_around_midnight(zone, day + DAY)):
        if day_of(zone, minute) <= day:
            return minute
    raise AssertionError(f"{day} does not end in {zone}")


@lru_cache(maxsize=2**16)
def changes(zone: str, day: date) -> tuple[int, ...]:
    """The minutes from which on it is this date or a later one, then an earlier one, and so on."""
    around = _around_midnight(zone, day)
    is_reached = [day_of(zone, minute) >= day for minute in around]
    pairs = zip(around[1:], is_reached, is_reached[1:], strict=False)
    return tuple(minute for minute, before, after in pairs if before != after)


def _around_midnight(zone: str, day: date) -> range:
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()
    minute = round(midnight) // 60
    ends = minute - _LONGEST_CHANGE, minute + _LONGEST_CHANGE
    if len({offset_of(zone, each) for each in ends}) == 1:
        return range(minute - 1, minute + 1)
    return range(ends[0], ends[1])


def minutes_of(zone: str, day: date) -> list[int]:
    """All minutes of a date; none, where the zone leaves it out."""
    every = range(first_minute(zone, day), last_minute(zone, day) + 1)
    return [minute for minute in every if day_of(zone, minute) == day]


def month_of(day: date) -> date:
    """The first day of a month."""
    return day.replace(day=1)


@lru_cache(maxsize=2**18)
def bucket(zone: str, width: str, minute: int) -> tuple[int, int]:
    """The first and the last minute of the bucket that a minute lies in. A date that comes in two
    pieces has minutes of another one in between.
    """
    if width in FINER:
        start = minute // MINUTES[width] * MINUTES[width]
        return start, start + MINUTES[width] - 1
    day = day_of(zone, minute)
    if width == "day":
        return first_minute(zone, day), last_minute(zone, day)
    following = month_of(month_of(day) + 31 * DAY)
    return first_minute(zone, month_of(day)), last_minute(zone, following - DAY)


def is_wider(one: str, other: str) -> bool:
    """Whether buckets of one width are wider than those of another."""
    return MINUTES[one] > MINUTES[other]


@dataclass
class Book:
    """Books of a counter: its counts, and the widest bucket that may hold each of them by now.

    Attributes:
        zone: its time zone.
        resolution: its resolution.
        steps: its steps to keep, (width, minutes), the finest first.
        amounts: what was counted; what adds up to 0 stays in it.
        widest: the width of the widest bucket that holds anything of an event's.
        counted: by width, of those that were the resolution, a minute before which all is that was
            counted so.
        rolled: by width the minute before which finer buckets become such.
        is_used: anything was ever counted.
    """

    zone: str = "UTC"
    resolution: str = "day"
    steps: tuple[tuple[str, int], ...] = ()
    amounts: Counter[Event] = field(default_factory=Counter)
    widest: dict[Event, str] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    rolled: dict[str, int] = field(default_factory=dict)
    is_used: bool = False

    def add(
        self, key: str, minute: int, amount: int, width: str | None = None, *, sure: bool = True
    ) -> None:
        """Count an event, in a bucket of its resolution, or of what it was then; not ``sure``: or
        of a finer one.
        """
        width = width or self.resolution
        event = key, minute
        self.amounts[event] += amount
        self.is_used = True
        self.widest[event] = max(width, self.widest.get(event, width), key=MINUTES.__getitem__)
        if sure and width in self.counted:  # it was counted before the resolution was changed
            self.counted[width] = max(self.counted[width], bucket(self.zone, width, minute)[1] + 1)

    def delete(self, key: str) -> None:
        """Forget a key."""
        for event in [event for event in self.amounts if event[0] == key]:
            del self.amounts[event], self.widest[event]

    def change_resolution(self, resolution: str, now: int) -> None:
        """Count in buckets of another width from now on."""
        if resolution == self.resolution:
            return
        if self.is_used:
            ends = [last for width, _, last in self.filled() if width == self.resolution]
            self.counted[self.resolution] = max([now, *ends]) + 1
        self.counted.pop(resolution, None)
        self.resolution = resolution

    def roll_up(self, now: int) -> None:
        """Note what is due to become wider, be it done or only begun."""
        if self.steps:
            last = "month" if self.steps[-1][0] == "day" else "day"
            wider = [*(width for width, _ in self.steps[1:]), last]
            for width, (_, age) in zip(wider, self.steps, strict=True):
                if is_wider(width, self.finest):
                    begin = bucket(self.zone, width, now - age)[0]
                    self.rolled[width] = max(begin, self.rolled.get(width, begin))
        for width, end in self.rolled.items():
            for event, own in self.widest.items():
                if event[1] < end and is_wider(width, own):
                    self.widest[event] = width

    @property
    def finest(self) -> str:
        """The finest width of buckets that it may have."""
        had = self.resolution, *self.counted, *self.rolled
        return min(had, key=MINUTES.__getitem__)

    def told_before(self, width: str) -> int:
        """The minute before which there may be buckets finer than its resolution, if these are no
        wider than ``width``.
        """
        return max(
            (
                end
                for each, end in (*self.counted.items(), *self.rolled.items())
                if is_wider(self.resolution, each) and not is_wider(each, width)
            ),
            default=0,
        )

    def held(self) -> set[Bucket]:
        """The buckets that may have rows."""
        return {place for _, place in self._cells()}

    def filled(self) -> set[Bucket]:
        """Those of them whose rows do not add up to 0."""
        return {place for (_, place), amount in self._cells().items() if amount}

    def _cells(self) -> Counter[tuple[str, Bucket]]:
        found = Counter[tuple[str, Bucket]]()
        for (key, minute), amount in self.amounts.items():
            width = self.widest[key, minute]
            found[key, (width, *bucket(self.zone, width, minute))] += amount
        return found
