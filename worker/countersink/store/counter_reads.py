"""What is known of counters, as queries on an open session."""

from dataclasses import dataclass
from datetime import date
from typing import Final

from countersink.store import buckets, overflow
from countersink.store.clock import NOW_MS
from countersink.store.connection import Session
from countersink.store.errors import Refused, UnknownCounter
from countersink.store.keys import is_name
from countersink.store.periods import ONE_DAY
from countersink.store.policies import Policy, load
from countersink.store.shapes import counter_names

DEFAULT_APP_SLOTS: Final = 16
_NOT_MADE: Final = (None, None, DEFAULT_APP_SLOTS, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter and its settings.

    Attributes:
        name: its name.
        policies: its time zones and resolutions by event time, the earliest first; at least one.
        in_force: which of them is for events of now, on the database server's clock.
        keep_days: days that its days are kept before they roll up to months; None: for ever.
        max_keys: its own cap on the keys of a day; None: it has none of its own.
        most_keys: the cap that is in force for it; None: a day may have any number.
        overflown: rows of today, in its time zone, that went to ``__overflow__`` for it.
        app_slots: over how many slots the application's own transactions spread.
        rolled_up_to: days before this one are in months; None: no day is.
        made: somebody has made it by hand; False where it was counted and has the defaults.
    """

    name: str
    policies: tuple[Policy, ...]
    in_force: Policy
    keep_days: int | None
    max_keys: int | None
    most_keys: int | None
    overflown: int
    app_slots: int
    rolled_up_to: date | None
    made: bool

    @property
    def to_come(self) -> tuple[Policy, ...]:
        """The policies that begin later than now."""
        if len(self.policies) == 1:
            return ()
        return tuple(p for p in self.policies if p.valid_from > self.in_force.valid_from)


def is_used(session: Session, name: str) -> bool:
    """Whether anything was ever counted, be it 0, and is still to be seen anywhere."""
    ((found,),) = session.query(
        "SELECT EXISTS (SELECT 1 FROM counter_ledger WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_slot WHERE counter = %s)"
        " OR EXISTS (SELECT 1 FROM counter_month WHERE counter = %s)",
        (name, name, name),
    )
    return bool(found)


def require(session: Session, name: str) -> None:
    """Check that there is such a counter.

    Raises:
        UnknownCounter: it was neither made nor ever counted.
    """
    if is_name(name) and (
        session.query("SELECT 1 FROM counter WHERE name = %s", (name,)) or is_used(session, name)
    ):
        return
    raise UnknownCounter(f"there is no counter {name!r}: it was neither made nor ever counted")


def read(session: Session, name: str | None = None) -> list[Counter]:
    """All counters, or one, which need not be in any table."""
    ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
    minute = int(now_ms) // 60_000
    policies = load(session)
    where, args = ("", ()) if name is None else (" WHERE name = %s", (name,))
    made = {
        row[0]: row[1:]
        for row in session.query(
            f"SELECT name, keep_days, max_keys, app_slots, rolled_up_to FROM counter{where}", args
        )
    }
    overflown = overflow.by_day(session, since=_utc_day(minute) - ONE_DAY, counter=name)
    overflowing = {each for each, _ in overflown}
    found = []
    for each in [name] if name is not None else counter_names(session):
        keep_days, max_keys, app_slots, rolled_up_to = made.get(each, _NOT_MADE)
        in_force = policies.at(each, minute)
        found.append(
            Counter(
                name=each,
                policies=policies.of(each),
                in_force=in_force,
                keep_days=keep_days,
                max_keys=max_keys,
                most_keys=policies.cap(each),
                overflown=(
                    overflown.get((each, _today(in_force, minute)), 0) if each in overflowing else 0
                ),
                app_slots=app_slots,
                rolled_up_to=rolled_up_to,
                made=each in made,
            )
        )
    return found


def _today(policy: Policy, minute: int) -> date:
    """The date in a policy's time zone; where that is unknown here, in UTC."""
    try:
        return buckets.date_at(policy.known_zone(), minute * 60)
    except Refused:
        return _utc_day(minute)


def _utc_day(minute: int) -> date:
    return buckets.date_at("UTC", minute * 60)
