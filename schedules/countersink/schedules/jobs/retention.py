"""Retention: rolls up buckets older than their counter's ``keep`` into wider ones (minutes,
quarters, hours, days, months): which are due, in which order. The job ``prune``: deletes guards,
runs, records of keys and dead letters that are not needed any more.

First the counter's row says up to when its finer buckets are in those of a width (``rolled_day``
and so on, which only grow). Then they are moved, range by range, each to the widest width that is
due. So a reader of a bucket in between learns that it does not exist any more, while totals over
more than it count all widths in one statement. Late rows of these times are moved by later runs.

A guard may be deleted once its entry cannot be taken for new: the watermark that ``guards.prune``
moves stays at or below the time of every entry that waits in a stream. So the streams are read
first, then the watermark moves. An entry that is replayed later than ``ledger_days`` after it was
first sent cannot be distinguished from applied entries: it becomes a dead letter, ``too_old``.
"""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Final

from countersink.counting.apply import dead, guards, key_caps
from countersink.counting.apply.guards import read_control
from countersink.counting.counters import keep_steps
from countersink.counting.counters.buckets import WIDTHS, Width, in_one_day, is_wider, width_of
from countersink.counting.counters.catalog import SCHEME_COLUMNS, Scheme, scheme_of
from countersink.database.connection import LOCK_WAIT
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import open_tables
from countersink.database.sql import NOW_MS, datetime_of, width_number
from countersink.runtime.retry import Pace
from countersink.runtime.texts import plural
from countersink.schedules.errors import Outdated, RunStopped
from countersink.schedules.jobs import Context, JobOutcome, move
from countersink.schedules.jobs.compaction import (
    CompactOptions,
    Pass,
    scheduled,
)
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.ranges import Wider, finer_buckets
from countersink.stream import progress
from countersink.stream.connection import connect, earliest_us
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import stream_keys

_TOGETHER: Final = 512
"""Counters whose buckets are read at once; for a list of 1000 MariaDB uses no index ranges."""


def roll_up(
    connect: Connect,
    *,
    rows: int = 2000,
    stop: Callable[[], bool] = lambda: False,
) -> PassDone:
    """Roll up all that is due, once. Totals are equal before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        rows: slot rows per transaction to begin with; up to eight times as many without conflicts,
            and far fewer with conflicts.
        stop: true once the pass should end; cheap to call.

    Raises:
        Unavailable: the server is away, or was lost several times.
        UnknownZone: this machine does not know a counter's time zone; the other counters are done.
        StoreError: as any query. Committed work stays done.
    """
    with Pass(connect, CompactOptions(rows=rows), stop) as one:
        _RollUp(one).run()
        return one.end()


def job(context: Context) -> JobOutcome:
    """Compact all buckets, then roll up all that is due, at the scheduled pace."""
    connect = partial(move.open_tables, context.mysql_url)
    with Pass(connect, scheduled(context), context.stop) as one:
        one.compact()
        _RollUp(one).run()
        done = one.end()
    return done.outcome(
        f"all buckets: {plural(done.rows_before, 'row')} became {done.rows_after:,};"
        f" {plural(done.rolled_up, 'row')} of {plural(done.counters, 'counter')} rolled up into"
        " wider buckets"
    )


class _RollUp:
    """Rolls up, within a pass, the counters with keep steps."""

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
        """The counters with rolled up widths, after their rows say up to when."""
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
        """Move the counter's buckets; False: a counter was changed meanwhile, read them again."""
        with self._pass.defer_unknown_zone():
            goals = [(to, label) for label in labels if (to := self._goal(counter, label))]
            # Buckets of one width and one goal become neighbours.
            goals.sort(key=_place)
            for _, some in groupby(goals, key=_place):
                together = list(some)
                try:
                    self._mover.move_all(counter, [label for _, label in together], together[0][0])
                except Outdated:
                    self._pass.refresh(anew=True)
                    return False
        return True

    def _goal(self, counter: str, label: int) -> Wider | None:
        """The widest bucket that a bucket goes to by now; None if it stays."""
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


def _place(goal: tuple[Wider, int]) -> tuple[int, int]:
    """The label of a bucket's goal, and the bucket's width."""
    to, label = goal
    return to.label, width_number(label)


def _is_within(scheme: Scheme, wider: Width, goal: int, label: int) -> bool:
    """Whether a bucket is within one month, or with the wider bucket within one day."""
    if wider == "month":
        return goal == scheme.label_in("month", (scheme.ends_at(label) - 1) // 60)
    # A wider bucket that is a day is within one: then the bucket itself is checked.
    inner = label if wider == "day" else goal
    return in_one_day(scheme.known_zone(), scheme.starts_at(inner), scheme.ends_at(inner))


_ROLLED: Final = [f"rolled_{width}" for width in WIDTHS[1:]]


def _kept(session: Session) -> list[tuple[str, str | None]]:
    """(counter, keep_steps) of counters with steps, or with rolled up widths."""
    return session.query(
        "SELECT name, keep_steps FROM counter"
        f" WHERE COALESCE(keep_steps, {', '.join(_ROLLED)}) IS NOT NULL ORDER BY name"
    )


def _write_rolled(session: Session, counter: str) -> None:
    """Write up to when the buckets of a counter become wider ones."""
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
"""Runs deleted per transaction."""
_READ_S: Final = 60.0
_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 36_500


def prune(context: Context) -> JobOutcome:
    """Delete guards, runs and dead letters past ``ledger_days``, ``runs_days`` and ``dead_days``.

    Raises:
        StreamError: Redis did not answer; nothing was pruned.
        RunStopped: the run was stopped; nothing was pruned.
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
    finished = pruned.finished and no_more_runs and no_more_records and no_more_letters
    done = f"{plural(pruned.deleted, 'guard row')} and {plural(runs, 'run')} deleted"
    if records:
        done += f", {plural(records, 'record')} of daily key numbers"
    if letters:
        done += f", {plural(letters, 'dead letter')}"
    return JobOutcome(
        rows=pruned.deleted + runs + records + letters,
        detail=done if finished else f"{done}; stopped early, the next run goes on",
        finished=finished,
    )


def _queue(context: Context) -> tuple[int, int | None]:
    """Redis's clock, and the time of the oldest entry in any stream, in Unix ms."""
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


def delete_runs(
    session: Session, days: float, pace: Pace, *, chunk: int = CHUNK
) -> tuple[int, bool]:
    """Delete ended runs that were planned more than ``days`` ago; returns their number, and whether
    these were all.

    Raises:
        StoreError: as any statement.
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
