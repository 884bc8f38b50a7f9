"""What comes out: `results.json`, and the same as one printed table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.measuring import Result
from benchmarks.rows import NAMES, TARGETS, WHAT, WORKER_MEGABYTES, WORKER_MEGABYTES_LIMIT


def as_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The `rows` of results.json, in the table's order; ratios at the rows that promise one."""
    by_name = {result.name: result for result in results}
    rows = []
    for name in NAMES:
        if name not in by_name:
            continue
        result = by_name[name]
        row: dict[str, Any] = {
            "name": name,
            "per_second": round(result.per_second),
            "low": round(min(result.rates)),
            "high": round(max(result.rates)),
            "runs": [round(rate) for rate in result.rates],
            "seconds": [round(run.seconds, 2) for run in result.runs],
        }
        row |= {extra: round(value, 3) for extra, value in result.extras().items()}
        for target in TARGETS:
            if target.row == name and target.to in by_name:
                ratio = target.ratio(result.per_second, by_name[target.to].per_second)
                row["ratio"] = round(ratio, 3)
                row["target"] = str(target)
                row["met"] = target.met(ratio)
        rows.append(row)
    return rows


def document(environment: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What results.json holds."""
    return {"environment": environment, "rows": rows}


def write(path: Path, whole: dict[str, Any]) -> None:
    """Write the file, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def show(console: Console, whole: dict[str, Any]) -> None:
    """Print the table."""
    environment = whole["environment"]
    table = Table(box=box.SIMPLE_HEAD, title=_title(environment), title_justify="left")
    table.add_column("row", no_wrap=True)
    table.add_column("per second", justify="right", no_wrap=True)
    table.add_column("low to high", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("what")
    for row in whole["rows"]:
        ratio = f"{row['ratio']:.2f}×" if "ratio" in row else ""
        target = row.get("target", "")
        if target:
            target += " [green]✓[/]" if row["met"] else " [red]✗[/]"
        table.add_row(
            row["name"],
            f"{row['per_second']:,}",
            f"{row['low']:,} to {row['high']:,}",
            ratio,
            target,
            escape(WHAT[row["name"]]),
        )
    console.print(table)
    peaks = [row[WORKER_MEGABYTES] for row in whole["rows"] if WORKER_MEGABYTES in row]
    if peaks:
        mark = "[green]✓[/]" if max(peaks) < WORKER_MEGABYTES_LIMIT else "[red]✗[/]"
        console.print(
            f"worker, largest resident memory: {max(peaks):.0f} MB"
            f" (below {WORKER_MEGABYTES_LIMIT} MB) {mark}"
        )


def _title(environment: dict[str, Any]) -> str:
    server = environment["server"]
    return (
        f"{environment['cores']} cores ({environment['cpu']}), Python {environment['python']},"
        f" Redis {environment['redis']}, {server} {environment[server]}: median of"
        f" {environment['rounds']} runs of {environment['seconds_per_measurement']:g} s"
    )
