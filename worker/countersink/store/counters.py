"""Counters as somebody has made them: time zone, resolution, how long days are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Final, TypeVar

from countersink.store import buckets, deletion
from countersink.store.buckets import Resolution
from countersink.store.clock import NOW_MS
from countersink.store.connection import Connect, Session
from countersink.store.control import Control, exclusive
from countersink.store.deletion import Deleted
from countersink.store.errors import Conflict, UnknownCounter
from countersink.store.policies import Policy, load
from countersink.store.policy_changes import (
    KeepDays,
    check_app_slots,
    check_keep_days,
    check_name,
    check_resolution,
    is_name,
    next_policy,
    start_minute,
)
from countersink.store.pool import Pool

DEFAULT_APP_SLOTS: Final = 16

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter and its settings.

    Attributes:
        name: its name.
        policies: its time zones and resolutions by event time, the earliest first; at least one.
        in_force: which of them is for events of now, on the database server's clock.
        keep_days: days that its days are kept before they roll up to months; None: for ever.
        app_slots: over how many slots the application's own transactions spread.
        rolled_up_to: days before this one are in months; None: no day is.
        made: somebody has made it by hand; False where it was counted and has the defaults.
    """

    name: str
    policies: tuple[Policy, ...]
    in_force: Policy
    keep_days: int | None
    app_slots: int
    rolled_up_to: date | None
    made: bool

    @property
    def to_come(self) -> tuple[Policy, ...]:
        """The policies that begin later than now."""
        return tuple(p for p in self.policies if p.valid_from > self.in_force.valid_from)


