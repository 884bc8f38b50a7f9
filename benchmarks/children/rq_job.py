"""The RQ job that counts one event, with the connection that its worker process keeps."""

from __future__ import annotations

from typing import Final

from benchmarks.database import Connected
from benchmarks.peers.tables import DAY
from benchmarks.workload import COUNTER

UPSERT: Final = (
    "INSERT INTO hits (counter, day, name, cnt) VALUES (%s, %s, %s, 1)"
    " ON DUPLICATE KEY UPDATE cnt = cnt + 1"
)

connection: Connected | None = None


def count(key: str) -> None:
    """Apply one event."""
    assert connection is not None
    with connection.cursor() as cursor:
        cursor.execute(UPSERT, (COUNTER, DAY, key))
