"""What comes out: `results.json`."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import Result
from benchmarks.rows import FLOORS, NAMES, TARGETS, Floor, Target

SECTIONS: Final = (
    "rows",
    "reads",
    "row_counts",
    "http_reads",
    "unique_year",
    "clusters",
    "constants",
    "kills",
)
"""Lists of rows, each with its name; beside them is the `environment`."""


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
        row |= _promise(result, by_name)
        rows.append(row)
    return rows


def _promise(result: Result, by_name: Mapping[str, Result]) -> dict[str, Any]:
    """The figure that was promised of a row, and whether it is kept; further ones in `also`. {} if
    there is no promise."""
    promises = []
    for target in TARGETS:
        if target.row == result.name and all(name in by_name for name in target.to):
            fastest = max(by_name[name].per_second for name in target.to)
            ratio = target.ratio(result.per_second, fastest)
            promises.append(_kept(ratio, target))
    for floor in FLOORS:
        if floor.row == result.name:
            promises.append(_kept(result.extras()[floor.extra], floor))
    if not promises:
        return {}
    first, *also = promises
    return first | ({"also": also} if also else {})


def _kept(ratio: float, promise: Target | Floor) -> dict[str, Any]:
    return {"ratio": round(ratio, 3), "target": str(promise), "met": promise.met(ratio)}


class Unfinished:
    """What a run has measured so far, kept in a file beside its output: a run with the same
    arguments goes on from there when this one was broken off.

    Attributes:
        document: of results.json, as far as it goes.
        done: the names of ``--only`` that are in it.
    """

    def __init__(self, options: Namespace) -> None:
        self._path = _unfinished(options.output)
        self._arguments = {
            name: getattr(options, name)
            for name in ("only", "rounds", "seconds", "server", "without")
        }
        self.document: dict[str, Any] = {"environment": {}, **{each: [] for each in SECTIONS}}
        self.done: list[str] = []
        self._seconds = 0.0
        if self._path is not None and self._path.exists() and not options.afresh:
            found = json.loads(self._path.read_text("utf-8"))
            if found["arguments"] == self._arguments:
                self.document, self.done = found["document"], found["done"]
                self._seconds = found["seconds"]
                again = self.document["environment"].setdefault("continued", [])
                again.append(datetime.now(UTC).isoformat(timespec="seconds"))

    def add(
        self, section: str, rows: list[dict[str, Any]], names: Sequence[str], seconds: float = 0.0
    ) -> None:
        """Keep the rows that measuring ``names`` has given, in so many seconds."""
        self.document[section] += rows
        self.done += names
        self._seconds += seconds
        self.document["environment"]["minutes"] = round(self._seconds / 60, 1)
        if self._path is not None:
            kept = {
                "arguments": self._arguments,
                "seconds": self._seconds,
                "done": self.done,
                "document": self.document,
            }
            write(self._path, kept)

    @staticmethod
    def forget(options: Namespace) -> None:
        """Remove the file: the run is finished."""
        path = _unfinished(options.output)
        if path is not None:
            path.unlink(missing_ok=True)


def _unfinished(output: Path | None) -> Path | None:
    return None if output is None else output.with_suffix(".unfinished.json")


def ordered(document: dict[str, Any]) -> dict[str, Any]:
    """The same with its `rows` in the table's order."""
    rows = sorted(document["rows"], key=lambda row: NAMES.index(row["name"]))
    return {**document, "rows": rows}


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
