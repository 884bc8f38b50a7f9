"""Different members (visitors) of counters: sketches and salts. Sketches of sets of 64-bit hashes:
format, unions (exact up to ``MOST_UNITED`` members), estimates with bounds, checksums of rows.
Salts with which members are hashed: periods, creation, deletion (``KEPT_MINUTES``), and the check
of the salt of an event. See ``rows.py`` for the table of sketches.

A sketch is bytes. Its first byte is its kind: ``1`` is followed by up to 256 distinct hashes of 8
bytes (big-endian), sorted; ``2`` by an HLL of Apache DataSketches (lg_k 13, HLL_4, compact), whose
relative standard error is 1.04/√8192 = 1.15 %. Only an HLL needs the library ``datasketches``,
which is the extra ``[sketches]``.

A union has equal registers in whatever order its parts are united, and however often. Estimates are
always made of a union (of an HLL with itself, if it is the only one): the estimate of an HLL that
was never merged depends on the order of its members.

The first salt of a counter is for all events up to its end. Periods end at midnights of the
counter's time zone, follow each other without gaps, and never overlap. A salt that lasts for ever
has no end. Once a salt is deleted, nobody can find out which members the sketches made with it
have.
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
"""Maximum members of an exact stored sketch."""
MOST_UNITED: Final = 100_000
"""Maximum members of an exact union of exact sketches: about 9 MB."""
LG_K: Final = 13
INSTALL: Final = "install the extra: pip install 'countersink[sketches]'"

_EXACT: Final = b"\x01"
_HLL: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class Visitors:
    """The number of different members.

    Attributes:
        total: the number, exact or estimated.
        estimate: whether it is estimated.
        low, high: bounds of the number with 95 % confidence (two standard deviations); equal to an
            exact number.
    """

    total: int = 0
    estimate: bool = False
    low: int = 0
    high: int = 0


class SketchUnion:
    """The union of sketches and hashes; exact while all sketches are, and it has at most ``most``
    members.
    """

    def __init__(self, most: int = MOST_UNITED) -> None:
        self._most = most
        self._hashes: set[int] = set()
        self._estimated: hll_union | None = None

    @property
    def exact(self) -> int:
        """Number of members held as hashes."""
        return len(self._hashes)

    def add(self, sketch: bytes) -> None:
        """Unite with a sketch, whose checksum was verified: the library trusts the numbers in it.

        Raises:
            DamagedSketch: the bytes are no sketch; the union is unchanged.
            NoSketches: datasketches is needed and not installed.
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
        """Unite with hashes of 8 bytes, in any order.

        Raises:
            struct.error: the length is no multiple of 8.
            NoSketches: as :meth:`estimate`.
        """
        self._hashes.update(struct.unpack(f">{len(hashes) // 8}Q", hashes))
        if self._estimated is not None or len(self._hashes) > self._most:
            self.estimate()

    def estimate(self) -> "hll_union":
        """Turn the union into an HLL, which takes a few KB for any number of members.

        Raises:
            NoSketches: datasketches is not installed.
        """
        if self._estimated is None:
            self._estimated = _module().hll_union(LG_K)
        deque(map(self._estimated.update, self._hashes), maxlen=0)
        self._hashes.clear()
        return self._estimated

    def sketch(self) -> bytes:
        """The bytes of the union as a sketch.

        Raises:
            NoSketches: datasketches is needed and not installed.
        """
        if self._estimated is None and len(self._hashes) <= MOST_EXACT:
            return _EXACT + struct.pack(f">{len(self._hashes)}Q", *sorted(self._hashes))
        image: bytes = self._result().serialize_compact()
        return _HLL + image

    def visitors(self) -> Visitors:
        """The number of members.

        Raises:
            NoSketches: as :meth:`sketch`.
        """
        if self._estimated is None:
            number = len(self._hashes)
            return Visitors(number, False, number, number)
        result = self._result()
        low, high = result.get_lower_bound(2), result.get_upper_bound(2)
        return Visitors(round(result.get_estimate()), True, floor(low), ceil(high))

    def _result(self) -> "hll_sketch":
        """The union as an HLL whose estimate does not depend on the order of members."""
        hll = _module()
        # The array of a small HLL depends on the order of members until it is merged with itself.
        found = self.estimate().get_result(hll.HLL_8)
        merged = hll.hll_union(LG_K)
        for _ in range(2):
            merged.update(found)
        return merged.get_result(hll.HLL_4)


def checksum(counter: str, bucket: int, key: bytes, slot: int, sketch: bytes) -> int:
    """The CRC-32 of a row's primary key and sketch, which also detects exchanged sketches;
    ``bucket``: its label.
    """
    place = f"{counter}\0{bucket}\0{slot}\0{len(key)}\0"
    return crc32(sketch, crc32(key, crc32(place.encode())))


def _module() -> Any:
    """The module ``datasketches``, imported when it is needed."""
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
"""Unix minutes at which the first salt of a counter begins: before all events."""
NOTICE_MINUTES: Final = 10
"""Minimum minutes ahead at which a salt without end is given one, so that producers learn of it."""
KEPT_MINUTES: Final = 1440
"""Minutes for which a salt is kept after its end and after its creation (later than its end where
no worker was running), for increments that producers still have to send."""

_DAY_MINUTES: Final = 1440
_NUMBERS_PER_QUERY: Final = 500


def check_salt_days(days: int) -> int:
    """``days``, if valid as the time for which a salt lasts.

    Raises:
        ValueError: not a number from 0 to :data:`MOST_SALT_DAYS`.
    """
    if type(days) is not int or not 0 <= days <= MOST_SALT_DAYS:
        raise ValueError(
            f"salt_days is {days!r}: use a number of days from 1 to {MOST_SALT_DAYS}, or 0 for a"
            " salt that lasts for ever"
        )
    return days


def set_days(session: Session, counter: str, days: int, minute: int) -> None:
    """Set how long the salts of a counter, whose row exists, last from now on.

    Args:
        session: in a transaction during which nobody counts.
        counter: the counter's name.
        days: days; 0: for ever.
        minute: the current Unix minute.
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
    """Make missing salts up to the end of tomorrow, delete salts that are not needed any more, and
    return the salts to be published by counter.

    Args:
        session: at READ COMMITTED, outside a transaction.

    Raises:
        StoreError: as any statement.
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
    """The salts that are not deleted, by counter, the earliest first."""
    found: dict[str, list[Salt]] = {}
    for name, *salt in session.query(
        "SELECT counter, number, begins, ends, salt FROM visitor_salt"
        " WHERE salt IS NOT NULL ORDER BY counter, begins"
    ):
        found.setdefault(name, []).append(Salt(*salt))
    return found


def periods_of(session: Session, counter: str) -> list[SaltPeriod]:
    """The periods of all salts of a counter, past, present and future, the earliest first."""
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
    """The periods of salts by number; unknown numbers are left out.

    Periods are remembered in the catalog, as they change only with its version.
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
    """Make the missing salts of a counter, under a lock on its salts."""
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
    """Make the missing salts of a counter up to the end of tomorrow, or one for ever; the caller
    has locked its salts, or nobody else counts.
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
    """The Unix minute at which the day ``days`` days after ``day`` begins."""
    return buckets.day_begins(zone, day + days * buckets.ONE_DAY) // 60
