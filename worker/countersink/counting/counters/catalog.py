"""The catalog: schemes of counters (time zone, resolution, roll-ups; error for an unknown zone),
caps of keys, marks of reconciled days, dimensions, salts, and a memory of known keys.

A counted counter's time zone never changes. A new resolution applies to events counted later: each
row has the width of its bucket, so a counter may have buckets of several widths. A counter without
settings counts days in UTC. Retention rolls finer buckets up to wider ones.

A mark is on a local day that a backfill has set to the counts of its sources. Events accepted
before that reconcile began are in its sources, whether or not their entries had arrived. So entries
that arrive later (from the spool of a host that was down) must not be counted again: the mark says
which. A new mark changes the version of the catalog, so that workers read it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, cast

from countersink.counting.apply.guards import read_control
from countersink.counting.counters import buckets
from countersink.counting.counters.breakdowns import Breakdown, Dimensioned, read_dimensioned
from countersink.counting.counters.buckets import NUMBER, RESOLUTIONS, WIDTHS, Resolution, Width
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
"""(width, Unix seconds) of each width that has a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The scheme of a counter: how its events go into buckets.

    Attributes:
        counter: the counter's name, for messages.
        time_zone: IANA name of the zone whose midnights begin the days.
        resolution: width of the buckets in which events are counted.
        counted: time, per former resolution, before which all events counted in it happened.
        rolled: time, per width, before which finer buckets are rolled up to it, or are about to be.

    Methods raise UnknownZone where they need a time zone that this machine does not know. It is not
    checked earlier, so that only this counter is affected.
    """

    counter: str = field(default="", compare=False, repr=False)
    time_zone: str = "UTC"
    resolution: Resolution = "day"
    counted: WidthTimes = ()
    rolled: WidthTimes = ()

    def known_zone(self) -> str:
        """The time zone, checked.

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
        """The label of the bucket in which an event at this Unix minute is counted."""
        return self.label_in(self.resolution, minute)

    def label_in(self, width: Width, minute: int) -> int:
        """The label of the bucket of ``width`` that has an event at this Unix minute."""
        return buckets.label(self._zone(width), width, minute)

    def starts_at(self, label: int) -> int:
        """Unix seconds at which a bucket begins."""
        return buckets.starts_at(self._zone(buckets.width_of(label)), label)

    def ends_at(self, label: int) -> int:
        """Unix seconds at which a bucket ends (exclusive)."""
        return buckets.ends_at(self._zone(buckets.width_of(label)), label)

    def local_day(self, label: int) -> date:
        """The date of a bucket in the counter's time zone; of a month its first day."""
        if buckets.width_of(label) in buckets.FINER:
            return buckets.date_at(self.known_zone(), label - width_number(label))
        return buckets.label_date(label)

    def first_minute(self, day: date) -> int:
        """The first Unix minute of this day, or of a later one."""
        return max(0, -(-buckets.day_begins(self.known_zone(), day) // 60))

    def rolled_to(self, width: Width) -> int | None:
        """Unix seconds up to which finer buckets are rolled up to ``width``; None: none are."""
        return dict(self.rolled).get(width)

    def until(self, width: Width) -> int | None:
        """Unix seconds before which all events in buckets of a width happened; None: no end."""
        if width == self.resolution:
            return None
        return max((end for each, end in (*self.counted, *self.rolled) if each == width), default=0)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths of the counter's buckets, the finest first."""
        used = {self.resolution, *(width for width, _ in (*self.counted, *self.rolled))}
        return tuple(width for width in WIDTHS if width in used)

    def _zone(self, width: Width) -> str:
        """The time zone, unchecked where buckets do not depend on it."""
        return self.time_zone if width in buckets.FINER else self.known_zone()


DEFAULT: Final = Scheme()
ZONE_STAYS: Final = "UTC_TIMESTAMP(3) - INTERVAL 10 MINUTE"
"""SQL: a time zone fixed later than this cannot change. Applications fix it again every 5
minutes."""
KEPT_UNSENT_MS: Final = 90 * 86_400_000
"""Maximum ms between an entry's creation and ``at`` for its id to be taken for a time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a reconciled day: entries accepted before a time are not counted on it.

    Attributes:
        sent_before: Unix ms of that time.
        run: the run of the backfill that set the mark.
    """

    sent_before: int
    run: int


Marks = Mapping[str, Mapping[date, Mark]]
"""Marks by counter and local day."""


MOST_REMEMBERED: Final = 200_000
"""Maximum keys in memory, of all days together: about 30 MB, 70 MB of the longest keys."""


class KeyMemory:
    """Existing keys by (counter, day), up to :data:`MOST_REMEMBERED`; beyond that all are
    forgotten, which is always safe.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._size = 0
        self._keys: dict[tuple[str, date], set[str]] = {}

    def keys(self, counter: str, day: date) -> Set[str]:
        """The keys of a day that are remembered."""
        return self._keys.get((counter, day), frozenset())

    def add(self, counter: str, day: date, keys: Collection[str]) -> None:
        """Remember keys of a day."""
        self._size += len(keys)
        if self._size > self._most:
            self._keys.clear()
            self._size = len(keys)
        self._keys.setdefault((counter, day), set()).update(keys)


@dataclass(frozen=True, slots=True)
class SaltPeriod:
    """The period of events whose members are hashed with one salt.

    Attributes:
        counter: the counter's name.
        begins: first Unix minute.
        ends: Unix minute after the last one; None: no end.
    """

    counter: str
    begins: int
    ends: int | None

    def __contains__(self, minute: int) -> bool:
        return self.begins <= minute and (self.ends is None or minute < self.ends)


@dataclass(eq=False, repr=False)
class Catalog:
    """The settings of all counters at one moment, and a memory of further look-ups.

    Attributes:
        version: version of the catalog; it grows with every change.
        strict: rows of counters that were not created are refused.
        tracked: counters of tracked tables.
        marked_before: no mark concerns entries accepted at this time (Unix ms) or later; 0: there
            are no marks.
        known: memory: counters found to exist.
        default_cap: maximum keys per day of counters without a cap of their own; None: any number.
        dimensioned: counters with dimensions, by name.
        capped: whether any counter has a cap.
        made: memory: keys found to exist, of counters with a cap.
        salt_days: days for which a salt lasts, by counter whose different members are counted.
        salts: memory: periods of salts, by number.
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
    known: set[str] = field(default_factory=set, init=False)
    made: KeyMemory = field(default_factory=KeyMemory, init=False)
    salts: dict[int, SaltPeriod] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Derive ``capped`` and ``marked_before``."""
        self.capped = bool(self._caps) or self.default_cap is not None
        self.marked_before = max(
            (mark.sent_before for days in self._marks.values() for mark in days.values()), default=0
        )

    def scheme(self, counter: str) -> Scheme:
        """The scheme of a counter."""
        return self._schemes.get(counter, DEFAULT)

    def cap(self, counter: str) -> int | None:
        """The maximum number of keys per day of a counter; None: any number."""
        return self._caps.get(counter, self.default_cap)

    def bucket(self, counter: str, minute: int) -> int:
        """The label of the bucket in which an event at a Unix minute is counted.

        Raises:
            UnknownZone: this machine does not know its time zone.
        """
        scheme = self._schemes.get(counter)
        return minute // 1440 * 86_400 + _DAY if scheme is None else scheme.label(minute)

    def holds(self, breakdown: Breakdown, counter: str, label: int) -> bool:
        """Whether a breakdown counts the events of a bucket of its counter. (It begins at a local
        midnight, so never within a bucket.)
        """
        return not breakdown.since or self.scheme(counter).starts_at(label) >= breakdown.since * 60

    def cells(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, int, str]]:
        """(counter, bucket's label, key) of each cell to which a row of an entry is added: of its
        counter and of its breakdowns.

        Raises:
            UnknownZone: as :meth:`bucket`.
        """
        yield counter, self.bucket(counter, minute), key if isinstance(key, str) else ""
        dimensioned = self.dimensioned.get(counter)
        if dimensioned is not None:
            for breakdown, composed in dimensioned.cells(key, minute):
                yield breakdown.name, self.bucket(breakdown.name, minute), composed

    def day(self, counter: str, label: int) -> date:
        """The day of a bucket in its counter's time zone.

        Raises:
            UnknownZone: as :meth:`bucket`.
            LookupError: unknown width.
            ValueError, OverflowError: there is no such day.
        """
        return self.scheme(counter).local_day(label)

    def mark(self, counter: str, minute: int, accepted: int) -> Mark | None:
        """The mark that keeps an event at a Unix minute from being counted; None: it is counted.

        Args:
            counter: the counter's name.
            minute: the event's Unix minute.
            accepted: :func:`accepted` of its entry.

        Raises:
            UnknownZone: as :meth:`bucket`.
        """
        days = self._marks.get(counter)
        if days is None:
            return None
        found = days.get(self.day(counter, self.scheme(counter).label_in("minute", minute)))
        return found if found is not None and accepted < found.sent_before else None


_DAY: Final = NUMBER["day"]


def load(session: Session, *, old_marks: bool = False) -> Catalog:
    """Read the catalog in the caller's transaction or snapshot.

    Args:
        session: in a transaction or snapshot.
        old_marks: include marks that concern only entries that are too old to be counted.

    Raises:
        Refused: the control row is missing.
        StoreError: as any query.
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
"""Columns of ``counter`` for :func:`scheme_of`."""


def read_schemes(
    session: Session, counters: Sequence[str] | None = None, lock: str = ""
) -> dict[str, Scheme]:
    """The schemes of all counters that have a row, or of those among ``counters``; with a lock they
    do not change until the transaction ends.
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
    """The scheme of a counter, as :meth:`Catalog.scheme`; ``lock`` as for :func:`read_schemes`."""
    return read_schemes(session, [counter], lock).get(counter, DEFAULT)


def scheme_of(counter: str, columns: Sequence[Any]) -> Scheme:
    """The scheme of a counter from the values of :data:`SCHEME_COLUMNS`."""
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
    """Unix ms before which the producer accepted all increments of an entry, if known.

    ``at`` of a spooled entry is the time of its first sending, but its id begins with the time of
    its creation. An id given by an application or another producer may begin with any bytes: it is
    taken for a time only within 90 days before ``at``.
    """
    made = int.from_bytes(entry_id[:6], "big")
    return made if at - KEPT_UNSENT_MS <= made < at else at


def load_marks(session: Session, *, watermark: int | None = None) -> dict[str, dict[date, Mark]]:
    """The marks, the latest per day.

    Args:
        session: in a transaction or snapshot.
        watermark: leave out marks that do not concern any entry sent at this Unix ms or later.
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
    """The days that a run has marked."""
    found = session.query(
        "SELECT day FROM reconciled_day WHERE counter = %s AND run = %s", (counter, run)
    )
    return {day for (day,) in found}


def last_reconciles(
    session: Session, counter: str, days: Iterable[date], *, later_than: int = 0
) -> dict[date, int]:
    """The days of ``days`` that were ever reconciled, with the last run that did.

    Args:
        session: in a transaction that holds the share lock of control, if the result must not
            change until it ends.
        counter: the counter's name.
        days: the counter's local days.
        later_than: only runs after this one.
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
    """Mark days, in a transaction that locks control exclusively and bumps the version."""
    rows = [(counter, day, run, sent_before) for day in sorted(days)]
    into = "reconciled_day (counter, day, run, sent_before)"
    keep = " ON DUPLICATE KEY UPDATE run = reconciled_day.run"
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, keep)


def unmark_days(session: Session, counter: str, run: int) -> int:
    """Delete a run's marks, in a transaction as for :func:`mark_days`; their number."""
    return session.execute(
        "DELETE FROM reconciled_day WHERE counter = %s AND run = %s", (counter, run)
    )


_NOTICE_MS: Final = 600_000
"""Minimum milliseconds ahead at which a new breakdown of a counted counter begins: applications
count by cached settings for a while, and clocks may be ahead."""


def next_midnight(session: Session, name: str, now_ms: int) -> int:
    """The first midnight of a counter, in Unix minutes, that is far enough ahead and after all its
    buckets with counts, so that a breakdown that begins then has whole days.

    Raises:
        ValueError: a bucket more than a day ahead has counts; the message names the bucket.
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
"""Maximum seconds ahead of buckets with counts after which a new breakdown can begin."""
