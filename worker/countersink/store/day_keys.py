"""Which keys a day of a counter has, in whatever bucket and slot.

Once retention has rolled a day up, or has begun to (``rolled_up_to``), the keys of its month are
there as well, and take none of the day's room: a late event of a key that the day had goes on under
that key. Keys of the day itself are asked for first, then ``rolled_up_to``, and then the month: a
key that is moved in between is met in one or the other, as both change in one transaction, and
``rolled_up_to`` before it.

Sessions are at READ COMMITTED: each look has to see what was committed before it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import Final

from countersink.store import ranges
from countersink.store.buckets import day_label, label_time
from countersink.store.connection import Session
from countersink.store.overflow import OVERFLOW, Place
from countersink.store.policies import Policies
from countersink.store.ranges import LabelRange
from countersink.store.views import View

_KEYS_PER_QUERY: Final = 500  # from 1,000 on MariaDB makes a temporary table of them
_MOST_BYTES: Final = 255


def missing(session: Session, policies: Policies, place: Place, keys: Collection[str]) -> list[str]:
    """Those of some keys that the day does not have; the others are remembered.

    Left out is what cannot be a key: the server is going to refuse it, so it takes no room.
    """
    encoded = {key: hexed for key in keys if (hexed := _hex(key)) is not None}
    there = _in_slots(session, policies, place, encoded.values())
    absent = [hexed for key, hexed in encoded.items() if key not in there]
    if absent and is_rolled_up(session, place):
        there |= _in_month(session, place, absent)
    policies.made.add(*place, there)
    return [key for key in encoded if key not in there]


def count(session: Session, policies: Policies, place: Place, most: int) -> int:
    """How many keys take room of the day; not further than to ``most``."""
    where, args = ranges.condition(_ranges(policies, place))
    if is_rolled_up(session, place):
        where += (
            " AND NOT EXISTS (SELECT 1 FROM counter_month WHERE counter_month.counter = %s"
            " AND counter_month.bucket = %s"
            " AND counter_month.counter_key = counter_slot.counter_key)"
        )
        args += (place[0], _month(place[1]))
    ((number,),) = session.query(
        "SELECT COUNT(*) FROM (SELECT DISTINCT counter_key FROM counter_slot"
        f" FORCE INDEX (PRIMARY) WHERE counter = %s{where}"
        " AND counter_key <> %s LIMIT %s) AS there",
        (place[0], *args, OVERFLOW.encode(), most),
    )
    return int(number)


def is_rolled_up(session: Session, place: Place) -> bool:
    """Whether keys of the day may be in its month by now."""
    found = session.query(
        "SELECT 1 FROM counter WHERE name = %s AND rolled_up_to > %s", (place[0], place[1])
    )
    return bool(found)


def _in_slots(
    session: Session, policies: Policies, place: Place, encoded: Iterable[str]
) -> set[str]:
    of_day = _ranges(policies, place)
    # In one bucket keys are found by the primary key, in several by the other index.
    index = "PRIMARY" if len(of_day) == 1 and of_day[0].only is not None else "by_key"
    where, args = ranges.condition(of_day)
    there: set[str] = set()
    for some in _pages(encoded):
        rows = session.query(
            f"SELECT DISTINCT counter_key FROM counter_slot FORCE INDEX ({index})"
            f" WHERE counter = %s{where} AND counter_key IN ({some})",
            (place[0], *args),
        )
        there.update(bytes(key).decode() for (key,) in rows)
    return there


def _in_month(session: Session, place: Place, encoded: Iterable[str]) -> set[str]:
    there: set[str] = set()
    for some in _pages(encoded):
        rows = session.query(
            "SELECT counter_key FROM counter_month FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND bucket = %s AND counter_key IN ({some})",
            (place[0], _month(place[1])),
        )
        there.update(bytes(key).decode() for (key,) in rows)
    return there


def _pages(encoded: Iterable[str]) -> Iterator[str]:
    """Lists of literals of SQL."""
    ordered = sorted(encoded)
    for start in range(0, len(ordered), _KEYS_PER_QUERY):
        literals = "', X'".join(ordered[start : start + _KEYS_PER_QUERY])
        yield f"X'{literals}'"


def _ranges(policies: Policies, place: Place) -> Sequence[LabelRange]:
    """The buckets of a day."""
    counter, day = place
    return View(counter, policies.of(counter), None).ranges(day, day) or ()


def _month(day: date) -> datetime:
    """The bucket of the month that a day goes to."""
    return label_time(day_label(day.replace(day=1)))


def _hex(key: str) -> str | None:
    """A key as hex digits; None for what is none."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return None
    return encoded.hex() if len(encoded) <= _MOST_BYTES else None
