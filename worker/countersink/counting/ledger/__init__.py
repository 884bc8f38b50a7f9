"""The ledger (``counter_ledger``): sum and checksum of each bucket of each counter, by slot. This
module posts to it, deletes rows that add up to nothing, and merges the many rows of applications'
connections into one for each bucket. ``Difference`` is a problem found by comparing the tables with
the ledger; see ``balance.py``.

Every transaction that adds, deletes or moves rows of a counter posts the change of each bucket: it
adds the sum of the amounts, and a checksum, to the ledger. (Triggers of tracked tables post
nothing.) So in any snapshot, the ledger's sum of a bucket equals the sum of the bucket's rows, if
the counter belongs to no tracked table. Readers take the sum over all keys from the ledger, which
has one row where ``counter_slot`` has one for each key.

Checksums can be added up, in Python and in SQL. The ledger's column ``checksum`` is the sum of
``amount * square of the key's CRC-32``, modulo a prime. To compare a counter with the ledger, both
are added up to the sum of ``amount * key weight * bucket weight``. A weight is the square of a
CRC-32, plus one; the plus one of the key is the ledger's amount. So it matters to which bucket of
the ledger a change was posted, too. Servers and zlib compute a CRC fast. The square is not linear,
so exchanges among similar keys or buckets do not cancel out. A change of rows without a posting
stays unnoticed with a probability of one in two thousand million. The checksum is no signature,
because one can search for keys with the same weight. Rows of the amount 0 add nothing.

Each connection of an application posts to its own rows, so that transactions never wait for each
other in the ledger. A scheduled job merges these rows, so that their number stays small: it adds
rows that were not changed for an hour to the row of slot 0. Some servers do not let a transaction
change rows that others changed after its snapshot (MariaDB with ``innodb_snapshot_isolation``).
There, a transaction that began before the merge fails, and can be run again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal
from zlib import crc32

from countersink.database.app_connection import AppConnection, execute, private_slot
from countersink.database.session import Session
from countersink.database.sql import (
    BACKFILL_SLOTS,
    COMPACTED,
    KEYS_PER_STATEMENT,
    LABEL,
    Dialect,
    label_of,
    label_text,
    label_time,
    labels_where,
    parts,
    width_number,
)

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


NO_BUCKET: Final = label_of(datetime(1000, 1, 1), 0)  # noqa: DTZ001 (naive, as DATETIME is)
"""Label for what is posted to no bucket: the first DATETIME, with the width 0. Over all slots its
sum is 0. It marks a counter as counted whose buckets are gone."""
_ROWS_PER_STATEMENT: Final = 500
_DELETED_PER_STATEMENT: Final = 250


ROWS_PER_MERGE: Final = 100
"""Number of rows of a bucket that one transaction merges."""
_UNCHANGED: Final = "posted_at < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
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
"""SQL for the checksum of rows of ``counter_slot``, up to a multiple of the modulus."""
LEDGER_CHECKSUM: Final = f"SUM(CAST((amount + checksum) MOD {MODULUS:d} AS SIGNED) * {_BUCKET})"
"""SQL for the same checksum from rows of the ledger."""


class BucketSums:
    """Collects sums of rows by counter and bucket, to post them to the ledger."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, counter: str, label: int, amount: int, weighted: int) -> None:
        """Add the sums of some rows of a bucket: of their amounts, and (``weighted``) of each
        amount times the square of the CRC-32 of its key."""
        sums = self._sums[counter, label]
        sums[0] += amount
        sums[1] += weighted

    def add_row(self, counter: str, label: int, key: bytes, amount: int) -> None:
        """Add one row."""
        self.add(counter, label, amount, amount * crc32(key) ** 2)

    def __neg__(self) -> "BucketSums":
        negated = BucketSums()
        for (counter, label), (amount, weighted) in self._sums.items():
            negated.add(counter, label, -amount, -weighted)
        return negated

    def __iter__(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (counter, bucket's label, amount, checksum) in the order of the primary key, also
        where both sums are 0."""
        for (counter, label), (amount, weighted) in sorted(self._sums.items()):
            yield counter, label, amount, weighted % MODULUS


def post(session: Session, slot: int, sums: BucketSums) -> None:
    """Add sums to the ledger's rows of one slot. Missing rows are inserted.

    Args:
        session: in the transaction that adds the rows to the counters.
        slot: the slot of the writer.
        sums: the sums of the rows.

    Raises:
        OverflowError: a bucket is after the year 9999.
        StoreError: a statement failed.
    """
    for statement in _upserts("counter_ledger", str(slot), sums, session.dialect, "NULL"):
        session.execute(statement)


def post_in(connection: AppConnection, database: str, sums: BucketSums, dialect: Dialect) -> None:
    """Add sums to the ledger in a transaction of the application: to the rows of the connection's
    own slot. Missing rows are inserted.

    Args:
        connection: the application's connection, in a transaction.
        database: quoted name of the database that has the tables.
        sums: the sums of the rows.
        dialect: the server's kind and version.

    Raises:
        The errors of the application's driver.
    """
    table, now = f"{database}.counter_ledger", "UTC_TIMESTAMP(3)"
    for statement in _upserts(table, private_slot(), sums, dialect, now):
        execute(connection, statement)


def _upserts(
    table: str, slot: str, sums: BucketSums, dialect: Dialect, posted_at: str
) -> Iterator[str]:
    """Yield the statements that add sums to the ledger's rows of a slot. ``slot`` and ``posted_at``
    are SQL.
    """
    clause = dialect.upsert_add("counter_ledger", "amount", "checksum")
    rows = [
        f"(X'{counter.encode().hex()}', '{label_text(label)}', {width_number(label):d}, {slot},"
        f" {amount:d}, {checksum:d}, {posted_at})"
        for counter, label, amount, checksum in sums
    ]
    for some in parts(rows, _ROWS_PER_STATEMENT):
        yield (
            f"INSERT INTO {table} (counter, bucket, width, slot, amount, checksum, posted_at)"
            f" VALUES {', '.join(some)}{clause}, posted_at = {posted_at}"
        )


def subtract(session: Session, sums: BucketSums) -> None:
    """Subtract sums from the ledger's rows of slot 0, and delete the ledger's rows of those of
    their buckets that add up to nothing. Call this last in a transaction: it locks more than its
    own rows.

    Args:
        session: in the transaction that deletes the rows of the counters.
        sums: the sums of the deleted rows.

    Raises:
        StoreError: a statement failed.
    """
    post(session, COMPACTED, -sums)
    for counter, found in groupby(sums, itemgetter(0)):
        for some in parts([label for _, label, *_ in found], KEYS_PER_STATEMENT):
            _delete_empty(session, counter, some)


def _delete_empty(session: Session, counter: str, labels: Sequence[int]) -> None:
    """Delete the ledger's rows of those buckets whose rows add up to nothing, except rows that
    others have locked. What backfills had posted to them is posted to no bucket.
    """
    where, args = labels_where(labels)
    found = session.query(
        f"SELECT {LABEL}, slot, amount, checksum FROM counter_ledger FORCE INDEX (PRIMARY)"
        f" WHERE counter = %s AND {where} ORDER BY bucket, width, slot FOR UPDATE SKIP LOCKED",
        (counter, *args),
    )
    empty: list[tuple[int, ...]] = []
    for _, rows in groupby((tuple(map(int, row)) for row in found), itemgetter(0)):
        of_bucket = [*rows]
        if not sum(row[2] for row in of_bucket) and not sum(row[3] for row in of_bucket) % MODULUS:
            empty += of_bucket
    for some in parts(empty, _DELETED_PER_STATEMENT):
        # Each row by its primary key: no other row is read, or waited for.
        each = " OR ".join(
            ["(counter = %s AND bucket = %s AND width = %s AND slot = %s)"] * len(some)
        )
        session.execute(
            f"DELETE counter_ledger FROM counter_ledger FORCE INDEX (PRIMARY) WHERE {each}",
            [
                value
                for label, slot, *_ in some
                for value in (counter, label_time(label), width_number(label), slot)
            ],
        )
    if empty:
        moved = sum(amount for _, slot, amount, _ in empty if slot in BACKFILL_SLOTS)
        post_transfer(session, counter, moved)


def post_transfer(session: Session, counter: str, amount: int) -> None:
    """Post, to no bucket, that an amount moved from slot 0 to the slots of backfills. (With 0, only
    mark the counter as counted.) ``verify`` compares the sum of the latter with the records of
    backfills."""
    for slot, moved in ((COMPACTED, -amount), (BACKFILL_SLOTS.start, amount)):
        sums = BucketSums()
        sums.add(counter, NO_BUCKET, moved, 0)
        post(session, slot, sums)


def mergeable(session: Session) -> list[tuple[str, int]]:
    """Return the buckets, as (counter, label), for which :func:`merge` has work: those with ledger
    rows of applications' connections that were not changed for an hour."""
    found = session.query(
        f"SELECT DISTINCT counter, {LABEL} FROM counter_ledger WHERE {_UNCHANGED}"
    )
    return sorted((name, int(label)) for name, label in found)


def merge(session: Session, counter: str, label: int, after: int) -> int | None:
    """Add ledger rows of applications' connections to the row of slot 0, and delete them, for one
    bucket. A call takes the next :data:`ROWS_PER_MERGE` rows, at most, that were not changed for an
    hour, in one transaction. Rows that others have locked are skipped. Call it again until it
    returns None; then the bucket's rows are gone, too, if they add up to nothing.

    Args:
        session: outside a transaction.
        counter: the counter's name.
        label: the bucket's label.
        after: the result of the previous call; in the first call, a slot below those of
            applications' connections.

    Returns:
        The last slot whose row was merged; None if no row was left to merge (rows that others
            have locked may be left).
    """
    where = f"counter = %s AND bucket = %s AND width = {width_number(label):d}"
    args = counter, label_time(label)
    # READ COMMITTED locks no gaps, into which connections insert their rows.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with session.transaction():
        found = session.query(
            "SELECT slot, amount, checksum FROM counter_ledger FORCE INDEX (PRIMARY)"
            f" WHERE {where} AND slot > %s AND {_UNCHANGED}"
            f" ORDER BY slot LIMIT {ROWS_PER_MERGE:d} FOR UPDATE SKIP LOCKED",
            (*args, after),
        )
        if not found:
            _delete_empty(session, counter, [label])
            return None
        slots, amounts, checksums = zip(*found, strict=True)
        for slot in slots:
            # One by one: for a list the server may read, and wait for, all rows of the bucket.
            session.execute(
                "DELETE counter_ledger FROM counter_ledger FORCE INDEX (PRIMARY)"
                f" WHERE {where} AND slot = %s",
                (*args, slot),
            )
        sums = BucketSums()
        sums.add(counter, label, sum(map(int, amounts)), sum(map(int, checksums)))
        post(session, COMPACTED, sums)
    return int(slots[-1])
