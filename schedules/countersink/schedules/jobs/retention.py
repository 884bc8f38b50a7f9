"""The jobs ``retention`` and ``prune``. ``retention`` compacts all buckets; then it rolls up those
that are older than their counter's ``keep`` into wider ones (minutes, quarters, hours, days,
months). This module says which buckets are due, and in which order. ``prune`` deletes guards, runs,
records of daily key numbers (for the caps of keys) and dead letters that are not needed any more,
and what is left of removed breakdowns.

Before buckets are rolled up into a width, the counter's row gets the time up to which they are
rolled up (in a column such as ``rolled_day``; the time never goes back). Then the rows are moved,
range by range. Each goes to the widest bucket that is due and contains it. Meanwhile, answers stay
right: a query for a single bucket reads in the counter's row that the bucket does not exist any
more, and a total over a longer time adds up all widths in one statement. Late rows of these times
are moved by later runs.

A guard may be deleted once its entry can no longer be taken for a new one. To ensure this,
``guards.prune`` keeps a watermark, which is a time: an entry that was first sent before it is never
taken for new. The watermark must not be later than any entry that is still in a stream, so the
streams are read before the watermark moves. If an entry that was first sent before the watermark is
sent again, nothing may show whether it was applied: then it becomes a dead letter, ``too_old``.
"""

from functools import partial
from itertools import groupby
from typing import Final

from countersink.counting.apply import dead, guards, key_caps
from countersink.counting.apply.guards import read_control
from countersink.counting.counters import deletion, keep_steps
from countersink.counting.counters.all_counters import insert_all_rows
from countersink.counting.counters.buckets import WIDTHS, Width, in_one_day, is_wider, width_of
from countersink.counting.counters.catalog import SCHEME_COLUMNS, Scheme, scheme_of
from countersink.database.connection import LOCK_WAIT
from countersink.database.errors import Conflict
from countersink.database.session import Session, rerun
from countersink.database.sessions import open_tables
from countersink.database.sql import NOW_MS, datetime_of, width_number
from countersink.runtime.retry import Pace, pause
from countersink.runtime.texts import plural
from countersink.schedules.errors import Outdated, RunStopped
from countersink.schedules.jobs import Context, JobOutcome, move
from countersink.schedules.jobs.compaction import Pass, scheduled
from countersink.schedules.jobs.ranges import Wider, finer_buckets
from countersink.stream import progress
from countersink.stream.connection import connect, earliest_us
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import stream_keys

_TOGETHER: Final = 512
"""Number of counters whose buckets are read at once. For a list of 1000 counters, MariaDB would not
use ranges of the index."""


def job(context: Context) -> JobOutcome:
    """Compact buckets of all days, then roll up all buckets that are due, at the scheduled pace."""
    connect = partial(move.open_tables, context.mysql_url)
    with Pass(connect, scheduled(context), context.stop) as one:
        one.compact()
        RollUp(one).run()
        done = one.end()
    return done.outcome(
        f"all buckets: {plural(done.rows_before, 'row')} became {done.rows_after:,};"
        f" {plural(done.rolled_up, 'row')} of {plural(done.counters, 'counter')} rolled up into"
        " wider buckets"
    )


