"""What sequences look like to whoever asks without taking a value."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import itemgetter
from typing import Any, cast

from countersink.store.connection import Session
from countersink.store.sequences.arguments import name_text
from countersink.store.sequences.boundaries import (
    ALL_TIME,
    WITHOUT_PERIODS,
    PeriodLength,
    Place,
    Scheme,
    first_day,
    midnight,
    place_at,
)
from countersink.store.sequences.memory import seconds_of
from countersink.store.sequences.options import COLUMNS, Options, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence as of a moment.

    Attributes:
        name: its name.
        value: the last one handed out (or set) in its current period; None: none was.
        period_start: the local date on which its current period began; None: it has no periods.
        updated_at: aware; when ``value`` was handed out or set; None where there is none.
        options: how it goes on.
    """

    name: str
    value: int | None
    period_start: date | None
    updated_at: datetime | None
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """What a sequence came to in a period.

    Attributes:
        start: the local date on which the period began; None: for all time.
        value: the last one handed out or set in it.
        updated_at: aware; when that was.
    """

    start: date | None
    value: int
    updated_at: datetime


def current(session: Session, scheme: Scheme) -> Place:
    """The period that it is on the server's clock, for statements that are sent at once.

    They say which one it is, and not this machine: just as those that hand out values.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    if scheme.period == "none":
        return place_at(WITHOUT_PERIODS, 0)
    ((moment,),) = session.query("SELECT UTC_TIMESTAMP(6)")
    return place_at(scheme, seconds_of(moment))


def read_options(session: Session, name: bytes, lock: str = "") -> Options | None:
    """A sequence's options; None if there is no such sequence."""
    rows = session.query(
        f"SELECT {COLUMNS} FROM sequence_option AS o WHERE o.name = %s {lock}", (name,)
    )
    return options_of(rows[0]) if rows else None


def read_current(
    session: Session, name: bytes, scheme: Scheme, lock: str = ""
) -> tuple[datetime, int] | None:
    """What ``period`` holds for the current period, and its last value; None: none was handed out.

    Raises:
        Refused: the time zone is unknown on this machine.
    """
    rows = session.query(
        "SELECT period, value FROM sequence"
        f" WHERE name = %s AND period = {current(session, scheme).expression} {lock}",
        (name,),
    )
    return (rows[0][0], int(rows[0][1])) if rows else None


def peek(session: Session, name: bytes, day: date | None) -> int | None:
    """The last value of the current period, or of that in which ``day`` lies.

    Raises:
        ValueError: a day, but the sequence has no periods.
    """
    options = read_options(session, name)
    if options is None:
        return None
    if day is None:
        found = read_current(session, name, options.scheme)
        return None if found is None else found[1]
    if options.period == "none":
        raise ValueError(f"the sequence {name_text(name)!r} has no periods: leave the period out")
    rows = session.query(
        "SELECT value FROM sequence WHERE name = %s AND period = %s",
        (name, midnight(first_day(options.scheme, day))),
    )
    return int(rows[0][0]) if rows else None


def periods(session: Session, name: bytes) -> list[Period]:
    """All periods of a sequence, the earliest first."""
    rows = session.query(
        "SELECT period, value, updated_at FROM sequence WHERE name = %s ORDER BY period", (name,)
    )
    return [
        Period(start=_start(period.date()), value=int(value), updated_at=_aware(updated))
        for period, value, updated in rows
    ]


def total(session: Session, name: bytes) -> int:
    """The sum of the periods' last values; 0 where there is none."""
    ((found,),) = session.query("SELECT SUM(value) FROM sequence WHERE name = %s", (name,))
    return int(found or 0)


def read_all(session: Session, prefix: bytes) -> list[Sequence]:
    """The sequences whose names begin with ``prefix``, by name, compared byte by byte.

    Raises:
        Refused: a time zone is unknown on this machine.
    """
    if not prefix:
        return _read(session, "TRUE", ())
    # UTF-8 has no byte 255, so the last one can grow.
    behind = prefix[:-1] + bytes([prefix[-1] + 1])
    return _read(session, "o.name >= %s AND o.name < %s", (prefix, behind))


def read_one(session: Session, name: bytes) -> list[Sequence]:
    """One sequence, if there is such a one."""
    return _read(session, "o.name = %s", (name,))


def _read(session: Session, where: str, args: tuple[bytes, ...]) -> list[Sequence]:
    schemes = session.query(
        f"SELECT DISTINCT o.period, o.time_zone FROM sequence_option AS o WHERE {where}", args
    )
    found: list[tuple[bytes, Sequence]] = []
    for period, time_zone in schemes:
        now = current(session, Scheme(cast(PeriodLength, period), time_zone)).expression
        rows = session.query(
            f"SELECT o.name, {now}, s.value, s.updated_at, {COLUMNS} FROM sequence_option AS o"
            f" LEFT JOIN sequence AS s ON s.name = o.name AND s.period = {now}"
            f" WHERE {where} AND o.period = %s AND o.time_zone = %s",
            (*args, period, time_zone),
        )
        found += _sequences(rows)
    return [sequence for _, sequence in sorted(found, key=itemgetter(0))]


def _sequences(rows: list[tuple[Any, ...]]) -> Iterator[tuple[bytes, Sequence]]:
    for name, period, value, updated, *options in rows:
        yield (
            bytes(name),
            Sequence(
                name=name_text(name),
                value=None if value is None else int(value),
                period_start=_start(period.date()),
                updated_at=None if updated is None else _aware(updated),
                options=options_of(tuple(options)),
            ),
        )


def _start(period: date) -> date | None:
    return None if period == ALL_TIME else period


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
