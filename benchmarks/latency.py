"""``python -m benchmarks.latency``: how long one increment() takes while Redis is frozen.

100,000 calls per second for 30 s with Redis stopped (SIGSTOP), each call timed; and the same loop
with a locked dictionary instead, which shows what the machine itself does to such a loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Wrong
from benchmarks.processes import Child
from benchmarks.workload import NAMES
from countersink.cli.errors import ServerError
from tests.support.servers import RedisServer

CALLS_PER_SECOND: Final = 100_000
SECONDS: Final = 30.0
QUICK_SECONDS: Final = 0.5
TARGET_US: Final = 100.0
COLUMNS: Final = {
    "p50": "p50",
    "p99": "p99",
    "p99_9": "p99.9",
    "p99_99": "p99.99",
    "max": "max",
    "late_p99": "due p99",
    "late_p99_9": "due p99.9",
}
"""Figures of the child, and their headings."""
MODULE: Final = "benchmarks.children.latency"

Figures = dict[str, float]


def measure_bare(seconds: float, names: int) -> Figures:
    """The loop with the dictionary."""
    with Child(
        MODULE, bare=True, seconds=seconds, per_second=CALLS_PER_SECOND, names=names
    ) as child:
        child.hear()
        child.say(begin=True)
        return child.hear()


def measure_increment(
    server: RedisServer, seconds: float, names: int, spool: Path | None
) -> Figures:
    """The loop with increment(), Redis frozen throughout.

    Raises Wrong unless every call's increment is in Redis afterwards.
    """
    with Child(
        MODULE,
        bare=False,
        redis_url=server.url,
        seconds=seconds,
        per_second=CALLS_PER_SECOND,
        names=names,
        spool=None if spool is None else str(spool),
    ) as child:
        child.hear()
        server.freeze()
        try:
            child.say(begin=True)
            measured = child.hear()
        finally:
            server.thaw()
        child.say(thawed=True)
        end = child.hear()
    if not end["stored"] or end["dropped"] or end["in_redis"] != end["accepted"]:
        raise Wrong(f"after Redis went on, not all increments were stored: {end}")
    return measured


def show(console: Console, results: dict[str, Figures], seconds: float, names: int) -> None:
    """Print the table."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"µs per call, {CALLS_PER_SECOND:,} calls/s over {names:,} keys, {seconds:g} s",
        title_justify="left",
    )
    table.add_column("loop")
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    table.add_column("calls/s", justify="right")
    for name, measured in results.items():
        table.add_row(
            name,
            *(f"{measured[column]:,.2f}" for column in COLUMNS),
            f"{measured['calls_per_second']:,.0f}",
        )
    console.print(table)
    worst = max(measured["p99_9"] for name, measured in results.items() if name != "bare")
    mark = "[green]✓[/]" if worst < TARGET_US else "[red]✗[/]"
    console.print(
        f"99.9th percentile with Redis frozen: {worst:.1f} µs (below {TARGET_US:g} µs) {mark}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 0 measured (whatever the figures are), 1 failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per loop (default: 30)")
    parser.add_argument("--names", type=int, default=NAMES, help="distinct keys (default: 5,000)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS} s per loop")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    options = parser.parse_args(arguments)
    seconds = QUICK_SECONDS if options.quick else options.seconds
    results: dict[str, Figures] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="countersink-latency-") as directory:
            results["bare"] = measure_bare(seconds, options.names)
            for name, spool in (
                ("increment", None),
                ("increment, spool", Path(directory, "spool")),
            ):
                with RedisServer(Path(directory, name.replace(", ", "-"))) as server:
                    results[name] = measure_increment(server, seconds, options.names, spool)
    except (ServerError, Wrong) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    show(Console(width=None if sys.stdout.isatty() else 120), results, seconds, options.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
