"""Writes to ``counter_ledger`` and ``app_ledger`` in the transaction that changes rows: the
checksums, in Python and in SQL.

Checksums of rows add up: in Python and, equal to it, in SQL. That of some rows is the sum of
``amount * key weight * bucket weight``, modulo a prime. A weight is a squared CRC-32 plus one: CRC
is what both servers and zlib compute fast, and squared it is not linear, so that no exchange among
keys or days that are alike cancels out. Whoever changes rows without the checksum is found out but
for one in two thousand million; whoever looks for keys of equal weight finds some: a checksum is no
signature.

The moment is the same sum with the bucket's number as a further factor. Where checksums differ and
all that is wrong is in one bucket, the quotient of the two differences is the number of that
bucket. An amount of 0 adds nothing to either.

In ``app_ledger`` each connection of an application posts to rows of its own, so that no transaction
waits for another one here, whatever it counts. Rows of buckets that are over are moved to
``counter_ledger`` by a scheduled job: rows of a bucket that is still counted may be part of an open
transaction's snapshot, which some servers would not let it change any more.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final
from zlib import crc32

from countersink.store import sql
from countersink.store.connection import Session
from countersink.store.in_app.connection import AppConnection, execute, own_slot
from countersink.store.sql import insert_rows, label_of, label_text, label_time, marks

BucketSum = tuple[str, int, int, int]
"""(counter, label, sum of the amounts, sum of each amount by the weight of its key)."""

_ROWS_PER_STATEMENT: Final = 500


ROWS_PER_MOVE: Final = 1000
"""Rows of a bucket that are moved in one transaction."""


MODULUS: Final = 2**31 - 1
"""A prime: all but 0 can be divided by. Products of two remainders fit BIGINT."""
MONTH_TAG: Final = "month "
"""In front of a month's text, so that its weight is not that of the day that begins it."""

_QUARTER_S: Final = 900
_SHIFT: Final = 1000
"""Added to the number of a bucket, so that none is below 1: the first are of 1969."""

_KEY: Final = f"CAST((CRC32(counter_key) * CRC32(counter_key) + 1) MOD {MODULUS:d} AS SIGNED)"
_DAY_TEXT: Final = "bucket"
_MONTH_TEXT: Final = f"CONCAT('{MONTH_TAG}', bucket)"

KEY_SUM: Final = f"COALESCE(SUM(amount MOD {MODULUS:d} * {_KEY}), 0)"
"""SQL for the sum of each amount by the weight of its key, or something congruent to it."""


def _checksum_sql(text: str) -> str:
    weight = f"CAST((CRC32({text}) * CRC32({text}) + 1) MOD {MODULUS:d} AS SIGNED)"
    return f"COALESCE(SUM(amount MOD {MODULUS:d} * {_KEY} MOD {MODULUS:d} * {weight}), 0)"


SLOT_CHECKSUM: Final = _checksum_sql(_DAY_TEXT)
"""SQL for the checksum of rows of ``counter_slot``, or something congruent to it."""
MONTH_CHECKSUM: Final = _checksum_sql(_MONTH_TEXT)
"""The same for ``counter_month``."""


@dataclass(frozen=True, slots=True)
class Posting:
    """What is added to a counter, or taken from it.

    Attributes:
        amount: the sum of the amounts.
        checksum, moment: as the module has them.
    """

    amount: int = 0
    checksum: int = 0
    moment: int = 0

    @staticmethod
    def of(label: int, amount: int, key_sum: int, *, month: bool = False) -> "Posting":
        """That of rows of one bucket.

        Args:
            label: of the bucket.
            amount: the sum of their amounts.
            key_sum: the sum of each amount multiplied by the weight of its key.
            month: they are of ``counter_month``.

        Raises:
            OverflowError: the label is beyond the year 9999.
        """
        checksum = key_sum * bucket_weight(label, month) % MODULUS
        return Posting(amount, checksum, checksum * bucket_number(label, month) % MODULUS)

    def __add__(self, other: "Posting") -> "Posting":
        return Posting(
            self.amount + other.amount,
            (self.checksum + other.checksum) % MODULUS,
            (self.moment + other.moment) % MODULUS,
        )

    def __neg__(self) -> "Posting":
        return Posting(-self.amount, -self.checksum % MODULUS, -self.moment % MODULUS)

    def __sub__(self, other: "Posting") -> "Posting":
        return self + -other


