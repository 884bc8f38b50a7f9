"""Settings of a counter (name, time zone, resolution, keep, max_keys, app_slots; its dimensions are
in ``breakdowns.py``): limits, checks with error messages, and the SQL of a change. The time zone
stays once a counter has been counted; the resolution is for what is counted from then on."""

from collections import Counter as Counts
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from countersink.counting import visitors
from countersink.counting.apply import key_caps
from countersink.counting.apply.control import Control, bump
from countersink.counting.counters import breakdowns, buckets, keep_steps
from countersink.counting.counters.all_counters import counter_names, refuse_tracked
from countersink.counting.counters.breakdowns import Breakdown, Dimensioned, counter_of
from countersink.counting.counters.buckets import NUMBER, Resolution, Width
from countersink.counting.counters.catalog import (
    ZONE_STAYS,
    Scheme,
    load,
    load_scheme,
    next_midnight,
)
from countersink.counting.counters.keep_steps import Steps
from countersink.counting.errors import UnknownCounter
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.sql import LABEL, NOW_MS, datetime_of, label_time
from countersink.runtime.limits import is_name

DEFAULT_APP_SLOTS: Final = 16
_NOT_MADE: Final = (None, DEFAULT_APP_SLOTS, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter and its settings.

    Attributes:
        name: its name.
        time_zone: IANA name; whose midnights begin its days.
        resolution: width of the buckets that its events are counted in from now on.
        keep: for how long its buckets finer than months are kept before they become wider ones.
        rolled_up_to: by width before when finer buckets are rolled up to such, aware; {} where
            none are.
        max_keys: its own cap on the keys of a day; None: it has none of its own.
        most_keys: the cap that is in force for it; None: a day may have any number.
        overflown: what of today, in its time zone, went to ``__overflow__`` of it, or of one
            of its breakdowns.
        app_slots: over how many slots the application's own transactions spread.
        made: somebody has made it by hand; False where it was counted and has the defaults.
        dimensions: those that increments may have.
        breakdowns: of which of them totals are kept, in the order in which they were declared.
        salt_days: for how many days a salt of its members lasts; 0: for ever; None: its different
            members are not counted.
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


def is_used(session: Session, name: str, more: Sequence[str] = ()) -> bool:
    """Whether anything was ever counted, be it 0, and is still to be seen anywhere.

    Args:
        session: in a transaction or not.
        name: of the counter.
        more: tables in which it may be seen, beside those of rows and the ledger.
    """
    tables = ("counter_ledger", "counter_slot", *more)
    seen = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE counter = %s)" for table in tables)
    ((found,),) = session.query(f"SELECT {seen}", (name,) * len(tables))
    return bool(found)


def require(session: Session, name: str, more: Sequence[str] = ()) -> None:
    """Check that there is such a counter; as :func:`is_used`.

    Raises:
        UnknownCounter: it was neither made nor ever counted.
    """
    if is_name(name) and (
        session.query("SELECT 1 FROM counter WHERE name = %s AND created IS NOT NULL", (name,))
        or is_used(session, name, more)
    ):
        return
    raise UnknownCounter(f"there is no counter {name!r}: it was neither made nor ever counted")


