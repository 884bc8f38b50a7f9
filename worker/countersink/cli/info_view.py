"""``countersink info`` for people: one screen."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from countersink.cli import output, schedule_state


def render(found: Mapping[str, Any]) -> RenderableType:
    """The screen for what ``info --format json`` would print."""
    schedules = schedule_state.render(found["schedules"])
    return Group(_summary(found), Text(), _workers(found), Text(), schedules)


def _summary(found: Mapping[str, Any]) -> RenderableType:
    table = output.table({"": False, " ": False})
    table.show_header = False
    rows = {
        "backlog": f"{found['backlog']:,} entries, {found['pending']:,} of them with a worker",
        "oldest": _oldest(found),
        "rate": f"{found['rows_per_second']:,} rows/s",
        "dead rows": _dead(found),
    }
    if overflown := _overflown(found):
        rows["overflow"] = overflown
    if len(found["streams"]) > 1:
        parts = (f"{s['stream']} {s['entries']:,}" for s in found["streams"])
        rows["streams"] = ", ".join(parts)
    for name, text in rows.items():
        table.add_row(name, output.cell(text))
    return table


def _oldest(found: Mapping[str, Any]) -> str:
    if found["oldest"] is None:
        return "nothing waits"
    return f"waiting for {output.ago(found['lag_ms'] / 1000)}, since {found['oldest']}"


def _dead(found: Mapping[str, Any]) -> str:
    if found["dead"] is None:
        return f"not known: {found['dead_unknown']}"
    if not found["dead"]:
        return "none"
    reasons = ", ".join(f"{name} {number:,}" for name, number in found["dead_by_reason"].items())
    return f"{found['dead']:,} ({reasons}): see countersink dead list"


def _overflown(found: Mapping[str, Any]) -> str:
    over = found["overflown"]
    if not over or not over["rows"]:
        return ""
    counters = "a counter" if over["counters"] == 1 else f"{over['counters']:,} counters"
    return (
        f"{over['rows']:,} rows of {counters} since yesterday, with more keys than a day may have:"
        " see countersink counter list"
    )


def _workers(found: Mapping[str, Any]) -> RenderableType:
    if not found["workers"]:
        return Text("No worker runs: start one with countersink worker")
    table = output.table(
        {
            "worker": False,
            "state": False,
            "slot": True,
            "rows/s": True,
            "entries": True,
            "rows": True,
            "duplicates": True,
            "dead": True,
            "last batch": True,
            "last error": False,
        }
    )
    for worker in found["workers"]:
        table.add_row(
            output.cell(worker["worker"]),
            *(
                output.cell(worker.get(name))
                for name in ("state", "slot", "rows_per_second", "entries", "rows")
            ),
            output.cell(worker.get("duplicates")),
            output.cell(worker.get("dead")),
            _since(found["at"], worker.get("last_batch")),
            output.cell(worker.get("last_error") or "-"),
        )
    return table


def _since(now: str, then: str | None) -> str:
    if not then:
        return "-"
    seconds = (_moment(now) - _moment(then)).total_seconds()
    return f"{output.ago(max(0.0, seconds))} ago"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
