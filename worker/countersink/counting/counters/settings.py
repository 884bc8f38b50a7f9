"""Settings of a counter (time zone, resolution, keep steps, cap of keys, slots, whether a rise is
good): limits, checks with their messages, SQL of a change. ``breakdowns.py`` has dimensions.
"""

from collections import Counter as Counts
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from countersink.counting import visitors
from countersink.counting.apply import key_caps
from countersink.counting.apply.guards import BUILT_IN, Control, bump
from countersink.counting.counters import all_counters, breakdowns, buckets, keep_steps
from countersink.counting.counters.all_counters import (
    BETTER,
    ZONE_STAYS,
    Better,
    counter_names,
    counter_of,
    is_posted,
    is_used,
    refuse_tracked,
)
from countersink.counting.counters.breakdowns import Breakdown, Dimensioned
from countersink.counting.counters.buckets import NUMBER, Resolution, Width
from countersink.counting.counters.catalog import Scheme, load, load_scheme, next_midnight
from countersink.counting.counters.keep_steps import Steps
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import LABEL, NOW_MS, SHARED_SLOTS, datetime_of, label_time
from countersink.runtime.limits import is_name

DEFAULT_APP_SLOTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter and its settings.

    Attributes:
        name: the counter's name.
        time_zone: IANA name of the zone in which its days begin at midnight.
        resolution: width of the buckets in which events are counted now.
        keep: (width, minutes) for each width whose buckets are rolled up after this time; empty if
            none are.
        rolled_up_to: by width, the aware time before which finer buckets are rolled up to it.
        max_keys: the counter's own cap of keys per day; None if the default cap applies.
        most_keys: the cap in force; None if any number of keys is allowed.
        overflown: today's amount (in its time zone) of ``__overflow__``, its breakdowns included; 0
            if this machine does not know the time zone.
        app_slots: number of slots over which transactions of applications spread.
        made: True if it was created by ``Counters.set``; False if it was only counted.
        dimensions: names of the dimensions that increments may have.
        breakdowns: its breakdowns, in the order in which they were declared.
        salt_days: days for which a salt lasts (0 for ever); None if it does not count members.
        better: whether a rise is good, bad or neither.
    """

    name: str
    time_zone: str
    resolution: Resolution
    keep: Steps
    rolled_up_to: dict[Width, datetime]
    max_keys: int | None
    most_keys: int | None
    overflown: int
    app_slots: int
    made: bool
    dimensions: tuple[str, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()
    salt_days: int | None = None
    better: Better = BETTER[0]


def read(session: Session, name: str | None = None) -> list[Counter]:
    """Return all counters that were created or counted, in the order of names, with their settings.
    With ``name``, return only this counter; with the default settings if ``counter`` has no row.
    """
    ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
    minute = int(now_ms) // 60_000
    catalog = load(session)
    where, args = ("", ()) if name is None else (" WHERE name = %s", (name,))
    rows = session.query(
        "SELECT name, created IS NOT NULL, max_keys, app_slots, keep_steps, better FROM counter"
        + where,
        args,
    )
    stored = {each: columns for each, *columns in rows}
    default = False, None, DEFAULT_APP_SLOTS, catalog.defaults.keep_steps, BETTER[0]
    overflown: Counts[tuple[str, date]] = Counts()
    for (each, label), amount in key_caps.overflown_lately(session, name).items():
        with suppress(Refused, LookupError):  # verify reports unknown widths
            overflown[counter_of(each), catalog.day(each, label)] += amount
    found = []
    for each in [name] if name is not None else counter_names(session):
        made, max_keys, app_slots, steps, better = stored.get(each, default)
        scheme = catalog.scheme(each)
        declared = catalog.dimensioned.get(each, Dimensioned(each, ()))
        over = 0
        with suppress(Refused):  # its time zone is unknown here
            over = overflown[each, buckets.date_at(scheme.known_zone(), minute * 60)]
        found.append(
            Counter(
                name=each,
                time_zone=scheme.time_zone,
                resolution=scheme.resolution,
                keep=keep_steps.stored(steps),
                rolled_up_to={
                    width: datetime.fromtimestamp(end, UTC) for width, end in scheme.rolled
                },
                max_keys=max_keys,
                most_keys=catalog.cap(each),
                overflown=over,
                app_slots=app_slots,
                made=bool(made),
                dimensions=declared.dimensions,
                breakdowns=declared.breakdowns,
                salt_days=catalog.salt_days.get(each),
                better=better,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """New settings of a counter. Each value is checked, but not yet whether they fit together. None
    leaves a setting as it is. ``max_keys`` is a tuple of one value: ``(1000,)`` sets the counter's
    own cap, and ``(None,)`` removes it.
    """

    name: str
    time_zone: str | None
    resolution: Resolution | None
    max_keys: tuple[int | None] | None
    app_slots: int | None
    keep: Steps | None = None
    dimensions: tuple[str, ...] | None = None
    breakdowns: tuple[tuple[str, ...], ...] | None = None
    salt_days: int | None = None
    better: Better | None = None


def change(wanted: SettingsChange, session: Session, control: Control) -> Counter:
    """Create a counter or change its settings, and return the counter after the change. Breakdowns
    not in ``wanted.breakdowns`` are marked as removed; the caller deletes them. Call this within
    :func:`countersink.counting.apply.guards.exclusive`, so that no worker counts meanwhile.

    Raises:
        ValueError: the change is not allowed; roll back.
        TrackedCounter: the counter belongs to a tracked table.
        UnknownZone: the change needs the counter's time zone, which this machine does not know.
    """
    refuse_tracked(session, wanted.name)
    name = wanted.name
    has_row = session.query("SELECT 1 FROM counter WHERE name = %s", (name,))
    all_counters.insert_rows(session, [name], control.defaults)
    try:
        _set_options(session, wanted)
        _set_scheme(session, wanted, control.now)
        if wanted.salt_days is not None:
            visitors.set_days(session, name, wanted.salt_days, control.now // 60_000)
        _check_steps(session, name, control.now)
    except ValueError as error:
        if has_row or control.defaults == BUILT_IN:
            raise
        own = "settings that are not given are those of `countersink counter defaults`"
        raise ValueError(f"{error}; {own}") from error
    if wanted.dimensions is not None or wanted.breakdowns is not None:
        since = next_midnight(session, name, control.now) if _may_be_counted(session, name) else 0
        breakdowns.declare(session, name, wanted.dimensions, wanted.breakdowns, since)
    breakdowns.copy_settings(session, name)
    bump(session)
    return read(session, name)[0]


def _set_options(session: Session, wanted: SettingsChange) -> None:
    """Update cap, slots, steps and ``better`` in the counter's row; the counter is created by this.
    If it gets a cap and had none of its own, reset the stored numbers of keys of its days and those
    of its breakdowns: a day's keys are counted anew before the day gets another key.
    """
    name = wanted.name
    ((before, slots, keep, better),) = session.query(
        "SELECT max_keys, app_slots, keep_steps, better FROM counter WHERE name = %s FOR UPDATE",
        (name,),
    )
    most = before if wanted.max_keys is None else wanted.max_keys[0]
    if wanted.keep is not None:
        keep = keep_steps.text_of(wanted.keep) if wanted.keep else None
    session.execute(
        "UPDATE counter SET max_keys = %s, app_slots = %s, keep_steps = %s, better = %s,"
        " created = COALESCE(created, UTC_TIMESTAMP(3)) WHERE name = %s",
        (most, wanted.app_slots or slots, keep, wanted.better or better, name),
    )
    if before is None and most is not None:
        key_caps.count_anew(session, [name, *all_counters.names_of(session, name)])


def _set_scheme(session: Session, wanted: SettingsChange, now_ms: int) -> None:
    """Set the counter's time zone and resolution. If the resolution changes, and the counter may
    have been counted, store the end of the last bucket of the former resolution. ``now_ms`` is the
    server's clock in Unix ms.

    Raises:
        ValueError: the change is not allowed.
    """
    name = wanted.name
    before = load_scheme(session, name)
    zone = wanted.time_zone or before.time_zone
    resolution = wanted.resolution or before.resolution
    if (zone, resolution) == (before.time_zone, before.resolution):
        return
    check_hours(zone, resolution, now_ms // 1000)
    if zone != before.time_zone:
        _check_zone(session, before)
    if resolution != before.resolution and _may_be_counted(session, name):
        session.execute(
            f"UPDATE counter SET counted_{before.resolution} = %s, counted_{resolution} = NULL"
            " WHERE name = %s",
            (datetime_of(_counted_to(session, before, now_ms)), name),
        )
    session.execute(
        "UPDATE counter SET time_zone = %s, resolution = %s WHERE name = %s",
        (zone, resolution, name),
    )


def _check_zone(session: Session, scheme: Scheme) -> None:
    """Raise an error if the counter's time zone may not change any more.

    Raises:
        ValueError: the counter was counted, or applications or backfills may be counting it now.
    """
    name, zone = scheme.counter, scheme.time_zone
    used = is_used(session, name)
    if not used and _is_fixed(session, name):
        raise ValueError(
            f"applications or backfills may be counting {name} in {zone}: set another time zone"
            " once it was neither counted nor deleted for ten minutes, or count under another name"
        )
    if used or is_posted(session, name):
        raise ValueError(
            f"{name} has been counted in {zone}, and its time zone cannot be changed any more: ask"
            " for totals in other zones, or count under another name"
        )


def _may_be_counted(session: Session, name: str) -> bool:
    """Return whether a counter was ever counted, or an application or a backfill may be counting it
    now. Waits for open transactions of applications that count it for the first time.
    """
    return is_used(session, name) or _is_fixed(session, name) or is_posted(session, name)


def _is_fixed(session: Session, name: str) -> bool:
    """Return whether applications or a backfill may be counting now in the counter's time zone."""
    # With a lock, as the snapshot may be older than the last commit of an application.
    fixed = (
        f"SELECT 1 FROM counter WHERE name = %s AND zone_fixed > {ZONE_STAYS} LOCK IN SHARE MODE"
    )
    running = "SELECT 1 FROM backfill_run WHERE counter = %s AND state = 'running'"
    return bool(session.query(fixed, (name,)) or session.query(running, (name,)))