def read(session: Session, name: str | None = None) -> list[Counter]:
    """All counters, or one, which need not be in any table."""
    ((now_ms,),) = session.query(f"SELECT {NOW_MS}")
    minute = int(now_ms) // 60_000
    catalog = load(session)
    where, args = ("", ()) if name is None else (" AND name = %s", (name,))
    rows = session.query(
        "SELECT name, max_keys, app_slots, keep_steps FROM counter"
        f" WHERE created IS NOT NULL{where}",
        args,
    )
    made = {each: own for each, *own in rows}
    overflown: Counts[tuple[str, date]] = Counts()
    for (each, label), amount in key_caps.overflown_lately(session, name).items():
        with suppress(Refused, LookupError):  # verify tells of the latter
            overflown[counter_of(each), catalog.day(each, label)] += amount
    found = []
    for each in [name] if name is not None else counter_names(session):
        max_keys, app_slots, steps = made.get(each, _NOT_MADE)
        scheme = catalog.of(each)
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
                made=each in made,
                dimensions=declared.dimensions,
                breakdowns=declared.breakdowns,
                salt_days=catalog.salt_days.get(each),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """The settings that a change asks for, checked; None: leave it. What can be NULL is wrapped."""

    name: str
    time_zone: str | None
    resolution: Resolution | None
    max_keys: tuple[int | None] | None
    app_slots: int | None
    keep: Steps | None = None
    dimensions: tuple[str, ...] | None = None
    breakdowns: tuple[tuple[str, ...], ...] | None = None
    salt_days: int | None = None


