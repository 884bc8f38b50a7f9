"""Peer: compaction of slots as the textbooks have it.

"High Performance MySQL" (counter tables) gives two statements that fold the slots of a counter,
and slotted counters are built by it to this day: every key's sum goes to its first slot, which
becomes slot 0, the others become 0 and are deleted. Here with our columns, bounded to one counter
and bucket in both places (the fastest of the forms tried), and as one transaction, so that no
reader sees half of it.
"""

from __future__ import annotations

from typing import Final

import pymysql

from benchmarks.database import Connected

FOLD: Final = """
UPDATE counter_slot AS c
INNER JOIN (
    SELECT counter, bucket, counter_key, SUM(amount) AS total, MIN(slot) AS first_slot
    FROM counter_slot
    WHERE counter = %s AND bucket = %s
    GROUP BY counter, bucket, counter_key
) AS x USING (counter, bucket, counter_key)
SET c.amount = IF(c.slot = x.first_slot, x.total, 0),
    c.slot = IF(c.slot = x.first_slot, 0, c.slot)
WHERE c.counter = %s AND c.bucket = %s
"""
CLEAR: Final = """
DELETE FROM counter_slot WHERE counter = %s AND bucket = %s AND slot <> 0 AND amount = 0
"""
LOCK_WAIT_TIMEOUT, DEADLOCK, CHANGED_SINCE_READ = 1205, 1213, 1020


def compact(connection: Connected, counter: str, bucket: str) -> int:
    """Fold a bucket's slots in one transaction; how many rows were deleted."""
    with connection.cursor() as cursor:
        cursor.execute(FOLD, (counter, bucket) * 2)
        deleted = int(cursor.execute(CLEAR, (counter, bucket)))
    connection.commit()
    return deleted


def compact_if_free(connection: Connected, counter: str, bucket: str) -> int | None:
    """The same; None, and nothing done, where other transactions were in the way."""
    try:
        return compact(connection, counter, bucket)
    except pymysql.err.OperationalError as error:
        if error.args[0] not in (LOCK_WAIT_TIMEOUT, DEADLOCK, CHANGED_SINCE_READ):
            raise
        connection.rollback()
        return None
