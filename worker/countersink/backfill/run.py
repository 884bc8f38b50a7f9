"""``BackfillRun``, one run from its options to its report: adds or reconciles, writes the file of
rejected lines, ends the run on errors, and clears up after runs that died.

A process that is killed leaves its run ``running``. Who adds goes on with its chunks. But what the
sources of a reconcile said serves that run alone, and may be much: :func:`clear` clears it away.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from countersink.backfill import content, formats, history, reconcile, rejects
from countersink.backfill.content import Input
from countersink.backfill.count import targets
from countersink.backfill.count.reader_pool import ReaderPool
from countersink.backfill.count.source_count import SourceOutcome, count_source
from countersink.backfill.count.sources import Sources
from countersink.backfill.count.targets import TruthTarget
from countersink.backfill.count.task import (
    LineRate,
    ProgressWatch,
    Work,
    refuse,
    require_unique,
)
from countersink.backfill.count.transaction import count_chunk
from countersink.backfill.dry_run import Trial
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import (
    STOPPED,
    BackfillOptions,
    BackfillReport,
    Progress,
    SourceReport,
    report,
)
from countersink.backfill.reconcile.correction import Corrected, compare
from countersink.backfill.reconcile.scope import check_days
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.catalog import Catalog, load
from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.database.sessions import KeptSession, open_tables
from countersink.runtime.limits import check_counter
from countersink.runtime.process import process_name


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRun:
    """One run of a backfill, from its options to its report.

    Attributes:
        redis_url, on_progress, on_notice: as given to
            :func:`countersink.backfill.run.backfill`.
        work: what is asked for.
        trial: what a dry run has read; None: it is none.
    """

    redis_url: str | None
    work: Work
    trial: Trial | None
    on_progress: Callable[[Progress], object]
    on_notice: Callable[[str], object]

    def run(self, found: Sequence[Input], failed: Sequence[SourceReport]) -> BackfillReport:
        """Count, or reconcile, and report.

        Raises:
            BackfillError: it cannot go on.
            StoreError, StreamError: MySQL or Redis did not do its part.
        """
        work, options, stop = self.work, self.work.options, self.work.stop
        t0 = 0
        if options.mode == "reconcile":
            work.link.run(targets.refuse_breakdowns, options.counter)
            check_days(work, found)
            began = reconcile.begin(
                self.redis_url, options, on_progress=self.on_progress, stop=stop
            )
            if began is None:
                return report(options, None, "stopped", failed)
            t0 = began
        resolution = work.catalog.of(options.counter).resolution
        if self.trial is None:
            names = [source.name for source in found]
            holder = process_name()
            work.run, resolution = work.link.run(history.begin, options, names, holder)
        try:
            if options.mode == "reconcile":
                work.target = TruthTarget(work.run, resolution)
            outcomes = [*(SourceOutcome(report=each) for each in failed), *self._read(found)]
            reports = [each.report for each in outcomes]
            error = "".join(one.too_many for one in outcomes)
            failures = any(one.outcome == "failed" for one in reports)
            state = "stopped" if error or stop() else "failed" if failures else "done"
            changed: Corrected | None = None
            if options.mode == "reconcile" and state == "done":
                error = reconcile.unreliable(options, reports)
                if error:
                    state = "failed"
                else:
                    changed = self._correct(resolution, t0)
                    state = "done" if changed.finished else "stopped"
            return self._end(outcomes, state, error, changed)
        except BaseException as broken:
            if self.trial is None:
                self._failed(str(broken) or type(broken).__name__)
            raise

    def _read(self, found: Iterable[Input]) -> Iterator[SourceOutcome]:
        count = count_chunk if self.trial is None else self.trial.count
        for source in found:
            if self.work.stop():
                return
            outcome = count_source(self.work, source, count)
            yield outcome
            if outcome.too_many:
                return

    def _correct(self, resolution: Resolution, t0: int) -> Corrected:
        if self.trial is None:
            change = partial(reconcile.correct, self.work.mysql_url, self.work.run)
        else:
            change = partial(compare, self.work.mysql_url, self.trial.said)
        return change(
            self.work.options,
            resolution,
            t0,
            on_progress=self.on_progress,
            on_notice=self.on_notice,
            stop=self.work.stop,
        )

    def _end(
        self,
        outcomes: Sequence[SourceOutcome],
        state: str,
        error: str,
        changed: Corrected | None,
    ) -> BackfillReport:
        work, options, trial = self.work, self.work.options, self.trial
        reports = [each.report for each in outcomes]
        notices = [] if trial is None else ["nothing was changed: this was a dry run"]
        notices += () if changed is None else changed.notices
        notices += chain.from_iterable(each.notices for each in outcomes)
        if error or state == "stopped":
            notices.append(error or STOPPED)
        if options.mode == "reconcile" and changed is None and not error:
            notices.append("nothing was corrected, as not all of the sources was read")
        notices += rejects.reasons(sum(each.rejected for each in reports), work.rejects.first)
        notices += filter(None, [work.rejects.notice])
        if trial is None:
            why = error or next((one.detail for one in reports if one.outcome == "failed"), "")
            work.link.run(history.end, work.run, state, why)
            work.link.run(clear, options.counter)
        days = {} if trial is None else trial.days
        said = report(
            options,
            work.run if trial is None else None,
            state,
            reports,
            known_lines=sum(each.known_lines for each in outcomes),
            by_day=[(day.isoformat(), amount) for day, amount in sorted(days.items())],
            notices=notices,
        )
        if options.mode == "reconcile":
            found = changed or Corrected()
            said = replace(
                said, amount=found.amount, corrections=found.corrections, drift=found.drift
            )
        return said

    def _failed(self, why: str) -> None:
        """End a run that broke down, on a connection of its own: on the other there may be half of
        a reply.
        """
        with (
            contextlib.suppress(StoreError, BackfillError),
            KeptSession(partial(open_tables, self.work.mysql_url), lambda: True).open() as link,
        ):
            link.run(history.end, self.work.run, "failed", why)
            link.run(clear, self.work.options.counter)


def backfill(
    mysql_url: str,
    options: BackfillOptions,
    *,
    redis_url: str | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> BackfillReport:
    """Count what was missed. Safe to run again, and beside itself.

    Args:
        mysql_url: the database.
        options: what to count, and how.
        redis_url: the queue's; reconciling needs it.
        on_progress: called for each chunk that is read, and each day that is corrected.
        on_notice: told which days a reconcile leaves out, before it changes any total; the report
            has these sentences among its notices as well.
        stop: asked between two chunks; true once it should end: what was counted stays counted, and
            running it again goes on.

    Raises:
        WrongOption: the file for rejected lines must not be written; nothing was read.
        BackfillError: nothing was counted, and the message says what to do.
        StoreError: MySQL is away, or did not do its part; running it again goes on.
        StreamError: the same of Redis.
    """
    try:
        formats.check(options.recipe)
        check_counter(options.counter)
    except ValueError as error:
        raise BackfillError(str(error)) from error
    found, failed = content.expand(options.sources)
    trial = Trial() if options.dry_run else None
    with working(mysql_url, options, found, trial or Sources(), on_progress, stop) as work:
        work.link.run(_refuse, work.catalog, options)
        if not found:
            return report(options, None, "failed", failed)
        return BackfillRun(
            redis_url=redis_url,
            work=work,
            trial=trial,
            on_progress=on_progress,
            on_notice=on_notice,
        ).run(found, failed)


@contextmanager
def working(
    mysql_url: str,
    options: BackfillOptions,
    found: Sequence[Input],
    sources: Sources,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Work]:
    """What reads the sources that were found, of no run yet.

    Raises:
        WrongOption: the file for rejected lines must not be written.
        StoreError: MySQL did not do its part.
    """
    with (
        rejects.RejectsFile(options.rejects, found) as file,
        KeptSession(partial(open_tables, mysql_url), stop).open() as link,
        ReaderPool(options.jobs) as pool,
    ):
        yield Work(
            mysql_url=mysql_url,
            options=options,
            link=link,
            catalog=link.run(load),
            sources=sources,
            pool=pool,
            rejects=file,
            pace=LineRate(options.rate, stop),
            watch=ProgressWatch(on_progress, found),
            stop=stop,
        )


def _refuse(session: Session, catalog: Catalog, options: BackfillOptions) -> None:
    """Check that a counter may be counted by a backfill, and so.

    Raises:
        BackfillError: it may not.
    """
    refuse(session, catalog, options.counter)
    if options.recipe.visitor:
        if options.mode != "add":
            raise BackfillError("a reconcile sets no visitors: --visitor goes with --mode add")
        require_unique(catalog, options.counter)


def clear(session: Session, counter: str) -> None:
    """End the reconciles of a counter whose process is gone, and forget what the sources of all
    that have ended said. May be run again, and beside others.

    Raises:
        StoreError: as any query.
    """
    own = "SELECT id FROM backfill_run WHERE counter = %s AND resolution IS NOT NULL"
    # Each chunk that is read, and each range that is corrected, is a sign of life.
    unseen = "state = 'running' AND seen < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
    for (run,) in session.query(f"{own} AND {unseen}", (counter,)):
        # From then on nothing of it is committed, should it be there after all.
        history.end(session, run, "failed", "its process is gone")
    for (run,) in session.query(f"{own} AND state <> 'running'", (counter,)):
        targets.discard_truth(session, run)
