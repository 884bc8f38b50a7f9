"""What the sources of one backfill have in common while they are read."""

from collections.abc import Callable
from dataclasses import dataclass

from countersink.backfill.counting import Task
from countersink.backfill.link import Link
from countersink.backfill.options import Options
from countersink.backfill.pace import Pace
from countersink.backfill.team import Team
from countersink.backfill.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A backfill at work.

    Attributes:
        mysql_url: the database.
        options: as asked.
        link: the connection.
        task: what its chunks have in common.
        minutes: those of the days that are asked for; None: all.
        pace: how fast to go.
        watch: says how far it is.
        stop: true once it should end.
        team: the job processes; None: none are to be used.
    """

    mysql_url: str
    options: Options
    link: Link
    task: Task
    minutes: tuple[int, int] | None
    pace: Pace
    watch: Watch
    stop: Callable[[], bool]
    team: Team | None
