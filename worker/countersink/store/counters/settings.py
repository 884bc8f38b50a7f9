"""Settings of a counter (name, time zone, resolution, keep, keep_days, max_keys, app_slots; its
dimensions are in ``breakdowns.py``): limits, checks with error messages, from when a change may be
in force, and its SQL. Its policies never change for the past, once a counter has been counted."""

from collections import Counter as Counts
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from countersink.runtime.limits import is_name
from countersink.store.apply import key_caps
from countersink.store.apply.control import Control, bump
from countersink.store.connection import Session
from countersink.store.counters import breakdowns, buckets, keep_steps
from countersink.store.counters.breakdowns import Breakdown, Dimensioned, counter_of
from countersink.store.counters.buckets import MAX_MINUTE, WIDTH, Resolution
from countersink.store.counters.keep_steps import Steps
from countersink.store.counters.policies import Policy, counting, load, load_own, next_midnight
from countersink.store.errors import Refused, UnknownCounter
from countersink.store.in_app import settings_version
from countersink.store.sql import EPOCH, NOW_MS, label_of, label_time
from countersink.store.totals.shapes import counter_names
from countersink.store.visitors import salts

DEFAULT_APP_SLOTS: Final = 16
_NOT_MADE: Final = (None, None, DEFAULT_APP_SLOTS, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter and its settings.

    Attributes:
        name: its name.
        policies: its time zones and resolutions by event time, the earliest first; at least one.
        in_force: which of them is for events of now, on the database server's clock.
        keep: for how long its buckets finer than days are kept before they become wider ones.
        keep_days: days that its days are kept before they roll up to months; None: for ever.
        max_keys: its own cap on the keys of a day; None: it has none of its own.
        most_keys: the cap that is in force for it; None: a day may have any number.
        overflown: what of today, in its time zone, went to ``__overflow__`` of it, or of one
            of its breakdowns.
        app_slots: over how many slots the application's own transactions spread.
        rolled_up_to: days before this one are in months; None: no day is.
        made: somebody has made it by hand; False where it was counted and has the defaults.
        dimensions: those that increments may have.
        breakdowns: of which of them totals are kept, in the order in which they were declared.
        salt_days: for how many days a salt of its members lasts; 0: for ever; None: its different
            members are not counted.
    """

    name: str
    policies: tuple[Policy, ...]
    in_force: Policy
    keep: Steps
    keep_days: int | None
    max_keys: int | None
    most_keys: int | None
    overflown: int
    app_slots: int
    rolled_up_to: date | None
    made: bool
    dimensions: tuple[str, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()
    salt_days: int | None = None

    @property
    def to_come(self) -> tuple[Policy, ...]:
        """The policies that begin later than now."""
        if len(self.policies) == 1:
            return ()
        return tuple(p for p in self.policies if p.valid_from > self.in_force.valid_from)


def is_used(session: Session, name: str, more: Sequence[str] = ()) -> bool:
    """Whether anything was ever counted, be it 0, and is still to be seen anywhere.

    Args:
        session: in a transaction or not.
        name: of the counter.
        more: tables in which it may be seen, beside those of rows and the ledger.
    """
    tables = ("counter_ledger", "counter_slot", "counter_month", *more)
    seen = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE counter = %s)" for table in tables)
    ((found,),) = session.query(f"SELECT {seen}", (name,) * len(tables))
    return bool(found)


def require(session: Session, name: str, more: Sequence[str] = ()) -> None:
    """Check that there is such a counter; as :func:`is_used`.

    Raises:
        UnknownCounter: it was neither made nor ever counted.
    """
    if is_name(name) and (
        session.query("SELECT 1 FROM counter WHERE name = %s", (name,))
        or is_used(session, name, more)
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
            "SELECT name, keep_days, max_keys, app_slots, rolled_up_to, keep_steps"
            f" FROM counter{where}",
            args,
        )
    }
    overflown: Counts[tuple[str, date]] = Counts()
    for (each, label), amount in key_caps.overflown_lately(session, name).items():
        with suppress(Refused, LookupError):  # verify tells of the latter
            overflown[counter_of(each), policies.day(each, label)] += amount
    found = []
    for each in [name] if name is not None else counter_names(session):
        keep_days, max_keys, app_slots, rolled_up_to, steps = made.get(each, _NOT_MADE)
        in_force = policies.at(each, minute)
        declared = policies.dimensioned.get(each, Dimensioned(each, ()))
        found.append(
            Counter(
                name=each,
                policies=counting(policies.of(each)),
                in_force=in_force,
                keep=keep_steps.stored(steps),
                keep_days=keep_days,
                max_keys=max_keys,
                most_keys=policies.cap(each),
                overflown=overflown[each, _today(in_force, minute)] if overflown else 0,
                app_slots=app_slots,
                rolled_up_to=rolled_up_to,
                made=each in made,
                dimensions=declared.dimensions,
                breakdowns=declared.breakdowns,
                salt_days=policies.salt_days.get(each),
            )
        )
    return found


def _today(policy: Policy, minute: int) -> date:
    """The date in a policy's time zone; where that is unknown here, in UTC."""
    try:
        return buckets.date_at(policy.known_zone(), minute * 60)
    except Refused:
        return buckets.date_at("UTC", minute * 60)


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """The settings that a change asks for, checked; None: leave it. What can be NULL is wrapped."""

    name: str
    time_zone: str | None
    resolution: Resolution | None
    keep_days: tuple[int | None] | None
    max_keys: tuple[int | None] | None
    app_slots: int | None
    start: int | None
    keep: Steps | None = None
    dimensions: tuple[str, ...] | None = None
    breakdowns: tuple[tuple[str, ...], ...] | None = None
    salt_days: int | None = None


def change(wanted: SettingsChange, session: Session, control: Control) -> Counter:
    """Do what is wanted, while nobody is counting by what was before; the counter as it is then.

    In :func:`countersink.store.in_app.settings_version.alone`.

    Raises:
        ValueError: it may not be changed so; roll back.
        TrackedCounter: it is that of a tracked table.
    """
    settings_version.refuse_tracked(session, wanted.name)
    name = wanted.name
    changed = _set_options(session, wanted)
    own = load_own(session, name)
    policy = next_policy(wanted, own, is_used(session, name), control.now)
    if policy is not None:
        changed = True
        if policy.number == 0:
            session.execute("DELETE FROM counter_policy WHERE counter = %s", (name,))
        else:
            _supersede(session, name, counting(own)[-1], policy.valid_from)
        _write(session, name, policy)
    changed |= _roll_up(session, name, control.now)
    if wanted.salt_days is not None:
        changed |= salts.set_days(session, name, wanted.salt_days, control.now // 60_000)
    salts.check_months(session, name)
    if wanted.dimensions is not None or wanted.breakdowns is not None:
        used = is_used(session, name)
        since = next_midnight(session, name, control.now) if used else 0
        changed |= breakdowns.declare(session, name, wanted.dimensions, wanted.breakdowns, since)
    if changed:
        for each in breakdowns.names_of(session, name):
            breakdowns.copy_settings(session, name, each)
        bump(session)
    return read(session, name)[0]


def _set_options(session: Session, wanted: SettingsChange) -> bool:
    """Make the row of ``counter`` as asked for; whether that changed anything."""
    rows = session.query(
        "SELECT keep_days, max_keys, app_slots, keep_steps FROM counter WHERE name = %s FOR UPDATE",
        (wanted.name,),
    )
    before = rows[0] if rows else (None, None, DEFAULT_APP_SLOTS, None)
    after = (
        before[0] if wanted.keep_days is None else wanted.keep_days[0],
        before[1] if wanted.max_keys is None else wanted.max_keys[0],
        before[2] if wanted.app_slots is None else wanted.app_slots,
        before[3]
        if wanted.keep is None
        else (keep_steps.text_of(wanted.keep) if wanted.keep else None),
    )
    if not rows:
        session.execute(
            "INSERT INTO counter (name, keep_days, max_keys, app_slots, keep_steps, created)"
            " VALUES (%s, %s, %s, %s, %s, UTC_TIMESTAMP(3))",
            (wanted.name, *after),
        )
        if after[1] is not None:
            key_caps.count_anew(session, [wanted.name])
        return True
    if after == before:
        return False
    session.execute(
        "UPDATE counter SET keep_days = %s, max_keys = %s, app_slots = %s, keep_steps = %s"
        " WHERE name = %s",
        (*after, wanted.name),
    )
    if before[1] is None and after[1] is not None:
        broken_down = breakdowns.names_of(session, wanted.name)
        key_caps.count_anew(session, [wanted.name, *broken_down])
    return True


def _supersede(session: Session, name: str, last: Policy, start: int) -> None:
    """Note the largest label that ``last`` will ever have, now that another one starts."""
    used_to = last.label(start - 1)
    # Events dated beyond the start, counted before anybody knew of it, stay where they are.
    beyond = session.query(
        "SELECT bucket FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s AND bucket > %s AND SECOND(bucket) = %s"
        " ORDER BY bucket DESC LIMIT 1",
        (name, label_time(used_to), last.number),
    )
    if beyond:
        used_to = label_of(beyond[0][0])
    found = session.query(
        "SELECT 1 FROM counter_policy WHERE counter = %s AND number = %s", (name, last.number)
    )
    if not found:
        _write(session, name, last)
    session.execute(
        "UPDATE counter_policy SET used_to = %s WHERE counter = %s AND number = %s",
        (label_time(used_to), name, last.number),
    )


def _write(session: Session, name: str, policy: Policy) -> None:
    session.execute(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution, rolls)"
        " VALUES (%s, %s, %s, %s, %s, %s)",
        (
            name,
            policy.number,
            label_time(policy.valid_from * 60),
            policy.time_zone,
            policy.resolution,
            policy.rolls,
        ),
    )


def _roll_up(session: Session, name: str, now_ms: int) -> bool:
    """Make the policies to whose buckets others are rolled up, where there are none; whether any
    was made.

    Raises:
        ValueError: its settings do not fit together; or there is no room for them.
    """
    ((text, keep_days),) = session.query(
        "SELECT keep_steps, keep_days FROM counter WHERE name = %s", (name,)
    )
    steps = keep_steps.stored(text)
    if not steps:
        return False
    own = load_own(session, name)
    _check_steps(name, steps, counting(own), keep_days)
    there = {(policy.rolls, policy.resolution) for policy in own}
    missing = [
        replace(policy, rolls=policy.number, resolution=wider, used_to=None)
        for policy in counting(own)
        for wider in keep_steps.targets(steps, policy.resolution)
        if (policy.number, wider) not in there
    ]
    first = max(policy.number for policy in own) + 1
    if missing and first + len(missing) > buckets.MAX_POLICIES:
        raise ValueError(
            f"{name} has had {first} time zones, resolutions and widths that they are rolled up to,"
            f" and there is no room for the {len(missing)} more that these steps (--keep) take: at"
            f" most {buckets.MAX_POLICIES} are possible"
        )
    for number, policy in enumerate(missing, first):
        since = max(now_ms // 60_000, policy.valid_from)
        _check_hours(policy, since, "name quarter instead of hour in --keep, or leave hour out")
        _write(session, name, replace(policy, number=number))
    return bool(missing)


def _check_steps(
    name: str, steps: Steps, policies: Sequence[Policy], keep_days: int | None
) -> None:
    finest = min((policy.resolution for policy in policies), key=WIDTH.__getitem__)
    if WIDTH[steps[0][0]] < WIDTH[finest]:
        raise ValueError(
            f"nothing of {name} is ever counted by {steps[0][0]}, but by {finest} at the finest, so"
            f" there is no {steps[0][0]} to keep: leave it out of --keep, or choose it with"
            " --resolution"
        )
    if keep_days is not None and keep_days * 1440 <= steps[-1][1]:
        raise ValueError(
            f"{keep_steps.text_of(steps[-1:])} is not shorter than the {keep_days:,} days that days"
            " are kept (keep_days) before they become months: keep days longer, or"
            f" {steps[-1][0]} buckets for a shorter time"
        )


FOREVER: Final = "forever"
"""As ``keep_days``: days are never rolled up to months."""
KeepDays = int | Literal["forever"]
MAX_KEEP_DAYS: Final = 100_000
MAX_APP_SLOTS: Final = 256
NO_CAP: Final = "none"
"""As ``max_keys`` of a counter: as for all counters without a cap of their own."""
MaxKeys = int | Literal["none"]
MOST_MAX_KEYS: Final = 100_000_000
NOTICE_MS: Final = 60_000
"""Milliseconds ahead, at the least, at which another policy begins."""

_LOOK_AHEAD: Final = 2 * 365 * 1440
"""Minutes from its begin on in which a zone's UTC offsets are looked at."""


def check_name(counter: str) -> str:
    """``counter``, if it can be a counter's name.

    Raises:
        TypeError: not a ``str``. ValueError: it cannot.
    """
    if not isinstance(counter, str):
        raise TypeError(f"a counter name is a str, not {type(counter).__name__}")
    if not is_name(counter):
        raise ValueError(
            f"counter name {counter[:80]!r}: use 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    return counter


def check_resolution(resolution: str) -> Resolution:
    """``resolution``, if it is one.

    Raises:
        ValueError: it is none.
    """
    if resolution not in buckets.RESOLUTIONS:
        raise ValueError(f"resolution {resolution!r}: one of {', '.join(buckets.RESOLUTIONS)}")
    return resolution


def check_keep_days(keep_days: KeepDays) -> int | None:
    """Days as the table has them, None for ever.

    Raises:
        ValueError: not a number from 1 to 100,000, nor ``forever``.
    """
    if keep_days == FOREVER:
        return None
    return _checked("keep_days", keep_days, MAX_KEEP_DAYS, " of days", f", or {FOREVER!r}")


def check_max_keys(max_keys: MaxKeys | None) -> int | None:
    """Keys as the tables have them, None for no cap.

    Raises:
        ValueError: not a number from 1 to 100,000,000, nor ``none``.
    """
    if max_keys is None or max_keys == NO_CAP:
        return None
    return _checked("max_keys", max_keys, MOST_MAX_KEYS, " of keys", f", or {NO_CAP!r}")


def check_app_slots(app_slots: int) -> int:
    """``app_slots``, if there are so many.

    Raises:
        ValueError: there are not.
    """
    return _checked("app_slots", app_slots, MAX_APP_SLOTS)


def _checked(name: str, value: int | str, most: int, of: str = "", other: str = "") -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}: a number{of} from 1 to {most:,}{other}")
    return value


def start_minute(start: datetime) -> int:
    """The Unix minute at which ``start`` is.

    Raises:
        TypeError: not a ``datetime``.
        ValueError: naive, not a whole minute, or behind the last event there can be.
    """
    if not isinstance(start, datetime):
        raise TypeError(f"a start is an aware datetime, not {type(start).__name__}")
    if start.utcoffset() is None:
        raise ValueError(
            "the start has no time zone, and guessing one would begin at the wrong hour: "
            "datetime(…, tzinfo=ZoneInfo(…))"
        )
    minute, rest = divmod(start - EPOCH.replace(tzinfo=UTC), timedelta(minutes=1))
    if rest:
        raise ValueError(f"the start {start} is not a whole minute")
    if minute > MAX_MINUTE:
        raise ValueError(f"the start {start} is after the last possible event, {_text(MAX_MINUTE)}")
    return minute


def next_policy(
    wanted: SettingsChange, own: Sequence[Policy], used: bool, now_ms: int
) -> Policy | None:
    """The policy that comes after ``own``, by what was asked for; what was not stays.

    Args:
        wanted: what was asked for.
        own: all of the counter's policies, the earliest first; at least one.
        used: whether anything was ever counted.
        now_ms: Unix ms on the server's clock.

    Returns:
        None if there is nothing to change. A policy with number 0 is for all time and takes the
        place of all others; any other one follows on the last.

    Raises:
        ValueError: it may not change so; the message says what is possible.
    """
    counter, start = wanted.name, wanted.start
    if wanted.time_zone is None and wanted.resolution is None:
        if start is not None:
            raise ValueError(
                "a start is for another time zone or resolution: give one, or leave out the start"
            )
        return None
    ours = counting(own)
    last = ours[-1]
    following = Policy(
        counter=counter,
        number=0 if start is None else max(policy.number for policy in own) + 1,
        valid_from=0 if start is None else start,
        time_zone=wanted.time_zone or last.time_zone,
        resolution=wanted.resolution or last.resolution,
    )
    if (following.time_zone, following.resolution) == (last.time_zone, last.resolution) and (
        used or start is not None or len(ours) == 1
    ):
        return None
    earliest = max(-(-(now_ms + NOTICE_MS) // 60_000), last.valid_from + 1)
    if start is None and used:
        raise ValueError(
            f"{counter} has been counted, so its time zone and resolution can only change from"
            f" a time to come: give a start (--from), {_text(earliest)} or later"
        )
    if start is not None and start < earliest:
        raise ValueError(
            f"{_text(start)} is too early: what was counted stays as it is, so another time zone"
            f" or resolution starts (--from) at {_text(earliest)} or later"
        )
    if following.number >= buckets.MAX_POLICIES:
        raise ValueError(
            f"{counter} has had {buckets.MAX_POLICIES} time zones, resolutions and widths that they"
            " are rolled up to, and there is no room for more: count on under another name"
        )
    _check_hours(following, max(now_ms // 60_000, following.valid_from))
    return following


def _check_hours(policy: Policy, since: int, instead: str = "use the resolution quarter") -> None:
    """Refuse hours for a zone whose midnights are not on the hour in UTC, from ``since`` on."""
    buckets.zone(policy.time_zone)
    if policy.resolution != "hour":
        return
    for minute in range(since, min(since + _LOOK_AHEAD, MAX_MINUTE + 1), 1440):
        offset = buckets.offset_at(policy.time_zone, minute * 60)
        if offset % 3600:
            raise ValueError(
                f"{policy.time_zone} is not whole hours from UTC ({timedelta(seconds=offset)} on"
                f" {label_time(minute * 60):%Y-%m-%d}), so hours do not add up to its days:"
                f" {instead}"
            )


def _text(minute: int) -> str:
    return f"{label_time(minute * 60).isoformat(timespec='minutes')}Z"
