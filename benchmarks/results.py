"""What comes out: `results.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import Result
from benchmarks.rows import FLOORS, NAMES, TARGETS


def as_rows(
    results: Sequence[Result], missing: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The `rows` of results.json, in the table's order; ratios at the rows that promise one.

    ``missing``: rows that could not be measured, and why.
    """
    by_name = {result.name: result for result in results}
    rows = []
    for name in NAMES:
        if missing is not None and name in missing:
            rows.append({"name": name, "missing": missing[name]})
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
        row |= _promise(result, by_name)
        rows.append(row)
    return rows


def _promise(result: Result, by_name: Mapping[str, Result]) -> dict[str, Any]:
    """The figure that was promised of a row, and whether it is kept; {} if there is no promise."""
    for target in TARGETS:
        if target.row == result.name and all(name in by_name for name in target.to):
            fastest = max(by_name[name].per_second for name in target.to)
            ratio = target.ratio(result.per_second, fastest)
            return {"ratio": round(ratio, 3), "target": str(target), "met": target.met(ratio)}
    for floor in FLOORS:
        if floor.row == result.name:
            ratio = result.extras()[floor.extra]
            return {"ratio": round(ratio, 3), "target": str(floor), "met": floor.met(ratio)}
    return {}


def document(
    environment: dict[str, Any],
    rows: list[dict[str, Any]],
    reads: list[dict[str, Any]],
    row_counts: list[dict[str, Any]],
    http_reads: list[dict[str, Any]],
    unique_year: list[dict[str, Any]],
    clusters: list[dict[str, Any]],
    constants: list[dict[str, Any]],
) -> dict[str, Any]:
    """What results.json holds."""
    return {
        "environment": environment,
        "rows": rows,
        "reads": reads,
        "row_counts": row_counts,
        "http_reads": http_reads,
        "unique_year": unique_year,
        "clusters": clusters,
        "constants": constants,
    }


def merged(whole: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """An older document, with what was measured now in place of the same rows: each of these says
    when (``date``), since the environment's date is that of the rest.
    """
    date = measured["environment"]["date"]
    made = dict(whole)
    for section, rows in measured.items():
        if section == "environment":
            continue
        new = {row["name"]: {**row, "date": date} for row in rows}
        kept = [new.pop(row["name"], row) for row in whole.get(section, [])]
        made[section] = [*kept, *new.values()]
    return made


def write(path: Path, whole: dict[str, Any]) -> None:
    """Write the file, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
