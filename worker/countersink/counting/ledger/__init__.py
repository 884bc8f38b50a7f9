"""The ledger (``counter_ledger``): sums and checksums of everything that was applied to counters.
This module makes postings and their checksums, in Python and in SQL, and merges the many rows of
applications' connections into one for each counter. ``Difference`` is a problem found by comparing
the tables with the ledger; see ``balance.py``.

A *posting* is two numbers: the sum of the amounts of some rows, and a checksum of these rows. Every
transaction that adds, deletes or moves rows of a counter adds a posting to the ledger. (Triggers of
tracked tables post nothing.) So in any snapshot, the posting of all rows of a counter that belongs
to no tracked table equals the sum of the counter's rows in the ledger.

Checksums can be added up, in Python and in SQL. The checksum of rows is the sum of ``amount * key
weight * bucket weight``, modulo a prime. A weight is the square of a CRC-32, plus one. Servers and
zlib compute a CRC fast. The square is not linear, so exchanges among similar keys or buckets do not
cancel out. A change of rows without a posting stays unnoticed with a probability of one in two
thousand million. The checksum is no signature, because one can search for keys with the same
weight. Rows of the amount 0 add nothing.

Each connection of an application posts to its own rows, so that transactions never wait for each
other in the ledger. A scheduled job merges these rows, so that their number stays small: it adds
rows that were not changed for an hour to the row of slot 0. Some servers do not let a transaction
change rows that others changed after its snapshot (MariaDB with ``innodb_snapshot_isolation``).
There, a transaction that began before the merge fails, and can be run again.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from operator import itemgetter
from typing import Final, Literal
from zlib import crc32

from countersink.database.app_connection import AppConnection, execute, private_slot
from countersink.database.session import Session
from countersink.database.sql import PRIVATE_SLOTS, label_text, width_number

Problem = Literal[
    "sum",
    "checksum",
    "no_ledger",
    "breakdown",
    "backfill",
    "sketch",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """A problem of a counter, with two sums that should be equal.

    Attributes:
        counter: the counter's name; for ``breakdown``, of the counter that has the breakdown.
        problem: ``sum``: the sum of the counter's rows differs from the ledger. ``checksum``: the
            sums agree, but keys, buckets or amounts were exchanged. ``no_ledger``: there are rows,
            but nothing in the ledger. ``backfill``: the records of its backfills do not agree with
            the ledger, or do not cover all that was read of their sources. ``breakdown``: on some
            days, a breakdown's sum differs from that of the counter's key ``""`` (all events with
            dimensions).
            ``sketch``: sketches are damaged, missing, or have no row.
        in_tables: sum of the counter's rows. For ``backfill`` it is the sum of the records of its
            backfills, for ``breakdown`` the breakdown's sum of the days that differ, for ``sketch``
            the number of wrong sketches.
        in_ledger: the counter's sum in the ledger. For ``backfill`` it is the ledger's sum of slots
            512 to 1023, for ``breakdown`` the sum of key ``""`` on the days that differ. For
            ``sketch`` it is 0.
        detail: a sentence for people.
        day: for ``breakdown`` and ``sketch``, day of the first fault; otherwise None.
    """

    counter: str
    problem: Problem
    in_tables: int
    in_ledger: int
    detail: str
    day: date | None = None

    @property
    def difference(self) -> int:
        """``in_tables`` minus ``in_ledger``."""
        return self.in_tables - self.in_ledger


_ROWS_PER_STATEMENT: Final = 500


ROWS_PER_MERGE: Final = 100
"""Number of rows of a counter that one transaction merges."""
_UNCHANGED: Final = (
    f"slot >= {PRIVATE_SLOTS.start:d} AND posted_at < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
)
"""SQL condition for the rows to merge: hardly any open transaction is idle for an hour."""


MODULUS: Final = 2**31 - 1
"""A prime, so that every remainder except 0 has an inverse. The product of two remainders fits into
BIGINT."""

_KEY: Final = f"CAST((CRC32(counter_key) * CRC32(counter_key) + 1) MOD {MODULUS:d} AS SIGNED)"
_CRC: Final = "CRC32(CONCAT(bucket, ' ', width))"
_BUCKET: Final = f"CAST(({_CRC} * {_CRC} + 1) MOD {MODULUS:d} AS SIGNED)"
_AMOUNT: Final = f"CAST(amount MOD {MODULUS:d} AS SIGNED)"
"""SQL for the amount as an integer, because servers multiply decimals more slowly."""

CHECKSUM: Final = f"COALESCE(SUM({_AMOUNT} * {_KEY} MOD {MODULUS:d} * {_BUCKET}), 0)"
"""SQL for the checksum of rows, up to a multiple of the modulus."""


@dataclass(frozen=True, slots=True)
class Posting:
    """The sum and the checksum of rows that were added to a counter; or, negated, of rows that were
    deleted.

    Attributes:
        amount: sum of the amounts.
        checksum: checksum of the rows, as the module defines it.
    """

    amount: int = 0
    checksum: int = 0

    @staticmethod
    def of(label: int, amount: int, key_sum: int) -> "Posting":
        """Return the posting of some rows that are in one bucket.

        Args:
            label: the bucket's label.
            amount: sum of the amounts.
            key_sum: sum of the amounts, each multiplied by the weight of its key.

        Raises:
            OverflowError: the bucket is after the year 9999.
        """
        return Posting(amount, key_sum * bucket_weight(label) % MODULUS)

    def __add__(self, other: "Posting") -> "Posting":
        return Posting(self.amount + other.amount, (self.checksum + other.checksum) % MODULUS)

    def __neg__(self) -> "Posting":
        return Posting(-self.amount, -self.checksum % MODULUS)

    def __sub__(self, other: "Posting") -> "Posting":
        return self + -other


class BucketSums:
    """Collects sums of rows by counter and bucket, and makes postings of them."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, counter: str, label: int, amount: int, key_sum: int) -> None:
        """Add the sums of some rows of a bucket: of their amounts, and (``key_sum``) of each amount
        times :func:`key_weight` of its key."""
        sums = self._sums[counter, label]
        sums[0] += amount
        sums[1] += key_sum

    def add_row(self, counter: str, label: int, key: bytes, amount: int) -> None:
        """Add one row: its amount, and the amount times the weight of its key."""
        self.add(counter, label, amount, amount * key_weight(key))

    def postings(self) -> dict[str, Posting]:
        """Return one posting for each counter that was added, by name, even if its sums are 0.
        Raise OverflowError if a bucket is after the year 9999."""
        found: dict[str, Posting] = {}
        for (counter, label), (amount, key_sum) in self._sums.items():
            posting = Posting.of(label, amount, key_sum)
            found[counter] = found.get(counter, Posting()) + posting
        return found


