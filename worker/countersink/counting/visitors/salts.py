"""Salts by which the members of counters are hashed: their periods, how long each lasts, when a
worker makes the next one and forgets one (``KEPT_MINUTES``), and whether one is right for an event.

The first salt of a counter is for all events up to its end. Periods end at midnights of the
counter's time zone, follow on each other, and never overlap. A salt has no end where it lasts for
ever. Once a salt is forgotten, nobody can find out who is in the sketches that were made with it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from typing import Final

from countersink.counting.apply.control import read_control
from countersink.counting.counters import buckets
from countersink.counting.counters.catalog import Catalog, SaltPeriod, load_scheme
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import marks, parts
from countersink.runtime.members import SALT_BYTES, Salt

MOST_SALT_DAYS: Final = 366
BEGINNING: Final = -(2**31)
"""Unix minutes, where the first salt of a counter begins: before all events."""
NOTICE_MINUTES: Final = 10
"""How long before its end, at the least, a salt that had none is given one: until then producers
have heard of it."""
KEPT_MINUTES: Final = 1440
"""How long a salt is kept after its end, and after it was made, for what producers still have to
send: it is made after its end where all workers were away."""

_DAY_MINUTES: Final = 1440
_NUMBERS_PER_QUERY: Final = 500


def check_salt_days(days: int) -> int:
    """``days``, if a salt can last so long.

    Raises:
        ValueError: it cannot.
    """
    if type(days) is not int or not 0 <= days <= MOST_SALT_DAYS:
        raise ValueError(
            f"salt_days is {days!r}: a number of days from 1 to {MOST_SALT_DAYS}, or 0 for one salt"
            " that lasts for ever"
        )
    return days


def set_days(session: Session, counter: str, days: int, minute: int) -> None:
    """Have the salts of a counter, which has its row, last so long from now on.

    Args:
        session: in a transaction in which nobody counts.
        counter: its name.
        days: 0 for ever.
        minute: now, in Unix minutes.
    """
    session.execute("UPDATE counter SET salt_days = %s WHERE name = %s", (days, counter))
    endless = "counter = %s AND ends IS NULL"
    found = session.query(f"SELECT begins FROM visitor_salt WHERE {endless}", (counter,))
    if days and found:
        zone = load_scheme(session, counter).known_zone()
        # It may be one that is still to come.
        day = buckets.date_at(zone, max(found[0][0], minute + NOTICE_MINUTES) * 60)
        session.execute(
            f"UPDATE visitor_salt SET ends = %s WHERE {endless}",
            (_midnight_after(zone, day, 1), counter),
        )
    _make(session, counter, days, minute)


def keep(session: Session) -> dict[str, list[Salt]]:
    """Where a salt will be lacking within a day, make those until the end of tomorrow, and forget
    those that are not needed any more; those to be published, by counter.

    Args:
        session: at READ COMMITTED, outside a transaction.

    Raises:
        StoreError: as any statement.
    """
    minute = read_control(session, lock="").now // 60_000
    # Once a day: while the last one ends later, tomorrow's end is not lacking yet.
    for (name,) in session.query(
        "SELECT name FROM counter LEFT JOIN visitor_salt ON visitor_salt.counter = name"
        " WHERE salt_days IS NOT NULL GROUP BY name"
        " HAVING COUNT(number) = COUNT(ends) AND COALESCE(MAX(ends), %s) < %s",
        (BEGINNING, minute + _DAY_MINUTES),
    ):
        _make_alone(session, name)
    session.execute(
        "UPDATE visitor_salt SET salt = NULL WHERE GREATEST(ends, made) < %s AND salt IS NOT NULL",
        (minute - KEPT_MINUTES,),
    )
    return kept(session)


def kept(session: Session) -> dict[str, list[Salt]]:
    """The salts that are not forgotten by counter, the earliest first."""
    found: dict[str, list[Salt]] = {}
    for name, *salt in session.query(
        "SELECT counter, number, begins, ends, salt FROM visitor_salt"
        " WHERE salt IS NOT NULL ORDER BY counter, begins"
    ):
        found.setdefault(name, []).append(Salt(*salt))
    return found


def periods_of(session: Session, counter: str) -> list[SaltPeriod]:
    """When the salts of a counter were, are and will be in use, the earliest first."""
    return [
        SaltPeriod(*period)
        for period in session.query(
            "SELECT counter, begins, ends FROM visitor_salt WHERE counter = %s ORDER BY begins",
            (counter,),
        )
    ]


def known_periods(
    session: Session, catalog: Catalog, numbers: Iterable[int]
) -> dict[int, SaltPeriod]:
    """When the salts with some numbers are in use, as far as there are such.

    A period changes with the catalog's version only, so what was looked up once is remembered with
    these.
    """
    found = catalog.salts
    for part in parts(sorted(set(numbers) - found.keys()), _NUMBERS_PER_QUERY):
        for number, *period in session.query(
            "SELECT number, counter, begins, ends FROM visitor_salt"
            f" WHERE number IN ({marks(part)})",
            part,
        ):
            found[number] = SaltPeriod(*period)
    return found


def _make_alone(session: Session, counter: str) -> None:
    """Make what a counter lacks, while no other worker does."""
    with session.transaction():
        control = read_control(session)  # its lock keeps the counter as it is
        # The salts there are, not the counter's row: a worker's user may not change that one. Where
        # there is none, the first one that two make is the same row, which one of them fails at.
        session.query("SELECT number FROM visitor_salt WHERE counter = %s FOR UPDATE", (counter,))
        rows = session.query(
            "SELECT salt_days FROM counter WHERE name = %s AND salt_days IS NOT NULL", (counter,)
        )
        for (days,) in rows:
            # Where its time zone is unknown, another worker makes it that knows it.
            with suppress(Refused):
                _make(session, counter, days, control.now // 60_000)


def _make(session: Session, counter: str, days: int, minute: int) -> None:
    """Make the salts that a counter lacks until the end of tomorrow, or one for ever; the caller
    holds its salts, or nobody else counts.
    """
    zone = load_scheme(session, counter).known_zone()
    today = buckets.date_at(zone, minute * 60)
    until = _midnight_after(zone, today, 2)
    last = session.query(
        "SELECT ends FROM visitor_salt WHERE counter = %s ORDER BY begins DESC LIMIT 1", (counter,)
    )
    begins: int | None = last[0][0] if last else BEGINNING
    while begins is not None and (begins < until or not days):
        ends: int | None = None
        if days:
            first = today if begins == BEGINNING else buckets.date_at(zone, begins * 60)
            ends = _midnight_after(zone, first, days)
        session.execute(
            "INSERT INTO visitor_salt (counter, begins, ends, made, salt)"
            " VALUES (%s, %s, %s, %s, %s)",
            (counter, begins, ends, minute, os.urandom(SALT_BYTES)),
        )
        begins = ends


def _midnight_after(zone: str, day: date, days: int) -> int:
    """The Unix minute at which a day begins that is so many days after another one."""
    return buckets.day_begins(zone, day + days * buckets.ONE_DAY) // 60
