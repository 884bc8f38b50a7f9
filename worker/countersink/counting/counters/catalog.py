"""The catalog: what a worker knows of all counters. For each counter it has the scheme (time zone,
resolution, roll-ups), the cap of keys, marks of reconciled days, dimensions and salts. For counters
with a cap it also remembers keys that exist.

A counter's time zone never changes once the counter was counted. A new resolution applies to events
counted later. Each row has the width of its bucket, so a counter may have buckets of several
widths. A counter without a row in ``counter`` has the default settings. Retention rolls finer
buckets up to wider ones.

A *mark* belongs to a local day that a reconcile has set to the counts of its sources. The sources
have all events that were accepted before the reconcile began, even if their entries had not arrived
yet. If such an entry arrives later (from the spool of a host that was down, say), it must not be
counted on that day again. The mark has the time that tells which entries these are. A new mark
changes the version of the catalog, so that workers read it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, cast

from countersink.counting.apply.guards import BUILT_IN, CounterDefaults, read_control
from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import Breakdown, Dimensioned, read_dimensioned
from countersink.counting.counters.buckets import RESOLUTIONS, WIDTHS, Resolution, Width
from countersink.database.errors import UnknownZone
from countersink.database.session import Session
from countersink.database.sql import (
    LABEL,
    datetime_of,
    day_label,
    marks,
    parts,
    unix_seconds,
    width_number,
)
from countersink.runtime.dimensions import RowKey
from countersink.runtime.texts import iso

WidthTimes = tuple[tuple[Width, int], ...]
"""(width, Unix seconds) for each width that has a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The scheme of a counter: how its events go into buckets.

    Attributes:
        counter: the counter's name, for messages.
        time_zone: IANA name of the zone in which the counter's days begin at midnight.
        resolution: width of the buckets in which events are counted now.
        counted: for each former resolution, a time (Unix seconds) after all events counted in it.
        rolled: for each width, the time (Unix seconds) before which finer buckets are rolled up to
            this width, or are about to be.

    Methods raise UnknownZone if they need the time zone and this machine does not know it. (Where
    they do not need it, they do not check it, so that one unknown zone does not affect all
    counters.) They raise LookupError for a label with an unknown width.
    """

    counter: str = field(default="", compare=False, repr=False)
    time_zone: str = "UTC"
    resolution: Resolution = "day"
    counted: WidthTimes = ()
    rolled: WidthTimes = ()

    def known_zone(self) -> str:
        """Check that this machine knows the counter's time zone, and return its name.

        Raises:
            UnknownZone: this machine does not know it.
        """
        try:
            buckets.zone(self.time_zone)
        except ValueError as error:
            raise UnknownZone(
                f"the time zone {self.time_zone} of {self.counter or 'a counter'} is unknown on"
                " this machine: install a newer tzdata (pip install --upgrade tzdata)"
            ) from error
        return self.time_zone

    def label(self, minute: int) -> int:
        """Return the label of the bucket in which an event at this Unix minute is counted now."""
        return self.label_in(self.resolution, minute)

    def label_in(self, width: Width, minute: int) -> int:
        """Return the label of the bucket of this ``width`` that contains this Unix minute."""
        return buckets.label(self._zone(width), width, minute)

    def starts_at(self, label: int) -> int:
        """Return the Unix seconds at which the bucket with this label begins."""
        return buckets.starts_at(self._zone(buckets.width_of(label)), label)

    def ends_at(self, label: int) -> int:
        """Return the Unix seconds at which the bucket with this label ends and the next begins."""
        return buckets.ends_at(self._zone(buckets.width_of(label)), label)

    def local_day(self, label: int) -> date:
        """Return the date on which a bucket begins in the counter's time zone."""
        if buckets.width_of(label) in buckets.FINER:
            return buckets.date_at(self.known_zone(), label - width_number(label))
        return buckets.label_date(label)

    def first_minute(self, day: date) -> int:
        """Return the Unix minute, at least 0, at which this day begins in the counter's time zone.
        A day that the zone skipped begins with the next one.
        """
        return max(0, -(-buckets.day_begins(self.known_zone(), day) // 60))

    def rolled_to(self, width: Width) -> int | None:
        """Return the Unix seconds before which finer buckets are rolled up to ``width``, or are
        about to be; None if retention never rolled up to it.
        """
        return dict(self.rolled).get(width)

    def until(self, width: Width) -> int | None:
        """Return a time (Unix seconds) after all events in buckets of ``width``. Return None if
        ``width`` is the resolution: such buckets still get events. Return 0 if the counter never
        had such buckets.
        """
        if width == self.resolution:
            return None
        return max((end for each, end in (*self.counted, *self.rolled) if each == width), default=0)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths that the counter's buckets may have, the finest first."""
        used = {self.resolution, *(width for width, _ in (*self.counted, *self.rolled))}
        return tuple(width for width in WIDTHS if width in used)

    def _zone(self, width: Width) -> str:
        """Return the counter's time zone. For days and months, whose buckets depend on it, check
        that this machine knows it, and raise UnknownZone if not.
        """
        return self.time_zone if width in buckets.FINER else self.known_zone()


DEFAULT: Final = Scheme()
KEPT_UNSENT_MS: Final = 90 * 86_400_000
"""Maximum milliseconds between an entry's creation and ``at``, its first sending. If its id begins
with an earlier time, this is not taken for the time of creation."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a reconciled day of a counter.

    Attributes:
        sent_before: a time in Unix ms. Entries accepted before it are not counted on this day.
        run: id of the run that set the mark.
    """

    sent_before: int
    run: int


Marks = Mapping[str, Mapping[date, Mark]]
"""Marks by counter and local day."""


MOST_REMEMBERED: Final = 200_000
"""Maximum number of keys in memory, of all days together: about 30 MB, or 70 MB of the longest
keys."""


class KeyMemory:
    """Memory of keys that exist, by counter and day, so that a check of a cap need not look them up
    in MySQL. It has room for :data:`MOST_REMEMBERED` keys. If further ones do not fit, it forgets
    all keys, and they are looked up again.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._size = 0
        self._keys: dict[tuple[str, date], set[str]] = {}

    def keys(self, counter: str, day: date) -> Set[str]:
        """Return the remembered keys of a counter's day; an empty set if there are none."""
        return self._keys.get((counter, day), frozenset())

    def add(self, counter: str, day: date, keys: Collection[str]) -> None:
        """Remember that these keys of a counter's day exist."""
        self._size += len(keys)
        if self._size > self._most:
            self._keys.clear()
            self._size = len(keys)
        self._keys.setdefault((counter, day), set()).update(keys)


@dataclass(frozen=True, slots=True)
class SaltPeriod:
    """The period of a salt. Members (such as visitors) of events in this period are hashed with the
    salt.

    Attributes:
        counter: the counter's name.
        begins: the first Unix minute of the period.
        ends: the first Unix minute after the period; None if it has no end.
    """

    counter: str
    begins: int
    ends: int | None

    def __contains__(self, minute: int) -> bool:
        return self.begins <= minute and (self.ends is None or minute < self.ends)


@dataclass(eq=False, repr=False)
class Catalog:
    """Settings of all counters that a worker needs, read at one time. It also remembers results of
    later look-ups (``known``, ``made`` and ``salts``).

    Attributes:
        version: version of the catalog; it grows with every change.
        strict: whether rows of counters that were neither created nor counted are refused.
        tracked: names of the counters of tracked tables.
        marked_before: the latest ``sent_before`` of all marks (Unix ms). Marks do not affect
            entries accepted at this time or later. It is 0 if there are no marks.
        known: names of counters that were looked up and found to exist.
        default_cap: maximum number of keys per day of a counter without its own cap; None for any
            number.
        dimensioned: the counters with dimensions, by name.
        capped: whether any counter has its own cap, or there is a default cap.
        made: keys that were looked up and found to exist, for counters with a cap.
        salt_days: number of days for which a salt lasts (0 for ever), by the name of each counter
            that counts different members.
        defaults: the settings of counters that have no row in ``counter``.
        salts: periods of salts that were looked up, by the salt's number.
    """

    version: int
    strict: bool
    _schemes: Mapping[str, Scheme]
    tracked: frozenset[str] = frozenset()
    _marks: Marks = field(default_factory=dict)
    _caps: Mapping[str, int] = field(default_factory=dict)
    default_cap: int | None = None
    dimensioned: Mapping[str, Dimensioned] = field(default_factory=dict)
    salt_days: Mapping[str, int] = field(default_factory=dict)
    defaults: CounterDefaults = BUILT_IN
    known: set[str] = field(default_factory=set, init=False)
    made: KeyMemory = field(default_factory=KeyMemory, init=False)
    salts: dict[int, SaltPeriod] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Derive ``capped``, ``marked_before`` and the default scheme from the given values."""
        self._default = default_scheme("", self.defaults)
        self.capped = bool(self._caps) or self.default_cap is not None
        self.marked_before = max(
            (mark.sent_before for days in self._marks.values() for mark in days.values()), default=0
        )

    def scheme(self, counter: str) -> Scheme:
        """Return the scheme of a counter; the default one if it has no row in ``counter``."""
        return self._schemes.get(counter, self._default)

    def cap(self, counter: str) -> int | None:
        """Return the maximum number of keys that a day of the counter may have: its own cap, or
        else the default cap; None for any number.
        """
        return self._caps.get(counter, self.default_cap)

    def bucket(self, counter: str, minute: int) -> int:
        """Return the label of the bucket in which an event of a counter at this Unix minute is
        counted. (A label is a bucket's start and width in one integer.)

        Raises:
            UnknownZone: the bucket is a day, and this machine does not know the time zone.
        """
        return self.scheme(counter).label(minute)

    def holds(self, breakdown: Breakdown, counter: str, label: int) -> bool:
        """Return whether a breakdown counts all events of its counter's bucket with this label. If
        not, it counts none of them, as it begins at a local midnight; of a month, maybe some.
        """
        return not breakdown.since or self.scheme(counter).starts_at(label) >= breakdown.since * 60

    def cells(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, int, str]]:
        """Yield (counter, bucket's label, key) for each cell to which a row of an entry is added:
        one cell of the counter, and one of each breakdown that counts the row. A row with
        dimensions has the key ``""`` in the cell of the counter.

        Raises:
            UnknownZone: the bucket is a day, and this machine does not know the time zone.
        """
        yield counter, self.bucket(counter, minute), key if isinstance(key, str) else ""
        dimensioned = self.dimensioned.get(counter)
        if dimensioned is not None:
            for breakdown, composed in dimensioned.cells(key, minute):
                yield breakdown.name, self.bucket(breakdown.name, minute), composed

    def day(self, counter: str, label: int) -> date:
        """Return the day on which the bucket with this label begins, in the counter's time zone.

        Raises:
            UnknownZone: the bucket is shorter than a day, and this machine does not know the zone.
            LookupError: the label has an unknown width.
            ValueError, OverflowError: there is no such day.
        """
        return self.scheme(counter).local_day(label)

    def mark(self, counter: str, minute: int, accepted: int) -> Mark | None:
        """Return the mark on an event's local day if it forbids counting the event, else None.

        Args:
            counter: the counter's name.
            minute: Unix minute of the event.
            accepted: time (Unix ms) before which the event's entry was accepted (:func:`accepted`).

        Raises:
            UnknownZone: the counter has marks, and this machine does not know its time zone.
        """
        days = self._marks.get(counter)
        if days is None:
            return None
        found = days.get(self.day(counter, self.scheme(counter).label_in("minute", minute)))
        return found if found is not None and accepted < found.sent_before else None


def load(session: Session, *, old_marks: bool = False) -> Catalog:
    """Read the catalog in the caller's transaction or snapshot.

    Args:
        session: in a transaction or snapshot.
        old_marks: True, for retries of dead letters, to include marks that only affect entries that
            are too old to be counted by a worker.

    Raises:
        Refused: the control row is missing.
        StoreError: a query failed.
    """
    control = read_control(session, lock="")
    tracked = session.query("SELECT counter FROM tracked_table")
    settings = session.query(
        "SELECT name, max_keys, salt_days, dimensions FROM counter WHERE max_keys IS NOT NULL"
        " OR salt_days IS NOT NULL OR dimensions IS NOT NULL"
    )
    return Catalog(
        control.catalog_version,
        control.strict,
        read_schemes(session),
        frozenset(name for (name,) in tracked),
        load_marks(session, watermark=None if old_marks else control.watermark),
        {name: most for name, most, *_ in settings if most is not None},
        control.max_keys,
        read_dimensioned(session) if any(names for *_, names in settings) else {},
        {name: days for name, _, days, _ in settings if days is not None},
        control.defaults,
    )


_COUNTED: Final = RESOLUTIONS[::-1]
_ROLLED: Final = WIDTHS[1:]
SCHEME_COLUMNS: Final = ", ".join(
    [
        "time_zone",
        "resolution",
        *(f"counted_{width}" for width in _COUNTED),
        *(f"rolled_{width}" for width in _ROLLED),
    ]
)
"""The columns of ``counter`` whose values :func:`scheme_of` needs."""


def read_schemes(
    session: Session, counters: Sequence[str] | None = None, lock: str = ""
) -> dict[str, Scheme]:
    """Return the schemes, by name, of counters that have a row in ``counter``.

    Args:
        session: in a transaction or not.
        counters: read only the counters with these names; None reads all.
        lock: SQL such as `` LOCK IN SHARE MODE`` that locks the rows; empty for no lock.
    """
    where, args = "", tuple[str, ...]()
    if counters is not None:
        where, args = f" WHERE name IN ({marks(counters)})", tuple(counters)
    return {
        name: scheme_of(name, columns)
        for name, *columns in session.query(
            f"SELECT name, {SCHEME_COLUMNS} FROM counter{where}{lock}", args
        )
    }


def load_scheme(session: Session, counter: str, lock: str = "") -> Scheme:
    """Return the scheme of one counter; the default scheme if it has no row in ``counter``.
    ``lock`` is SQL such as `` LOCK IN SHARE MODE`` that locks the row; empty for no lock.
    """
    found = read_schemes(session, [counter], lock).get(counter)
    return found or default_scheme(counter, read_control(session, lock="").defaults)


def default_scheme(counter: str, defaults: CounterDefaults) -> Scheme:
    """Return the scheme of a counter that has no row in ``counter``."""
    return scheme_of(counter, (defaults.time_zone, defaults.resolution))


def scheme_of(counter: str, columns: Sequence[Any]) -> Scheme:
    """Return the scheme of a counter, given the values of :data:`SCHEME_COLUMNS`, or only the first
    two (time zone and resolution). An invalid resolution is taken as ``day``.
    """
    time_zone, resolution, *times = columns
    return Scheme(
        counter=counter,
        time_zone=time_zone,
        # An invalid value counts as day; rows have their own width.
        resolution=cast(Resolution, resolution) if resolution in RESOLUTIONS else "day",
        counted=_width_times(_COUNTED, times),
        rolled=_width_times(_ROLLED, times[len(_COUNTED) :]),
    )


def _width_times(widths: Sequence[Width], times: Sequence[Any]) -> WidthTimes:
    pairs = zip(widths, times, strict=False)
    return tuple((width, unix_seconds(time)) for width, time in pairs if time is not None)


_ROWS_PER_STATEMENT: Final = 1000


def accepted(entry_id: bytes, at: int) -> int:
    """Return a time (Unix ms) before which the producer accepted all increments of an entry.

    The id of an entry begins with the time of its creation. This time is returned if it is at most
    90 days before ``at``. Otherwise ``at`` is returned, because applications and other producers
    may choose ids that begin with any bytes. (``at`` alone would be worse: for an entry from a
    spool it may be much later than the creation.)

    Args:
        entry_id: the entry's id.
        at: time of its first sending, in Unix ms.
    """
    made = int.from_bytes(entry_id[:6], "big")
    return made if at - KEPT_UNSENT_MS <= made < at else at


def load_marks(session: Session, *, watermark: int | None = None) -> dict[str, dict[date, Mark]]:
    """Return the latest mark of each marked day, by counter and day.

    Args:
        session: in a transaction or snapshot.
        watermark: leave out marks that only affect entries first sent before this time (Unix ms);
            None returns all marks.
    """
    where, args = "", tuple[object, ...]()
    if watermark is not None:
        where, args = " WHERE sent_before > %s", (watermark - KEPT_UNSENT_MS,)
    found: dict[str, dict[date, Mark]] = {}
    for counter, day, run, sent_before in session.query(
        f"SELECT counter, day, run, sent_before FROM reconciled_day{where}"
        " ORDER BY sent_before, run",
        args,
    ):
        found.setdefault(counter, {})[day] = Mark(sent_before, run)
    return found


def marked_days(session: Session, counter: str, run: int) -> set[date]:
    """Return the days of a counter that a run has marked."""
    found = session.query(
        "SELECT day FROM reconciled_day WHERE counter = %s AND run = %s", (counter, run)
    )
    return {day for (day,) in found}


def last_reconciles(
    session: Session, counter: str, days: Iterable[date], *, later_than: int = 0
) -> dict[date, int]:
    """Return those of ``days`` that were reconciled, each with the id of its last reconcile run.

    Args:
        session: in a transaction or not. If the result has to stay true until a transaction ends,
            the transaction holds the share lock on the control row.
        counter: the counter's name.
        days: local days of the counter.
        later_than: id of a run; this run and earlier ones are ignored.
    """
    found: dict[date, int] = {}
    for part in parts(sorted(set(days)), _ROWS_PER_STATEMENT):
        found |= session.query(
            "SELECT day, MAX(run) FROM reconciled_day WHERE counter = %s"
            f" AND day IN ({marks(part)}) AND run > %s GROUP BY day",
            (counter, *part, later_than),
        )
    return found


def mark_days(
    session: Session, counter: str, run: int, sent_before: int, days: Iterable[date]
) -> None:
    """Mark days of a counter as reconciled by a run: entries accepted before ``sent_before`` (Unix
    ms) are not counted on them. If this run has marked a day before, the time of that mark stays.

    The caller's transaction holds the exclusive lock on the control row, and increases the version
    of the catalog.
    """
    rows = [(counter, day, run, sent_before) for day in sorted(days)]
    into = "reconciled_day (counter, day, run, sent_before)"
    keep = " ON DUPLICATE KEY UPDATE run = reconciled_day.run"
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, keep)


def unmark_days(session: Session, counter: str, run: int) -> int:
    """Delete the marks of a run on a counter's days, and return their number. The caller's
    transaction holds the exclusive lock on the control row, and increases the catalog's version.
    """
    return session.execute(
        "DELETE FROM reconciled_day WHERE counter = %s AND run = %s", (counter, run)
    )


_NOTICE_MS: Final = 600_000
"""Minimum milliseconds from now to the beginning of a new breakdown. Applications count by cached
settings for a while, and clocks may be ahead."""


def next_midnight(session: Session, name: str, now_ms: int) -> int:
    """Return the Unix minute at which a new breakdown of the counter ``name`` can begin. This is
    the first midnight, in the counter's time zone, that is at least ten minutes after ``now_ms``
    (Unix ms) and not before the end of any bucket in which the key ``""`` (of all events with
    dimensions) has counts. So the breakdown has whole days. Waits for open transactions of
    applications that count such events of tomorrow or later.

    Raises:
        ValueError: such a bucket begins more than a day ahead; the message names the bucket.
        UnknownZone: this machine does not know the counter's time zone.
    """
    scheme = load_scheme(session, name)
    now, zone = now_ms // 1000, scheme.known_zone()
    since = -(-(now_ms + _NOTICE_MS) // 60_000)
    tomorrow = buckets.date_at(zone, now) + buckets.ONE_DAY
    ahead = min(buckets.day_begins(zone, tomorrow), day_label(tomorrow)) // 60 * 60 - 1
    # The key '' counts events with dimensions; a breakdown lacks nothing of buckets that are 0. The
    # share lock waits for open transactions of applications that have counted ahead.
    for label, amount in session.query(
        f"SELECT {LABEL}, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s AND bucket > %s AND counter_key = ''"
        " GROUP BY bucket, width HAVING SUM(amount) <> 0 ORDER BY bucket LOCK IN SHARE MODE",
        (name, datetime_of(ahead)),
    ):
        begins = scheme.starts_at(label)
        if begins > now + _MOST_AHEAD_S:
            at = iso(datetime_of(begins), "minutes")
            raise ValueError(
                f"{name} has {amount:,} counted ahead, in the bucket of {at}, and a new breakdown"
                " would count only events after this bucket. If the counts are a mistake, subtract"
                f" them by `countersink increment {name} --at {at} --amount {-amount}`, or undo"
                " their backfill by `countersink backfills undo`; then declare the breakdown"
            )
        since = max(since, scheme.ends_at(label) // 60)
    return scheme.first_minute(buckets.date_at(zone, since * 60 - 1) + buckets.ONE_DAY)


_MOST_AHEAD_S: Final = 86_400
"""Maximum seconds from now to the begin of a bucket with counts that a new breakdown waits for."""
