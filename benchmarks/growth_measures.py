"""Measurements of growth: many keys, many counters, a long queue, a large table. Each one checks
its results exactly."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import redis

from benchmarks.clusters import Row, Servers, fill
from benchmarks.command import run, service
from benchmarks.database import one_value
from benchmarks.growth_table import DAY, SlotTable, View, counter_view, list_view, live_view
from benchmarks.http_reads import Client
from benchmarks.measuring import Wrong
from benchmarks.memory import Peaks
from benchmarks.processes import peak_megabytes
from benchmarks.series import COUNT
from benchmarks.site import Site
from countersink.database.migrate import migrate
from countersink.database.sessions import open_tables
from countersink.database.sql import WORKER_SLOTS
from countersink.schedules.jobs import compaction
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.store import Store, api_keys
from countersink.stream.names import stream_key

KEYS: Final = (1_000, 100_000, 10_000_000)
COUNTERS: Final = (1, 10, 100, 1_000, 10_000)
WORKERS: Final = (1, 2, 4)
KEYS_OF_COUNTERS: Final = 100_000
BACKLOG_ROWS: Final = 200_000
QUEUE_ROWS: Final = 10_000_000
TABLE_ROWS: Final = 100_000_000
TABLE_COUNTERS: Final = 100
TABLE_DAYS: Final = 365
FRESH_DAYS: Final = 10
TABLE_BYTES: Final = 40_000_000_000
"""Free bytes that the whole table, its indexes and the server's logs need."""
TIMES: Final = 5
"""Repetitions of a read, of which the median counts. The first read, which fills caches, is not
among them."""
LEAST_TIMES: Final = 3
ENOUGH_SECONDS: Final = 30.0
"""Seconds after which a read is repeated LEAST_TIMES only."""
TOP_KEYS: Final = 20
ENTRY_ROWS: Final = 1_000
ENTRIES_AT_ONCE: Final = 100
READ_SECONDS: Final = 3_600
DRAIN_SECONDS: Final = 1_200.0
_LISTENING: Final = "listening at http://"
_POLL_SECONDS: Final = 0.01
_SEED: Final = 20_261_129
_SUM: Final = "SELECT CAST(COALESCE(SUM(amount), 0) AS SIGNED) FROM counter_slot"

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drained:
    """Time and memory of draining the queue.

    Attributes:
        seconds: from the first read of a worker until no entry is left.
        megabytes: largest resident memory of a worker, in 10⁶ bytes.
        redis_bytes: memory of Redis with the whole queue in it.
    """

    seconds: float
    megabytes: float
    redis_bytes: int


def of_keys(number: int, site: Site, scale: float) -> Figures:
    """Measure a counter with so many keys on one day. Raises Wrong."""
    table = SlotTable(1, scaled(number, scale, 100), _today())
    counter, last, month = table.counter(0), table.last, table.last - 29 * DAY
    key = table.keys // 2
    with site.database() as url, Store(url) as store:
        migrate(url)
        table.fill(url)
        top = table.top(0, last, last, TOP_KEYS)
        total, top_of = store.totals.total, partial(store.totals.top, counter, n=TOP_KEYS, end=last)
        asked: list[tuple[str, Callable[[], object], object]] = [
            ("total_ms", partial(total, counter, start=last, end=last), table.total(0)),
            ("top_ms", partial(top_of, start=last), top),
            ("top_month_ms", partial(top_of, start=month), top),
            ("key_ms", partial(total, counter, key=table.key(key)), table.total_of_key(0, key)),
        ]
        reads = {name: _median(ask, expected) for name, ask, expected in asked}
        return {"keys": table.keys, **reads, **_applied(site, url, table, scale)}


