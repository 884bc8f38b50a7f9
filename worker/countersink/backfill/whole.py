"""A run from its row in the table to its report."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from countersink.backfill import clearing, listing, reconcile, runs, truth
from countersink.backfill.counting import Task
from countersink.backfill.days import minutes
from countersink.backfill.inputs import Input
from countersink.backfill.link import Link
from countersink.backfill.listing import RejectedLine
from countersink.backfill.one_source import Outcome, count_source
from countersink.backfill.options import Options, Progress, Report, SourceReport
from countersink.backfill.pace import Pace
from countersink.backfill.reconcile import Compared, Corrected
from countersink.backfill.rejects_file import RejectsFile
from countersink.backfill.reporting import STOPPED, report, state_of
from countersink.backfill.targets import CounterTarget, Target
from countersink.backfill.team import Team
from countersink.backfill.truth import TruthTarget
from countersink.backfill.watch import Watch
from countersink.backfill.work import Work
from countersink.store.errors import StoreError
from countersink.store.policies import Policies
from countersink.store.tables import open_tables


@dataclass(slots=True, kw_only=True)
class Whole:
    """A run.

    Attributes:
        mysql_url, redis_url, options, on_progress, stop: as given to
            :func:`countersink.backfill.run.backfill`.
        team: the job processes; None: none are to be used.
        link: the connection.
        in_force: the policies when it began.
        watch: says how far the sources are read.
    """

    mysql_url: str
    redis_url: str | None
    options: Options
    link: Link
    in_force: Policies
    watch: Watch
    on_progress: Callable[[Progress], object]
    stop: Callable[[], bool]
    team: Team | None
    _outcomes: list[Outcome] = field(default_factory=list)

    def run(self, found: Sequence[Input], failed: Sequence[SourceReport]) -> Report:
        """Count, or reconcile, and report.

        Raises:
            Stopped: a reconcile was told to before anything was read.
            BackfillError: it cannot go on.
            StoreError, StreamError: MySQL or Redis did not do its part.
        """
        options, link = self.options, self.link
        t0 = 0
        if options.mode == "reconcile":
            reconcile.check_days(options, self.in_force)
            t0 = reconcile.begin(
                self.redis_url, options, on_progress=self.on_progress, stop=self.stop
            )
        names = [source.name for source in found]
        begin = partial(runs.begin, options=options, sources=names, holder=runs.process_name())
        run = link.run(begin)
        self._outcomes = [Outcome(report=each) for each in failed]
        try:
            link.run(partial(clearing.clear, counter=options.counter))
            self._read(run, found)
            error = next((each.error for each in self._outcomes if each.error), "")
            reports = [each.report for each in self._outcomes]
            state = state_of(reports, stopped=bool(error) or self.stop())
            changed: Corrected | Compared | None = None
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
        options = self.options
        target: Target = CounterTarget()
        if options.mode == "reconcile":
            target = TruthTarget(run, options.counter)
        work = Work(
            mysql_url=self.mysql_url,
            options=options,
            link=self.link,
            task=Task(run, options.counter, target, options.rejects_allowed),
            minutes=minutes(options.recipe, options.counter, self.in_force),
            pace=Pace(options.rate, self.stop),
            watch=self.watch,
            stop=self.stop,
            team=self.team,
        )
        for source in found:
            if self.stop():
                return
            outcome = count_source(work, source)
            self._outcomes.append(outcome)
            if outcome.too_many is not None:
                return

    def _correct(self, run: int, t0: int) -> Corrected | Compared:
        change = reconcile.compare if self.options.dry_run else reconcile.correct
        return change(
            self.mysql_url, run, self.options, t0, on_progress=self.on_progress, stop=self.stop
        )

    def _end(
        self, run: int, state: str, error: str, changed: Corrected | Compared | None
    ) -> Report:
        options, link = self.options, self.link
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
        notices += self._save_rejects(run, reports, extra)
        if options.dry_run:
            notices.append("nothing was changed: this was a dry run")
            link.run(partial(clearing.forget, run=run))
        else:
            if options.mode == "reconcile":
                link.run(partial(truth.discard, run=run))
            why = error or next((one.detail for one in reports if one.outcome == "failed"), "")
            link.run(partial(runs.end, run=run, state=state, error=why))
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
            said = replace(
                said,
                amount=changed.amount if changed is not None else 0,
                corrections=changed.corrections if changed is not None else 0,
                drift=changed.drift if isinstance(changed, Compared) else (),
            )
        return said

    def _save_rejects(
        self, run: int, reports: Sequence[SourceReport], extra: Iterable[RejectedLine]
    ) -> Iterator[str]:
        """Write the rejected lines to a file, if there are any; a sentence on it."""
        options = self.options
        extra = list(extra)
        if not extra and not any(each.rejected > 0 for each in reports):
            return
        path = options.rejects
        instead = f"`countersink backfills show {run} --rejects` prints them"
        if options.dry_run:
            instead = "name another file"
            if path is None:
                return
        path = path or Path(f"backfill-{run}-rejects.ndjson")
        with open_tables(self.mysql_url) as session, RejectsFile(path, instead) as file:
            file.write(chain(listing.rejects(session, run), extra))
            yield from file.notices()

    def _failed(self, run: int, why: str) -> None:
        """End a run that broke down, on a connection of its own: on the other there may be half of
        a reply.
        """
        with contextlib.suppress(StoreError), Link(self.mysql_url, lambda: True) as link:
            if self.options.dry_run:
                link.run(partial(clearing.forget, run=run))
            else:
                link.run(partial(runs.end, run=run, state="failed", error=why))
                if self.options.mode == "reconcile":
                    link.run(partial(truth.discard, run=run))