class BucketSums:
    """Rows added up by (counter, bucket), of which postings are made.

    Args:
        month: they are of ``counter_month``.
    """

    def __init__(self, *, month: bool = False) -> None:
        self._month = month
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
            posting = Posting.of(label, amount, key_sum, month=self._month)
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
        (counter, slot, one.amount, one.checksum, one.moment)
        for counter, one in sorted(postings, key=itemgetter(0))
    ]
    into = "counter_ledger (counter, slot, amount, checksum, moment)"
    clause = session.dialect.upsert_add("counter_ledger", "amount", "checksum", "moment")
    insert_rows(session, into, rows, sql.per_statement(session, _ROWS_PER_STATEMENT), clause)


def post_in(
    connection: AppConnection, database: str, counter: str, label: int, posting: Posting
) -> None:
    """Post in the application's transaction.

    Args:
        connection: in a transaction.
        database: where the tables are, quoted.
        counter: the counter; its name was checked.
        label: of the bucket of the rows, or of one of them.
        posting: what to post.

    Raises:
        The driver's own errors, as they are.
    """
    amount, checksum, moment = posting.amount, posting.checksum, posting.moment
    execute(
        connection,
        f"INSERT INTO {database}.app_ledger (counter, bucket, slot, amount, checksum, moment)"
        f" VALUES ('{counter}', '{label_text(label)}', {own_slot()},"
        f" {amount:d}, {checksum:d}, {moment:d}) ON DUPLICATE KEY UPDATE"
        f" amount = amount + {amount:d}, checksum = checksum + {checksum:d},"
        f" moment = moment + {moment:d}",
    )


def buckets(session: Session) -> list[tuple[str, int]]:
    """(counter, label) of the buckets that something was posted for, in order."""
    found = session.query(
        "SELECT DISTINCT counter, bucket FROM app_ledger ORDER BY counter, bucket"
    )
    return [(counter, label_of(bucket)) for counter, bucket in found]


def move(session: Session, counter: str, label: int, after: int) -> int | None:
    """Move the next rows of a bucket to ``counter_ledger``; the last slot of them, None where there
    are none. Rows that others hold are left where they are.

    Args:
        session: outside a transaction.
        counter: the counter.
        label: of the bucket.
        after: the last slot of the rows before.
    """
    place = (counter, label_time(label))
    with session.transaction():
        found = session.query(
            "SELECT slot, amount, checksum, moment FROM app_ledger"
            " WHERE counter = %s AND bucket = %s AND slot > %s"
            f" ORDER BY slot LIMIT {ROWS_PER_MOVE:d} FOR UPDATE SKIP LOCKED",
            (*place, after),
        )
        if not found:
            return None
        slots, *columns = zip(*found, strict=True)
        session.execute(
            "DELETE app_ledger FROM app_ledger FORCE INDEX (PRIMARY)"
            f" WHERE counter = %s AND bucket = %s AND slot IN ({marks(slots)})",
            (*place, *slots),
        )
        post(session, 0, [(counter, Posting(*(sum(map(int, column)) for column in columns)))])
    return int(slots[-1])


def key_weight(key: bytes) -> int:
    """What a key's amounts are multiplied by."""
    crc = crc32(key)
    return crc * crc + 1


@lru_cache(maxsize=65_536)
def bucket_weight(label: int, month: bool = False) -> int:
    """What the amounts of a bucket are multiplied by.

    Raises:
        OverflowError: the label is beyond the year 9999.
    """
    text = label_text(label)
    crc = crc32((MONTH_TAG + text if month else text).encode())
    return (crc * crc + 1) % MODULUS


def bucket_number(label: int, month: bool = False) -> int:
    """A bucket's factor of the moment: quarters of an hour, those of months counted backwards."""
    number = label // _QUARTER_S + _SHIFT
    return MODULUS - number if month else number


def label_of_number(number: int) -> tuple[int, bool]:
    """A label of a bucket with this number (without the seconds of its policy), and whether it is
    that of a month.
    """
    month = number > MODULUS // 2
    return ((MODULUS - number if month else number) - _SHIFT) * _QUARTER_S, month


def quotient(dividend: int, divisor: int) -> int:
    """The quotient of two checksums, moments or amounts, of which the second is not 0.

    Raises:
        ZeroDivisionError: it is.
    """
    if divisor % MODULUS == 0:
        raise ZeroDivisionError("a multiple of the modulus")
    return dividend * pow(divisor, -1, MODULUS) % MODULUS
