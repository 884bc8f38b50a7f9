"""The jobs ``retention`` (days into months, ``keep_days``; buckets into wider ones, ``keep``) and
``prune`` (guards, runs, records of keys): which days and rows are due, in which order, and the
sentences of their results.

Retention: days older than a counter keeps roll up into months of its own time zone. At first the
counter says up to which day its days are gone (``rolled_up_to``, which only grows), then they are
moved, range by range. So whoever reads a day in between is told that it is gone, while totals over
more than it count slots and months in one statement. Late rows of such days are moved by later
runs. It is the same with buckets finer than days: the policy whose buckets they become says at
first up to when (``rolled_to``).

Prune forgets guard rows, runs of jobs, and how many keys days had, that nothing needs any more. A
guard may go once no entry that it stands for can be taken for new: the watermark that
``guards.prune`` moves stays at or below the time of everything that still
waits in a stream. So the streams are looked at first, then the watermark moves. What is replayed
later than ``ledger_days`` after it was first sent cannot be told from what was counted: it goes to
the dead letters as ``too_old``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from countersink.schedules.errors import Outdated, RunStopped
from countersink.schedules.jobs import Context, JobOutcome, Pace, move
from countersink.schedules.jobs.compaction import compact_all
from countersink.schedules.jobs.move import Mover
from countersink.schedules.jobs.ranges import (
    BucketKey,
    Month,
    PassDone,
    Wider,
    bucket_labels,
    now_and_policies,
)
from countersink.store.apply import dead, guards, key_caps
from countersink.store.apply.control import read_control
from countersink.store.connection import LOCK_WAIT, Connect, Session
from countersink.store.counters import keep_steps
from countersink.store.counters.buckets import WIDTH, in_one_day, local_day, policy_number
from countersink.store.counters.policies import Policy, load_own
from countersink.store.errors import Refused
from countersink.store.sessions import open_tables
from countersink.store.sql import NOW_MS, day_label, label_of, label_time
from countersink.stream import progress
from countersink.stream.clock import earliest_us
from countersink.stream.connection import connect
from countersink.stream.errors import Interrupted, StreamError
from countersink.stream.names import stream_keys

_DAY_S: Final = 86_400
CHUNK: Final = 1000
"""Runs deleted per transaction."""
_READ_S: Final = 60.0
_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDone(PassDone):
    """What a pass did, and what it left.

    Attributes:
        rows: slot rows that were added to wider buckets and months.
        counters: counters that keep days, or finer buckets, for a while only.
    """

    rows: int
    counters: int


def roll_up(
    connect: Connect,
    *,
    rows: int = 2000,
    share: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> RetentionDone:
    """Roll up once whatever is due. Totals are the same before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        rows: slot rows per transaction to begin with; up to eight times as many as long as nobody
            is in the way, and far fewer where somebody is.
        share: of the time spent working; the rest is pause.
        stop: true once it should end; cheap to call.

    Raises:
        Unavailable: the server is away, or was lost several times.
        Refused: this machine does not know the time zone of a counter; the others are done.
        StoreError: as any query. What was done so far stays done.
    """
    pace = Pace(share, stop)
    with Mover(connect, pace, rows) as mover:
        return _Pass(mover, pace).run()


def job(context: Context) -> JobOutcome:
    """Compact everything, then roll up whatever is due, at the scheduled pace."""
    compacted = compact_all(context)
    done = roll_up(
        lambda: move.open_tables(context.mysql_url),
        rows=context.options.compact_rows,
        share=context.options.compact_share,
        stop=context.stop,
    )
    said = done.sentence(
        f"{done.rows:,} rows of {done.counters:,} counters rolled up into wider buckets and months"
    )
    before, after = compacted.rows_before, compacted.rows_after
    said = f"{compacted.sentence(f'all buckets: {before:,} rows became {after:,}')}; {said}"
    finished = compacted.finished and done.finished
    return JobOutcome(before - after + done.rows, said, finished=finished)


class _Pass:
    """One pass over the counters that keep days, or finer buckets, for a while."""

    def __init__(self, mover: Mover, pace: Pace) -> None:
        self._mover = mover
        self._pace = pace
        self._astride: list[BucketKey] = []
        self._unknown: list[BucketKey] = []
        self._refused: Refused | None = None
        self._now, self._policies = mover.run(now_and_policies)

    def run(self) -> RetentionDone:
        limits = self._limits()
        labels = {
            counter: self._mover.run(partial(bucket_labels, counter=counter, end=end))
            for counter, end in self._ends(limits).items()
        }
        # Read again, after the buckets: whoever made one went by a policy that is there by now.
        self._now, self._policies = self._mover.run(now_and_policies)
        for counter, own in labels.items():
            with self._by_itself():
                self._counter(counter, own, limits.get(counter))
        if self._refused is not None:
            raise self._refused
        mover = self._mover
        return RetentionDone(
            rows=mover.moved,
            counters=len(labels),
            busy=tuple(mover.busy),
            overflowing=tuple(mover.overflowing),
            unreadable=tuple(mover.unreadable),
            astride=tuple(self._astride),
            unknown=tuple(self._unknown),
            finished=not self._pace.stopped,
        )

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """What is refused of one counter, such as for a time zone that is unknown here, is told
        once the others have had their turn.
        """
        try:
            yield
        except Refused as error:
            self._refused = self._refused or error

    def _limits(self) -> dict[str, date]:
        """By counter the first day that stays, once that is on record."""
        wanted = self._mover.run(_kept)
        limits: dict[str, date] = {}
        for counter, (keep_days, rolled_up_to) in wanted.items():
            if keep_days is not None:
                with self._by_itself():
                    cutoff = self._cutoff(counter, keep_days)
                    if rolled_up_to is None or rolled_up_to < cutoff:
                        rolled_up_to = self._mover.run(
                            partial(_announce, counter=counter, keep_days=keep_days, cutoff=cutoff)
                        )
            if rolled_up_to is not None:
                limits[counter] = rolled_up_to
        return limits

    def _cutoff(self, counter: str, keep_days: int) -> date:
        policy = self._policies.at(counter, self._now // 60)
        today = local_day(policy.time_zone, "hour", self._now // 60 * 60)
        return today - timedelta(days=min(keep_days, today.toordinal() - date.min.toordinal()))

    def _ends(self, limits: dict[str, date]) -> dict[str, int]:
        """By counter the label before which its buckets are looked at, once it is on record up to
        when they become wider ones.
        """
        for counter in self._mover.run(_stepped):
            if not self._pace.stopped:
                with self._by_itself():
                    self._mover.run(partial(_announce_wider, counter=counter))
        # A bucket's label and its local day may lie a day apart.
        ends = {counter: day_label(day) + 2 * _DAY_S for counter, day in limits.items()}
        for counter, rolled_to in self._mover.run(_rolled_to):
            ends[counter] = max(label_of(rolled_to), ends.get(counter, 0))
        return dict(sorted(ends.items()))

    def _counter(self, counter: str, labels: list[int], rolled_up_to: date | None) -> None:
        """Move its buckets; if it is changed or deleted meanwhile, the rest is the next pass's."""
        before = self._policies.of(counter), self._policies.cap(counter), rolled_up_to
        goals = [(self._goal(counter, label, rolled_up_to), label) for label in labels]
        # Those of one policy behind each other, and of these those that go to the same place.
        goals.sort(key=lambda one: policy_number(one[1]))
        for to, some in groupby(goals, key=itemgetter(0)):
            own = sorted(label for _, label in some)  # a month may be of several policies
            while to is not None and not self._pace.stopped:
                try:
                    to = replace(to, version=self._policies.version)
                    self._mover.move_all(counter, own, to)
                except Outdated:
                    self._now, self._policies = self._mover.run(now_and_policies)
                    on_record = self._mover.run(partial(_on_record, counter=counter))
                    own_now = self._policies.of(counter), self._policies.cap(counter), on_record
                    if own_now != before:
                        return
                    continue  # it was another counter
                break

    def _goal(self, counter: str, label: int, rolled_up_to: date | None) -> Month | Wider | None:
        """Where a bucket goes to; None if it stays."""
        try:
            policy = self._policies.numbered(counter, label)
        except LookupError:
            self._unknown.append(BucketKey(counter, label))
            return None
        if rolled_up_to is not None:
            first, last = _days(policy, label)
            if last < rolled_up_to:
                if (first.year, first.month) == (last.year, last.month):
                    return Month(
                        day_label(first.replace(day=1)),
                        rolled_up_to,
                        self._policies.version,
                        None if self._policies.cap(counter) is None else first,
                    )
                self._astride.append(BucketKey(counter, label))
                return None
        return self._wider(counter, policy, label)

    def _wider(self, counter: str, policy: Policy, label: int) -> Wider | None:
        """The widest bucket that one goes to by now, of the same day; None if it stays."""
        counting = policy.number if policy.rolls is None else policy.rolls
        due = [
            wider
            for wider in self._policies.of(counter)
            if wider.rolls == counting
            and WIDTH[wider.resolution] > WIDTH[policy.resolution]
            and policy.ends_at(label) <= (wider.rolled_to or 0) * 60
        ]
        for wider in sorted(due, key=lambda each: WIDTH[each.resolution], reverse=True):
            goal = wider.label(policy.starts_at(label) // 60)
            # A day is one day; whether the bucket is of it alone is the question then.
            inner, within = (policy, label) if wider.resolution == "day" else (wider, goal)
            if in_one_day(wider.known_zone(), inner.starts_at(within), inner.ends_at(within)):
                return Wider(goal, wider.number, wider.rolled_to or 0, self._policies.version)
        if due:
            self._astride.append(BucketKey(counter, label))
        return None


def _kept(session: Session) -> dict[str, tuple[int | None, date | None]]:
    """(keep_days, rolled_up_to) by counter, where there is one of them."""
    found = session.query(
        "SELECT name, keep_days, rolled_up_to FROM counter"
        " WHERE keep_days IS NOT NULL OR rolled_up_to IS NOT NULL ORDER BY name"
    )
    return {name: (keep_days, rolled_up_to) for name, keep_days, rolled_up_to in found}


def _announce(session: Session, counter: str, keep_days: int, cutoff: date) -> date | None:
    """Put on record that days before ``cutoff`` are gone; what is on record then."""
    session.execute(
        "UPDATE counter SET rolled_up_to = %s"
        " WHERE name = %s AND keep_days = %s AND (rolled_up_to IS NULL OR rolled_up_to < %s)",
        (cutoff, counter, keep_days, cutoff),
    )
    return _on_record(session, counter)


def _stepped(session: Session) -> list[str]:
    """The counters that keep buckets for a while only."""
    found = session.query("SELECT name FROM counter WHERE keep_steps IS NOT NULL ORDER BY name")
    return [name for (name,) in found]


def _rolled_to(session: Session) -> list[tuple[str, datetime]]:
    """Up to when buckets become wider ones, of the counters of which some do."""
    return session.query(
        "SELECT counter, MAX(rolled_to) FROM counter_policy WHERE rolled_to IS NOT NULL"
        " GROUP BY counter"
    )


def _announce_wider(session: Session, counter: str) -> None:
    """Put on record up to when the buckets of a counter become wider ones."""
    with session.transaction():
        read_control(session)  # its lock keeps the counter's policies and steps as they are
        found = session.query(
            f"SELECT {NOW_MS}, keep_steps FROM counter WHERE name = %s", (counter,)
        )
        for now_ms, text in found:
            steps = keep_steps.stored(text)
            own = load_own(session, counter)
            for number, minute in keep_steps.due(own, steps, int(now_ms) // 60_000).items():
                session.execute(
                    "UPDATE counter_policy SET rolled_to = %s WHERE counter = %s AND number = %s"
                    " AND (rolled_to IS NULL OR rolled_to < %s)",
                    (label_time(minute * 60), counter, number, label_time(minute * 60)),
                )


def _on_record(session: Session, counter: str) -> date | None:
    """The day before which days of a counter are gone."""
    found = session.query("SELECT rolled_up_to FROM counter WHERE name = %s", (counter,))
    on_record: date | None = found[0][0] if found else None
    return on_record


def _days(policy: Policy, label: int) -> tuple[date, date]:
    """The first and the last local day that a bucket has a part in."""
    first = policy.local_day(label)
    if policy.resolution == "day":
        return first, first
    last_minute = (policy.ends_at(label) - 1) // 60 * 60
    return first, local_day(policy.time_zone, "hour", last_minute)


def prune(context: Context) -> JobOutcome:
    """Prune what ``ledger_days``, ``runs_days`` and ``dead_days`` allow.

    Raises:
        StreamError: Redis did not answer; nothing was pruned.
        RunStopped: it was to stop; nothing was pruned.
        Refused: the clocks of MySQL and Redis differ by minutes; nothing was pruned.
        StoreError: MySQL did not do its part.
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
        runs, records, letters, finished = 0, 0, 0, pruned.finished
        if finished:
            runs, finished = delete_runs(session, context.options.runs_days, pace)
        if finished:
            days = round(min(context.options.runs_days, _MOST_DAYS))
            records, finished = key_caps.prune_overflown(
                session, days, stop=context.stop, rest=pace.rest
            )
        if finished:
            dead_days = min(context.options.dead_days, _MOST_DAYS)
            letters, finished = dead.prune(session, dead_days, stop=context.stop, rest=pace.rest)
    done = f"{pruned.deleted:,} guard rows and {runs:,} runs deleted"
    if records:
        done += f", {records:,} records of how many keys days have"
    if letters:
        done += f", {letters:,} dead letters"
    return JobOutcome(
        rows=pruned.deleted + runs + records + letters,
        detail=done if finished else f"{done}; stopped early, the next run goes on",
        finished=finished,
    )


def _queue(context: Context) -> tuple[int, int | None]:
    """Redis's clock, and the time of the oldest entry in any stream, in Unix ms."""
    try:
        with connect(context.redis_url, client_name="countersink-prune") as client:
            # First: what is sent while we look is sent later than this.
            now = earliest_us(client)
            waiting = progress.first_sent(client, stream_keys(client), stop=context.stop)
    except Interrupted as error:
        raise RunStopped("stopped while looking at the queue; nothing was pruned") from error
    except StreamError as error:
        raise type(error)(
            f"{error}; nothing was pruned, since what waits there is not known"
        ) from error
    return now // 1000, waiting


def delete_runs(
    session: Session, days: float, pace: Pace, *, chunk: int = CHUNK
) -> tuple[int, bool]:
    """Delete runs that were planned more than ``days`` ago and have ended; how many, and whether
    these were all.

    Raises:
        StoreError: as any statement.
    """
    deleted = 0
    while True:
        gone = session.execute(
            "DELETE FROM job_run WHERE state IN ('done', 'failed', 'skipped')"
            " AND planned_at < UTC_TIMESTAMP() - INTERVAL %s SECOND"
            " ORDER BY planned_at LIMIT %s",
            (round(min(days, _MOST_DAYS) * 86_400), chunk),
        )
        deleted += gone
        if gone < chunk or pace.stopped:
            return deleted, gone < chunk
        pace.rest()
