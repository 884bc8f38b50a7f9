"""The ledger's checksums by their definition, without a line of the product's own code, and a way
to post rows that a test has planted.
"""

from typing import Protocol
from zlib import crc32

PRIME = 2**31 - 1

Posted = dict[str, tuple[int, int]]
"""(amount, checksum) by counter."""


class Queries(Protocol):
    """A session, or what has its two methods."""

    def query(self, sql: str, args: tuple[object, ...] = ..., /) -> list[tuple[object, ...]]: ...
    def execute(self, sql: str, args: tuple[object, ...] = ..., /) -> int: ...


def checksum(bucket: str, key: bytes, amount: int) -> int:
    """Checksum of a row; the bucket is its time, a blank, and the number of its width."""
    weights = (crc32(key) ** 2 + 1) * (crc32(bucket.encode()) ** 2 + 1)
    return amount * weights % PRIME


def held(session: Queries) -> Posted:
    """What the rows hold."""
    found: Posted = {}
    for counter, bucket, width, key, amount in session.query(
        "SELECT counter, bucket, width, counter_key, amount FROM counter_slot"
    ):
        assert isinstance(key, bytes)
        number = int(str(amount))
        row = number, checksum(f"{bucket} {width}", key, number)
        found[str(counter)] = _sum(found.get(str(counter)), row)
    return found


def posted(session: Queries) -> Posted:
    """Sums that were posted to the ledger."""
    found: Posted = {}
    for counter, amount, checked in session.query(
        "SELECT counter, SUM(amount), SUM(checksum) FROM counter_ledger GROUP BY counter"
    ):
        found[str(counter)] = int(str(amount)), int(str(checked)) % PRIME
    return found


def post_planted(session: Queries) -> None:
    """Post the difference: all rows are as if they had been counted."""
    there = posted(session)
    for counter, (amount, checked) in held(session).items():
        before = there.get(counter, (0, 0))
        if counter in there and before == (amount, checked):
            continue
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount, checksum)"
            " VALUES (%s, 0, %s, %s) ON DUPLICATE KEY UPDATE amount = amount + %s,"
            " checksum = checksum + %s",
            (counter, *(amount - before[0], checked - before[1]) * 2),
        )


def _sum(before: tuple[int, int] | None, row: tuple[int, int]) -> tuple[int, int]:
    one = before or (0, 0)
    return one[0] + row[0], (one[1] + row[1]) % PRIME
