"""The ledger (``counter_ledger``), with sums and checksums of everything applied to counters: its
postings, checksums in Python and in SQL, and the folding of applications' rows. Problems that a
comparison with it finds (``Problem``). See ``balance.py`` for the comparison.

A *posting* is two numbers: the sum of the amounts of rows, and a checksum of these rows. Every
transaction that adds, deletes or moves rows posts to the ledger's row of its slot. So for every
counter, in any snapshot, the posting of all its rows equals the sum of its ledger.

Checksums add up, in Python as in SQL. The checksum of rows is the sum of ``amount * key weight *
bucket weight``, modulo a prime. A weight is a squared CRC-32 plus one: both servers and zlib
compute CRC fast, and its square is not linear, so that exchanges among similar keys or buckets do
not cancel out. A change of rows without a posting stays unnoticed with a probability of one in two
thousand million; but keys of equal weight can be searched for, so the checksum is not a signature.
Rows of the amount 0 add nothing.

Each connection of an application posts to rows of its own, so that transactions never wait for each
other here. A job adds rows that were not changed for an hour to the row of slot 0, so that their
number stays small. Where a transaction may not change rows that were changed since its snapshot
(MariaDB's ``innodb_snapshot_isolation``), a transaction older than the fold fails, and can be run
again.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from operator import itemgetter
from typing import Final, Literal
from zlib import crc32

from countersink.database.app_connection import FIRST_PRIVATE, AppConnection, execute, private_slot
from countersink.database.session import Session
from countersink.database.sql import label_text, width_number

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
        counter: the counter's name.
        problem: ``sum``: tables and ledger differ; ``checksum``: their sums agree, but keys,
            buckets or amounts were exchanged; ``no_ledger``: there are rows, but no ledger;
            ``backfill``: the records of its backfills do not agree with the ledger, or do not cover
            what was read of their sources; ``breakdown``: a breakdown's sums of some days differ
            from the counter's; ``sketch``: sketches are damaged, missing, or have no row.
        in_tables: sum of its rows; ``backfill``: sum of the records of its backfills;
            ``breakdown``: the breakdown's sum of those days; ``sketch``: number of wrong sketches.
        in_ledger: sum of the ledger; ``backfill``: of slots 512 to 1023; ``breakdown``: the
            counter's sum of those days.
        detail: a sentence for people.
        day: day of the wrong bucket, if known.
    """

    counter: str
    problem: Problem
    in_tables: int
    in_ledger: int
    detail: str
    day: date | None = None

    @property
    def difference(self) -> int:
        """Tables minus ledger."""
        return self.in_tables - self.in_ledger


_ROWS_PER_STATEMENT: Final = 500


ROWS_PER_FOLD: Final = 100
"""Rows of a counter folded per transaction."""
_UNCHANGED: Final = f"slot >= {FIRST_PRIVATE:d} AND posted_at < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
"""SQL condition for rows to fold: an open transaction is hardly ever idle for an hour."""


MODULUS: Final = 2**31 - 1
"""A prime, so that every remainder but 0 has an inverse. Products of two remainders fit BIGINT."""

_KEY: Final = f"CAST((CRC32(counter_key) * CRC32(counter_key) + 1) MOD {MODULUS:d} AS SIGNED)"
_CRC: Final = "CRC32(CONCAT(bucket, ' ', width))"
_BUCKET: Final = f"CAST(({_CRC} * {_CRC} + 1) MOD {MODULUS:d} AS SIGNED)"
_AMOUNT: Final = f"CAST(amount MOD {MODULUS:d} AS SIGNED)"
"""An integer, as servers multiply decimals more slowly."""

CHECKSUM: Final = f"COALESCE(SUM({_AMOUNT} * {_KEY} MOD {MODULUS:d} * {_BUCKET}), 0)"
"""SQL for a number congruent to the checksum of rows."""


