"""Running a backfill: its sources one after the other, chunk by chunk."""

from collections.abc import Callable

from countersink.backfill.options import Options, Progress, Report
from countersink.backfill.team import Team


def backfill(
    mysql_url: str,
    options: Options,
    *,
    redis_url: str | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    team: Team | None = None,
) -> Report:
    """Count what was missed. Safe to run again, and beside itself.

    Args:
        mysql_url: the database.
        options: what to count, and how.
        redis_url: the queue's; reconciling needs it.
        on_progress: called several times a second at most.
        stop: asked between two chunks; true once it should end: what was counted stays counted, and
            running it again goes on.
        team: the job processes; None: everything is counted here.

    Raises:
        BackfillError: nothing was counted, and the message says what to do.
        StoreError: MySQL is away, or did not do its part; running it again goes on.
        StreamError: the same of Redis.
    """
    raise NotImplementedError
