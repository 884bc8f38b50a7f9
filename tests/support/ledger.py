"""The ledger's sums and checksums by their definition, without a line of the product's own code,
and a way to post rows that a test has planted.
"""

from typing import Protocol
from zlib import crc32

PRIME = 2**31 - 1

Posted = dict[tuple[str, str], tuple[int, int]]
"""(amount, checksum) by (counter, bucket), without buckets where both are 0. The bucket is its
time, a blank, and the number of its width."""


class Queries(Protocol):
    """A session, or what has its two methods."""

    def query(self, sql: str, args: tuple[object, ...] = ..., /) -> list[tuple[object, ...]]: ...
    def execute(self, sql: str, args: tuple[object, ...] = ..., /) -> int: ...


def checksum(key: bytes, amount: int) -> int:
    """The ledger's checksum of a row."""
    return amount * crc32(key) ** 2 % PRIME


def held(session: Queries) -> Posted:
    """What the rows hold."""
    return _without_zeros(_held(session))


def posted(session: Queries) -> Posted:
    """Sums that were posted to the ledger."""
    return _without_zeros(_posted(session))


def _held(session: Queries) -> Posted:
    found: Posted = {}
    for counter, bucket, width, key, amount in session.query(
        "SELECT counter, bucket, width, counter_key, amount FROM counter_slot"
    ):
        assert isinstance(key, bytes)
        number, place = int(str(amount)), (str(counter), f"{bucket} {width}")
        before = found.get(place, (0, 0))
        found[place] = before[0] + number, (before[1] + checksum(key, number)) % PRIME
    return found


def _posted(session: Queries) -> Posted:
    found: Posted = {}
    for counter, bucket, width, amount, checked in session.query(
        "SELECT counter, bucket, width, SUM(amount), SUM(checksum) FROM counter_ledger"
        " GROUP BY counter, bucket, width"
    ):
        found[str(counter), f"{bucket} {width}"] = int(str(amount)), int(str(checked)) % PRIME
    return found


def post_planted(session: Queries) -> None:
    """Post the differences: all rows are as if they had been counted."""
    there, planted = _posted(session), _held(session)
    for place in there.keys() | planted.keys():
        before, after = there.get(place, (0, 0)), planted.get(place, (0, 0))
        if before != after or place not in there:
            counter, bucket = place
            session.execute(
                "INSERT INTO counter_ledger (counter, bucket, width, slot, amount, checksum)"
                " VALUES (%s, %s, %s, 0, %s, %s) ON DUPLICATE KEY UPDATE amount = amount + %s,"
                " checksum = checksum + %s",
                (
                    counter,
                    *bucket.rsplit(" ", 1),
                    *(after[0] - before[0], after[1] - before[1]) * 2,
                ),
            )


def _without_zeros(found: Posted) -> Posted:
    return {place: sums for place, sums in found.items() if any(sums)}
