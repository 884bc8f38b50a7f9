"""Compaction or retention in a process of its own, to be killed."""

from datetime import date
from functools import partial
from typing import Any

from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone, open_tables
from tests.support.roll_up import roll_up


def move(what: str, mysql_url: str, rows: int = 2000) -> PassDone:
    """One pass."""
    connect = partial(open_tables, mysql_url)
    if what == "compact":
        return compact(connect, CompactOptions(before=date.max, rows=rows))
    return roll_up(connect, rows=rows)


def main(**plan: Any) -> int:
    """Run a pass."""
    move(**plan)
    return 0
