"""Retention: days older than a counter keeps roll up into months of its own time zone.

At first the counter says up to which day its days are gone (``rolled_up_to``, which only grows),
then they are moved, range by range. So whoever reads a day in between is told that it is gone,
while totals over more than it count slots and months in one statement. Late rows of such days are
moved by later runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Final

from countersink.schedules.context import Context, Outcome
from countersink.schedules.mover import Mover, open_tables
from countersink.schedules.moving import Month, Outdated
from countersink.schedules.pace import Pace
from countersink.schedules.places import (
    ASTRIDE,
    BUSY,
    OVERFLOWING,
    UNKNOWN,
    Place,
    mention,
)
from countersink.schedules.ranges import bucket_labels, next_part, now_and_policies
from countersink.store.buckets import day_label, local_day
from countersink.store.connection import Connect, Session
from countersink.store.policies import Policy

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUp:
    """What a pass did.

    Attributes:
        rows: slot rows that were added to months.
        counters: counters that keep their days for a while only.
        busy: keys that an open transaction held; the next pass comes back to them.
        overflowing: keys whose month would not fit 64 bits; their rows stay as they are.
        astride: buckets that lie in two months; their rows stay as they are.
        unknown: buckets that no policy of their counter made; their rows stay as they are.
        finished: False if it was stopped.
    """

    rows: int
    counters: int
    busy: tuple[Place, ...] = ()
    overflowing: tuple[Place, ...] = ()
    astride: tuple[Place, ...] = ()
    unknown: tuple[Place, ...] = ()
    finished: bool = True


def roll_up(
    connect: Connect,
    *,
    rows: int = 2000,
    share: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> RolledUp:
    """Roll up once whatever is due. Totals are the same before, during and after.

    Args:
        connect: makes sessions as :func:`countersink.schedules.mover.open_tables` does.
        rows: slot rows per transaction to begin with; up to eight times as many as long as nobody
            is in the way, and far fewer where somebody is.
        share: of the time spent working; the rest is pause.
        stop: true once it should end; cheap to call.

    Raises:
        Unavailable: the server is away, or was lost several times.
        StoreError: as any query. What was done so far stays done.
    """
    pace = Pace(share, stop)
    with Mover(connect, pace, rows) as mover:
        return _Pass(mover, pace).run()


def job(context: Context) -> Outcome:
    """Roll up whatever is due, at the scheduled pace."""
    done = roll_up(
        lambda: open_tables(context.mysql_url),
        rows=context.options.compact_rows,
        share=context.options.compact_share,
        stop=context.stop,
    )
    return Outcome(done.rows, _sentence(done), finished=done.finished)


class _Pass:
    """One pass over the counters that keep their days for a while."""

    def __init__(self, mover: Mover, pace: Pace) -> None:
        self._mover = mover
        self._pace = pace
        self._astride: list[Place] = []
        self._unknown: list[Place] = []
        self._now, self._policies = mover.run(now_and_policies)

    def run(self) -> RolledUp:
        limits = self._limits()
        labels = {counter: self._labels(counter, day) for counter, day in limits.items()}
        # Read again, after the buckets: whoever made one went by a policy that is there by now.
        self._now, self._policies = self._mover.run(now_and_policies)
        for counter, own in labels.items():
            self._counter(counter, own, limits[counter])
        mover = self._mover
        return RolledUp(
            rows=mover.moved,
            counters=len(limits),
            busy=tuple(mover.busy),
            overflowing=tuple(mover.overflowing),
            astride=tuple(self._astride),
            unknown=tuple(self._unknown),
            finished=not self._pace.stopped,
        )

    def _limits(self) -> dict[str, date]:
        """By counter the first day that stays, once that is on record."""
        wanted = self._mover.run(_kept)
        limits: dict[str, date] = {}
        for counter, (keep_days, rolled_up_to) in wanted.items():
            if keep_days is not None:
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

    def _labels(self, counter: str, rolled_up_to: date) -> list[int]:
        # A bucket's label and its local day may lie a day apart.
        end = day_label(rolled_up_to) + 2 * _DAY_S
        return self._mover.run(lambda session: bucket_labels(session, counter, end=end))

    def _counter(self, counter: str, labels: list[int], rolled_up_to: date) -> None:
        """Move its buckets; if it is changed or deleted meanwhile, the rest is the next pass's."""
        policies = self._policies.of(counter)
        for label in labels:
            day = self._day(counter, label, rolled_up_to)
            after: bytes | None = None
            while day is not None and not self._pace.stopped:
                month = Month(
                    day_label(day.replace(day=1)),
                    rolled_up_to,
                    self._policies.version,
                    None if self._policies.cap(counter) is None else day,
                )
                try:
                    after = self._next(counter, label, month, after)
                except Outdated:
                    self._now, self._policies = self._mover.run(now_and_policies)
                    on_record = self._mover.run(partial(_on_record, counter=counter))
                    if (self._policies.of(counter), on_record) != (policies, rolled_up_to):
                        return
                    continue  # it was another counter
                if after is None:
                    break

    def _next(self, counter: str, label: int, month: Month, after: bytes | None) -> bytes | None:
        """Move the next part of a bucket, and return its last key; None if there is none."""
        look = partial(
            next_part,
            counter=counter,
            bucket=label,
            after=after,
            rows=self._mover.size(disturbing=False),
            month=month,
        )
        part = self._mover.run(look)
        if part is None:
            return None
        self._mover.move(part)
        return part.last

    def _day(self, counter: str, label: int, rolled_up_to: date) -> date | None:
        """The day of a bucket that goes to its month; None if it stays."""
        try:
            policy = self._policies.numbered(counter, label)
        except LookupError:
            self._unknown.append(Place(counter, label))
            return None
        first, last = _days(policy, label)
        if last >= rolled_up_to:
            return None
        if (first.year, first.month) != (last.year, last.month):
            self._astride.append(Place(counter, label))
            return None
        return first


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


def _sentence(done: RolledUp) -> str:
    said = (
        f"{done.rows:,} rows of {done.counters:,} counters rolled up into months"
        + mention(done.busy, BUSY)
        + mention(done.overflowing, OVERFLOWING)
        + mention(done.astride, ASTRIDE)
        + mention(done.unknown, UNKNOWN)
    )
    return said if done.finished else f"{said}; stopped early, the next run goes on"