class RollUp:
    """The part of a pass, after compaction, that rolls up the buckets of counters which have, or
    had, the setting ``keep``: :meth:`run` does all of it. Totals are the same before, during and
    after it."""

    def __init__(self, one: Pass) -> None:
        self._pass = one
        self._mover = one.mover
        self._done = one.done

    def run(self) -> None:
        names = self._rolled_counters()
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            while some and not self._pass.pace.stopped:
                schemes = [scheme for name in some if (scheme := self._scheme(name)).rolled]
                labels = self._mover.run(partial(finer_buckets, schemes=schemes)) if schemes else {}
                self._pass.refresh()
                some = [name for name in some if not self._counter(name, labels.get(name, []))]
        self._done.counters = len(names)

    def _rolled_counters(self) -> list[str]:
        """For each counter with keep steps, write to its row the times up to which its buckets are
        now due to be rolled up. Then return the counters whose rows have such times, now or from
        earlier passes. A stop ends the writing early."""
        kept, anew = self._mover.run(_kept), False
        for name, steps in kept:
            if self._pass.pace.stopped:
                break
            with self._pass.defer_unknown_zone():
                if keep_steps.due(
                    self._scheme(name), keep_steps.stored(steps), self._pass.now // 60
                ):
                    self._mover.run(partial(_write_rolled, counter=name))
                    anew = True
        self._pass.refresh(anew=anew)
        return [name for name, _ in kept if self._scheme(name).rolled]

    def _scheme(self, counter: str) -> Scheme:
        return self._pass.catalog.scheme(counter)

    def _counter(self, counter: str, labels: list[int]) -> bool:
        """Move those buckets ``labels`` of a counter that are due. Return False if a counter, this
        or another, was changed meanwhile, so that the buckets have to be read again. Return True
        otherwise, also if the pass is to stop or the time zone is unknown."""
        with self._pass.defer_unknown_zone():
            goals = [(to, label) for label in labels if (to := self._goal(counter, label))]
            # Buckets of one width and one goal become neighbours.
            goals.sort(key=_goal_and_width)
            for _, some in groupby(goals, key=_goal_and_width):
                together = list(some)
                try:
                    self._mover.move_all(counter, [label for _, label in together], together[0][0])
                except Outdated:
                    self._pass.refresh(anew=True)
                    return False
        return True

    def _goal(self, counter: str, label: int) -> Wider | None:
        """Return the wider bucket into which the bucket ``label`` is to be rolled up now, of the
        widest possible width. Return None if the bucket is not due. In two other cases, return
        None and note the bucket in the pass's result: if its width is unknown, and if it is due,
        but may not be rolled up into any of the due wider buckets."""
        scheme = self._scheme(counter)
        try:
            own, ends = width_of(label), scheme.ends_at(label)
        except LookupError:
            self._done.note(self._done.unknown, counter, label)
            return None
        due = [(wider, end) for wider, end in scheme.rolled if is_wider(wider, own) and ends <= end]
        for wider, end in reversed(due):
            goal = scheme.label_in(wider, scheme.starts_at(label) // 60)
            if _is_within(scheme, wider, goal, label):
                return Wider(goal, end, self._pass.catalog.version)
        if due:
            self._done.note(self._done.astride, counter, label)
        return None


def _goal_and_width(goal: tuple[Wider, int]) -> tuple[int, int]:
    """Return a sort key for ``goal``, a pair: a wider bucket, and the label of a bucket that is
    rolled up into it. The key is the wider bucket's label, and the width of the other bucket."""
    to, label = goal
    return to.label, width_number(label)


def _is_within(scheme: Scheme, wider: Width, goal: int, label: int) -> bool:
    """Return whether the bucket with the label ``label`` may be rolled up into the one with the
    label ``goal``, whose width is ``wider``. For ``month``, the bucket must lie within one month.
    For ``day``, it must lie within one day. For narrower widths, the wider bucket must lie within
    one day.
    """
    if wider == "month":
        return goal == scheme.label_in("month", (scheme.ends_at(label) - 1) // 60)
    # A wider bucket that is a day is within one: then the bucket itself is checked.
    inner = label if wider == "day" else goal
    return in_one_day(scheme.known_zone(), scheme.starts_at(inner), scheme.ends_at(inner))


_ROLLED: Final = [f"rolled_{width}" for width in WIDTHS[1:]]


def _kept(session: Session) -> list[tuple[str, str | None]]:
    """Return (name, keep_steps) of each counter that has keep steps (see ``keep_steps.py``), or
    that has buckets which were rolled up; keep_steps is None if it has no steps now. First, if the
    default settings have keep steps, insert a row into the table ``counter`` for each counter that
    has none there, so that the defaults hold for it."""
    if read_control(session, lock="").defaults.keep_steps:
        insert_all_rows(session)
    return session.query(
        "SELECT name, keep_steps FROM counter"
        f" WHERE COALESCE(keep_steps, {', '.join(_ROLLED)}) IS NOT NULL ORDER BY name"
    )


def _write_rolled(session: Session, counter: str) -> None:
    """Write to a counter's row, for each width that is due, the new time up to which narrower
    buckets are rolled up into that width."""
    with session.transaction():
        read_control(session)  # its lock keeps the counter's steps as they are
        for now_ms, steps, *columns in session.query(
            f"SELECT {NOW_MS}, keep_steps, {SCHEME_COLUMNS} FROM counter"
            " WHERE name = %s FOR UPDATE",
            (counter,),
        ):
            scheme, minute = scheme_of(counter, columns), int(now_ms) // 60_000
            due = keep_steps.due(scheme, keep_steps.stored(steps), minute)
            if due:
                columns_set = ", ".join(f"rolled_{width} = %s" for width in due)
                session.execute(
                    f"UPDATE counter SET {columns_set} WHERE name = %s",
                    (*map(datetime_of, due.values()), counter),
                )


CHUNK: Final = 1000
"""Maximum number of runs that one transaction deletes."""
_READ_S: Final = 60.0
_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 36_500


def prune(context: Context) -> JobOutcome:
    """Delete guards, ended runs and dead letters that are older than ``ledger_days``, ``runs_days``
    and ``dead_days``. Guards are kept for longer while an older entry is still in a stream. If
    ``dead_days`` is 0, dead letters are kept. Also delete records of daily key numbers that are not
    needed any more, and rows of breakdowns that were removed from their counters' settings. The
    result has the numbers of deleted rows.

    Raises:
        StreamError: Redis did not answer, or refused; nothing was pruned.
        RunStopped: the run was stopped while it read the queue; nothing was pruned. (If it is
            stopped later, ``finished`` of the result is False.)
        Refused: the clocks of MySQL and Redis differ by minutes; nothing was pruned.
        StoreError: the database failed.
    """
    now_ms, not_above_ms = _queue(context)
    pace = Pace(context.options.compact_share, context.stop)
    with open_tables(context.mysql_url, read_timeout=_READ_S, lock_wait=LOCK_WAIT) as session:
        pruned = guards.prune(
            session,
            keep_ms=round(min(context.options.ledger_days, _MOST_DAYS) * _DAY_MS),
            now_ms=now_ms,
            not_above_ms=not_above_ms,
            stop=context.stop,
            rest=pace.rest,
        )
        runs, no_more_runs = delete_runs(session, context.options.runs_days, pace)
        records, no_more_records = key_caps.prune(session, stop=context.stop, rest=pace.rest)
        dead_days = min(context.options.dead_days, _MOST_DAYS)
        letters, no_more_letters = dead.prune(session, dead_days, stop=context.stop, rest=pace.rest)
    removed, busy, no_more_removed = _delete_removed(context)
    finished = pruned.finished and no_more_runs and no_more_records and no_more_letters
    finished = finished and no_more_removed
    done = f"{plural(pruned.deleted, 'guard row')} and {plural(runs, 'run')} deleted"
    if records:
        done += f", {plural(records, 'record')} of daily key numbers"
    if letters:
        done += f", {plural(letters, 'dead letter')}"
    if removed:
        done += f", {plural(removed, 'row')} of removed breakdowns"
    if busy:
        left = plural(busy, "removed breakdown")
        done += f"; {left} left for the next run, as other transactions held rows"
    return JobOutcome(
        rows=pruned.deleted + runs + records + letters + removed,
        detail=done if finished else f"{done}; stopped early, the next run goes on",
        finished=finished,
    )


def _queue(context: Context) -> tuple[int, int | None]:
    """Return two times in Unix ms: the present time of Redis, and the time at which the oldest
    entry in any stream was first sent, or None if all streams are empty. Raises StreamError and
    RunStopped, as :func:`prune`.
    """
    try:
        with connect(context.redis_url, client_name="countersink-prune") as client:
            # First: entries that are sent from now on are later than this.
            now = earliest_us(client)
            waiting = progress.first_sent(client, stream_keys(client), stop=context.stop)
    except Interrupted as error:
        raise RunStopped("stopped while reading the queue; nothing was pruned") from error
    except StreamError as error:
        raise type(error)(
            f"{error}; nothing was pruned, since the waiting entries are unknown"
        ) from error
    return now // 1000, waiting


def _delete_removed(context: Context) -> tuple[int, int, bool]:
    """Delete the rows of breakdowns that were removed from their counters' settings. Such rows are
    left if a deletion was killed, or if applications counted after it. Return the number of deleted
    rows, the number of breakdowns that are left to the next run because other transactions held
    their rows, and whether all breakdowns were tried (False: a stop left out some)."""
    deleted = busy = 0

    def pause_or_end(seconds: float) -> None:
        pause(seconds, context.stop)
        if context.stop():
            raise Conflict("the run is stopped")

    with open_tables(context.mysql_url, isolation="REPEATABLE READ", read_timeout=_READ_S) as own:
        for name in deletion.removed_breakdowns(own):
            if context.stop():
                return deleted, busy, False
            try:
                deleted += deletion.delete_counter(own, name, pause=pause_or_end).rows
            except Conflict:
                if context.stop():
                    return deleted, busy, False
                busy += 1
    return deleted, busy, True


def delete_runs(
    session: Session, days: float, pace: Pace, *, chunk: int = CHUNK
) -> tuple[int, bool]:
    """Delete ended runs that were planned more than ``days`` days ago. Return their number, and
    True if no such run is left; False if a stop ended the deletion early.

    Args:
        session: a session outside a transaction.
        days: days for which ended runs are kept.
        pace: makes the pauses between transactions, and knows whether to stop.
        chunk: maximum number of runs that one transaction deletes.

    Raises:
        StoreError: any error of a statement.
    """
    deleted, seconds = 0, round(min(days, _MOST_DAYS) * 86_400)
    delete = (
        "DELETE FROM job_run WHERE state IN ('done', 'failed', 'skipped')"
        " AND planned_at < UTC_TIMESTAMP() - INTERVAL %s SECOND ORDER BY planned_at LIMIT %s"
    )
    while True:
        number = rerun(partial(session.execute, delete, (seconds, chunk)))
        deleted += number
        if number < chunk or pace.stopped:
            return deleted, number < chunk
        pace.rest()
