"""Buckets: which one an event goes to, and which stretch of time a bucket is.

A bucket's *label* is what the column ``bucket`` holds, counted in seconds since 1970-01-01 00:00 as
if it were UTC. For the resolution ``day`` it is the midnight of the local date, for ``hour`` and
``quarter`` the start in UTC. To it the number of the policy is added as seconds. So a label alone
tells under which policy it was counted, no two policies ever share a bucket, and a counter may
change its policy at any minute; the first policy's labels are plain.
"""

from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

Resolution = Literal["day", "hour", "quarter"]
RESOLUTIONS: Final[tuple[Resolution, ...]] = get_args(Resolution)

WIDTH: Final[dict[Resolution, int]] = {"day": 1440, "hour": 60, "quarter": 15}
"""Minutes of a bucket; a local day has more or fewer where clocks are changed."""
MAX_POLICIES: Final = 60
"""Policies a counter can have had: their numbers are seconds."""

_DAY: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
MAX_MINUTE: Final = 4_223_363_039
"""The last minute of 9999-12-25 UTC, the last one an event may have (0 is the first): in every time
zone there are days after it."""
FIRST_DAY: Final = date(1969, 12, 30)
LAST_DAY: Final = date(9999, 12, 28)
"""No time zone has an event on these days, before the one, or after the other: there the days are
those of UTC, and whoever adds days up meets no end of dates."""
_FIRST_NUMBER: Final = FIRST_DAY.toordinal() - _EPOCH_ORDINAL
_LAST_NUMBER: Final = LAST_DAY.toordinal() - _EPOCH_ORDINAL
_LONGEST_GAP: Final = 180
"""Minutes by which a midnight may be off its place where clocks are changed around it."""


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ValueError: there is none; the message says what a name looks like.
    """
    # Asked for by name, not by trying: a name is a path, and not every file there is a zone.
    if name not in available_timezones():
        raise ValueError(
            f"{name!r} is no time zone: give an IANA name such as Europe/Berlin, America/New_York"
            " or UTC"
        )
    return ZoneInfo(name)


def label(number: int, time_zone: str, resolution: Resolution, minute: int) -> int:
    """The label of the bucket for an event at ``minute`` (Unix minutes) under such a policy."""
    if resolution == "day":
        if time_zone == "UTC":
            return minute // 1440 * _DAY + number
        return _day_number(time_zone, minute * 60) * _DAY + number
    width = WIDTH[resolution]
    return minute // width * width * 60 + number


def policy_number(label: int) -> int:
    """The number of the policy under which a bucket was counted."""
    return label % 60


def starts_at(time_zone: str, resolution: Resolution, label: int) -> int:
    """Unix seconds at which the bucket begins."""
    start = label - policy_number(label)
    if resolution == "day":
        return _day_begins(time_zone, start // _DAY)
    return start


def ends_at(time_zone: str, resolution: Resolution, label: int) -> int:
    """Unix seconds at which the bucket has ended."""
    start = label - policy_number(label)
    if resolution == "day":
        return _day_begins(time_zone, start // _DAY + 1)
    return start + WIDTH[resolution] * 60


def local_day(time_zone: str, resolution: Resolution, label: int) -> date:
    """The date that the bucket belongs to (or begins on), in the policy's own time zone."""
    start = label - policy_number(label)
    return _date(start // _DAY if resolution == "day" else _day_number(time_zone, start))


def date_at(time_zone: str, instant: int) -> date:
    """The local date at an instant, in Unix seconds."""
    return _date(_day_number(time_zone, instant))


@lru_cache(maxsize=65_536)
def day_begins(time_zone: str, day: date) -> int:
    """Unix seconds of the first minute that has this local date, or a later one.

    A date that a zone left out (as Apia did with 2011-12-30) begins where the next one does.
    """
    place = zone(time_zone)
    if time_zone == "UTC" or not FIRST_DAY < day <= LAST_DAY:
        return day_label(day)
    begins = round(datetime(day.year, day.month, day.day, tzinfo=place).timestamp())
    if date_at(time_zone, begins) == day and date_at(time_zone, begins - 1) < day:
        return begins
    # Midnight was left out, or came twice: clocks were changed around it.
    first = begins // 60 - _LONGEST_GAP
    for minute in range(first, first + 2 * _LONGEST_GAP):
        if date_at(time_zone, minute * 60) >= day:
            return minute * 60
    return begins


def label_text(label: int) -> str:
    """A label as the text of a DATETIME literal.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return (_EPOCH + timedelta(seconds=label)).isoformat(" ")


def label_of(bucket: datetime) -> int:
    """The label that a DATETIME read from the table is."""
    return round((bucket - _EPOCH).total_seconds())


def label_time(label: int) -> datetime:
    """A label as the naive datetime that the table holds.

    Raises:
        OverflowError: beyond the year 9999.
    """
    return _EPOCH + timedelta(seconds=label)


def day_label(day: date) -> int:
    """The plain label of a date's midnight."""
    return (day.toordinal() - _EPOCH_ORDINAL) * _DAY


@lru_cache(maxsize=65_536)
def _day_number(time_zone: str, instant: int) -> int:
    """Days since 1970-01-01 of the local date at an instant."""
    place = zone(time_zone)
    number = instant // _DAY
    if not _FIRST_NUMBER <= number <= _LAST_NUMBER:
        return number
    local = datetime.fromtimestamp(instant, place).toordinal() - _EPOCH_ORDINAL
    return max(_FIRST_NUMBER, min(local, _LAST_NUMBER))


def _day_begins(time_zone: str, number: int) -> int:
    """As :func:`day_begins`, of a day by its number, which may be that after the last date."""
    return number * _DAY if number > _LAST_NUMBER else day_begins(time_zone, _date(number))


def _date(day_number: int) -> date:
    return date.fromordinal(_EPOCH_ORDINAL + day_number)
