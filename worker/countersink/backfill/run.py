"""Running a backfill: its sources one after the other, chunk by chunk."""

from collections.abc import Callable
from functools import partial

from countersink.backfill import formats, inputs, rejects_file, trying
from countersink.backfill.counting import refuse
from countersink.backfill.link import Link
from countersink.backfill.options import BackfillError, Options, Progress, Report
from countersink.backfill.reconcile import Stopped
from countersink.backfill.reporting import report
from countersink.backfill.team import Team
from countersink.backfill.watch import Watch
from countersink.backfill.whole import Whole
from countersink.store import policies
from countersink.store.connection import Session
from countersink.store.policies import Policies
from countersink.store.policy_changes import check_name


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
        WrongOption: the file for rejected lines must not be written; nothing was read.
        BackfillError: nothing was counted, and the message says what to do.
        StoreError: MySQL is away, or did not do its part; running it again goes on.
        StreamError: the same of Redis.
    """
    try:
        formats.check(options.recipe)
        check_name(options.counter)
    except ValueError as error:
        raise BackfillError(str(error)) from error
    found, failed = inputs.expand(options.sources)
    if options.rejects is not None:
        rejects_file.check(options.rejects, found)
    with Link(mysql_url, stop) as link:
        in_force = link.run(partial(_in_force, counter=options.counter))
        watch = Watch(on_progress, found)
        if not found:
            return report(options, None, "failed", failed)
        if options.dry_run and options.mode == "add":
            return trying.add(options, found, failed, link, in_force, watch, stop)
        whole = Whole(
            mysql_url=mysql_url,
            redis_url=redis_url,
            options=options,
            link=link,
            in_force=in_force,
            watch=watch,
            on_progress=on_progress,
            stop=stop,
            team=team if options.jobs else None,
        )
        try:
            return whole.run(found, failed)
        except Stopped:
            return report(options, None, "stopped", failed)


def _in_force(session: Session, counter: str) -> Policies:
    """The policies.

    Raises:
        BackfillError: the counter may not be counted by a backfill.
    """
    with session.transaction():
        found = policies.load(session)
        refuse(session, found, counter)
    return found
