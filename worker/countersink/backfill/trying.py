"""Adding as a dry run: what it would do, and its report."""

from collections.abc import Callable, Sequence

from countersink.backfill.days import minutes
from countersink.backfill.dry_run import DryRun
from countersink.backfill.inputs import Input
from countersink.backfill.link import Link
from countersink.backfill.options import Options, Report, SourceReport
from countersink.backfill.rejects_file import RejectsFile
from countersink.backfill.reporting import STOPPED, report, state_of
from countersink.backfill.watch import Watch
from countersink.store.policies import Policies


def add(
    options: Options,
    found: Sequence[Input],
    failed: Sequence[SourceReport],
    link: Link,
    in_force: Policies,
    watch: Watch,
    stop: Callable[[], bool],
) -> Report:
    """What adding these sources would do; rejected lines are written only if a file is named.

    Raises:
        StoreError: MySQL did not do its part.
    """
    with RejectsFile(options.rejects, "name another file") as rejects:
        trial = DryRun(
            options=options,
            link=link,
            in_force=in_force,
            minutes=minutes(options.recipe, options.counter, in_force),
            watch=watch,
            stop=stop,
            rejected=rejects.write,
        )
        sources = list(failed)
        known_lines = 0
        too_many = False
        for source in found:
            tried = trial.source(source)
            sources.append(tried.report)
            known_lines += tried.known_lines
            so_far = sum(each.rejected for each in sources)
            too_many = so_far > options.rejects_allowed
            if stop() or too_many:
                break
    notices = ["nothing was changed: this was a dry run"]
    if too_many:
        most = options.rejects_allowed
        notices.append(f"more than {most:,} lines are rejected: it would stop there")
    elif stop():
        notices.append(STOPPED)
    notices += rejects.notices()
    return report(
        options,
        None,
        state_of(sources, stopped=stop() or too_many),
        sources,
        known_lines=known_lines,
        by_day=trial.by_day(),
        notices=notices,
    )
