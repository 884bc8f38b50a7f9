"""The ledger's checksums by their definition, without a line of the product's own code, and a way
to post rows that a test has planted.
"""

from datetime import datetime
from typing import Protocol
from zlib import crc32

PRIME = 2**31 - 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)
_TABLES = (("", "counter_slot"), ("month ", "counter_month"))

Posted = dict[str, tuple[int, int, int]]
"""(amount, checksum, moment) by counter."""


class Queries(Protocol):
    """A session, or what has its two methods."""

    def query(self, sql: str, args: tuple[object, ...] = ..., /) -> list[tuple[object, ...]]: ...
    def execute(self, sql: str, args: tuple[object, ...] = ..., /) -> int: ...


def checks(bucket: str, key: bytes, amount: int) -> tuple[int, int]:
    """Checksum and moment of a row; `month ` stands before the bucket of a month."""
    month = bucket.startswith("month ")
    begins = datetime.fromisoformat(bucket.removeprefix("month ")) - _EPOCH
    number = round(begins.total_seconds()) // 900 + 1000
    weights = (crc32(key) ** 2 + 1) * (crc32(bucket.encode()) ** 2 + 1)
    checksum = amount * weights % PRIME
    return checksum, checksum * (-number if month else number) % PRIME


def held(session: Queries) -> Posted:
    """What slots and months hold."""
    found: Posted = {}
    for tag, table in _TABLES:
        for counter, bucket, key, amount in session.query(
            f"SELECT counter, bucket, counter_key, amount FROM {table}"
        ):
            assert isinstance(key, bytes)
            number = int(str(amount))
            row = number, *checks(f"{tag}{bucket}", key, number)
            found[str(counter)] = _sum(found.get(str(counter)), row)
    return found


def posted(session: Queries) -> Posted:
    """What was posted to both ledgers."""
    found: Posted = {}
    for ledger in ("counter_ledger", "app_ledger"):
        for counter, *sums in session.query(
            f"SELECT counter, SUM(amount), SUM(checksum), SUM(moment) FROM {ledger}"
            " GROUP BY counter"
        ):
            amount, checksum, moment = (int(str(each)) for each in sums)
            found[str(counter)] = _sum(found.get(str(counter)), (amount, checksum, moment))
    return found


def post_planted(session: Queries) -> None:
    """Post the difference: all rows are as if they had been counted."""
    there = posted(session)
    for counter, (amount, checksum, moment) in held(session).items():
        before = there.get(counter, (0, 0, 0))
        if counter in there and before == (amount, checksum, moment):
            continue
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount, checksum, moment)"
            " VALUES (%s, 0, %s, %s, %s) ON DUPLICATE KEY UPDATE amount = amount + %s,"
            " checksum = checksum + %s, moment = moment + %s",
            (counter, *(amount - before[0], checksum - before[1], moment - before[2]) * 2),
        )


def _sum(before: tuple[int, int, int] | None, row: tuple[int, ...]) -> tuple[int, int, int]:
    one = before or (0, 0, 0)
    return one[0] + row[0], (one[1] + row[1]) % PRIME, (one[2] + row[2]) % PRIME
