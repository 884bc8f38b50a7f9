"""A pass of the job ``retention`` that compacts nothing."""

from collections.abc import Callable

from countersink.database.session import Connect
from countersink.schedules.jobs.compaction import CompactOptions, Pass
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.retention import RollUp


def roll_up(
    connect: Connect, *, rows: int = 2000, stop: Callable[[], bool] = lambda: False
) -> PassDone:
    """Roll up all that is due, at full speed, so many rows at a time."""
    with Pass(connect, CompactOptions(rows=rows), stop) as one:
        RollUp(one).run()
        return one.end()
