"""Retention: rolls up what is older than its counter keeps: days into months (``keep_days``),
buckets into wider ones (``keep``); which of them are due, in which order.

Days roll up into months of the counter's own time zone. At first the counter says up to which day
its days are gone (``rolled_up_to``, which only grows), then they are moved, range by range. So
whoever reads a day in between is told that it is gone, while totals over more than it count slots
and months in one statement. Late rows of such days are moved by later runs. It is the same with
buckets finer than days: the policy whose buckets they become says at first up to when
(``rolled_to``).
"""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from countersink.schedules.errors import Outdated
from countersink.schedules.jobs import Context, JobOutcome, move
from countersink.schedules.jobs.compaction import (
    DAY_S,
    CompactOptions,
    Pass,
    scheduled,
)
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.ranges import Month, Wider, labels_before
from countersink.store.apply.control import read_control
from countersink.store.connection import Connect, Session
from countersink.store.counters import keep_steps
from countersink.store.counters.buckets import WIDTH, in_one_day, local_day, policy_number
from countersink.store.counters.policies import Policy, load_own
from countersink.store.sql import NOW_MS, day_label, label_of, label_time

_TOGETHER: Final = 1024
"""Counters whose buckets are looked for at once."""


def roll_up(
    connect: Connect,
    *,
    rows: int = 2000,
    stop: Callable[[], bool] = lambda: False,
) -> PassDone:
    """Roll up once whatever is due. Totals are the same before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.jobs.move.open_tables` does.
        rows: slot rows per transaction to begin with; up to eight times as many as long as nobody
            is in the way, and far fewer where somebody is.
        stop: true once it should end; cheap to call.

    Raises:
        Unavailable: the server is away, or was lost several times.
        UnknownZone: this machine does not know that of a counter; the others are done.
        StoreError: as any query. What was done so far stays done.
    """
    with Pass(connect, CompactOptions(rows=rows), stop) as one:
        _RollUp(one).run()
        return one.end()


def job(context: Context) -> JobOutcome:
    """Compact everything, then roll up whatever is due, at the scheduled pace."""
    connect = partial(move.open_tables, context.mysql_url)
    with Pass(connect, scheduled(context), context.stop) as one:
        one.compact()
        _RollUp(one).run()
        done = one.end()
    return done.outcome(
        f"all buckets: {done.rows_before:,} rows became {done.rows_after:,};"
        f" {done.rolled_up:,} rows of {done.counters:,} counters rolled up into wider buckets and"
        " months"
    )


