"""Limits of one server: ``python -m benchmarks.growth`` measures many keys, many counters, a long
queue and a large table; ``--report`` writes the tables of docs/scale.md from ``growth.json``.

Each finished measurement is kept at once: a run that was broken off goes on with the next one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import environment, results, scale
from benchmarks import growth_measures as measures
from benchmarks.figures import number as shown
from benchmarks.measuring import Wrong
from benchmarks.rows import SERVERS, on, server_of
from benchmarks.site import MYSQL_OPTIONS, Site, open_site, why_unavailable
from countersink.cli.errors import ServerError
from tests.support.servers import Kind

OUTPUT: Final = Path(__file__).with_name("growth.json")
BEGIN: Final = "<!-- generated: python -m benchmarks.growth --report -->"
END: Final = "<!-- end of the measured growth -->"
POOL: Final = ("--innodb-buffer-pool-size=4G", "--innodb-buffer-pool-load-at-startup=OFF")
OPTIONS: Final[Mapping[Kind, Sequence[str]]] = {
    "mariadb": (*MYSQL_OPTIONS, *POOL, "--innodb-log-file-size=2G"),
    "mysql": (*MYSQL_OPTIONS, *POOL, "--innodb-redo-log-capacity=2G"),
}
"""Options of the servers: those of the other benchmarks, and room for a large table."""
BOUND_MS: Final = 2_000
"""The goal for each read of the dashboard."""
PAPER: Final = 10
"""How many times the rows of the large table are calculated."""
PARTS: Final = ("keys", "counters", "workers", "table")
MEASURES: Final[Mapping[str, Callable[[Site, float], measures.Figures]]] = {
    **{f"keys_{n}": partial(measures.of_keys, n) for n in measures.KEYS},
    **{f"counters_{n}": partial(measures.of_counters, n) for n in measures.COUNTERS},
    **{f"workers_{n}": partial(measures.of_workers, n) for n in measures.WORKERS},
    "table": measures.of_table,
}
"""Measurements, by their names in ``growth.json`` without the server."""
_RATES: Final = {
    "rows/s, new in the slot": "rows_per_second",
    "there already": "rows_per_second_again",
}
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "keys": {
        **_RATES,
        "day, ms": "total_ms",
        "top 20, ms": "top_ms",
        "top 20 of 30 days, ms": "top_month_ms",
        "one key, ms": "key_ms",
    },
    "counters": {**_RATES, "list, ms": "list_ms", "a counter, ms": "page_ms"},
    "workers": {
        "seconds": "seconds",
        "rows/s": "rows_per_second",
        "MB, a worker": "worker_megabytes",
        "MB, Redis": "redis_megabytes",
    },
}
"""Columns of the page's tables: the figure of each."""
VIEWS: Final = {
    "list_30": "counters, 30 days",
    "list_90": "counters, 90 days",
    "list_30_by_change": "counters, by change",
    "live": "live numbers",
    "counter_7": "counter, 7 days",
    "counter_30": "counter, 30 days",
    "counter_90": "counter, 90 days",
    "counter_365": "counter, 365 days",
    "counter_90_compared": "counter, 90 days, compared",
}

Row = Mapping[str, Any]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of all sizes, such as 0.001 for a trial"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help=", ".join(PARTS)
    )
    parser.add_argument("--server", choices=SERVERS, default=SERVERS[0])
    parser.add_argument(
        "--output", type=Path, help=f"the JSON file (default: {OUTPUT.name} without --scale)"
    )
    parser.add_argument("--afresh", action="store_true", help="measure again what is in the file")
    parser.add_argument("--report", action="store_true", help="write the page, measure nothing")
    options = parser.parse_args(arguments)
    if not 0 < options.scale <= 1:
        parser.error("--scale is above 0, and at most 1")
    if options.output is None and options.scale == 1:
        options.output = OUTPUT
    return options


def read(path: Path | None) -> dict[str, Any]:
    """Measurements so far."""
    if path is None or not path.exists():
        return {"environments": {}, "rows": []}
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def measure(options: argparse.Namespace, log: Callable[[str], object]) -> dict[str, Any]:
    """Take the measurements that are missing, and return all. Raises ServerError, Wrong."""
    kind: Kind = options.server
    document = read(options.output)
    rows = {row["name"]: row for row in document["rows"]}
    wanted = [name for name in MEASURES if name.partition("_")[0] in options.only]
    if not options.afresh:
        done = [each for each in rows.values() if each["scale"] == options.scale]
        known = {each["name"] for each in done}
        wanted = [name for name in wanted if on(kind, name) not in known]
    if not wanted:
        return document
    if (why := why_unavailable(kind)) is not None:
        raise Wrong(why)
    with (
        tempfile.TemporaryDirectory(prefix="countersink-growth-") as directory,
        open_site(Path(directory), kind, OPTIONS[kind]) as site,
    ):
        settings = [option.removeprefix("--") for option in OPTIONS[kind]]
        described = environment.describe(site, server=kind, rounds=1, seconds=0)
        document["environments"][kind] = {**described, "mysql_settings": settings}
        for name in wanted:
            begun = time.monotonic()
            figures = MEASURES[name](site, options.scale)
            took = round(time.monotonic() - begun, 1)
            date = datetime.now(UTC).isoformat(timespec="seconds")
            row = {"name": on(kind, name), "date": date, "scale": options.scale}
            rows[on(kind, name)] = row | figures | {"seconds_in_all": took}
            log(f"{on(kind, name)}: {took:.0f} s in all: {json.dumps(figures)}")
            document["rows"] = sorted(rows.values(), key=_place)
            if options.output is not None:
                results.write(options.output, document)
    return document


