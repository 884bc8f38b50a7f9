"""Different visitors: sketches of members beside the rows of counters, salts, reading. Sketches of
sets of 64-bit hashes: exact up to 256 of them, an HLL beyond; unions (exact up to ``MOST_UNITED``),
estimates with their bounds, checksums of rows. Salts by which the members of counters are hashed:
their periods, how long each lasts, when a worker makes the next one and forgets one
(``KEPT_MINUTES``), and whether one is right for an event.

A sketch is bytes. The first says of which kind it is: ``1`` is followed by up to 256 distinct
hashes of 8 bytes (big-endian), sorted; ``2`` by an HLL of Apache DataSketches (lg_k 13, HLL_4,
compact), whose relative standard error is 1.04/√8192 = 1.15 %. Small sets take no library; an HLL
imports ``datasketches``, which is the extra ``[sketches]``.

A union holds the same registers in whatever order its parts come, and however often. Estimates are
those of a union too (of an HLL with itself, where there is one only): datasketches estimates an HLL
that was never merged in another way, which depends on the order of its members.

The first salt of a counter is for all events up to its end. Periods end at midnights of the
counter's time zone, follow on each other, and never overlap. A salt has no end where it lasts for
ever. Once a salt is forgotten, nobody can find out who is in the sketches that were made with it.
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

from countersink.counting.apply.control import read_control
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
"""Members up to which a sketch that is stored is exact."""
MOST_UNITED: Final = 100_000
"""Members up to which a union of exact sketches is exact: some 9 MB."""
LG_K: Final = 13
INSTALL: Final = "install the extra: pip install 'countersink[sketches]'"

_EXACT: Final = b"\x01"
_HLL: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class Visitors:
    """How many different members there are.

    Attributes:
        total: the number, or the estimate of it.
        estimate: whether it is one.
        low, high: between which it lies with 95 % (two standard deviations); of an exact number
            itself.
    """

    total: int = 0
    estimate: bool = False
    low: int = 0
    high: int = 0


class SketchUnion:
    """The union of sketches, and of hashes; exact as long as all of them are, and it has at most
    ``most`` members.
    """

    def __init__(self, most: int = MOST_UNITED) -> None:
        self._most = most
        self._hashes: set[int] = set()
        self._estimated: hll_union | None = None

    @property
    def exact(self) -> int:
        """Members that are kept exactly."""
        return len(self._hashes)

    def add(self, sketch: bytes) -> None:
        """Unite with a sketch, whose checksum is right: the library trusts the numbers in it.

        Raises:
            DamagedSketch: these bytes are none; the union is as it was.
            NoSketches: it takes datasketches, which is not installed.
        """
        kind, rest = sketch[:1], sketch[1:]
        try:
            if kind == _EXACT:
                self.add_hashes(rest)
            elif kind == _HLL:
                part = _module().hll_sketch.deserialize(rest)
                self.estimate().update(part)
            else:
                raise ValueError(f"it begins with {kind.hex() or 'nothing'}, not with 01 or 02")
        except (ValueError, IndexError, RuntimeError, MemoryError, struct.error) as error:
            raise DamagedSketch(f"these bytes are no sketch: {error}") from error

    def add_hashes(self, hashes: bytes) -> None:
        """Unite with hashes of 8 bytes, in any order.

        Raises:
            struct.error: no whole number of hashes.
            NoSketches: as :meth:`estimate`.
        """
        self._hashes.update(struct.unpack(f">{len(hashes) // 8}Q", hashes))
        if self._estimated is not None or len(self._hashes) > self._most:
            self.estimate()

    def estimate(self) -> "hll_union":
        """Go on as an HLL, which takes some KB however many members there are.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None:
            self._estimated = _module().hll_union(LG_K)
        deque(map(self._estimated.update, self._hashes), maxlen=0)
        self._hashes.clear()
        return self._estimated

    def sketch(self) -> bytes:
        """The union as a sketch to be stored.

        Raises:
            NoSketches: it takes datasketches, which is not installed.
        """
        if self._estimated is None and len(self._hashes) <= MOST_EXACT:
            return _EXACT + struct.pack(f">{len(self._hashes)}Q", *sorted(self._hashes))
        image: bytes = self._result().serialize_compact()
        return _HLL + image

    def visitors(self) -> Visitors:
        """How many members there are.

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
        """The union as an HLL whose estimate does not depend on the order in which it came."""
        hll = _module()
        # Small ones become an array member by member, which only merging with itself makes one of
        # no order.
        found = self.estimate().get_result(hll.HLL_8)
        merged = hll.hll_union(LG_K)
        for _ in range(2):
            merged.update(found)
        return merged.get_result(hll.HLL_4)


def checksum(counter: str, bucket: int, key: bytes, slot: int, sketch: bytes) -> int:
    """The CRC-32 of a row: of its primary key and its sketch, so that one in another row's place
    is found as well.

    Args:
        counter: its name.
        bucket: the bucket's label, which has its width.
        key: the key.
        slot: its slot.
        sketch: the bytes.
    """
    place = f"{counter}\0{bucket}\0{slot}\0{len(key)}\0"
    return crc32(sketch, crc32(key, crc32(place.encode())))


def _module() -> Any:
    """The library; imported by those who need it."""
    try:
        import datasketches  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise NoSketches(
            f"more than {MOST_EXACT} different members of a key (of an answer {MOST_UNITED:,}) take"
            f" datasketches, which is not installed: {INSTALL}"
        ) from error
    return datasketches


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
