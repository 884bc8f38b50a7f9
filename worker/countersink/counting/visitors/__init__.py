"""Different members of counters (visitors, say): sketches, which keep sets of members as 64-bit
hashes, and salts, with which members are hashed.

The first part of this module has the format of sketches, their unions (exact up to ``MOST_UNITED``
members), estimates with bounds, and checksums of rows. The second part has the periods of salts,
their creation, and their deletion (``KEPT_MINUTES``). See ``rows.py`` for the table of sketches.

The first byte of a sketch is its kind. Kind 1 is exact: up to 256 distinct hashes of 8 bytes
(big-endian), sorted. Kind 2 is an estimate: an HLL of Apache DataSketches (lg_k 13, HLL_4,
compact), whose relative standard error is 1.04/√8192 = 1.15 %. Only kind 2 needs the library
``datasketches``, which is the extra ``[sketches]``.

A union of HLLs is the same in whatever order its parts are united, and however often. But the
estimate of an HLL that was never merged depends on the order in which its members were added. So
estimates are always made of a union; a single HLL is united with itself.

The first salt of a counter is for all events up to its end. Periods of salts end at midnights of
the counter's time zone. They follow each other without gaps, and never overlap. A salt that lasts
for ever has no end. Once a salt is deleted, nobody can find out which members are in the sketches
that were made with it.
"""

import os
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from countersink.counting.apply.guards import read_control
from countersink.counting.counters import buckets
from countersink.counting.counters.catalog import Catalog, SaltPeriod, load_scheme
from countersink.counting.errors import DamagedSketch, NoSketches
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import marks, parts
from countersink.runtime.members import SALT_BYTES, Salt

if TYPE_CHECKING:
    from datasketches import hll_sketch, hll_union

MOST_EXACT: Final = 256
"""Maximum number of members that a stored sketch keeps exactly."""
MOST_UNITED: Final = 100_000
"""Maximum number of members of a union of exact sketches that is exact itself: about 9 MB."""
LG_K: Final = 13
INSTALL: Final = "install the extra: pip install 'countersink[sketches]'"

_EXACT: Final = b"\x01"
_HLL: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class Visitors:
    """The number of different members, such as visitors.

    Attributes:
        total: the number, exact or estimated.
        estimate: whether it is estimated.
        low, high: bounds of the number with 95 % confidence (two standard deviations). Both equal
            the number if it is exact.
    """

    total: int = 0
    estimate: bool = False
    low: int = 0
    high: int = 0


class SketchUnion:
    """The union of sketches and of hashes of members, such as visitors. The union is exact as long
    as all its sketches are exact and it has at most ``most`` members. Otherwise, or once
    :meth:`estimate` was called, it is an estimate, and stays one. :meth:`sketch` calls it, too, for
    more than :data:`MOST_EXACT` members.
    """

    def __init__(self, most: int = MOST_UNITED) -> None:
        self._most = most
        self._hashes: set[int] = set()
        self._estimated: hll_union | None = None

    @property
    def exact(self) -> int:
        """The number of members while the union is exact; 0 once it is an estimate."""
        return len(self._hashes)

    def add(self, sketch: bytes) -> None:
        """Add the members of a sketch. The caller has verified the sketch's checksum, because the
        library datasketches trusts the numbers in a sketch.

        Raises:
            DamagedSketch: the bytes are no sketch; the union is unchanged.
            NoSketches: the library datasketches is needed, and not installed.
        """
        kind, rest = sketch[:1], sketch[1:]
        try:
            if kind == _EXACT:
                self.add_hashes(rest)
            elif kind == _HLL:
                part = _module().hll_sketch.deserialize(rest)
                self.estimate().update(part)
            else:
                raise ValueError(f"the first byte is {kind.hex() or 'missing'}, not 01 or 02")
        except (ValueError, IndexError, RuntimeError, MemoryError, struct.error) as error:
            raise DamagedSketch(f"the bytes are no sketch: {error}") from error

    def add_hashes(self, hashes: bytes) -> None:
        """Add members by their hashes of 8 bytes, in any order.

        Raises:
            struct.error: the length is no multiple of 8.
            NoSketches: the union gets more than ``most`` members, which needs the library
                datasketches, and this is not installed.
        """
        self._hashes.update(struct.unpack(f">{len(hashes) // 8}Q", hashes))
        if self._estimated is not None or len(self._hashes) > self._most:
            self.estimate()

    def estimate(self) -> "hll_union":
        """Turn the union into an HLL, which takes a few KB for any number of members, and return
        the HLL itself, not a copy.

        Raises:
            NoSketches: the library datasketches is not installed.
        """
        if self._estimated is None:
            self._estimated = _module().hll_union(LG_K)
        deque(map(self._estimated.update, self._hashes), maxlen=0)
        self._hashes.clear()
        return self._estimated

    def sketch(self) -> bytes:
        """Return the union as the bytes of a sketch. A union of more than :data:`MOST_EXACT`
        members is turned into an estimate before, and stays one.

        Raises:
            NoSketches: the library datasketches is needed, and not installed.
        """
        if self._estimated is None and len(self._hashes) <= MOST_EXACT:
            return _EXACT + struct.pack(f">{len(self._hashes)}Q", *sorted(self._hashes))
        image: bytes = self._result().serialize_compact()
        return _HLL + image

    def visitors(self) -> Visitors:
        """Return the number of members, exact or estimated."""
        if self._estimated is None:
            number = len(self._hashes)
            return Visitors(number, False, number, number)
        result = self._result()
        low, high = result.get_lower_bound(2), result.get_upper_bound(2)
        return Visitors(round(result.get_estimate()), True, floor(low), ceil(high))

    def _result(self) -> "hll_sketch":
        """Turn the union into an estimate. Return it as an HLL whose estimate does not depend on
        the order of members.
        """
        hll = _module()
        # The array of a small HLL depends on the order of members until it is merged with itself.
        found = self.estimate().get_result(hll.HLL_8)
        merged = hll.hll_union(LG_K)
        for _ in range(2):
            merged.update(found)
        return merged.get_result(hll.HLL_4)


