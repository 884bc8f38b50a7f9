"""Counters and rows of any width as they are in the tables, for tests that need them to have been
counted in the past.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

from countersink.counting.counters.buckets import NUMBER, Width
from countersink.database.session import Session
from countersink.database.sql import datetime_of
from tests.support.ledger import post_planted

Put = Callable[..., None]
"""Makes a counter c by :func:`put_scheme`, and counts events of the Unix minutes that are its first
argument with the amounts 1, 10, 100, …"""

WidthRow = tuple[str, Width, date, str, int]
"""(counter, width, bucket as the table has it, key, amount)."""


def put_scheme(
    session: Session,
    counter: str,
    time_zone: str = "UTC",
    resolution: str = "day",
    **times: int,
) -> None:
    """Make a counter that counts so.

    Args:
        session: to the database.
        counter: its name.
        time_zone: its zone.
        resolution: in which it counts now.
        times: Unix minutes of its columns: ``counted_hour``, ``rolled_month`` and the like.
    """
    columns = {"time_zone": time_zone, "resolution": resolution}
    columns |= {name: str(datetime_of(at * 60)) for name, at in times.items()}
    session.execute("DELETE FROM counter WHERE name = %s", (counter,))
    session.execute(
        f"INSERT INTO counter (name, created, {', '.join(columns)})"
        f" VALUES (%s, UTC_TIMESTAMP(3){', %s' * len(columns)})",
        (counter, *columns.values()),
    )
    session.execute("UPDATE control SET catalog_version = catalog_version + 1")


def plant(
    session: Session, *rows: tuple[Any, ...], width: int = NUMBER["day"], post: bool = True
) -> None:
    """Insert slot rows (counter, bucket, key, slot, amount), and post them to the ledger; without
    ``post`` only insert them.
    """
    session.insert_rows(
        "counter_slot (counter, bucket, counter_key, slot, amount, width)",
        [(*row, width) for row in rows],
        1000,
    )
    if post:
        post_planted(session)


def put_rows(session: Session, rows: Iterable[WidthRow], *, slots: Sequence[int] = (1,)) -> None:
    """Insert rows of these widths in each of some slots, and post them to the ledger."""
    session.insert_rows(
        "counter_slot (counter, bucket, counter_key, width, slot, amount)",
        [
            (counter, bucket, key.encode("utf-8", "surrogateescape"), NUMBER[width], slot, amount)
            for counter, width, bucket, key, amount in rows
            for slot in slots
        ],
        1000,
    )
    post_planted(session)
