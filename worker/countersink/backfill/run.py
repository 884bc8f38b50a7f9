"""``backfill`` executes one run, from its options to its report, with a ``BackfillRun``.
``clear_reconciles`` deletes stored data of ended reconciles.

A killed process leaves its run in the state ``running``. A later run in mode ``add`` continues
after the counted chunks. The truth of a reconcile (the sums of its sources) may be large, and only
the reconcile itself uses it; so :func:`clear_reconciles` deletes it when a run of the counter ends.
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
    refuse_counter,
    require_unique,
)
from countersink.backfill.count.transaction import count_chunk
from countersink.backfill.dry_run import Trial
from countersink.backfill.errors import BackfillError, WrongOption
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
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.buckets import Resolution, date_at
from countersink.counting.counters.catalog import Catalog, load
from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.database.sessions import KeptSession, open_tables
from countersink.runtime.limits import check_counter
from countersink.runtime.process import process_name
from countersink.runtime.texts import NamedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRun:
    """One run of a backfill: counts or reconciles the sources, ends the run, and makes its report.

    Attributes:
        redis_url, on_progress, on_notice: see :func:`backfill`.
        work: options, session and other parts that all steps of the run share.
        trial: the sources, chunks and sums of a dry run, in memory; None if this is no dry run.
    """

    redis_url: str | None
    work: Work
    trial: Trial | None
    on_progress: Callable[[Progress], object]
    on_notice: Callable[[str], object]

    def run(self, found: Sequence[Input], failed: Sequence[SourceReport]) -> BackfillReport:
        """Count the lines of the sources, or set totals to their sums, and return the report. A dry
        run changes nothing; its report says what would change. If an error is raised while the
        state of the run is ``running``, the state becomes ``failed``, provided that MySQL answers.

        Args:
            found: the sources to read.
            failed: reports of names that stand for no file, and of directories that cannot be read;
                the report of the run includes them.

        Raises:
            BackfillError: the run cannot continue.
            StoreError, StreamError: MySQL or Redis failed.
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
        resolution = work.catalog.scheme(options.counter).resolution
        if self.trial is None:
            names = [source.name for source in found]
            holder = process_name()
            work.run, resolution = work.link.run(history.begin, options, names, holder)
        try:
            if options.mode == "reconcile":
                work.target = TruthTarget(work.run, resolution)
            outcomes = [*(SourceOutcome(report=each) for each in failed), *self._read(found)]
            reports = [each.report for each in outcomes]
            error = "".join(one.rejects_error for one in outcomes)
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
                self._end_failed(str(broken) or type(broken).__name__)
            raise

    def _read(self, found: Iterable[Input]) -> Iterator[SourceOutcome]:
        count = count_chunk if self.trial is None else self.trial.count
        for source in found:
            if self.work.stop():
                return
            outcome = count_source(self.work, source, count)
            yield outcome
            if outcome.rejects_error:
                return

    def _correct(self, resolution: Resolution, t0: int) -> Corrected:
        if self.trial is None:
            change = partial(reconcile.correct, self.work.mysql_url, self.work.run)
        else:
            change = partial(compare, self.work.mysql_url, self.trial.truth)
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
            notices.append("nothing was corrected, since not all sources were read completely")
        declared = work.catalog.dimensioned.get(options.counter)
        if declared and not options.recipe.dimensions:
            notices.append(
                "the lines have no --dimension, so totals by dimension lack them:"
                f" {options.counter} has {', '.join(declared.dimensions)}"
            )
        rejected = rejects.reasons(sum(each.rejected for each in reports), work.rejects.first)
        notices += rejected
        kept = trial is None and any(each.counted for each in reports)
        if kept and any(" --" in each for each in rejected):
            notices.append(f"other options need `countersink backfills undo {work.run}` first")
        notices += filter(None, [work.rejects.notice])
        if trial is None:
            why = error or next((one.detail for one in reports if one.outcome == "failed"), "")
            work.link.run(history.end, work.run, state, why)
            work.link.run(clear_reconciles, options.counter)
        days = {} if trial is None else trial.days
        result = report(
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
            result = replace(
                result, amount=found.amount, corrections=found.corrections, drift=found.drift
            )
        return result

    def _end_failed(self, why: str) -> None:
        """Set the state of the run, if it is ``running``, to ``failed``, and its error to ``why``;
        then call :func:`clear_reconciles`. A new connection is used, because the old one may be in
        the middle of a reply. Errors of MySQL are ignored.
        """
        with (
            contextlib.suppress(StoreError, BackfillError),
            KeptSession(partial(open_tables, self.work.mysql_url), lambda: True).open() as link,
        ):
            link.run(history.end, self.work.run, "failed", why)
            link.run(clear_reconciles, self.work.options.counter)


def backfill(
    mysql_url: str,
    options: BackfillOptions,
    *,
    redis_url: str | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_notice: Callable[[str], object] = lambda notice: None,
    stop: Callable[[], bool] = lambda: False,
) -> BackfillReport:
    """Count events from logs and exports, or set totals to their sums (``reconcile``), and return
    the report. May be called again, and by several processes at once: a line that is counted is not
    counted again. A source that cannot be read is reported as ``failed``; the others are counted.
    But if any source failed, a reconcile changes no total.

    Args:
        mysql_url: URL of the database.
        options: options of the run.
        redis_url: URL of the queue; only a reconcile needs it.
        on_progress: called often: when a source is opened or closed, for each chunk that is counted
            or compared, while a reconcile waits for the queue, before each day that is corrected.
        on_notice: called with each notice about days that a reconcile leaves out, before the
            reconcile changes any total. The report has these notices as well, and later ones.
        stop: called between two chunks and while waiting; the run ends early once it returns true.
            Counted lines stay counted; another run in mode ``add`` continues after them.

    Raises:
        WrongOption: an option is not allowed for this counter or file: see the message.
        BackfillError: the run cannot continue; the message says what to do.
        StoreError: MySQL is away or failed; another call counts or corrects the rest.
        StreamError: a reconcile needs Redis, which is away or failed; it has changed no total.
    """
    try:
        formats.check(options.recipe)
        check_counter(options.counter)
    except ValueError as error:
        raise BackfillError(str(error)) from error
    found, failed = content.expand(options.sources)
    trial = Trial() if options.dry_run else None
    with open_work(mysql_url, options, found, trial or Sources(), on_progress, stop) as work:
        if options.days is not None:
            options = work.options = work.link.run(_dated, work, options.days)
        work.link.run(_check_counter, work.catalog, options)
        if not found:
            return report(options, None, "failed", failed)
        return BackfillRun(
            redis_url=redis_url,
            work=work,
            trial=trial,
            on_progress=on_progress,
            on_notice=on_notice,
        ).run(found, failed)


def _dated(session: Session, work: Work, days: NamedRange) -> BackfillOptions:
    """Return the options of a run, in whose ``recipe`` the first and last day (``--from``,
    ``--to``) are dates. Names in ``days``, such as ``yesterday``, become dates by the present date
    in the counter's time zone.

    Raises:
        WrongOption: the first day is after the last one.
    """
    now = read_control(session, lock="").now // 1000
    start, end = days.dated(date_at(work.scheme.known_zone(), now))
    if start is not None and end is not None and start > end:
        raise WrongOption(f"--from {start} is after --to {end}")
    return replace(work.options, recipe=replace(work.options.recipe, start=start, end=end))


@contextmanager
def open_work(
    mysql_url: str,
    options: BackfillOptions,
    found: Sequence[Input],
    sources: Sources,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Work]:
    """Open the parts that all steps of a backfill share (session, processes that read, file of
    ``--rejects``), and close them at the end. A context manager. It begins no run: the attribute
    ``run`` of its value is NO_RUN.

    Args:
        mysql_url: URL of the database.
        options: options of the run.
        found: the sources to read.
        sources: access to the known sources: ``Sources()``, or the ``Trial`` of a dry run.
        on_progress, stop: see :func:`backfill`.

    Raises:
        WrongOption: the file of ``--rejects`` cannot be written, is one of the sources, or begins
            with a line that is not a rejected line in JSON.
        StoreError: MySQL failed.
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


def _check_counter(session: Session, catalog: Catalog, options: BackfillOptions) -> None:
    """Check that a backfill with these options may count the counter that they name.

    Raises:
        WrongOption: the counter is the row count of a tracked table.
        BackfillError: in strict mode, the counter does not exist; or the option ``--visitor`` is
            given, and the run is a reconcile or the counter does not count its different visitors.
    """
    refuse_counter(session, catalog, options.counter)
    if options.recipe.visitor:
        if options.mode != "add":
            raise BackfillError("a reconcile cannot set visitors: give --visitor with --mode add")
        require_unique(catalog, options.counter)


def clear_reconciles(session: Session, counter: str) -> None:
    """Set running reconciles of a counter to ``failed`` if they have committed nothing for an hour:
    their process is taken for dead. Then delete the samples of the counter's ended reconciles, and
    those of their sums that corrected nothing (see ``discard_truth``). Each run, except a dry run,
    calls this when it ends. May be called again, and by several processes at once.

    Raises:
        StoreError: MySQL failed.
    """
    reconciles = "SELECT id FROM backfill_run WHERE counter = %s AND resolution IS NOT NULL"
    # Each chunk that is read, and each range that is corrected, updates ``seen``.
    unseen = "state = 'running' AND seen < UTC_TIMESTAMP(3) - INTERVAL 1 HOUR"
    for (run,) in session.query(f"{reconciles} AND {unseen}", (counter,)):
        # A process that is still alive can commit nothing more of this run.
        history.end(session, run, "failed", "its process has died")
    for (run,) in session.query(f"{reconciles} AND state <> 'running'", (counter,)):
        targets.discard_truth(session, run)
