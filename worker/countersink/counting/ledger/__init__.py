"""The ledger, sums and checksums of all that was added to counters; kinds of problems that a
comparison with it finds (``Problem``). Writes to ``counter_ledger`` in the transaction that changes
rows, its checksums in Python and in SQL; folds applications' rows of it into one.

A *posting* is two numbers: the sum of some amounts, and a checksum of the same rows. Whoever
adds, deletes or moves rows posts it in the same transaction, to ``counter_ledger``, on rows of its
own slot. So for every counter, in any snapshot: its rows, as one posting, are equal to the sum of
the ledger's.

Checksums of rows add up: in Python and, equal to it, in SQL. That of some rows is the sum of
``amount * key weight * bucket weight``, modulo a prime. A weight is a squared CRC-32 plus one: CRC
is what both servers and zlib compute fast, and squared it is not linear, so that no exchange among
keys or buckets that are alike cancels out. Whoever changes rows without the checksum is found out
but for one in two thousand million; whoever looks for keys of equal weight finds some: a checksum
is no signature.

An amount of 0 adds nothing.

Each connection of an application posts to rows of its own, so that no transaction waits for another
one here, whatever it counts. A job adds those that were not touched for an hour to the row of slot
0, so that they do not become as many as there are connections. On a server that lets no transaction
change a row that was changed since its snapshot (MariaDB's ``innodb_snapshot_isolation``), only one
that is older than that fails by it, and can be run again.
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
    """Something wrong with a counter: its problem, both sums, a sentence.

    Attributes:
        counter: its name.
        problem: ``sum``: tables and ledger differ; ``checksum``: their sums agree, but keys,
            buckets or amounts were exchanged; ``no_ledger``: there are rows, though nothing was
            ever counted; ``backfill``: what its backfills wrote down does not fit the ledger, or
            does not cover what was read of their sources; ``breakdown``: a breakdown holds other
            sums of some days than the counter; ``sketch``: different members are not what was
            written, or lie beside no row, or are missing.
        in_tables: sum of its rows; ``backfill``: what its backfills wrote down;
            ``breakdown``: the breakdown's sum of those days; ``sketch``: how many sketches are
            wrong.
        in_ledger: sum of the ledger; ``backfill``: of slots 512 to 1023; ``breakdown``: the
            counter's.
        detail: a sentence for people.
        day: of the bucket that is wrong, where that could be told.
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
"""Rows of a counter that are folded in one transaction."""
_UNTOUCHED: Final = f"slot >= {FIRST_PRIVATE:d} AND posted_at < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
"""Which rows are folded: an open transaction has hardly been idle for so long."""


MODULUS: Final = 2**31 - 1
"""A prime: all but 0 can be divided by. Products of two remainders fit BIGINT."""

_KEY: Final = f"CAST((CRC32(counter_key) * CRC32(counter_key) + 1) MOD {MODULUS:d} AS SIGNED)"
_CRC: Final = "CRC32(CONCAT(bucket, ' ', width))"
_BUCKET: Final = f"CAST(({_CRC} * {_CRC} + 1) MOD {MODULUS:d} AS SIGNED)"
_AMOUNT: Final = f"CAST(amount MOD {MODULUS:d} AS SIGNED)"
"""As an integer: decimals are multiplied more slowly."""

CHECKSUM: Final = f"COALESCE(SUM({_AMOUNT} * {_KEY} MOD {MODULUS:d} * {_BUCKET}), 0)"
"""SQL for the checksum of rows, or something congruent to it."""


@dataclass(frozen=True, slots=True)
class Posting:
    """What is added to a counter, or taken from it.

    Attributes:
        amount: the sum of the amounts.
        checksum: as the module has it.
    """

    amount: int = 0
    checksum: int = 0

    @staticmethod
    def of(label: int, amount: int, key_sum: int) -> "Posting":
        """That of rows of one bucket.

        Args:
            label: of the bucket.
            amount: the sum of their amounts.
            key_sum: the sum of each amount multiplied by the weight of its key.

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
    """Rows added up by (counter, bucket), of which postings are made."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, counter: str, label: int, amount: int, key_sum: int) -> None:
        """Add rows of a bucket, as :meth:`Posting.of` has them."""
        sums = self._sums[counter, label]
        sums[0] += amount
        sums[1] += key_sum

    def add_row(self, counter: str, label: int, key: bytes, amount: int) -> None:
        """Add one row."""
        self.add(counter, label, amount, amount * key_weight(key))

    def postings(self) -> dict[str, Posting]:
        """One per counter; also where it adds up to nothing."""
        found: dict[str, Posting] = {}
        for (counter, label), (amount, key_sum) in self._sums.items():
            posting = Posting.of(label, amount, key_sum)
            found[counter] = found.get(counter, Posting()) + posting
        return found


def post(session: Session, slot: int, postings: Iterable[tuple[str, Posting]]) -> None:
    """Post to each counter, on the ledger's rows of a slot.

    Args:
        session: in the transaction that changes the rows.
        slot: of who changes them; 0 for who moves or deletes others'.
        postings: by counter.
    """
    rows = [
        (counter, slot, one.amount, one.checksum)
        for counter, one in sorted(postings, key=itemgetter(0))
    ]
    into = "counter_ledger (counter, slot, amount, checksum)"
    clause = session.dialect.upsert_add("counter_ledger", "amount", "checksum")
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, clause)


def post_in(connection: AppConnection, database: str, counter: str, posting: Posting) -> None:
    """Post in the application's transaction.

    Args:
        connection: in a transaction.
        database: where the tables are, quoted.
        counter: the counter; its name was checked.
        posting: what to post.

    Raises:
        The driver's own errors, as they are.
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
    """The counters of which rows can be folded, in order."""
    counters = f"SELECT DISTINCT counter FROM counter_ledger WHERE {_UNTOUCHED} ORDER BY counter"
    return [name for (name,) in session.query(counters)]


def fold(session: Session, counter: str, after: int) -> int | None:
    """Add the next rows of applications to that of slot 0; the last slot of them, None where there
    are none. Rows that others hold are left where they are.

    Args:
        session: outside a transaction.
        counter: the counter.
        after: the last slot of the rows before.
    """
    # No gaps are locked, into which connections insert their rows.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with session.transaction():
        found = session.query(
            "SELECT slot, amount, checksum FROM counter_ledger FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND slot > %s AND {_UNTOUCHED}"
            f" ORDER BY slot LIMIT {ROWS_PER_FOLD:d} FOR UPDATE SKIP LOCKED",
            (counter, after),
        )
        if not found:
            return None
        slots, amounts, checksums = zip(*found, strict=True)
        for slot in slots:
            # One by one: of a list the server may look at, and wait for, all rows of the counter.
            session.execute(
                "DELETE counter_ledger FROM counter_ledger FORCE INDEX (PRIMARY)"
                " WHERE counter = %s AND slot = %s",
                (counter, slot),
            )
        post(session, 0, [(counter, Posting(sum(map(int, amounts)), sum(map(int, checksums))))])
    return int(slots[-1])


def key_weight(key: bytes) -> int:
    """What a key's amounts are multiplied by."""
    crc = crc32(key)
    return crc * crc + 1


@lru_cache(maxsize=65_536)
def bucket_weight(label: int) -> int:
    """What the amounts of a bucket are multiplied by.

    Raises:
        OverflowError: the label is beyond the year 9999.
    """
    crc = crc32(f"{label_text(label)} {width_number(label)}".encode())
    return (crc * crc + 1) % MODULUS
