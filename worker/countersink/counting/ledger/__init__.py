"""The ledger (``counter_ledger``): sum and checksum of each bucket of each counter, by slot. This
module posts to it, deletes rows that add up to nothing, and merges the many rows of applications'
connections into one for each bucket. ``Difference`` is a problem found by comparing the tables with
the ledger; see ``balance.py``.

Every transaction that adds, deletes or moves rows of a counter posts the change of each bucket: it
adds the sum of the amounts, and a checksum, to the ledger. (Triggers of tracked tables post
nothing.) So in any snapshot, the ledger's sum of a bucket equals the sum of the bucket's rows, if
the counter belongs to no tracked table. Readers take the sum over all keys from the ledger, which
has one row where ``counter_slot`` has one for each key. Which buckets have rows, ``counter_slot``
tells: the ledger may still have rows, whose sum is 0, of a bucket without any.

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
rows that were not changed for an hour to the row of slot 0. What deletes or moves the last rows of
a bucket deletes its rows of the ledger, too. Some servers do not let a transaction
change rows that others changed after its snapshot (MariaDB with ``innodb_snapshot_isolation``).
There, a transaction that began before fails if it needs a merged row, and can be run again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal
from zlib import crc32

from countersink.counting.counters.all_counters import labels_with_rows
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
ROWS_PER_MERGE: Final = 500
"""Number of rows that one transaction merges, at most."""
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
    """Subtract the sums of deleted rows from the ledger, in slot 0. If a bucket has no rows left,
    delete its rows of the ledger instead. Call this last in a transaction: it locks rows of others.

    Args:
        session: in the transaction that deletes the rows of the counters.
        sums: the sums of the deleted rows.

    Raises:
        StoreError: a statement failed.
    """
    rest = BucketSums()
    for counter, found in groupby(sums, itemgetter(0)):
        for some in parts([*found], KEYS_PER_STATEMENT):
            gone = _delete_emptied(session, counter, {label: both for _, label, *both in some})
            for _, label, amount, checksum in some:
                if (amount or checksum) and label not in gone:
                    rest.add(counter, label, -amount, -checksum)
    post(session, COMPACTED, rest)


def _delete_emptied(session: Session, counter: str, sums: dict[int, list[int]]) -> set[int]:
    """Delete the ledger's rows of those buckets whose last rows are being deleted, and return their
    labels. What backfills had posted to them is posted to no bucket.

    A bucket stays if a row of it in the ledger is locked, or was posted by an application less than
    an hour ago: the next transaction of that connection may add to it.

    Args:
        session: in the transaction that deletes the rows of the counters.
        counter: the counter's name.
        sums: by bucket's label, amount and checksum of the deleted rows.
    """
    where, args = labels_where(sums)
    rows = "FROM counter_ledger FORCE INDEX (PRIMARY) WHERE counter = %s AND"
    # First without locks, so that writers wait for rows of emptied buckets only.
    found = session.query(
        f"SELECT {LABEL}, SUM(amount), SUM(checksum) {rows} {where} GROUP BY bucket, width",
        (counter, *args),
    )
    emptied = {label for label, *both in found if sums[label] == [both[0], both[1] % MODULUS]}
    emptied -= labels_with_rows(session, counter, emptied)
    if not emptied:
        return emptied
    where, args = labels_where(emptied)
    found = session.query(
        f"SELECT {LABEL}, slot, amount, checksum, posted_at IS NULL OR {_UNCHANGED} {rows} {where}"
        " ORDER BY bucket, width, slot FOR UPDATE SKIP LOCKED",
        (counter, *args),
    )
    gone: list[tuple[Any, ...]] = []
    for label, group in groupby(found, itemgetter(0)):
        of_bucket = [*group]
        both = [sum(row[2] for row in of_bucket), sum(row[3] for row in of_bucket) % MODULUS]
        if sums[label] == both and all(row[4] for row in of_bucket):
            gone += of_bucket
    _delete(session, [(counter, label, slot) for label, slot, *_ in gone])
    if gone:
        moved = sum(int(amount) for _, slot, amount, *_ in gone if slot in BACKFILL_SLOTS)
        post_transfer(session, counter, moved)
    return {row[0] for row in gone}


def _delete(session: Session, rows: Iterable[tuple[str, int, int]]) -> None:
    """Delete rows of the ledger that the session has locked, given as (counter, bucket's label,
    slot). Only these rows are read, so the session waits for no others."""
    labels_of: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for counter, label, slot in rows:
        labels_of[counter, slot].append(label)
    for (counter, slot), labels in sorted(labels_of.items()):
        where, args = labels_where(labels)
        session.execute(
            "DELETE counter_ledger FROM counter_ledger FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND {where} AND slot = %s",
            (counter, *args, slot),
        )


def post_transfer(session: Session, counter: str, amount: int) -> None:
    """Post, to no bucket, that an amount moved from slot 0 to the slots of backfills. (With 0, only
    mark the counter as counted.) ``verify`` compares the sum of the latter with the records of
    backfills."""
    for slot, moved in ((COMPACTED, -amount), (BACKFILL_SLOTS.start, amount)):
        sums = BucketSums()
        sums.add(counter, NO_BUCKET, moved, 0)
        post(session, slot, sums)


def merge(session: Session) -> int:
    """Add ledger rows of applications' connections that were not changed for an hour to the rows of
    slot 0, in one transaction, and delete them; also the rows of slot 0 of buckets without rows.
    Rows that others have locked are skipped. The session is outside a transaction.

    Returns:
        The number of merged rows, at most :data:`ROWS_PER_MERGE`. 0 if no more are left.
    """
    # READ COMMITTED locks no gaps, into which connections insert their rows.
    session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    with session.transaction():
        found = session.query(
            f"SELECT counter, {LABEL}, slot, amount, checksum FROM counter_ledger"
            f" FORCE INDEX (by_posted_at) WHERE {_UNCHANGED} ORDER BY posted_at"
            f" LIMIT {ROWS_PER_MERGE:d} FOR UPDATE SKIP LOCKED"
        )
        merged, buckets = BucketSums(), BucketSums()
        for counter, label, _, amount, checksum in found:
            merged.add(counter, label, int(amount), int(checksum))
            buckets.add(counter, label, 0, 0)
        _delete(session, [row[:3] for row in found])
        post(session, COMPACTED, merged)
        subtract(session, buckets)
    return len(found)