def post(session: Session, slot: int, postings: Iterable[tuple[str, Posting]]) -> None:
    """Add postings to the ledger's rows of one slot. A counter without such a row gets one.

    Args:
        session: in the transaction that changes the rows of the counters.
        slot: the slot of the writer. It is 0 for a transaction that moves or deletes rows, whatever
            slots these rows have.
        postings: (name of the counter, posting).
    """
    rows = [
        (counter, slot, posting.amount, posting.checksum)
        for counter, posting in sorted(postings, key=itemgetter(0))
    ]
    into = "counter_ledger (counter, slot, amount, checksum)"
    clause = session.dialect.upsert_add("counter_ledger", "amount", "checksum")
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, clause)


def post_in(connection: AppConnection, database: str, counter: str, posting: Posting) -> None:
    """Add a posting to the ledger in a transaction of the application: to the row of the
    connection's own slot. The row is inserted if it is missing.

    Args:
        connection: the application's connection, in a transaction.
        database: quoted name of the database that has the tables.
        counter: the counter's name, already checked.
        posting: the posting.

    Raises:
        The errors of the application's driver.
    """
    amount, checksum = posting.amount, posting.checksum
    execute(
        connection,
        f"INSERT INTO {database}.counter_ledger (counter, slot, amount, checksum, posted_at)"
        f" VALUES ('{counter}', {private_slot()}, {amount:d}, {checksum:d}, UTC_TIMESTAMP(3))"
        f" ON DUPLICATE KEY UPDATE amount = amount + {amount:d},"
        f" checksum = checksum + {checksum:d}, posted_at = UTC_TIMESTAMP(3)",
    )


def mergeable(session: Session) -> list[str]:
    """Return the sorted names of the counters for which :func:`merge` has work: those with ledger
    rows of applications' connections that were not changed for an hour."""
    counters = f"SELECT DISTINCT counter FROM counter_ledger WHERE {_UNCHANGED} ORDER BY counter"
    return [name for (name,) in session.query(counters)]


def merge(session: Session, counter: str, after: int) -> int | None:
    """Add ledger rows of applications' connections to the row of slot 0, and delete them, for one
    counter. A call takes the next :data:`ROWS_PER_MERGE` rows, at most, that were not changed for
    an hour, in one transaction. Rows that others have locked are skipped. Call it again until it
    returns None.

    Args:
        session: outside a transaction.
        counter: the counter's name.
        after: the result of the previous call; in the first call, a slot below those of
            applications' connections.

    Returns:
        The last slot whose row was merged; None if no row was left to merge (rows that others
            have locked may be left).
    """
    # READ COMMITTED locks no gaps, into which connections insert their rows.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with session.transaction():
        found = session.query(
            "SELECT slot, amount, checksum FROM counter_ledger FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND slot > %s AND {_UNCHANGED}"
            f" ORDER BY slot LIMIT {ROWS_PER_MERGE:d} FOR UPDATE SKIP LOCKED",
            (counter, after),
        )
        if not found:
            return None
        slots, amounts, checksums = zip(*found, strict=True)
        for slot in slots:
            # One by one: for a list the server may read, and wait for, all rows of the counter.
            session.execute(
                "DELETE counter_ledger FROM counter_ledger FORCE INDEX (PRIMARY)"
                " WHERE counter = %s AND slot = %s",
                (counter, slot),
            )
        post(session, 0, [(counter, Posting(sum(map(int, amounts)), sum(map(int, checksums))))])
    return int(slots[-1])


def key_weight(key: bytes) -> int:
    """Return the key weight: the number by which checksums multiply the amounts of a key."""
    crc = crc32(key)
    return crc * crc + 1


@lru_cache(maxsize=65_536)
def bucket_weight(label: int) -> int:
    """Return the bucket weight: the number by which checksums multiply the amounts of a bucket.
    ``label`` is the bucket's label.

    Raises:
        OverflowError: the bucket is after the year 9999.
    """
    crc = crc32(f"{label_text(label)} {width_number(label)}".encode())
    return (crc * crc + 1) % MODULUS
