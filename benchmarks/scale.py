"""Sizes on paper: ``python -m benchmarks.scale`` writes the calculated tables of docs/scale.md.

Constants are those that `make bench` has measured (results.json). A worker adds up the rows of a
batch before it writes them; that n rows of K equally likely keys hit K·(1 − exp(−n/K)) of them is
the usual approximation of balls in bins, and more than hit by keys of which some are frequent.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import PROJECT
from countersink.worker.options import WorkerOptions

RESULTS: Final = Path(__file__).with_name("results.json")
PAGE: Final = PROJECT / "docs" / "scale.md"
BEGIN: Final = "<!-- generated: python -m benchmarks.scale -->"
END: Final = "<!-- end of the generated part -->"
BUSY: Final = 0.6
"""Share of a core that may be in use where processes are counted; the rest is for peaks."""
GUARD_DAYS: Final = 3
DAY: Final = 86_400
ENTRY_ROWS: Final = 1_000
"""Rows of an entry at most."""

BATCH: Final = WorkerOptions(redis_url="", mysql_url="")
"""How large a worker's batch is at most."""

Constants = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in.

    Attributes:
        events: increments per second.
        producers: processes that count.
        rows: distinct (counter, key) in what one of them flushes.
        flush_s: seconds between two flushes (flush_interval).
        keys: all of a bucket (a day, if nothing else was set).
    """

    events: float
    producers: int
    rows: int
    flush_s: float
    keys: int


LOADS: Final = (
    Load(10_000, 10, 50, 0.25, 10_000),
    Load(100_000, 40, 100, 0.25, 10_000),
    Load(1_000_000, 100, 500, 0.25, 10_000),
    Load(1_000_000, 100, 500, 1.0, 100_000),
    Load(10_000_000, 400, 1_000, 0.25, 10_000),
    Load(10_000_000, 400, 1_000, 2.0, 10_000),
    Load(10_000_000, 400, 1_000, 2.0, 100_000),
)


@dataclass(frozen=True, slots=True)
class Size:
    """What a load takes, per second unless said otherwise; cores are CPU-seconds per second.

    Cells are those of full batches, which workers have when there is much to do; else they are
    more, at most as many as rows.
    """

    entries: float
    rows: float
    cells: float
    producer_cores: float
    worker_cores: float
    redis_cores: float
    mysql_cores: float
    redis_bytes: float
    binlog_bytes: float
    guard_bytes: float
    """Of three days of guards."""

    @property
    def workers(self) -> int:
        """Processes."""
        return max(1, math.ceil(self.worker_cores / BUSY))

    @property
    def masters(self) -> int:
        """Of Redis, each of which uses one core."""
        return max(1, math.ceil(self.redis_cores / BUSY))


def size(load: Load, constants: Constants, per_event_us: float) -> Size:
    """What a load takes."""
    entry, row, cell = (constants[f"per_{each}"] for each in ("entry", "row", "cell"))
    flushes = load.producers / load.flush_s
    entries = flushes * math.ceil(load.rows / ENTRY_ROWS)
    rows = min(load.events, flushes * load.rows)
    full = min(BATCH.batch_rows, BATCH.batch_entries * rows / entries)
    cells = rows / full * load.keys * -math.expm1(-full / load.keys)

    def total(name: str) -> float:
        return entries * entry[name] + rows * row[name] + cells * cell[name]

    return Size(
        entries=entries,
        rows=rows,
        cells=cells,
        producer_cores=(load.events * per_event_us + total("producer_us")) / 1e6,
        worker_cores=total("worker_us") / 1e6,
        redis_cores=total("redis_us") / 1e6,
        mysql_cores=total("mysql_us") / 1e6,
        redis_bytes=entries * entry["redis_bytes"] + rows * row["redis_bytes"],
        binlog_bytes=total("binlog_bytes"),
        guard_bytes=entries * DAY * GUARD_DAYS * entry["table_bytes"],
    )


def generated(results: Mapping[str, Any]) -> str:
    """The part of the page that is calculated."""
    found = {each["name"]: each for each in results["constants"] if "missing" not in each}
    rows = {each["name"]: each for each in results["rows"]}
    per_event_us = 1e6 / rows["increment_with_folding"]["cpu_per_second"]
    parts = [_constants(found, per_event_us), _sizes(found["constants_mariadb"], per_event_us)]
    parts.append(_measured(found["constants_mariadb"], rows, per_event_us))
    if any("missing" not in each for each in results["clusters"]):
        parts.append(_clusters(results["clusters"]))
    return "\n\n".join(parts)


def table(head: list[str], lines: Iterator[list[str]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _constants(found: Mapping[str, Any], per_event_us: float) -> str:
    names = {
        "producer_us": "producer, µs",
        "worker_us": "worker, µs",
        "redis_us": "Redis, µs",
        "mysql_us": "database, µs",
        "redis_bytes": "Redis, bytes",
        "table_bytes": "tables, bytes",
        "binlog_bytes": "binary log, bytes",
    }

    def lines() -> Iterator[list[str]]:
        yield ["an event", f"{per_event_us:.2f}", *("" for _ in range(6))]
        for kind, server in (("mariadb", "MariaDB"), ("mysql", "MySQL")):
            constants: Any = found.get(f"constants_{kind}")
            for unit in ("entry", "row", "cell") if constants else ():
                figures = [constants[f"per_{unit}"].get(name) for name in names]
                texts = ["" if each is None else f"{each:,.1f}" for each in figures]
                yield [f"{unit}, {server}", *texts]

    return "CPU time and bytes:\n\n" + table(["of", *names.values()], lines())


def _sizes(constants: Constants, per_event_us: float) -> str:
    head = ["events/s", "producers × rows", "flush, s", "keys", "entries/s", "rows/s", "cells/s"]
    head += ["cores: producers", "workers", "Redis", "database", "worker processes", "masters"]
    head += ["Redis per hour of outage", "guards", "binary log per day"]

    def lines() -> Iterator[list[str]]:
        for load in LOADS:
            of = size(load, constants, per_event_us)
            yield [
                f"{load.events:,.0f}",
                f"{load.producers:,} × {load.rows:,}",
                f"{load.flush_s:g}",
                *(f"{each:,.0f}" for each in (load.keys, of.entries, of.rows, of.cells)),
                *(
                    f"{each:,.2f}"
                    for each in (of.producer_cores, of.worker_cores, of.redis_cores, of.mysql_cores)
                ),
                str(of.workers),
                str(of.masters),
                f"{of.redis_bytes * 3600 / 1e9:,.1f} GB",
                f"{of.guard_bytes / 1e9:,.1f} GB",
                f"{of.binlog_bytes * DAY / 1e9:,.1f} GB",
            ]

    return "What some loads take, with MariaDB:\n\n" + table(head, lines())


def _measured(constants: Constants, rows: Mapping[str, Any], per_event_us: float) -> str:
    """The model against rows of results.json."""

    def lines() -> Iterator[list[str]]:
        zipf, distinct = rows["end_to_end_zipf"], rows["end_to_end_distinct"]
        load = Load(zipf["per_second"], 1, 5_000, 0.25, 5_000)
        of = size(load, constants, per_event_us)
        measured = zipf["producer_cpu_share"]
        yield [
            "`end_to_end_zipf`: cores of the producer",
            f"{of.producer_cores:.2f}",
            f"{measured:.2f}",
        ]
        entry, row, cell = (constants[f"per_{each}"] for each in ("entry", "row", "cell"))
        kinds = ("producer_us", "worker_us", "redis_us", "mysql_us")
        each = per_event_us + sum(entry[k] / 1_000 + row[k] + cell[k] for k in kinds)
        yield [
            "`end_to_end_distinct`: events/s, two cores busy with it",
            f"{2e6 / each:,.0f}",
            f"{distinct['per_second']:,}",
        ]

    return "The model against what was measured:\n\n" + table(
        ["row of the benchmarks", "model", "measured"], lines()
    )


def _clusters(rows: list[dict[str, Any]]) -> str:
    head = ["row", "rows/s", "CPU s per 10⁶ rows: worker", "Redis", "database"]

    def lines() -> Iterator[list[str]]:
        for row in rows:
            if "missing" not in row:
                cpu = row["cpu_seconds_per_million_rows"]
                figures = [f"{cpu[name]:.2f}" for name in ("worker", "redis", "mysql")]
                yield [f"`{row['name']}`", f"{row['rows_per_second']:,}", *figures]

    return "A backlog, applied by more and more workers:\n\n" + table(head, lines())


def page(text: str) -> str:
    """The page with its generated part made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = generated(json.loads(RESULTS.read_text("utf-8")))
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