def change(wanted: SettingsChange, session: Session, control: Control) -> Counter:
    """Do what is wanted, while nobody is counting by what was before; the counter as it is then.

    In :func:`countersink.counting.apply.control.exclusive`.

    Raises:
        ValueError: it may not be changed so; roll back.
        TrackedCounter: it is that of a tracked table.
    """
    refuse_tracked(session, wanted.name)
    name = wanted.name
    _set_options(session, wanted)
    _set_scheme(session, wanted, control.now)
    if wanted.salt_days is not None:
        visitors.set_days(session, name, wanted.salt_days, control.now // 60_000)
    _check_steps(session, name, control.now)
    if wanted.dimensions is not None or wanted.breakdowns is not None:
        since = next_midnight(session, name, control.now) if _may_be_counted(session, name) else 0
        breakdowns.declare(session, name, wanted.dimensions, wanted.breakdowns, since)
    breakdowns.copy_settings(session, name)
    bump(session)
    return read(session, name)[0]


def _set_options(session: Session, wanted: SettingsChange) -> None:
    """Make the row of ``counter`` as asked for."""
    name = wanted.name
    session.execute("INSERT IGNORE INTO counter (name) VALUES (%s)", (name,))
    ((before, slots, keep),) = session.query(
        "SELECT max_keys, app_slots, keep_steps FROM counter WHERE name = %s FOR UPDATE", (name,)
    )
    most = before if wanted.max_keys is None else wanted.max_keys[0]
    if wanted.keep is not None:
        keep = keep_steps.text_of(wanted.keep) if wanted.keep else None
    session.execute(
        "UPDATE counter SET max_keys = %s, app_slots = %s, keep_steps = %s,"
        " created = COALESCE(created, UTC_TIMESTAMP(3)) WHERE name = %s",
        (most, wanted.app_slots or slots, keep, name),
    )
    if before is None and most is not None:
        key_caps.count_anew(session, [name, *breakdowns.names_of(session, name)])


def _set_scheme(session: Session, wanted: SettingsChange, now_ms: int) -> None:
    """Set time zone and resolution as asked for.

    Raises:
        ValueError: it may not be.
    """
    name = wanted.name
    before = load_scheme(session, name)
    zone = wanted.time_zone or before.time_zone
    resolution = wanted.resolution or before.resolution
    if (zone, resolution) == (before.time_zone, before.resolution):
        return
    _check_hours(zone, resolution, now_ms // 1000)
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
    """Check that the time zone of a counter may change: nothing was ever counted.

    Raises:
        ValueError: it may not.
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
            f"{name} has been counted in {zone}, and its time zone stays: count on in"
            " it (totals can be asked for in other zones), or under another name"
        )


def _may_be_counted(session: Session, name: str) -> bool:
    """Whether anything was ever counted, or somebody may be about to by the settings as they are;
    open transactions of applications that have counted it for the first time are waited for.
    """
    return is_used(session, name) or _is_fixed(session, name) or is_posted(session, name)


def is_posted(session: Session, name: str) -> bool:
    """Whether anything was ever counted, as it is now: under a share lock, for which the caller
    waits where a transaction is open that has done so.
    """
    posted = "SELECT 1 FROM counter_ledger WHERE counter = %s LIMIT 1 LOCK IN SHARE MODE"
    return bool(session.query(posted, (name,)))


def _is_fixed(session: Session, name: str) -> bool:
    """Whether transactions of applications, or a backfill, may be counting in the time zone and the
    resolution of a counter.
    """
    # Locked, as the snapshot may be older than what an application has written.
    fixed = (
        f"SELECT 1 FROM counter WHERE name = %s AND zone_fixed > {ZONE_STAYS} LOCK IN SHARE MODE"
    )
    running = "SELECT 1 FROM backfill_run WHERE counter = %s AND state = 'running'"
    return bool(session.query(fixed, (name,)) or session.query(running, (name,)))


def _counted_to(session: Session, scheme: Scheme, now_ms: int) -> int:
    """Unix seconds before which all events are that were counted in a counter's resolution."""
    last = scheme.label(now_ms // 60_000 + _APP_MINUTES)
    # Events from the future, too. A share lock, so that open transactions of applications which
    # have counted such are waited for; forwards, as backwards the row in front is locked as well.
    beyond = session.query(
        f"SELECT {LABEL} FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s AND bucket > %s"
        " AND width = %s ORDER BY counter, bucket LOCK IN SHARE MODE",
        (scheme.counter, label_time(last), NUMBER[scheme.resolution]),
    )
    return scheme.ends_at(int(beyond[-1][0]) if beyond else last)


def _check_steps(session: Session, name: str, now_ms: int) -> None:
    """Check that the steps of a counter begin with a width in which it has buckets, and make no
    months of days with several salts.

    Raises:
        ValueError: they do not, or do.
    """
    ((text, days),) = session.query(
        "SELECT keep_steps, salt_days FROM counter WHERE name = %s", (name,)
    )
    steps, scheme = keep_steps.stored(text), load_scheme(session, name)
    finest = scheme.widths[0]
    if steps and NUMBER[steps[0][0]] < NUMBER[finest]:
        raise ValueError(
            f"nothing of {name} is ever counted by {steps[0][0]}, but by {finest} at the finest, so"
            f" there is no {steps[0][0]} to keep: leave it out of --keep, or choose it with"
            " --resolution"
        )
    if days and "month" in keep_steps.targets(steps):
        raise ValueError(
            f"{name} cannot both roll up days to months (--keep {text})"
            f" and renew its salts (--salt-days {days}): a month would unite"
            " members that were hashed with several salts; keep its days (--keep without day), or"
            " one salt (--unique)"
        )
    if "hour" in keep_steps.targets(steps):
        instead = "name quarter instead of hour in --keep, or leave hour out"
        _check_hours(scheme.time_zone, "hour", now_ms // 1000, instead)


MAX_APP_SLOTS: Final = 256
NO_CAP: Final = "none"
"""As ``max_keys`` of a counter: as for all counters without a cap of their own."""
MaxKeys = int | Literal["none"]
MOST_MAX_KEYS: Final = 100_000_000
_APP_MINUTES: Final = 2
"""Minutes for which applications may go on counting by what was changed, and one more."""
_LOOK_AHEAD_S: Final = 2 * 365 * 86_400
"""Seconds from its begin on in which a zone's UTC offsets are looked at."""


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


def _check_hours(
    time_zone: str, width: Width, since: int, instead: str = "use the resolution quarter"
) -> None:
    """Refuse hours for a zone whose midnights are not on the hour in UTC, from ``since`` on."""
    buckets.zone(time_zone)
    if width != "hour":
        return
    for begin, _, offset in buckets.offsets(time_zone, since, since + _LOOK_AHEAD_S):
        if offset % 3600:
            raise ValueError(
                f"{time_zone} is not whole hours from UTC ({timedelta(seconds=offset)} on"
                f" {datetime_of(begin):%Y-%m-%d}), so hours do not add up to its days: {instead}"
            )