class _RollUp:
    """Rolls up, within a pass, the counters that keep days, or finer buckets, for a while."""

    def __init__(self, one: Pass) -> None:
        self._pass = one
        self._mover = one.mover
        self._done = one.done
        self._limits: dict[str, date] = {}

    def run(self) -> None:
        ends = list(self._ends().items())
        for start in range(0, len(ends), _TOGETHER):
            some = ends[start : start + _TOGETHER]
            while some and not self._pass.pace.stopped:
                labels = self._mover.run(partial(labels_before, ends=some))
                self._pass.look_again()
                some = [one for one in some if not self._counter(one[0], labels.get(one[0], []))]
        self._done.counters = len(ends)

    def _ends(self) -> dict[str, int]:
        """By counter the label before which its buckets are looked at, once it is on record up to
        when they are gone.
        """
        anew = False
        for counter, keep_days, day, steps in self._mover.run(_kept):
            if self._pass.pace.stopped:
                break
            with self._pass.by_itself():
                if keep_days is not None:
                    day = self._announce(counter, keep_days, day)
                if day is not None:
                    self._limits[counter] = day
                own = self._pass.policies.of(counter)
                if keep_steps.due(own, keep_steps.stored(steps), self._pass.now // 60):
                    self._mover.run(partial(_announce_wider, counter=counter))
                    anew = True
        self._pass.look_again(anew=anew)
        # A bucket's label and its local day may lie a day apart.
        ends = {counter: day_label(day) + 2 * DAY_S for counter, day in self._limits.items()}
        for counter, rolled_to in self._mover.run(_rolled_to):
            ends[counter] = max(label_of(rolled_to), ends.get(counter, 0))
        return dict(sorted(ends.items()))

    def _announce(self, counter: str, keep_days: int, day: date | None) -> date:
        """Put on record which days are gone, up to ``day`` so far; up to which then."""
        policy = self._pass.policies.at(counter, self._pass.now // 60)
        today = local_day(policy.time_zone, "hour", self._pass.now // 60 * 60)
        cutoff = today - timedelta(days=min(keep_days, today.toordinal() - date.min.toordinal()))
        if day is not None and day >= cutoff:
            return day
        self._mover.run(partial(_announce, counter=counter, keep_days=keep_days, cutoff=cutoff))
        return cutoff

    def _counter(self, counter: str, labels: list[int]) -> bool:
        """Move its buckets; False where they are to be looked for again, as the policies of some
        counter were changed meanwhile.
        """
        with self._pass.by_itself():
            goals = [(to, label) for label in labels if (to := self._goal(counter, label))]
            # Those of one policy behind each other, and of these those that go to the same place.
            goals.sort(key=lambda one: policy_number(one[1]))
            for to, some in groupby(goals, key=itemgetter(0)):
                try:  # a month may be of several policies
                    self._mover.move_all(counter, sorted(label for _, label in some), to)
                except Outdated:
                    self._read_anew()
                    return False
        return True

    def _read_anew(self) -> None:
        """Read what says where buckets go to."""
        self._pass.look_again(anew=True)
        kept = self._mover.run(_kept)
        self._limits = {counter: day for counter, _, day, _ in kept if day is not None}

    def _goal(self, counter: str, label: int) -> Month | Wider | None:
        """Where a bucket goes to; None if it stays."""
        policies, rolled_up_to = self._pass.policies, self._limits.get(counter)
        try:
            policy = policies.numbered(counter, label)
        except LookupError:
            self._done.note(self._done.unknown, counter, label)
            return None
        if rolled_up_to is not None:
            first, last = _days(policy, label)
            if last < rolled_up_to:
                if (first.year, first.month) == (last.year, last.month):
                    month = day_label(first.replace(day=1))
                    return Month(month, rolled_up_to, self._pass.policies.version)
                self._done.note(self._done.astride, counter, label)
                return None
        return self._wider(counter, policy, label)

    def _wider(self, counter: str, policy: Policy, label: int) -> Wider | None:
        """The widest bucket that one goes to by now, of the same day; None if it stays."""
        counting = policy.number if policy.rolls is None else policy.rolls
        due = [
            wider
            for wider in self._pass.policies.of(counter)
            if wider.rolls == counting
            and WIDTH[wider.resolution] > WIDTH[policy.resolution]
            and policy.ends_at(label) <= (wider.rolled_to or 0) * 60
        ]
        for wider in sorted(due, key=lambda each: WIDTH[each.resolution], reverse=True):
            goal = wider.label(policy.starts_at(label) // 60)
            # A day is one day; whether the bucket is of it alone is the question then.
            inner, within = (policy, label) if wider.resolution == "day" else (wider, goal)
            if in_one_day(wider.known_zone(), inner.starts_at(within), inner.ends_at(within)):
                return Wider(goal, wider.number, wider.rolled_to or 0, self._pass.policies.version)
        if due:
            self._done.note(self._done.astride, counter, label)
        return None


def _kept(session: Session) -> list[tuple[str, int | None, date | None, str | None]]:
    """(counter, keep_days, rolled_up_to, keep_steps) where there is one of them."""
    return session.query(
        "SELECT name, keep_days, rolled_up_to, keep_steps FROM counter WHERE keep_days IS NOT NULL"
        " OR rolled_up_to IS NOT NULL OR keep_steps IS NOT NULL ORDER BY name"
    )


def _announce(session: Session, counter: str, keep_days: int, cutoff: date) -> None:
    """Put on record that days before ``cutoff`` are gone."""
    session.execute(
        "UPDATE counter SET rolled_up_to = %s"
        " WHERE name = %s AND keep_days = %s AND (rolled_up_to IS NULL OR rolled_up_to < %s)",
        (cutoff, counter, keep_days, cutoff),
    )


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


def _days(policy: Policy, label: int) -> tuple[date, date]:
    """The first and the last local day that a bucket has a part in."""
    first = policy.local_day(label)
    if policy.resolution == "day":
        return first, first
    last_minute = (policy.ends_at(label) - 1) // 60 * 60
    return first, local_day(policy.time_zone, "hour", last_minute)
