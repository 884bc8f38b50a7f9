"""`results.json` as printed tables."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.http_reads import WHAT as HTTP_READS
from benchmarks.kills import WAYS as KILLED
from benchmarks.results import SECTIONS
from benchmarks.row_counts import QUESTIONS
from benchmarks.rows import (
    BACKFILL_MEGABYTES,
    BACKFILL_MEGABYTES_LIMIT,
    BACKFILL_MEGABYTES_SMALL,
    BESIDE,
    DRIFT,
    FLOORS,
    PLACES,
    SERVERS,
    SHARE_KEPT,
    WENT_DOWN,
    WHAT,
    WORKER_MEGABYTES,
    WORKER_MEGABYTES_LIMIT,
    on,
)
from benchmarks.series import QUERIES
from benchmarks.unique_year import WHAT as UNIQUE_YEAR

_BESIDE = {on(server, row) for server in SERVERS for row in BESIDE}
MEMORY: Final = (
    ("worker", WORKER_MEGABYTES, WORKER_MEGABYTES_LIMIT),
    ("backfill", BACKFILL_MEGABYTES, BACKFILL_MEGABYTES_LIMIT),
    ("backfill of a tenth of the lines", BACKFILL_MEGABYTES_SMALL, BACKFILL_MEGABYTES_LIMIT),
)
"""What a process may take at most: of whom, the extra figure, the limit."""
_LEAST = {floor.row: floor.bound for floor in FLOORS}
_WHAT_HTTP_READS = {
    on(server, name): what for server in SERVERS for name, what in HTTP_READS.items()
}
_WHAT_READS = {on(server, name): what for server in SERVERS for name, what in QUERIES.items()}


def show(console: Console, whole: dict[str, Any]) -> None:
    """Print the tables."""
    measured = [row for row in whole["rows"] if "missing" not in row]
    rates = [row for row in measured if row["name"] not in _BESIDE]
    beside = [row for row in measured if row["name"] in _BESIDE]
    console.print(_title(whole["environment"]))
    if rates:
        console.print(_rates(rates))
    if beside:
        console.print(_writers(beside))
    if whole["reads"]:
        console.print(_reads(whole["reads"]))
    if whole["http_reads"]:
        console.print(_http_reads(whole["http_reads"]))
    if any("missing" not in row for row in whole["unique_year"]):
        console.print(_unique_year(whole["unique_year"]))
    if whole["row_counts"]:
        console.print(_row_counts(whole["row_counts"]))
    if any("missing" not in row for row in whole["clusters"]):
        console.print(_clusters(whole["clusters"]))
    for row in whole["constants"]:
        if "missing" not in row:
            console.print(_constants(row))
    if whole["kills"]:
        console.print(_kills(whole["kills"]))
    for what, extra, limit in MEMORY:
        peaks = [row[extra] for row in measured if extra in row]
        if peaks:
            console.print(
                f"{what}, largest resident memory: {max(peaks):.0f} MB"
                f" (below {limit} MB) {_mark(max(peaks) < limit)}"
            )
    reasons: dict[str, list[str]] = {}
    for row in (row for section in SECTIONS for row in whole[section]):
        if "missing" in row:
            reasons.setdefault(row["missing"], []).append(row["name"])
    for reason, names in reasons.items():
        console.print(f"not measured: {', '.join(names)}: {escape(reason)}", style="yellow")


def _rates(rows: list[dict[str, Any]]) -> Table:
    table = _table("row", "per second", "low to high", "ratio", "target", "what")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['per_second']:,}",
            f"{row['low']:,} to {row['high']:,}",
            _ratio(row),
            _target(row),
            escape(WHAT[row["name"]]),
        )
    return table


def _writers(rows: list[dict[str, Any]]) -> Table:
    table = _table(
        "writers beside compaction",
        "rows/s",
        "without",
        "share kept",
        "total off by",
        "seen to fall",
        "rows removed/s",
        "what",
    )
    for row in rows:
        wrong = row[DRIFT] or row[WENT_DOWN]
        table.add_row(
            row["name"],
            f"{row['per_second']:,}",
            f"{row['alone_per_second']:,.0f}",
            _share(row),
            f"{row[DRIFT]:+,.0f}" if row[DRIFT] else "0",
            f"{row[WENT_DOWN]:.0f} times",
            f"{row['removed_per_second']:,.0f}",
            escape(WHAT[row["name"]]),
            style="red" if wrong else None,
        )
    return table


def _clusters(rows: list[dict[str, Any]]) -> Table:
    table = _table(
        "backlog applied", "rows/s", "CPU s per 10⁶ rows: worker", "Redis", "MySQL", "what"
    )
    for row in rows:
        if "missing" in row:
            continue
        _, workers, place = row["name"].split("_", 2)
        cpu = row["cpu_seconds_per_million_rows"]
        table.add_row(
            row["name"],
            f"{row['rows_per_second']:,}",
            *(f"{cpu[name]:.2f}" for name in ("worker", "redis", "mysql")),
            f"{workers} {'worker' if workers == '1' else 'workers'}, {PLACES[place]}",
        )
    return table


def _constants(row: dict[str, Any]) -> Table:
    names = list(row["per_entry"])
    table = _table(row["name"], *names)
    for unit in ("per_entry", "per_row", "per_cell"):
        figures = (row[unit].get(name) for name in names)
        table.add_row(unit, *("" if each is None else f"{each:,.1f}" for each in figures))
    return table


def _kills(rows: list[dict[str, Any]]) -> Table:
    table = _table("killed", "times", "events", "lost", "doubled", "what")
    for row in rows:
        figures = (f"{row[each]:,}" for each in ("kills", "sent", "lost", "doubled"))
        table.add_row(row["name"], *figures, escape(KILLED[row["name"].removeprefix("kills_")]))
    return table


def _reads(rows: list[dict[str, Any]]) -> Table:
    table = _table("query, ms", "before", "after", "faster", "slot rows", "what")
    for row in rows:
        if "missing" in row:
            continue
        before, after = row["before_ms"]["median"], row["after_ms"]["median"]
        table.add_row(
            row["name"],
            f"{before:,.2f}",
            f"{after:,.2f}",
            f"{before / after:.1f}×",
            f"{row['slot_rows_before']:,} to {row['slot_rows_after']:,}",
            escape(_WHAT_READS[row["name"]]),
        )
    return table


def _http_reads(rows: list[dict[str, Any]]) -> Table:
    table = _table("request, ms", "median", "p99", "SQL", "p99", "ratio", "slot rows", "what")
    for row in rows:
        for when in ("before", "after"):
            if when not in row:
                continue
            by_http, by_sql = row[when]["http_ms"], row[when]["sql_ms"]
            table.add_row(
                row["name"],
                f"{by_http['median']:,.2f}",
                f"{by_http['p99']:,.2f}",
                f"{by_sql['median']:,.2f}",
                f"{by_sql['p99']:,.2f}",
                f"{row[when]['ratio']:.2f}× {_mark(row[when]['met'])}",
                f"{row[f'slot_rows_{when}']:,}",
                escape(f"{_WHAT_HTTP_READS[row['name']]}, {when} compaction"),
            )
    return table


def _unique_year(rows: list[dict[str, Any]]) -> Table:
    table = _table("question, ms", "median", "p99", "target", "sketches", "bytes", "what")
    for row in rows:
        if "missing" in row:
            continue
        table.add_row(
            row["name"],
            f"{row['ms']['median']:,.2f}",
            f"{row['ms']['p99']:,.2f}",
            _target(row),
            f"{row['sketches']:,}",
            f"{row['sketch_bytes']:,}",
            f"{UNIQUE_YEAR}: {row['members']:,}, answered with {row['answer']:,}",
        )
    return table


def _row_counts(rows: list[dict[str, Any]]) -> Table:
    table = _table("rows of a table, ms", "COUNT(*)", "row_count", "faster", "rows", "what")
    for row in rows:
        for asked in row.get("questions", ()):
            table.add_row(
                row["name"],
                f"{asked['count_ms']['median']:,.2f}",
                f"{asked['row_count_ms']['median']:,.2f}",
                f"{asked['ratio']:,.0f}×",
                f"{asked['rows']:,}",
                escape(QUESTIONS[asked["question"]]),
            )
        if "missing" not in row:
            table.add_row(
                row["name"],
                *("", "", ""),
                f"{row['table_rows']:,}",
                f"tracked in {row['track_seconds']:.1f} s, worst INSERT meanwhile"
                f" {row['worst_insert_ms']:.1f} ms, before {row['worst_insert_alone_ms']:.1f} ms",
            )
    return table


def _table(first: str, *columns: str) -> Table:
    """A table whose last column is text, and the first too."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for column in columns[:-1]:
        table.add_column(column, justify="left" if column == "target" else "right", no_wrap=True)
    table.add_column(columns[-1])
    return table


def _share(row: dict[str, Any]) -> str:
    if "met" not in row:
        return f"{row[SHARE_KEPT]:.2f}"
    return f"{row[SHARE_KEPT]:.2f} (≥ {_LEAST[row['name']]:g}) {_mark(row['met'])}"


def _ratio(row: dict[str, Any]) -> str:
    promises = [row, *row.get("also", ())] if "target" in row else []
    return ", ".join(f"{each['ratio']:.2f}×" for each in promises)


def _target(row: dict[str, Any]) -> str:
    promises = [row, *row.get("also", ())] if "target" in row else []
    return ", ".join(f"{each['target']} {_mark(each['met'])}" for each in promises)


def _mark(met: bool) -> str:
    return "[green]✓[/]" if met else "[red]✗[/]"


def _title(environment: dict[str, Any]) -> str:
    servers = [f"{server} {environment[server]}" for server in SERVERS if server in environment]
    return (
        f"{environment['cores']} cores ({environment['cpu']}), Python {environment['python']},"
        f" Redis {environment['redis']}, {' and '.join(servers)}: median of"
        f" {environment['rounds']} runs of {environment['seconds_per_measurement']:g} s;"
        f" rows without a server's name on {environment['server']}"
    )