def of_counters(number: int, site: Site, scale: float) -> Figures:
    """Measure so many counters, with 100,000 keys in all. Raises Wrong."""
    counters = scaled(number, scale, 1)
    table = SlotTable(counters, max(1, scaled(KEYS_OF_COUNTERS, scale, 100) // counters), _today())
    with site.database() as url:
        migrate(url)
        table.fill(url)
        views = [list_view(table, 30), counter_view(table, counters // 2, 30)]
        listed, page = (_viewed(site, url, view)["requests"] for view in views)
        return {
            "counters": counters,
            "keys": table.keys,
            "list_ms": _sum(listed, "warm_ms"),
            "page_ms": _sum(page, "warm_ms"),
            **_applied(site, url, table, scale),
        }


def of_workers(number: int, site: Site, scale: float) -> Figures:
    """Measure so many workers with a queue of distinct rows, as after an outage. Raises Wrong."""
    rows = scaled(QUEUE_ROWS, scale, ENTRY_ROWS) // ENTRY_ROWS * ENTRY_ROWS
    minute = int(time.time()) // 60
    # Each key once, in an order that is not that of the primary key.
    made = (("orders", f"/articles/{each * 7_919 % rows:08d}", minute, 1) for each in range(rows))
    with site.database() as url:
        migrate(url)
        drained = _drained(site, url, made, workers=number)
        _check(url, rows, rows)
    return {
        "workers": number,
        "rows": rows,
        "seconds": round(drained.seconds, 2),
        "rows_per_second": round(rows / drained.seconds),
        "worker_megabytes": round(drained.megabytes, 1),
        "redis_megabytes": round(drained.redis_bytes / 1e6, 1),
    }


def of_table(site: Site, scale: float) -> Figures:
    """Measure a table of 10⁸ rows: reads before and after its rows are in memory, compaction,
    ``verify``, size. Raises Wrong."""
    free, needed = shutil.disk_usage(site.directory).free, TABLE_BYTES * scale
    if free < needed:
        raise Wrong(
            f"{needed / 1e9:,.1f} GB must be free in {site.directory} for the table, and"
            f" {free / 1e9:,.1f} GB are: free some, or set TMPDIR to a larger disk"
        )
    counters = max(3, round(TABLE_COUNTERS * scale**0.5))
    slots = SlotTable(1, 1, _today(), TABLE_DAYS, FRESH_DAYS)
    keys = max(20, round(TABLE_ROWS * scale / counters / slots.rows))
    table = SlotTable(counters, keys, slots.last, TABLE_DAYS, FRESH_DAYS)
    with site.database() as url:
        migrate(url)
        seconds = table.fill(url)
        found = one_value(url, COUNT)
        if found != table.rows:
            raise Wrong(f"{table.rows:,} rows were made, {found:,} are in the table")
        figures: Figures = {
            "rows": table.rows,
            "counters": counters,
            "keys": keys,
            "fill_seconds": round(seconds, 1),
            "bytes": _table_bytes(site, url),
            "views": [],
        }
        for view in _views(table):
            site.restart_database()
            figures["views"].append(_viewed(site, url, view))
        site.restart_database()
        figures["year"] = _year(site, url, table)
        figures["verify"] = _verified(site, url, table, found)
        figures["compact"] = _compacted(url, table)
    return figures


def scaled(number: int, scale: float, least: int) -> int:
    """Return a size of a trial: a part of ``number``, at least ``least`` or ``number``."""
    return max(min(number, least), round(number * scale))


def _today() -> date:
    return datetime.now(UTC).date()


def _rounds() -> Iterator[int]:
    """Yield the numbers of repetitions, from 0 for the first read."""
    begun = time.monotonic()
    for number in range(TIMES + 1):
        if number <= LEAST_TIMES or time.monotonic() - begun < ENOUGH_SECONDS:
            yield number


def _median(ask: Callable[[], object], expected: object) -> float:
    """Return the median of the milliseconds that an answer takes."""
    taken = []
    for _ in _rounds():
        begun = time.perf_counter()
        answer = ask()
        taken.append((time.perf_counter() - begun) * 1000)
        if answer != expected:
            raise Wrong(f"a query is not answered with what was counted: {answer!r:.200}")
    return round(statistics.median(taken[1:]), 3)


# -- the queue ---------------------------------------------------------------------------------


def _applied(site: Site, url: str, table: SlotTable, scale: float) -> Figures:
    """Have one worker apply rows of random keys twice: first its slot has no rows of these keys,
    then it has all of them."""
    draw = random.Random(_SEED)
    rows = scaled(BACKLOG_ROWS, scale, ENTRY_ROWS)
    minute = int(datetime.combine(table.last, datetime.min.time(), UTC).timestamp()) // 60 + 1
    drawn = [(draw.randrange(table.counters), draw.randrange(table.keys)) for _ in range(rows)]
    made = [(table.counter(counter), table.key(key), minute, 1) for counter, key in drawn]
    with open_tables(url) as session:
        # All other slots are leased, so the worker has the same slot both times.
        session.insert_rows(
            "lease (name, holder, expires_at)",
            [(f"slot:{slot}", "benchmark", 2**52) for slot in WORKER_SLOTS if slot > 1],
            500,
        )
    total = sum(table.total(number) for number in range(table.counters))
    rates = []
    for number in (1, 2):
        drained = _drained(site, url, made)
        _check(url, total + number * rows, table.rows + len(set(drawn)))
        rates.append(round(rows / drained.seconds))
    return {"rows_per_second": rates[0], "rows_per_second_again": rates[1]}


def _drained(site: Site, url: str, rows: Iterable[Row], workers: int = 1) -> Drained:
    """Put rows into the queue, and let workers drain it. Raises Wrong if it takes too long."""
    make = partial(redis.Redis.from_url, site.redis_url)
    servers = Servers(site.redis_url, url, (), (), url, 1, make)
    left = iter(rows)
    while some := list(islice(left, ENTRIES_AT_ONCE * ENTRY_ROWS)):
        entries = [some[at : at + ENTRY_ROWS] for at in range(0, len(some), ENTRY_ROWS)]
        fill(servers, len(entries), ENTRY_ROWS, entries)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(site.redis_client())
        memory: Any = client.info("memory")
        running = [
            stack.enter_context(service("worker", site.redis_url, url)) for _ in range(workers)
        ]
        running[0].wait_until_it_says("reading")
        begun = time.monotonic()
        while client.xlen(stream_key(0)):  # workers delete what they have applied
            if time.monotonic() - begun > DRAIN_SECONDS:
                raise Wrong(f"the queue is not empty after {DRAIN_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        seconds = time.monotonic() - begun
        for each in running:  # of a short queue, the last has perhaps not started yet
            each.wait_until_it_says("reading")
        peaks = [peak_megabytes(each.pid) or 0.0 for each in running]
    return Drained(seconds, max(peaks), int(memory["used_memory"]))


def _check(url: str, total: int, rows: int) -> None:
    """Raises Wrong unless the table has this sum and this number of rows."""
    found = one_value(url, _SUM), one_value(url, COUNT)
    if found != (total, rows):
        raise Wrong(f"{total:,} in {rows:,} rows were counted; sum and rows are {found}")


# -- the dashboard, and commands ---------------------------------------------------------------


def _views(table: SlotTable) -> Iterator[View]:
    yield list_view(table, 30)
    yield list_view(table, 90)
    yield list_view(table, 30, "change")
    yield live_view(table)
    for number, days in enumerate((7, 30, 90, 365)):
        yield counter_view(table, number % table.counters, days, search="42" if days == 30 else "")
    yield counter_view(table, table.counters - 1, 90, against=table.first)


def _viewed(site: Site, url: str, view: View) -> Figures:
    """Send a view's requests to a new `countersink web`: once, then again and again."""
    taken: dict[str, list[float]] = {request.name: [] for request in view.requests}
    with open_tables(url) as session:
        _, key = api_keys.create(session, f"growth {time.time_ns()}", ("read",))
    options = ("--port", "0", "--read-timeout-s", str(READ_SECONDS))
    with service("web", site.redis_url, url, *options) as server:
        server.wait_until_it_says(_LISTENING)
        port = int(server.said().partition(_LISTENING)[2].partition(":")[2].split()[0])
        with contextlib.closing(Client(port, key, timeout=READ_SECONDS)) as client:
            client.ask("/v1/whoami")
            for _ in _rounds():
                for request in view.requests:
                    begun = time.perf_counter()
                    body = client.ask(request.path)
                    taken[request.name].append((time.perf_counter() - begun) * 1000)
                    if not request.right(json.loads(body)):
                        raise Wrong(f"{view.name}: {request.path} says {body!r:.400}")
    requests = [
        {
            "name": name,
            "cold_ms": round(first, 1),
            "warm_ms": round(statistics.median(others), 1),
        }
        for name, (first, *others) in taken.items()
    ]
    return {"name": view.name, "requests": requests}


def _year(site: Site, url: str, table: SlotTable) -> Figures:
    """`countersink totals` of a counter and all its days: the seconds of the command."""
    counter = table.counters // 2
    arguments = ["totals", table.counter(counter), "--by", "total", "--format", "json"]
    arguments += ["--from", str(table.first), "--to", str(table.last)]
    taken = []
    for _ in _rounds():
        found, seconds = run(arguments, site.redis_url, url, Peaks())
        if found["rows"][0]["total"] != table.total(counter):
            raise Wrong(f"totals of a year: {found['rows']}")
        taken.append(seconds)
    cold, *warm = taken
    return {"cold_seconds": round(cold, 2), "warm_seconds": round(statistics.median(warm), 2)}


def _verified(site: Site, url: str, table: SlotTable, rows: int) -> Figures:
    """`countersink verify`: its seconds, and rows per second. Raises Wrong if anything differs."""
    found, seconds = run(["verify", "--format", "json"], site.redis_url, url, Peaks())
    if (found["rows"], found["counters"], found["differences"]) != (rows, table.counters, []):
        raise Wrong(f"verify: {found!r:.400}")
    return {"seconds": round(seconds, 1), "rows_per_second": round(rows / seconds)}


def _compacted(url: str, table: SlotTable) -> Figures:
    """Compact a counter's oldest day that is not compacted; a pass before that finds nothing."""
    fresh = table.last - (FRESH_DAYS - 1) * DAY

    def compact(before: date) -> PassDone:
        options = compaction.CompactOptions(counter=table.counter(0), before=before)
        return compaction.compact(partial(open_mover, url), options)

    nothing, done = compact(fresh), compact(fresh + DAY)
    moved = (nothing.rows_before, done.rows_before, done.rows_after)
    if moved != (0, table.keys * table.slots, table.keys):
        raise Wrong(f"compaction: {moved} rows")
    seconds = max(done.seconds - nothing.seconds, 0.001)
    return {
        "rows": done.rows_before,
        "search_seconds": round(nothing.seconds, 3),
        "seconds": round(done.seconds, 3),
        "rows_per_second": round(done.rows_before / seconds),
    }


def _table_bytes(site: Site, url: str) -> int:
    """Size of the file of ``counter_slot``, with its indexes."""
    name = url.rpartition("/")[2]
    [path] = site.directory.glob(f"*/data/{name}/counter_slot.ibd")
    return path.stat().st_size


def _sum(requests: list[Figures], name: str) -> float:
    return round(sum(float(each[name]) for each in requests), 1)
