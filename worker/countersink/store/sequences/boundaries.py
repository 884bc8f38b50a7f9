"""Periods: which one it is on the server's clock, and where the next one begins.

A period is known by its first day, a local date; the column ``period`` holds that day's midnight.
Sequences without periods have the single one of 1970-01-01. The server knows nothing of time zones:
statements carry the boundaries around its clock, in UTC, and it chooses by its own clock which
period it is in.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args

from countersink.store import buckets
from countersink.store.errors import Refused

PeriodLength = Literal["none", "day", "month", "year"]
PERIODS: Final[tuple[PeriodLength, ...]] = get_args(PeriodLength)
ALL_TIME: Final = date(1970, 1, 1)
"""The one period of a sequence without periods."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """When a sequence begins anew.

    Attributes:
        period: its length.
        time_zone: IANA name; whose midnights begin the periods.
    """

    period: PeriodLength = "none"
    time_zone: str = "UTC"


WITHOUT_PERIODS: Final = Scheme()


@dataclass(frozen=True, slots=True)
class Place:
    """The period of a statement, in SQL.

    Attributes:
        scheme: for which sequences this is right.
        expression: the period's DATETIME on the server's clock.
        condition: true where ``expression`` is of use; empty: always.
    """

    scheme: Scheme
    expression: str
    condition: str


def first_day(scheme: Scheme, day: date) -> date:
    """The first day of the period that a local date lies in."""
    match scheme.period:
        case "none":
            return ALL_TIME
        case "day":
            return day
        case "month":
            return day.replace(day=1)
        case "year":
            return day.replace(month=1, day=1)


def first_day_at(scheme: Scheme, instant: float) -> date:
    """The first day of the period at an instant, in Unix seconds.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return ALL_TIME
    _require_zone(scheme)
    return first_day(scheme, buckets.date_at(scheme.time_zone, int(instant // 1)))


def place_at(scheme: Scheme, instant: float) -> Place:
    """The SQL for a statement that is sent at about ``instant``, in Unix seconds.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return _ALL_TIME_PLACE
    return _place(scheme, first_day_at(scheme, instant))


def midnight(day: date) -> datetime:
    """What the column ``period`` holds for a period's first day."""
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 (naive, as DATETIME is)


def _literal(seconds: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"TIMESTAMP'{moment:%Y-%m-%d %H:%M:%S}'"


_ALL_TIME_PLACE: Final = Place(WITHOUT_PERIODS, _literal(buckets.day_label(ALL_TIME)), "")


@lru_cache(maxsize=1024)
def _place(scheme: Scheme, current: date) -> Place:
    """With the periods before and after, since the server's clock is only known roughly."""
    following = _next(scheme, current)
    days = [_previous(scheme, current), current, following, _next(scheme, following)]
    begins = [_literal(buckets.day_begins(scheme.time_zone, day)) for day in days]
    cases = " ".join(
        f"WHEN UTC_TIMESTAMP() < {end} THEN {_literal(buckets.day_label(day))}"
        for day, end in zip(days[:-1], begins[1:], strict=True)
    )
    return Place(
        scheme,
        f"CASE {cases} END",
        f"UTC_TIMESTAMP() >= {begins[0]} AND UTC_TIMESTAMP() < {begins[-1]}",
    )


def _next(scheme: Scheme, first: date) -> date:
    """The first day of the following period: 32 days reach it from any month, 366 from any year."""
    days = {"none": 0, "day": 1, "month": 32, "year": 366}[scheme.period]
    return first_day(scheme, first + timedelta(days=days))


def _previous(scheme: Scheme, first: date) -> date:
    return first_day(scheme, first - timedelta(days=1))


def _require_zone(scheme: Scheme) -> None:
    try:
        buckets.zone(scheme.time_zone)
    except ValueError as error:
        raise Refused(
            f"the sequence's periods begin in {scheme.time_zone}, a time zone that is unknown here:"
            " install a newer tzdata (pip install --upgrade tzdata)"
        ) from error