def checksum(counter: str, bucket: int, key: bytes, slot: int, sketch: bytes) -> int:
    """Return the CRC-32 of a row's primary key and sketch. The primary key is included so that
    exchanged sketches are detected. ``bucket`` is the bucket's label.
    """
    place = f"{counter}\0{bucket}\0{slot}\0{len(key)}\0"
    return crc32(sketch, crc32(key, crc32(place.encode())))


def _module() -> Any:
    """Return the module ``datasketches``. It is imported here, when it is first needed, because it
    is an extra.

    Raises:
        NoSketches: it is not installed.
    """
    try:
        import datasketches  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise NoSketches(
            f"more than {MOST_EXACT} different members of a key, or {MOST_UNITED:,} of an answer,"
            f" need datasketches, which is not installed: {INSTALL}"
        ) from error
    return datasketches


MOST_SALT_DAYS: Final = 366
BEGINNING: Final = -(2**31)
"""Unix minute at which the first salt of a counter begins, which is before all events."""
NOTICE_MINUTES: Final = 10
"""Minimum minutes from now to the end that a salt without end is given, so that producers learn of
it in time."""
KEPT_MINUTES: Final = 1440
"""Minutes for which a salt is kept after its end, for increments that producers still have to send.
If no worker was running, a salt may be created after its end; then it is kept as long after that.
"""

_DAY_MINUTES: Final = 1440
_NUMBERS_PER_QUERY: Final = 500


def check_salt_days(days: int) -> int:
    """Return ``days`` if a salt can last for this number of days (0: for ever).

    Raises:
        ValueError: ``days`` is not an int from 0 to :data:`MOST_SALT_DAYS`.
    """
    if type(days) is not int or not 0 <= days <= MOST_SALT_DAYS:
        raise ValueError(
            f"salt_days is {days!r}: use a number of days from 1 to {MOST_SALT_DAYS}, or 0 for a"
            " salt that lasts for ever"
        )
    return days


def set_days(session: Session, counter: str, days: int, minute: int) -> None:
    """Set for how many days each new salt of a counter lasts, and create the missing salts, so that
    each time up to the end of tomorrow has a salt, or, if ``days`` is 0, all times have. The
    counter has a row in the table ``counter``. If ``days`` is not 0, a salt without end is first
    given an end: the first midnight that is after its beginning and at least ten minutes ahead.

    Args:
        session: in a transaction during which no process counts.
        counter: the counter's name.
        days: number of days; 0 for ever.
        minute: current time in Unix minutes.

    Raises:
        UnknownZone: this machine does not know the counter's time zone.
    """
    session.execute("UPDATE counter SET salt_days = %s WHERE name = %s", (days, counter))
    endless = "counter = %s AND ends IS NULL"
    found = session.query(f"SELECT begins FROM visitor_salt WHERE {endless}", (counter,))
    if days and found:
        zone = load_scheme(session, counter).known_zone()
        # The salt without end may begin in the future.
        day = buckets.date_at(zone, max(found[0][0], minute + NOTICE_MINUTES) * 60)
        session.execute(
            f"UPDATE visitor_salt SET ends = %s WHERE {endless}",
            (_midnight_after(zone, day, 1), counter),
        )
    _make(session, counter, days, minute)