def _counted_to(session: Session, scheme: Scheme, now_ms: int) -> int:
    """Return the end (Unix seconds) of the last bucket that has, or may get, events counted by the
    scheme's resolution. ``now_ms`` is the server's clock in Unix ms."""
    last = scheme.label(now_ms // 60_000 + _APP_MINUTES)
    # Events in the future, too. The share lock waits for open transactions of applications that
    # count such events; in ascending order, as a descending scan locks the row before as well.
    beyond = session.query(
        f"SELECT {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s AND bucket > %s"
        " AND width = %s ORDER BY counter, bucket LOCK IN SHARE MODE",
        (scheme.counter, label_time(last), NUMBER[scheme.resolution]),
    )
    return scheme.ends_at(int(beyond[-1][0]) if beyond else last)


def _check_steps(session: Session, name: str, now_ms: int) -> None:
    """Raise ValueError if the counter cannot follow its keep steps: see :func:`check_steps`."""
    ((text, days),) = session.query(
        "SELECT keep_steps, salt_days FROM counter WHERE name = %s", (name,)
    )
    check_steps(load_scheme(session, name), keep_steps.stored(text), days, now_ms)


def check_steps(scheme: Scheme, steps: Steps, days: int | None, now_ms: int) -> None:
    """Raise an error if a counter cannot follow some steps of retention.

    Args:
        scheme: the counter's scheme.
        steps: the steps.
        days: days for which a salt lasts (0 for ever); None if the counter does not count members.
        now_ms: time of the server's clock in Unix ms.

    Raises:
        ValueError: a step is finer than the counter's finest buckets; or hours do not fit its time
            zone; or a month would unite members (such as visitors) hashed with several salts.
    """
    name, finest = scheme.counter, scheme.widths[0]
    fitting = tuple(step for step in steps if NUMBER[step[0]] >= NUMBER[finest])
    if steps != fitting:
        raise ValueError(
            f"{name} has no {steps[0][0]} buckets, its finest are {finest} buckets: give --keep"
            f" {keep_steps.text_of(fitting)}, or --resolution {steps[0][0]}"
        )
    if days and "month" in keep_steps.targets(steps):
        raise ValueError(
            f"{name} cannot both roll up days to months (--keep {keep_steps.text_of(steps)})"
            f" and renew its salts (--salt-days {days}): a month would unite"
            " members that were hashed with several salts; keep its days (--keep without day), or"
            " one salt (--unique)"
        )
    if "hour" in keep_steps.targets(steps):
        advice = "write quarter instead of hour in --keep, or leave hour out"
        check_hours(scheme.time_zone, "hour", now_ms // 1000, advice)


MAX_APP_SLOTS: Final = len(SHARED_SLOTS)
NO_CAP: Final = "none"
"""Value of ``max_keys`` for no cap of its own: the default cap applies."""
MaxKeys = int | Literal["none"]
MOST_MAX_KEYS: Final = 100_000_000
_APP_MINUTES: Final = 2
"""Minutes for which applications may still count by old settings, plus one."""
_LOOK_AHEAD_S: Final = 2 * 365 * 86_400
"""Seconds from now for which the UTC offsets of a time zone are checked."""


def check_name(counter: str) -> str:
    """Return ``counter`` if it is a valid name of a counter.

    Raises:
        TypeError: it is not a ``str``.
        ValueError: it is not 1 to 64 characters of ``A-Z a-z 0-9 _ . : -``.
    """
    if not isinstance(counter, str):
        raise TypeError(f"a counter name is a str, not {type(counter).__name__}")
    if not is_name(counter):
        raise ValueError(
            f"counter name {counter[:80]!r}: use 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    return counter


def check_resolution(resolution: str) -> Resolution:
    """Return ``resolution`` if it is valid.

    Raises:
        ValueError: it is not ``day``, ``hour``, ``quarter`` or ``minute``.
    """
    if resolution not in buckets.RESOLUTIONS:
        raise ValueError(f"resolution {resolution!r}: use one of {', '.join(buckets.RESOLUTIONS)}")
    return resolution


def check_max_keys(max_keys: MaxKeys | None) -> int | None:
    """Return a counter's own cap as the table stores it: a number, or None for no own cap. The
    argument ``none`` gives None, too.

    Raises:
        ValueError: neither a number from 1 to 100,000,000 nor ``none``.
    """
    if max_keys is None or max_keys == NO_CAP:
        return None
    return _checked("max_keys", max_keys, MOST_MAX_KEYS, " of keys", f", or {NO_CAP!r}")


def check_app_slots(app_slots: int) -> int:
    """Return ``app_slots`` if it is valid.

    Raises:
        ValueError: it is not a number from 1 to :data:`MAX_APP_SLOTS`.
    """
    return _checked("app_slots", app_slots, MAX_APP_SLOTS)


def _checked(name: str, value: int | str, most: int, noun: str = "", other: str = "") -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}: use a number{noun} from 1 to {most:,}{other}")
    return value


def check_hours(
    time_zone: str, width: Width, since: int, advice: str = "use the resolution quarter"
) -> None:
    """Raise ValueError if there is no such zone. If ``width`` is ``hour``, also raise it if the
    zone's UTC offset is not whole hours at some time in the two years from ``since`` (Unix seconds)
    on. ``advice`` ends the message.
    """
    buckets.zone(time_zone)
    if width != "hour":
        return
    for begin, _, offset in buckets.offsets(time_zone, since, since + _LOOK_AHEAD_S):
        if offset % 3600:
            raise ValueError(
                f"{time_zone} is not whole hours from UTC ({timedelta(seconds=offset)} on"
                f" {datetime_of(begin):%Y-%m-%d}), so hours do not add up to its days: {advice}"
            )