@dataclass(frozen=True, slots=True)
class Posting:
    """Sum and checksum of rows added to a counter, or (negated) deleted.

    Attributes:
        amount: sum of the amounts.
        checksum: checksum of the rows, as the module defines it.
    """

    amount: int = 0
    checksum: int = 0

    @staticmethod
    def of(label: int, amount: int, key_sum: int) -> "Posting":
        """The posting of rows of one bucket.

        Args:
            label: the bucket's label.
            amount: sum of the amounts.
            key_sum: sum of the amounts, each multiplied by the weight of its key.

        Raises:
            OverflowError: the label is beyond the year 9999.
        """
        return Posting(amount, key_sum * bucket_weight(label) % MODULUS)

    def __add__(self, other: "Posting") -> "Posting":
        return Posting(self.amount + other.amount, (self.checksum + other.checksum) % MODULUS)

    def __neg__(self) -> "Posting":
        return Posting(-self.amount, -self.checksum % MODULUS)

    def __sub__(self, other: "Posting") -> "Posting":
        return self + -other


class BucketSums:
    """Sums of rows by (counter, bucket), from which postings are made."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, counter: str, label: int, amount: int, key_sum: int) -> None:
        """Add rows of a bucket; arguments as for :meth:`Posting.of`."""
        sums = self._sums[counter, label]
        sums[0] += amount
        sums[1] += key_sum

    def add_row(self, counter: str, label: int, key: bytes, amount: int) -> None:
        """Add one row."""
        self.add(counter, label, amount, amount * key_weight(key))

    def postings(self) -> dict[str, Posting]:
        """One posting per counter, also where its sums are 0."""
        found: dict[str, Posting] = {}
        for (counter, label), (amount, key_sum) in self._sums.items():
            posting = Posting.of(label, amount, key_sum)
            found[counter] = found.get(counter, Posting()) + posting
        return found


def post(session: Session, slot: int, postings: Iterable[tuple[str, Posting]]) -> None:
    """Add postings to the ledger's rows of a slot.

    Args:
        session: in the transaction that changes the rows.
        slot: the writer's slot; 0 for moves and deletions of rows of other slots.
        postings: (counter, posting).
    """
    rows = [
        (counter, slot, posting.amount, posting.checksum)
        for counter, posting in sorted(postings, key=itemgetter(0))
    ]
    into = "counter_ledger (counter, slot, amount, checksum)"
    clause = session.dialect.upsert_add("counter_ledger", "amount", "checksum")
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, clause)


def post_in(connection: AppConnection, database: str, counter: str, posting: Posting) -> None:
    """Add a posting to the ledger in the application's transaction.

    Args:
        connection: in a transaction.
        database: quoted name of the database that has the tables.
        counter: the counter's name, checked.
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


def foldable(session: Session) -> list[str]:
    """The counters that have rows to fold, sorted."""
    counters = f"SELECT DISTINCT counter FROM counter_ledger WHERE {_UNCHANGED} ORDER BY counter"
    return [name for (name,) in session.query(counters)]


def fold(session: Session, counter: str, after: int) -> int | None:
    """Add a counter's next rows of applications to the row of slot 0, skipping locked rows; the
    last slot folded, or None if there are no more rows.

    Args:
        session: outside a transaction.
        counter: the counter's name.
        after: the last slot of the previous call.
    """
    # READ COMMITTED locks no gaps, into which connections insert their rows.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with session.transaction():
        found = session.query(
            "SELECT slot, amount, checksum FROM counter_ledger FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND slot > %s AND {_UNCHANGED}"
            f" ORDER BY slot LIMIT {ROWS_PER_FOLD:d} FOR UPDATE SKIP LOCKED",
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
    """The factor of a key's amounts in checksums."""
    crc = crc32(key)
    return crc * crc + 1


@lru_cache(maxsize=65_536)
def bucket_weight(label: int) -> int:
    """The factor of a bucket's amounts in checksums.

    Raises:
        OverflowError: the label is beyond the year 9999.
    """
    crc = crc32(f"{label_text(label)} {width_number(label)}".encode())
    return (crc * crc + 1) % MODULUS