class Counters:
    """The counters and their settings. Thread-safe and fork-safe.

    Whoever counts follows a change at once and exactly: what is counted after :meth:`set` has
    returned goes by it, whichever worker does it. Every method raises what
    :mod:`countersink.store.errors` lists; Conflict says that others were in the way all the time.

    Args:
        connect: makes sessions at REPEATABLE READ whose tables were checked.
        pool: for reading.
    """

    def __init__(self, connect: Connect, pool: Pool) -> None:
        self._connect = connect
        self._pool = pool

    def list(self) -> "list[Counter]":
        """Every counter that was made or counted, by name."""
        return self._pool.read(_read)

    def show(self, name: str) -> Counter:
        """One counter.

        Raises:
            UnknownCounter: it was neither made nor ever counted.
        """

        def work(session: Session) -> Counter:
            _require(session, name)
            return _read(session, name)[0]

        return self._pool.read(work)

    def set(
        self,
        name: str,
        *,
        time_zone: str | None = None,
        resolution: Resolution | None = None,
        keep_days: KeepDays | None = None,
        app_slots: int | None = None,
        start: datetime | None = None,
    ) -> Counter:
        """Make a counter, or change what is given of one; what is not given stays.

        Args:
            name: 1 to 64 of ``A-Z a-z 0-9 _ . : -``.
            time_zone: IANA name; whose midnights begin its days. At first UTC.
            resolution: ``day``, ``hour`` or ``quarter`` (of an hour): from quarters the days of any
                zone can be added up, from hours those of zones that are whole hours from UTC. At
                first ``day``.
            keep_days: days that days are kept before they roll up to months, or ``"forever"``, as
                at first.
            app_slots: 1 to 256; over how many slots the application's own transactions spread. At
                first 16.
            start: aware, in whole minutes, at least one minute ahead: the event time from which
                time zone and resolution are for. Needed to change them once anything was counted;
                without it a counter that never was has them for all time.

        Returns:
            the counter as it is now.

        Raises:
            ValueError: a value that cannot be, or a change that may not be; says what can.
        """
        check_name(name)
        if time_zone is not None:
            buckets.zone(time_zone)
        wanted = _Wanted(
            name,
            time_zone,
            None if resolution is None else check_resolution(resolution),
            None if keep_days is None else (check_keep_days(keep_days),),
            None if app_slots is None else check_app_slots(app_slots),
            None if start is None else start_minute(start),
        )

        return self._alone(partial(_set, wanted))

    def delete(self, name: str, key: str | None = None) -> Deleted:
        """Delete a counter with all it was ever counted and its settings, or one key of it.

        In many short transactions, beside whoever counts; if it is interrupted, call it again. What
        is counted later, be it in the queue already, counts from 0, and a deleted counter then has
        the defaults.

        Raises:
            UnknownCounter: there is no such counter. (Of a key that it does not have 0 rows are
                deleted.)
        """

        with self._connect() as session:
            _require(session, name)
            if key is None:
                return deletion.delete_counter(session, name)
            return deletion.delete_key(session, name, key)

    def strict(self) -> bool:
        """Whether rows of counters that were neither made nor counted before are refused."""

        def work(session: Session) -> bool:
            return load(session).strict

        return self._pool.read(work)

    def set_strict(self, on: bool) -> None:
        """From now on refuse rows of unknown counters (they become dead letters), or take them."""

        def change(session: Session, control: Control) -> None:
            if control.strict != bool(on):
                session.execute("UPDATE control SET strict = %s WHERE id = 1", (bool(on),))
                _bump(session)

        self._alone(change)

    def _alone(self, work: Callable[[Session, Control], Result]) -> Result:
        """Run ``work`` in a transaction while nobody is counting."""
        with self._connect() as session:
            try:
                return exclusive(session, partial(work, session))
            except Conflict as error:
                raise Conflict(
                    f"nothing was changed, since others held what it takes all the time ({error}):"
                    " try again",
                    code=error.code,
                ) from error

    def __repr__(self) -> str:
        return "Counters()"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for, checked; None: leave it. ``keep_days`` is wrapped: it can be NULL."""

    name: str
    time_zone: str | None
    resolution: Resolution | None
    keep_days: tuple[int | None] | None
    app_slots: int | None
    start: int | None


def _set(wanted: _Wanted, session: Session, control: Control) -> Counter:
    """One transaction, which holds control alone: nobody is counting by what was before."""
    changed = _set_options(session, wanted)
    name = wanted.name
    own = load(session).of(name)
    policy = next_policy(
        name,
        own,
        time_zone=wanted.time_zone,
        resolution=wanted.resolution,
        start=wanted.start,
        used=_is_used(session, name),
        now_ms=control.now,
    )
    if policy is not None:
        changed = True
        if policy.number == 0:
            session.execute("DELETE FROM counter_policy WHERE counter = %s", (name,))
        else:
            _supersede(session, name, own[-1], policy.valid_from)
        _write(session, name, policy)
    if changed:
        _bump(session)
    return _read(session, name)[0]


def _set_options(session: Session, wanted: _Wanted) -> bool:
    """Make the row of ``counter`` as asked for; whether that changed anything."""
    rows = session.query(
        "SELECT keep_days, app_slots FROM counter WHERE name = %s FOR UPDATE", (wanted.name,)
    )
    before = rows[0] if rows else (None, DEFAULT_APP_SLOTS)
    keep_days = before[0] if wanted.keep_days is None else wanted.keep_days[0]
    app_slots = before[1] if wanted.app_slots is None else wanted.app_slots
    if not rows:
        session.execute(
            "INSERT INTO counter (name, keep_days, app_slots, created)"
            " VALUES (%s, %s, %s, UTC_TIMESTAMP(3))",
            (wanted.name, keep_days, app_slots),
        )
        return True
    if (keep_days, app_slots) == before:
        return False
    session.execute(
        "UPDATE counter SET keep_days = %s, app_slots = %s WHERE name = %s",
        (keep_days, app_slots, wanted.name),
    )
    return True


def _supersede(session: Session, name: str, last: Policy, start: int) -> None:
    """Note the largest label that ``last`` will ever have, now that another one starts."""
    used_to = last.label(start - 1)
    # Events dated beyond the start, counted before anybody knew of it, stay where they are.
    beyond = session.query(
        "SELECT bucket FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s AND bucket > %s AND SECOND(bucket) = %s"
        " ORDER BY bucket DESC LIMIT 1",
        (name, buckets.label_time(used_to), last.number),
    )
    if beyond:
        used_to = buckets.label_of(beyond[0][0])
    found = session.query(
        "SELECT 1 FROM counter_policy WHERE counter = %s AND number = %s", (name, last.number)
    )
    if not found:
        _write(session, name, last)
    session.execute(
        "UPDATE counter_policy SET used_to = %s WHERE counter = %s AND number = %s",
        (buckets.label_time(used_to), name, last.number),
    )


def _write(session: Session, name: str, policy: Policy) -> None:
    session.execute(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES (%s, %s, %s, %s, %s)",
        (
            name,
            policy.number,
            buckets.label_time(policy.valid_from * 60),
            policy.time_zone,
            policy.resolution,
        ),
    )


def _bump(session: Session) -> None:
    """Let every worker see, before it counts again, that something has changed."""
    session.execute("UPDATE control SET policy_version = policy_version + 1 WHERE id = 1")


def _is_used(session: Session, name: str) -> bool:
    """Whether anything was ever counted, be it 0, and is still to be seen anywhere."""
    ((found,),) = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_month WHERE counter = %s)",
        (name, name, name),
    )
    return bool(found)


def _require(session: Session, name: str) -> None:
    if is_name(name) and (
        session.query("SELECT 1 FROM counter WHERE name = %s", (name,)) or _is_used(session, name)
    ):
        return
    raise UnknownCounter(f"there is no counter {name!r}: it was neither made nor ever counted")


def _read(session: Session, name: str | None = None) -> list[Counter]:
    """All counters, or one, which need not be in any table."""
    ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
    policies = load(session)
    where, args = ("", ()) if name is None else (" WHERE name = %s", (name,))
    made = {
        row[0]: row[1:]
        for row in session.query(
            f"SELECT name, keep_days, app_slots, rolled_up_to FROM counter{where}", args
        )
    }
    names = {name} if name is not None else made.keys() | _counted(session)
    return [
        Counter(
            name=each,
            policies=policies.of(each),
            in_force=policies.at(each, int(now_ms) // 60_000),
            keep_days=made[each][0] if each in made else None,
            app_slots=made[each][1] if each in made else DEFAULT_APP_SLOTS,
            rolled_up_to=made[each][2] if each in made else None,
            made=each in made,
        )
        for each in sorted(names)
    ]


def _counted(session: Session) -> set[str]:
    rows = session.query(
        "SELECT DISTINCT counter FROM counter_ledger"
        " UNION SELECT DISTINCT counter FROM counter_month"
    )
    return {counter for (counter,) in rows}