def keep(session: Session) -> dict[str, list[Salt]]:
    """Create salts for the counters that count different members and have no salt yet, or whose
    last salt has ended or ends within 24 hours. Counters whose time zone this machine does not know
    are skipped. Delete the salts that ended, and were made, more than :data:`KEPT_MINUTES` minutes
    ago (their periods stay). Return all salts that are not deleted, by counter. Each worker calls
    this every few seconds, and publishes the salts to producers.

    Args:
        session: at READ COMMITTED, outside a transaction.

    Raises:
        StoreError: a statement failed.
    """
    minute = read_control(session, lock="").now // 60_000
    # Counters whose last salt ends within a day; so each gets new salts once a day.
    for (name,) in session.query(
        "SELECT name FROM counter LEFT JOIN visitor_salt ON visitor_salt.counter = name"
        " WHERE salt_days IS NOT NULL GROUP BY name"
        " HAVING COUNT(number) = COUNT(ends) AND COALESCE(MAX(ends), %s) < %s",
        (BEGINNING, minute + _DAY_MINUTES),
    ):
        _make_locked(session, name)
    session.execute(
        "UPDATE visitor_salt SET salt = NULL WHERE GREATEST(ends, made) < %s AND salt IS NOT NULL",
        (minute - KEPT_MINUTES,),
    )
    return kept(session)


def kept(session: Session) -> dict[str, list[Salt]]:
    """Return the salts that are not deleted, by counter, the earliest first. Counters without such
    salts are left out.
    """
    found: dict[str, list[Salt]] = {}
    for name, *salt in session.query(
        "SELECT counter, number, begins, ends, salt FROM visitor_salt"
        " WHERE salt IS NOT NULL ORDER BY counter, begins"
    ):
        found.setdefault(name, []).append(Salt(*salt))
    return found


def periods_of(session: Session, counter: str) -> list[SaltPeriod]:
    """Return the periods of all salts of a counter, past and future ones, the earliest first; also
    those of deleted salts.
    """
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
    """Look up the periods of the salts with these numbers, as far as the catalog does not remember
    them yet. Return all periods that the catalog then remembers, by the salt's number. This is the
    catalog's own dict: it may have salts that are not in ``numbers``, and it lacks numbers that no
    salt has.

    The catalog can remember periods, because they only change when the catalog's version does.
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


def _make_locked(session: Session, counter: str) -> None:
    """Create the missing salts of a counter, in a transaction that locks its salts. Nothing is
    created if this machine does not know the counter's time zone, or if the counter does not count
    different members any more.
    """
    with session.transaction():
        control = read_control(session)  # its lock keeps the counter's settings unchanged
        # Locks the salts, not the counter's row, which a worker's user may not change. Where there
        # are no salts, two workers insert a row with one primary key, and one of them fails.
        session.query("SELECT number FROM visitor_salt WHERE counter = %s FOR UPDATE", (counter,))
        rows = session.query(
            "SELECT salt_days FROM counter WHERE name = %s AND salt_days IS NOT NULL", (counter,)
        )
        for (days,) in rows:
            # If this machine does not know the time zone, a worker that does makes the salts.
            with suppress(Refused):
                _make(session, counter, days, control.now // 60_000)


def _make(session: Session, counter: str, days: int, minute: int) -> None:
    """Create the missing salts of a counter: salts of ``days`` days until there is one for the end
    of tomorrow, or a single salt without end if ``days`` is 0. The first new salt begins when the
    last salt ends, or before all events if there is none. If the last salt has no end, nothing is
    created. ``minute`` is the current time in Unix minutes. The caller has locked the counter's
    salts, or no other process counts.
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
    """Return the Unix minute at which a day begins: the day that is ``days`` days after ``day``."""
    return buckets.day_begins(zone, day + days * buckets.ONE_DAY) // 60
