"""``BackfillRun``, one run from its options to its report: adds or reconciles, writes the file of
rejected lines, ends the run on errors, and clears up after runs that died.

A process that is killed leaves its run ``running``. Who adds goes on with its chunks. But what the
sources of a reconcile said serves that run alone, and may be much; and a dry run leaves nothing at
all, had it come to its end. :func:`clear` clears both away.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from countersink.backfill import dry_run, formats, history, reconcile, rejects, run_state
from countersink.backfill.count import sources, targets
from countersink.backfill.count.reader_pool import ReaderPool
from countersink.backfill.count.source_count import SourceOutcome, count_source
from countersink.backfill.count.sources import Sources
from countersink.backfill.count.targets import CounterTarget, target_of
from countersink.backfill.count.task import (
    LineRate,
    ProgressWatch,
    Task,
    Work,
    refuse,
    require_unique,
)
from countersink.backfill.count.transaction import count_chunk
from countersink.backfill.errors import BackfillError, ReconcileStopped
from countersink.backfill.input import files
from countersink.backfill.input.files import Input
from countersink.backfill.options import (
    STOPPED,
    BackfillOptions,
    BackfillReport,
    Progress,
    SourceReport,
    report,
    state_of,
)
from countersink.backfill.reconcile.correction import Corrected, compare
from countersink.backfill.reconcile.scope import check_days
from countersink.runtime.limits import check_counter
from countersink.store.connection import Session, rerun
from countersink.store.counters.catalog import Catalog, load
from countersink.store.errors import StoreError
from countersink.store.sessions import PatientSession, open_tables

_UNSEEN: Final = "seen < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
"""Each chunk that is read, and each range that is corrected, is a sign of life."""


@dataclass(slots=True, kw_only=True)
class BackfillRun:
    """One run of a backfill, from its options to its report.

    Attributes:
        redis_url, on_progress, on_notice: as given to
            :func:`countersink.backfill.run.backfill`.
        work: what is asked for, as of no run yet.
    """

    redis_url: str | None
    work: Work
    on_progress: Callable[[Progress], object]
    on_notice: Callable[[str], object]
    _outcomes: list[SourceOutcome] = field(default_factory=list)

    def run(self, found: Sequence[Input], failed: Sequence[SourceReport]) -> BackfillReport:
        """Count, or reconcile, and report.

        Raises:
            Stopped: a reconcile was told to before anything was read.
            BackfillError: it cannot go on.
            StoreError, StreamError: MySQL or Redis did not do its part.
        """
        options, link, stop = self.work.options, self.work.link, self.work.stop
        t0 = 0
        if options.mode == "reconcile":
            link.run(targets.refuse_breakdowns, options.counter)
            check_days(self.work, found)
            t0 = reconcile.begin(self.redis_url, options, on_progress=self.on_progress, stop=stop)
        names = [source.name for source in found]
        run = link.run(run_state.begin, options, names, run_state.process_name())
        self._outcomes = [SourceOutcome(report=each) for each in failed]
        try:
            link.run(clear, options.counter)
            self._read(run, found)
            stopped = (one.report for one in self._outcomes if one.too_many is not None)
            error = next((one.detail for one in stopped), "")
            reports = [each.report for each in self._outcomes]
            state = state_of(reports, stopped=bool(error) or stop())
            changed: Corrected | None = None
            if options.mode == "reconcile" and state == "done":
                error = reconcile.unreliable(options, reports)
                if error:
                    state = "failed"
                else:
                    changed = self._correct(run, t0)
                    state = "done" if changed.finished else "stopped"
            return self._end(run, state, error, changed)
        except BaseException as broken:
            self._failed(run, str(broken) or type(broken).__name__)
            raise

    def _read(self, run: int, found: Sequence[Input]) -> None:
        before, options, stop = self.work, self.work.options, self.work.stop
        target = before.link.run(target_of, run, options.mode)
        task = replace(before.task, run=run, target=target)
        work = replace(before, task=task, pace=LineRate(options.rate, stop))
        for source in found:
            if stop():
                return
            outcome = count_source(work, source, count_chunk)
            self._outcomes.append(outcome)
            if outcome.too_many is not None:
                return

    def _correct(self, run: int, t0: int) -> Corrected:
        change = compare if self.work.options.dry_run else reconcile.correct
        return change(
            self.work.mysql_url,
            run,
            self.work.options,
            t0,
            on_progress=self.on_progress,
            on_notice=self.on_notice,
            stop=self.work.stop,
        )

    def _end(self, run: int, state: str, error: str, changed: Corrected | None) -> BackfillReport:
        options, link = self.work.options, self.work.link
        reports = [each.report for each in self._outcomes]
        notices = list(changed.notices) if changed is not None else []
        notices += chain.from_iterable(each.notices for each in self._outcomes)
        if error:
            notices.append(error)
        elif state == "stopped":
            notices.append(STOPPED)
        if options.mode == "reconcile" and changed is None:
            notices.append("nothing was corrected, as not all of the sources was read")
        extra = [line for each in self._outcomes for line in each.too_many or ()]
        self.work.rejects.write(extra)
        total = link.run(run_state.rejects_of, run) + len(extra)
        first = [*link.run(history.rejects, run), *extra][: rejects.KEPT]
        notices += rejects.reasons(total, first)
        notices += filter(None, [self.work.rejects.notice])
        if options.dry_run:
            notices.append("nothing was changed: this was a dry run")
            link.run(forget_dry_run, run)
        else:
            if options.mode == "reconcile":
                link.run(targets.discard_truth, run)
                link.run(sources.forget_lines, run)
            why = error or next((one.detail for one in reports if one.outcome == "failed"), "")
            link.run(run_state.end, run, state, why)
        said = report(
            options,
            None if options.dry_run else run,
            state,
            reports,
            known_lines=sum(each.known_lines for each in self._outcomes),
            uncounted_rejects=len(extra),
            notices=notices,
        )
        if options.mode == "reconcile":
            found = changed or Corrected(corrections=0, amount=0)
            said = replace(
                said, amount=found.amount, corrections=found.corrections, drift=found.drift
            )
        return said

    def _failed(self, run: int, why: str) -> None:
        """End a run that broke down, on a connection of its own: on the other there may be half of
        a reply.
        """
        with (
            contextlib.suppress(StoreError, BackfillError),
            PatientSession(partial(open_tables, self.work.mysql_url), lambda: True).open() as link,
        ):
            if self.work.options.dry_run:
                link.run(forget_dry_run, run)
            else:
                link.run(run_state.end, run, "failed", why)
                if self.work.options.mode == "reconcile":
                    link.run(targets.discard_truth, run)


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
        on_progress: called several times a second at most.
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
    found, failed = files.expand(options.sources)
    with (
        rejects.RejectsFile(options.rejects, found) as file,
        PatientSession(partial(open_tables, mysql_url), stop).open() as link,
        ReaderPool(options.jobs) as pool,
    ):
        work = Work(
            mysql_url=mysql_url,
            options=options,
            link=link,
            task=Task(dry_run.RUN, options.counter, CounterTarget(), options.rejects_allowed),
            catalog=link.run(_catalog, options),
            sources=Sources(),
            pool=pool,
            rejects=file,
            pace=LineRate(options.rate, stop),
            watch=ProgressWatch(on_progress, found),
            stop=stop,
        )
        if not found:
            return report(options, None, "failed", failed)
        whole = BackfillRun(
            redis_url=redis_url, work=work, on_progress=on_progress, on_notice=on_notice
        )
        try:
            if options.dry_run and options.mode == "add":
                return dry_run.add(work, found, failed)
            return whole.run(found, failed)
        except ReconcileStopped:
            return report(options, None, "stopped", failed)


def _catalog(session: Session, options: BackfillOptions) -> Catalog:
    """The catalog.

    Raises:
        BackfillError: the counter may not be counted by a backfill, or not so.
    """
    with session.transaction():
        found = load(session)
        refuse(session, found, options.counter)
    if options.recipe.visitor:
        if options.mode != "add":
            raise BackfillError("a reconcile sets no visitors: --visitor goes with --mode add")
        require_unique(found, options.counter)
    return found


def clear(session: Session, counter: str) -> None:
    """Clear up what reconciles of a counter, and dry runs of some, left behind. May be run again,
    and beside others.

    Raises:
        StoreError: as any query.
    """
    for run in _gone(session, counter):
        # First: from then on nothing of it is committed, should it be there after all.
        if rerun(partial(_end, session, run)):
            rerun(partial(sources.forget_truth, session, run))
    targets.discard_ended_truths(session, counter)
    for (run,) in session.query(
        "SELECT id FROM backfill_run WHERE counter = %s AND mode = %s AND state <> 'running'",
        (counter, run_state.DRY_RUN),
    ):
        forget_dry_run(session, int(run))


def forget_dry_run(session: Session, run: int) -> None:
    """Leave nothing of a dry run. May be run again.

    Raises:
        StoreError: as any query.
    """
    targets.discard_truth(session, run)
    rerun(partial(sources.forget_truth, session, run))
    session.execute(
        "DELETE FROM backfill_run WHERE id = %s AND mode = %s", (run, run_state.DRY_RUN)
    )


def _gone(session: Session, counter: str) -> list[int]:
    """Running reconciles, and dry runs of some, whose process is gone."""
    found = session.query(
        f"SELECT id, mode, holder, {_UNSEEN} FROM backfill_run"
        " WHERE counter = %s AND state = 'running' AND mode <> 'add'",
        (counter,),
    )
    return [
        int(run)
        for run, mode, holder, unseen in found
        if unseen or (mode == run_state.DRY_RUN and _is_dead(holder))
    ]


def _is_dead(holder: str) -> bool:
    """Whether a process was one of this host's, and is there no more."""
    its_host, _, rest = holder.rpartition(":")
    pid = rest.partition("-")[0]
    if its_host != run_state.host() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # somebody else's
    return False


def _end(session: Session, run: int) -> bool:
    """Let nothing more of a run be committed; not if it is seen again."""
    with session.transaction():
        alive = session.query(
            f"SELECT 1 FROM backfill_run WHERE id = %s AND mode <> %s AND NOT {_UNSEEN} FOR UPDATE",
            (run, run_state.DRY_RUN),
        )
        if not alive:
            run_state.end(session, run, "failed", "its process is gone")
    return not alive
