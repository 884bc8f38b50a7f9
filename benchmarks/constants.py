"""What entries, rows and cells cost, one by one: the constants that docs/scale.md calculates with.

Three backlogs are drained by one worker: entries of one row, entries of many rows of few keys, and
entries of rows that are all different. The first says what an entry costs, the second what a row
costs beyond it, the third what a cell (a row of the table that is written) costs beyond both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.clusters import Row, Servers, check, drained, empty, execute, fill, opened
from benchmarks.database import connect, one_value
from benchmarks.processes import Child
from benchmarks.rows import on
from benchmarks.workload import COUNTER, distinct_keys
from countersink.database.migrate import migrate
from countersink.stream.names import stream_key
from tests.support.servers import Kind

FEW_KEYS: Final = 200
QUICK: Final = 20
"""By how much backlogs are smaller in a run of less than a second per measurement."""
BINLOG: Final = ("--log-bin=log", "--binlog-format=ROW", "--server-id=1", "--sync-binlog=1")
_MINUTE: Final = 29_666_880
"""The events' time, a Unix minute: noon of 2026-05-29, UTC."""

Amounts = Mapping[str, float]
"""By what it is: CPU microseconds of a process, or bytes."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """So many entries, of so many rows each."""

    entries: int
    rows: int
    distinct: bool = False

    def prepared(self) -> list[list[Row]]:
        """Rows of entries: of each one where all keys are different, else of a few in turns."""
        if self.distinct:
            keys = distinct_keys(self.entries * self.rows)
            starts = range(0, len(keys), self.rows)
            return [[_row(key) for key in keys[at : at + self.rows]] for at in starts]
        few = [f"/visitors/{number:09d}" for number in range(FEW_KEYS)]
        return [[_row(key)] for key in few] if self.rows == 1 else [[_row(key) for key in few]]


FLUSHES: Final = 400
"""How many entries a producer sends, one after the other."""
ENTRIES: Final = Backlog(30_000, 1)
ROWS: Final = Backlog(2_500, FEW_KEYS)
CELLS: Final = Backlog(400, 1_000, distinct=True)


def measure(kind: Kind, seconds: float) -> dict[str, Any]:
    """One of the `constants` of results.json. Raises Wrong, ServerError."""
    scale = QUICK if seconds < 1 else 1
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
        opened(kind, Path(directory), BINLOG) as servers,
    ):
        migrate(servers.mysql_url)
        backlogs = [
            Backlog(each.entries // scale, each.rows, each.distinct)
            for each in (ENTRIES, ROWS, CELLS)
        ]
        entries = _per_entry(servers, backlogs[0])
        guard_bytes = _bytes_per_row(servers, "applied_entry")
        rows, cells = (_per_entry(servers, each) for each in backlogs[1:])
        cell_bytes = _bytes_per_row(servers, "counter_slot")
    beyond = FEW_KEYS - 1
    per_row = {name: max(0.0, rows[name] - entries[name]) / beyond for name in rows}
    size = CELLS.rows
    per_cell = {
        name: max(0.0, cells[name] - entries[name] - (size - 1) * per_row[name]) / size
        for name in cells
    }
    return {
        "name": on(kind, "constants"),
        "per_entry": _rounded({**entries, "table_bytes": guard_bytes}),
        "per_row": _rounded(per_row),
        "per_cell": _rounded({**per_cell, "table_bytes": cell_bytes}),
    }


def _row(key: str) -> Row:
    return COUNTER, key, _MINUTE, 1


def _rounded(amounts: Amounts) -> dict[str, float]:
    return {name: round(each, 3) for name, each in amounts.items()}


def _per_entry(servers: Servers, backlog: Backlog) -> dict[str, float]:
    """What an entry of a backlog took."""
    empty(servers)
    start = drained(servers, 1)
    fill(servers, backlog.entries, backlog.rows, backlog.prepared())
    redis_bytes = _redis_bytes(servers)
    logged = _binlog_bytes(servers)
    cost = drained(servers, 1).less(start)
    check(servers, backlog.entries * backlog.rows)
    logged = _binlog_bytes(servers) - logged
    producer = _producer_cpu(servers, backlog)
    count = backlog.entries
    return {
        "producer_us": producer * 1e6,
        "worker_us": cost.worker * 1e6 / count,
        "redis_us": cost.redis * 1e6 / count,
        "mysql_us": cost.mysql * 1e6 / count,
        "redis_bytes": redis_bytes / count,
        "binlog_bytes": logged / count,
    }


def _producer_cpu(servers: Servers, backlog: Backlog) -> float:
    """CPU seconds that a producer takes to send an entry; of what is counted, nothing is left."""
    flushes = min(backlog.entries, FLUSHES)
    with Child(
        "benchmarks.children.flusher",
        redis_url=servers.redis_url,
        flushes=flushes,
        rows=backlog.rows,
        distinct=backlog.distinct,
    ) as child:
        said = child.hear()
    with servers.client() as client:
        client.flushall()  # of the private server
    return float(said["cpu"]) / flushes


def _redis_bytes(servers: Servers) -> int:
    """Memory of the streams."""
    with servers.client() as client:
        each: list[Any] = [
            client.memory_usage(stream_key(number), samples=0)
            for number in range(servers.partitions)
        ]
    return sum(each)


def _binlog_bytes(servers: Servers) -> int:
    """Size of the binary logs."""
    connection = connect(servers.root_url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            return sum(int(row[1]) for row in cursor.fetchall())
    finally:
        connection.close()


def _bytes_per_row(servers: Servers, table: str) -> float:
    """What a row takes on disk, indexes included."""
    execute(servers.root_url, f"ANALYZE TABLE {table}")
    size = one_value(
        servers.root_url,
        "SELECT data_length + index_length FROM information_schema.tables"
        f" WHERE table_schema = DATABASE() AND table_name = '{table}'",
    )
    return size / one_value(servers.root_url, f"SELECT COUNT(*) FROM {table}")
