"""What a backlog costs to apply: with 1 and 2 workers, on single servers and on clusters.

A measurement fills the queue, lets workers drain it, and reads from the kernel what CPU time they
and the servers have taken. What the same workers take for an empty queue, which is
mostly their start, is subtracted.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import redis
import redis.cluster

from benchmarks.command import COMMAND, environment
from benchmarks.database import connect, one_value
from benchmarks.measuring import Measurement, Paced, Wrong
from benchmarks.processes import PROJECT
from benchmarks.site import APPENDFSYNC, MYSQL_OPTIONS, why_unavailable
from benchmarks.workload import COUNTER, zipf_keys
from countersink.database.migrate import migrate
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.names import PARTITIONS_USED_KEY, stream_key
from tests.support.servers import Kind, MySQLServer, RedisServer

WORKERS: Final = (1, 2)
ROWS_PER_ENTRY: Final = 100
PARTITIONS_PER_MASTER: Final = 4
GUESS_ENTRIES_PER_SECOND: Final = 2_000.0
RUNS: Final = 3
"""Of each row, with the same backlog: the one in the middle counts."""
QUICK_ENTRIES: Final = 100
"""Of a run of less than a second per measurement."""
_PREPARED: Final = 50
"""Different lists of rows, used in turns."""
_DRAIN_SECONDS: Final = 240.0
_MINUTE: Final = 29_666_880
"""The events' time, a Unix minute: noon of 2026-05-29, UTC."""

Row = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Servers:
    """What workers are connected to.

    Attributes:
        redis_url, mysql_url: as processes are given them; the database is empty.
        redis_pids, mysql_pids: the servers' processes.
        root_url: the database as root, on the node that is written to.
        partitions: streams that the queue is spread over.
        client: makes a client of the queue, to fill it.
    """

    redis_url: str
    mysql_url: str
    redis_pids: Sequence[int]
    mysql_pids: Sequence[int]
    root_url: str
    partitions: int
    client: Callable[[], redis.Redis]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a drained backlog took, in seconds: by the clock, and of CPU time."""

    seconds: float
    worker: float
    redis: float
    mysql: float

    def less(self, other: Cost) -> Cost:
        """The difference, never below 0."""
        return Cost(
            max(0.0, self.seconds - other.seconds),
            max(0.0, self.worker - other.worker),
            max(0.0, self.redis - other.redis),
            max(0.0, self.mysql - other.mysql),
        )


def measure(place: str, seconds: float, workers: Sequence[int] = WORKERS) -> list[dict[str, Any]]:
    """The rows of one place, those of `clusters` in results.json. Raises Wrong, ServerError."""
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
        opened(place, Path(directory)) as servers,
    ):
        migrate(servers.mysql_url)
        return [_measure(servers, place, number, seconds) for number in workers]


def missing(place: str, why: str) -> list[dict[str, Any]]:
    """The same of a place that cannot be had."""
    return [{"name": f"apply_{workers}_{place}", "missing": why} for workers in WORKERS]


def why_missing(place: str) -> str | None:
    """Why there is no such place here; None if it can be had."""
    kind: Kind = "mysql" if place in ("mysql", "group_replication") else "mariadb"
    if (why := why_unavailable(kind)) is not None:
        return why
    # Only a part of the benchmarks needs what the tests start clusters with.
    from tests.support import galera, group_replication  # noqa: PLC0415

    if place == "galera" and not galera.installed():
        return "Galera is not installed: packages mariadb-server and galera-4"
    if place == "group_replication" and not group_replication.installed():
        return "MySQL has no plugin for Group Replication here"
    return None


def _measure(servers: Servers, place: str, workers: int, seconds: float) -> dict[str, Any]:
    """One row: the backlog is made so large that it takes ``seconds`` to apply."""
    costs: list[Cost] = []
    start = drained(servers, workers)

    def work(entries: int) -> Measurement:
        empty(servers)
        fill(servers, entries, ROWS_PER_ENTRY, zipf_rows(ROWS_PER_ENTRY))
        cost = drained(servers, workers).less(start)
        check(servers, entries * ROWS_PER_ENTRY)
        costs.append(cost)
        return Measurement(entries, max(cost.seconds, 0.001))

    if seconds < 1:
        entries, runs = work(QUICK_ENTRIES).events, 1
    else:
        pace = Paced(GUESS_ENTRIES_PER_SECOND * min(workers, 2))
        entries, runs = pace.run(seconds, work).events, RUNS
        for _ in range(runs - 1):
            work(entries)
    rows = entries * ROWS_PER_ENTRY
    ordered = sorted(costs[-runs:], key=lambda each: each.seconds)
    cost = ordered[runs // 2]
    rates = [round(rows / max(each.seconds, 0.001)) for each in (ordered[-1], cost, ordered[0])]
    return {
        "name": f"apply_{workers}_{place}",
        "workers": workers,
        "entries": entries,
        "rows": rows,
        "seconds": round(cost.seconds, 2),
        "rows_per_second": rates[1],
        "low": rates[0],
        "high": rates[2],
        "cpu_seconds_per_million_rows": {
            name: round(each * 1e6 / rows, 2)
            for name, each in (
                ("worker", cost.worker),
                ("redis", cost.redis),
                ("mysql", cost.mysql),
            )
        },
    }


# -- the backlog -------------------------------------------------------------------------------


def zipf_rows(rows: int) -> list[list[Row]]:
    """Some entries' rows: keys of the workload, each once in an entry."""
    keys = iter(zipf_keys() * 10)
    made = []
    for _ in range(_PREPARED):
        chosen: dict[str, None] = {}
        while len(chosen) < rows:
            chosen[next(keys)] = None
        made.append([(COUNTER, key, _MINUTE, 1) for key in chosen])
    return made


