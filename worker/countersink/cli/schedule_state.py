"""What ``countersink info`` tells of the scheduled jobs."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from countersink.cli import output
from countersink.cli.commands.runs import as_next, as_row, second
from countersink.schedules.history import (
    failing,
    in_charge,
    last_done,
    next_runs,
    overdue,
    tally,
)
from countersink.store.connection import connect
from countersink.store.errors import StoreError
from countersink.store.migrate import require_schema

COMPACT: Final = "compact"
OVERDUE_MINUTES: Final = 5
"""After which a run that has not begun is told of."""


def look(mysql_url: str | None) -> dict[str, Any]:
    """The scheduler in charge, the jobs that keep failing, the last compaction and the next runs,
    as ``--format json`` prints it; without MySQL, why nothing of it is known.
    """
    unknown: dict[str, Any] = {
        "scheduler": None,
        "failing": None,
        "last_compaction": None,
        "next": None,
        "overdue": None,
        "jobs": None,
    }
    if not mysql_url:
        return unknown | {"unknown": "no MySQL URL is configured"}
    try:
        with connect(mysql_url) as session:
            require_schema(session)
            leader = in_charge(session)
            bad = failing(session)
            compacted = last_done(session, COMPACT)
            upcoming = next_runs(session)
            late = overdue(session, OVERDUE_MINUTES)
            tallies = tally(session)
    except StoreError as error:
        return unknown | {"unknown": str(error)}
    return {
        "scheduler": None if leader is None else leader.scheduler,
        "failing": [
            {
                "job": one.job,
                "times": one.times,
                "since": second(one.since),
                "error": one.error,
            }
            for one in bad
        ],
        "last_compaction": None if compacted is None else as_row(compacted),
        "next": [as_next(run) for run in upcoming],
        "overdue": [as_row(run) for run in late],
        "jobs": {
            job: {
                "last_success": None if one.last_success is None else second(one.last_success),
                "runs": one.runs,
            }
            for job, one in sorted(tallies.items())
        },
        "unknown": None,
    }


def render(found: Mapping[str, Any]) -> RenderableType:
    """The same for people."""
    table = output.table({"": False, " ": False})
    table.show_header = False
    if found["unknown"] is not None:
        table.add_row("schedules", output.cell(f"not known: {found['unknown']}"))
        return table
    leader = found["scheduler"] or "none in charge: start one with countersink scheduler"
    table.add_row("scheduler", output.cell(leader))
    compacted = found["last_compaction"]
    table.add_row(
        "compaction",
        "none so far"
        if compacted is None
        else output.cell(f"{compacted['ended']}: {compacted['detail'] or 'done'}"),
    )
    upcoming = ", ".join(f"{run['job']} {run['at']}" for run in found["next"]) or "none planned"
    table.add_row("next runs", output.cell(upcoming))
    lines: list[RenderableType] = [table]
    if found["overdue"]:
        first = found["overdue"][0]
        lines.append(
            Text(
                output.cell(
                    f"{len(found['overdue']):,} planned runs have not begun, the first"
                    f" {first['job']} of {first['planned']}: is countersink jobs running, and on"
                    " the same Redis?"
                ),
                style="red",
            )
        )
    for one in found["failing"]:
        lines.append(
            Text(
                output.cell(
                    f"{one['job']} failed {one['times']} times in a row, since {one['since']}:"
                    f" {one['error']} (see countersink runs --job {one['job']})"
                ),
                style="red",
            )
        )
    return Group(*lines)