def _place(row: Row) -> tuple[int, int]:
    server = server_of(row["name"]) or SERVERS[0]
    return SERVERS.index(server), list(MEASURES).index(row["name"].removesuffix(f"_{server}"))


# -- the page ----------------------------------------------------------------------------------


def generated(document: Mapping[str, Any]) -> str:
    """The part of the page that is measured, and calculated from it."""
    parts = [_environment(*each) for each in document["environments"].items()]
    for part, columns in TABLES.items():
        rows = [row for row in document["rows"] if row["name"].startswith(f"{part}_")]
        lines = (
            [f"{row[part]:,}{beside}", *(shown(row[name]) for name in columns.values())]
            for row in rows
            for beside in ("" if len(document["environments"]) == 1 else f", {_server(row)}",)
        )
        if rows:
            parts.append(scale.table([part, *columns], lines))
    for row in document["rows"]:
        if row["name"].startswith("table_"):
            parts += [_views(row), _paper(row)]
    return "\n\n".join(parts) or "Not measured yet: `make growth`."


def _environment(kind: str, of: Mapping[str, Any]) -> str:
    return (
        f"{of['date'][:10]}, {of['cores']} cores ({of['cpu']}), {of['memory_gigabytes']:g} GB,"
        f" Python {of['python']}, Redis {of['redis']}, {kind} {of[kind]}."
    )


def _server(row: Row) -> str:
    return {"mariadb": "MariaDB", "mysql": "MySQL"}[server_of(row["name"]) or SERVERS[0]]


def _views(row: Row) -> str:
    def lines() -> Iterator[list[str]]:
        for view in row["views"]:
            requests = view["requests"]
            worst = max(requests, key=_worst)
            times = [sum(each[name] for each in requests) for name in _TIMES] + [_worst(worst)]
            yield [
                VIEWS[view["name"]],
                *(shown(each / 1000) for each in times),
                worst["name"] + (" (**above 2 s**)" if times[-1] > BOUND_MS else ""),
            ]

    text = (
        f"{row['rows']:,} rows, {_server(row)}: {row['counters']:,} counters, {row['keys']:,} keys,"
        f" {measures.TABLE_DAYS} days, the last {measures.FRESH_DAYS} in 4 slots; seconds:"
    )
    head = ["view", "cold", "warm", "slowest", "which"]
    return f"{text}\n\n{scale.table(head, lines())}"


_TIMES: Final = ("cold_ms", "warm_ms")


def _worst(request: Mapping[str, Any]) -> float:
    return max(float(request[name]) for name in _TIMES)


def _paper(row: Row) -> str:
    """Figures of the table, and of one with ten times the keys, which are calculated."""
    verify, compact, year = row["verify"], row["compact"], row["year"]
    slowest = {
        view["name"]: max(float(each["warm_ms"]) for each in view["requests"])
        for view in row["views"]
    }
    of_day = compact["rows"] / compact["rows_per_second"] * row["counters"]
    values = {
        "size, GB": row["bytes"] / 1e9,
        "`verify`, s": verify["seconds"],
        "compaction of a day, s": of_day,
        "`totals` of 365 days, s": year["warm_seconds"],
        "counters, slowest request, s": slowest["list_30"] / 1000,
        "counter, 365 days, slowest request, s": slowest["counter_365"] / 1000,
    }
    lines = ([what, shown(value), shown(value * PAPER)] for what, value in values.items())
    text = (
        f"{row['bytes'] / row['rows']:.0f} bytes a row; `verify` reads"
        f" {shown(verify['rows_per_second'])} rows/s, compaction"
        f" {shown(compact['rows_per_second'])}. With {PAPER} times the keys:"
    )
    head = ["warm", f"{row['rows']:,} rows", f"{row['rows'] * PAPER:,}, calculated"]
    return f"{text}\n\n{scale.table(head, lines)}"


def page(text: str) -> str:
    """The page with its generated part made anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated(read(OUTPUT))}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write the page; returns the exit status: 0 done, 1 failed."""
    options = parse(arguments)
    if options.report:
        scale.PAGE.write_text(page(scale.PAGE.read_text("utf-8")), "utf-8")
        return 0
    try:
        document = measure(options, lambda text: print(text, file=sys.stderr, flush=True))
    except (ServerError, Wrong) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(generated(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