def fill(servers: Servers, entries: int, rows: int, prepared: Sequence[Sequence[Row]]) -> None:
    """Put so many entries into the queue, their rows taken from ``prepared`` in turns."""
    payloads = [encode_rows(each) for each in prepared]
    at = int(time.time() * 1000)
    client = servers.client()
    try:
        used: Any = client.sadd(PARTITIONS_USED_KEY, *range(servers.partitions))
        for start in range(0, entries, 500):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(entries, start + 500)):
                sealed = Sealed(new_entry_id(at), at, payloads[number % len(payloads)], rows)
                stream = stream_key(number % servers.partitions)
                pipeline.xadd(stream, dict(sealed.fields()))
            pipeline.execute()
        del used
    finally:
        client.close()


def empty(servers: Servers) -> None:
    """Forget what was counted."""
    for table in ("counter_slot", "counter_ledger", "applied_entry"):
        execute(servers.root_url, f"TRUNCATE TABLE {table}")


def check(servers: Servers, rows: int) -> None:
    """Raises Wrong unless the tables have it all."""
    there = one_value(
        servers.root_url,
        f"SELECT CAST(COALESCE(SUM(amount), 0) AS SIGNED) FROM counter_slot"
        f" WHERE counter = '{COUNTER}'",
    )
    if there != rows:
        raise Wrong(f"{rows} were sent, {there} are in the table")


def execute(url: str, statement: str) -> None:
    """Run one statement."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


# -- who applies it ----------------------------------------------------------------------------


def drained(servers: Servers, workers: int) -> Cost:
    """Let so many workers drain the queue: the time until the last has ended, and the CPU time."""
    redis_cpu, mysql_cpu = cpu(servers.redis_pids), cpu(servers.mysql_pids)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(workers)]
        started = [_worker(servers, log) for log in logs]
        own = 0.0
        for process, log in zip(started, logs, strict=True):
            own += _waited(process, log)
    return Cost(
        time.monotonic() - begun,
        own,
        cpu(servers.redis_pids) - redis_cpu,
        cpu(servers.mysql_pids) - mysql_cpu,
    )


def _worker(servers: Servers, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "worker", "--drain"],
        cwd=PROJECT,
        env=environment(servers.redis_url, servers.mysql_url),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def _waited(process: subprocess.Popen[bytes], log: IO[bytes]) -> float:
    """Its CPU time, once it has ended. Raises Wrong if it failed."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(0.005)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        log.seek(0)
        said = log.read().decode("utf-8", "replace")[-4000:]
        raise Wrong(f"a worker ended with status {process.returncode}\n{said}")
    return usage.ru_utime + usage.ru_stime


def cpu(pids: Sequence[int]) -> float:
    """CPU time of processes so far, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# -- servers -----------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(place: str, directory: Path, extra: Sequence[str] = ()) -> Iterator[Servers]:
    """Start the servers of a place; ``extra``: more options of a single MySQL or MariaDB."""
    with contextlib.ExitStack() as stack:
        if place == "redis_cluster":
            queue = _redis_cluster(stack, directory)
        else:
            server = stack.enter_context(RedisServer(directory / "redis", appendfsync=APPENDFSYNC))
            url = server.url
            queue = (url, [server.pid], 1, lambda: redis.Redis.from_url(url))
        if place in ("galera", "group_replication"):
            mysql_url, mysql_pids, root_url = _mysql_cluster(stack, place, directory)
        else:
            kind: Kind = "mysql" if place == "mysql" else "mariadb"
            single = stack.enter_context(
                MySQLServer(directory / "mysql", kind=kind, extra=(*MYSQL_OPTIONS, *extra))
            )
            mysql_url = root_url = single.url_for("counts")
            mysql_pids = [single.pid]
        redis_url, redis_pids, partitions, client = queue
        yield Servers(redis_url, mysql_url, redis_pids, mysql_pids, root_url, partitions, client)


def _redis_cluster(
    stack: contextlib.ExitStack, directory: Path
) -> tuple[str, list[int], int, Callable[[], redis.Redis]]:
    """URL, process ids, partitions, and what makes a client."""
    from tests.support.redis_cluster import RedisCluster  # noqa: PLC0415

    cluster = stack.enter_context(RedisCluster(directory, replicas=0, password=""))
    for server in cluster.servers:
        cluster.ask(server, "CONFIG", "SET", "appendfsync", APPENDFSYNC)
    url = f"redis://127.0.0.1:{cluster.servers[0].port}/0"
    pids = [server.pid for server in cluster.servers]

    def client() -> redis.Redis:
        return cast(redis.Redis, redis.cluster.RedisCluster.from_url(url))

    return cluster.url, pids, PARTITIONS_PER_MASTER * len(pids), client


def _mysql_cluster(
    stack: contextlib.ExitStack, place: str, directory: Path
) -> tuple[str, list[int], str]:
    """URL, the servers' process ids, and the writing node's URL as root."""
    from tests.support.galera import GaleraCluster  # noqa: PLC0415
    from tests.support.group_replication import ReplicationGroup  # noqa: PLC0415

    if place == "galera":
        galera = stack.enter_context(GaleraCluster(directory, extra=MYSQL_OPTIONS))
        root_url = galera.nodes[0].url_for("counts")
        return galera.url(), [node.pid for node in galera.nodes], root_url
    group = stack.enter_context(ReplicationGroup(directory, extra=MYSQL_OPTIONS))
    root_url = group.members[0].url_for("counts")
    return group.url(), [member.pid for member in group.members], root_url
