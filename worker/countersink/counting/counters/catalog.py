"""The catalog: what a worker knows of all counters. Time zone, resolution and roll-ups of each
(``Scheme``; error for an unknown zone), caps of keys, marks of reconciled days, memory of known
keys.

A counter's time zone never changes once something was counted. Its resolution may, for what is
counted from then on: each row says the width of its bucket, so that rows of several widths lie side
by side. A counter that nobody has said anything about counts days in UTC.

Buckets may be kept for a while only. Retention then adds them up in wider ones.

Marks are part of the catalog, by whose version workers see that there are new ones: a mark is on a
local day that a backfill has set to what its sources say. What was accepted before that reconcile
began is in its sources, whether or not it had arrived. So what of it arrives afterwards (out of the
spool of a host that was dead) is not counted on top. A mark says which entries these are.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, cast

from countersink.counting.apply.control import read_control
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

Reached = tuple[tuple[Width, int], ...]
"""By width Unix seconds; of those widths that have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the events of a counter go into buckets.

    Attributes:
        counter: whose it is, for messages.
        time_zone: IANA name; whose midnights begin the days.
        resolution: width of the buckets that events are counted in.
        counted: before when all events are that were counted in a width while it was the
            resolution.
        rolled: what was counted before these times in finer buckets is in such, or on its way.

    Its methods raise UnknownZone where they need its time zone and this machine does not know it,
    which is found out only then: it is the matter of this counter alone.
    """

    counter: str = field(default="", compare=False, repr=False)
    time_zone: str = "UTC"
    resolution: Resolution = "day"
    counted: Reached = ()
    rolled: Reached = ()

    def known_zone(self) -> str:
        """Its time zone.

        Raises:
            UnknownZone: this machine does not know it; nobody's events go to the wrong day.
        """
        try:
            buckets.zone(self.time_zone)
        except ValueError as error:
            raise UnknownZone(
                f"{self.counter or 'a counter'} counts in {self.time_zone}, a time zone that is"
                " unknown here: install a newer tzdata (pip install --upgrade tzdata)"
            ) from error
        return self.time_zone

    def label(self, minute: int) -> int:
        """The label of the bucket in which an event at this Unix minute is counted."""
        return self.label_in(self.resolution, minute)

    def label_in(self, width: Width, minute: int) -> int:
        """The label of the bucket of a width that an event at this Unix minute belongs to."""
        return buckets.label(self._zone(width), width, minute)

    def starts_at(self, label: int) -> int:
        """Unix seconds at which a bucket begins."""
        return buckets.starts_at(self._zone(buckets.width_of(label)), label)

    def ends_at(self, label: int) -> int:
        """Unix seconds at which a bucket has ended."""
        return buckets.ends_at(self._zone(buckets.width_of(label)), label)

    def local_day(self, label: int) -> date:
        """The date of a bucket in the counter's time zone; of a month its first day."""
        if buckets.width_of(label) in buckets.FINER:
            return buckets.date_at(self.known_zone(), label - width_number(label))
        return buckets.own_date(label)

    def first_minute(self, day: date) -> int:
        """The first Unix minute that is of this day, or of a later one.

        Raises:
            UnknownZone: this machine does not know its time zone.
        """
        return max(0, -(-buckets.day_begins(self.known_zone(), day) // 60))

    def rolled_to(self, width: Width) -> int | None:
        """Unix seconds up to which finer buckets are rolled up to such; None: none are."""
        return dict(self.rolled).get(width)

    def until(self, width: Width) -> int | None:
        """Unix seconds before which all events in buckets of a width are; None: there is no end."""
        if width == self.resolution:
            return None
        return max((end for each, end in (*self.counted, *self.rolled) if each == width), default=0)

    @property
    def widths(self) -> tuple[Width, ...]:
        """The widths of the buckets that it may have, the finest first."""
        had = {self.resolution, *(width for width, _ in (*self.counted, *self.rolled))}
        return tuple(width for width in WIDTHS if width in had)

    def _zone(self, width: Width) -> str:
        """Its time zone, known or not where buckets are the same in all of them."""
        return self.time_zone if width in buckets.FINER else self.known_zone()


DEFAULT: Final = Scheme()
ZONE_STAYS: Final = "UTC_TIMESTAMP(3) - INTERVAL 10 MINUTE"
"""SQL: a time zone that was fixed later than that stays. Applications fix it anew every five."""
KEPT_UNSENT_MS: Final = 90 * 86_400_000
"""How long, in ms, an entry may have waited to be sent for its id to tell when it was made."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a reconciled day: entries accepted before a time are not counted in it.

    Attributes:
        sent_before: Unix ms.
        run: the backfill that set it.
    """

    sent_before: int
    run: int


Marks = Mapping[str, Mapping[date, Mark]]
"""By counter and its local day."""


MOST_REMEMBERED: Final = 200_000
"""Keys that are remembered at once, of all days together: some 30 MB, 70 MB of the longest."""


class KeyMemory:
    """Keys by (counter, day), up to :data:`MOST_REMEMBERED`; all of them are forgotten when there
    would be more.

    To forget a key is always safe.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._held = 0
        self._keys: dict[tuple[str, date], set[str]] = {}

    def of(self, counter: str, day: date) -> Set[str]:
        """The keys that are remembered of a day."""
        return self._keys.get((counter, day), frozenset())

    def add(self, counter: str, day: date, keys: Collection[str]) -> None:
        """Remember keys of a day."""
        self._held += len(keys)
        if self._held > self._most:
            self._keys.clear()
            self._held = len(keys)
        self._keys.setdefault((counter, day), set()).update(keys)


@dataclass(frozen=True, slots=True)
class SaltPeriod:
    """When events happened whose members are hashed with a salt.

    Attributes:
        counter: whose.
        begins: the first Unix minute.
        ends: the one after the last; None: it has no end.
    """

    counter: str
    begins: int
    ends: int | None

    def __contains__(self, minute: int) -> bool:
        return self.begins <= minute and (self.ends is None or minute < self.ends)


@dataclass(eq=False, repr=False)
class Catalog:
    """What is known of all counters, as of one moment.

    Attributes:
        version: of the catalog; another number means that something changed.
        strict: rows of counters that nobody has made are refused.
        tracked: counters that only the triggers of tracked tables count.
        marked_before: no entry accepted at this time (Unix ms) or later meets a mark; 0 where there
            are none.
        known: counters found to be known meanwhile; a memory for whoever asks.
        default_cap: keys that a day may have of counters without a cap of their own; None: any
            number.
        dimensioned: counters that have dimensions, by name.
        capped: some counter has a cap on its keys of a day.
        made: keys found to be there meanwhile, of counters that have one; a memory as well.
        salt_days: of the counters whose different members are counted, how long a salt lasts.
        salts: periods of salts that were looked up meanwhile, by number; a memory as well.
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
        """Work out what is asked for often."""
        self.capped = bool(self._caps) or self.default_cap is not None
        self.marked_before = max(
            (mark.sent_before for own in self._marks.values() for mark in own.values()), default=0
        )

    def of(self, counter: str) -> Scheme:
        """How a counter's events go into buckets."""
        return self._schemes.get(counter, DEFAULT)

    def cap(self, counter: str) -> int | None:
        """How many keys a day of a counter may have; None for any number."""
        return self._caps.get(counter, self.default_cap)

    def bucket(self, counter: str, minute: int) -> int:
        """The label of the bucket in which an event at a Unix minute is counted.

        Raises:
            UnknownZone: this machine does not know its time zone.
        """
        scheme = self._schemes.get(counter)
        return minute // 1440 * 86_400 + _DAY if scheme is None else scheme.label(minute)

    def holds(self, breakdown: Breakdown, counter: str, label: int) -> bool:
        """Whether a breakdown holds the events of one of its counter's buckets: it begins at a
        local midnight, and so within none.
        """
        return not breakdown.since or self.of(counter).starts_at(label) >= breakdown.since * 60

    def cells(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, int, str]]:
        """The (counter, bucket's label, key) of each row of ``counter_slot`` that a row of an entry
        is added to: that of its counter, and those of its breakdowns.

        Raises:
            UnknownZone: as :meth:`bucket`.
        """
        yield counter, self.bucket(counter, minute), key if isinstance(key, str) else ""
        own = self.dimensioned.get(counter)
        if own is not None:
            for breakdown, composed in own.cells(key, minute):
                yield breakdown.name, self.bucket(breakdown.name, minute), composed

    def day(self, counter: str, label: int) -> date:
        """The day of a bucket, in its counter's time zone.

        Raises:
            UnknownZone: as :meth:`bucket`.
            LookupError: there is no such width.
            ValueError, OverflowError: there is no such day.
        """
        return self.of(counter).local_day(label)

    def mark(self, counter: str, minute: int, accepted: int) -> Mark | None:
        """The mark that keeps an event at a Unix minute from being counted; None: it is counted.

        Args:
            counter: its counter.
            minute: its time.
            accepted: of its entry, :func:`accepted`.

        Raises:
            UnknownZone: as :meth:`bucket`.
        """
        own = self._marks.get(counter)
        if own is None:
            return None
        found = own.get(self.day(counter, self.of(counter).label_in("minute", minute)))
        return found if found is not None and accepted < found.sent_before else None


_DAY: Final = NUMBER["day"]


def load(session: Session, *, old_marks: bool = False) -> Catalog:
    """The catalog, read in the transaction or snapshot that the caller began.

    Args:
        session: in it.
        old_marks: also marks that only entries can meet which are too old to be counted.

    Raises:
        Refused: the row of ``control`` is gone.
        StoreError: as any query.
    """
    control = read_control(session, lock="")
    tracked = session.query("SELECT counter FROM tracked_table")
    set_ones = session.query(
        "SELECT name, max_keys, salt_days FROM counter"
        " WHERE max_keys IS NOT NULL OR salt_days IS NOT NULL"
    )
    return Catalog(
        control.catalog_version,
        control.strict,
        read_schemes(session),
        frozenset(name for (name,) in tracked),
        load_marks(session, watermark=None if old_marks else control.watermark),
        {name: most for name, most, _ in set_ones if most is not None},
        control.max_keys,
        read_dimensioned(session),
        {name: days for name, _, days in set_ones if days is not None},
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
"""Columns of ``counter``, as :func:`scheme_of` takes them."""


def read_schemes(
    session: Session, counters: Sequence[str] | None = None, lock: str = ""
) -> dict[str, Scheme]:
    """The schemes of all counters that have a row of their own, or of those among some; with a lock
    they stay so until the transaction ends.
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
    """A counter's scheme, as :meth:`Catalog.of` has it; with a lock as :func:`read_schemes`."""
    return read_schemes(session, [counter], lock).get(counter, DEFAULT)


def scheme_of(counter: str, columns: Sequence[Any]) -> Scheme:
    """The scheme of :data:`SCHEME_COLUMNS`."""
    time_zone, resolution, *times = columns
    return Scheme(
        counter=counter,
        time_zone=time_zone,
        # What somebody has garbled there counts days, which rows say of themselves.
        resolution=cast(Resolution, resolution) if resolution in RESOLUTIONS else "day",
        counted=_reached(_COUNTED, times),
        rolled=_reached(_ROLLED, times[len(_COUNTED) :]),
    )


def _reached(widths: Sequence[Width], times: Sequence[Any]) -> Reached:
    pairs = zip(widths, times, strict=False)
    return tuple((width, unix_seconds(time)) for width, time in pairs if time is not None)


_ROWS_PER_STATEMENT: Final = 1000


def accepted(entry_id: bytes, at: int) -> int:
    """Unix ms before which all of an entry was accepted by its producer, as far as can be told.

    A spooled entry is stamped ``at`` when it is first sent, but its id is as old as the record. An
    id that an app has named, or that another producer made in its own way, begins with anything: it
    is taken for a time only if that lies within 90 days before ``at``.
    """
    made = int.from_bytes(entry_id[:6], "big")
    return made if at - KEPT_UNSENT_MS <= made < at else at


def load_marks(session: Session, *, watermark: int | None = None) -> dict[str, dict[date, Mark]]:
    """The marks, of several on a day the latest.

    Args:
        session: in the transaction or snapshot that the caller began.
        watermark: leave out those that no entry sent at this time or later can meet.
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
    """Those of some days that were reconciled, whenever it was, each with the last run that did.

    Args:
        session: where it must stay so, in a transaction that holds the share lock of control.
        counter: whose.
        days: the days.
        later_than: look at runs after this one only.
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
    """Mark days, in a transaction that holds control alone and bumps the version."""
    rows = [(counter, day, run, sent_before) for day in sorted(days)]
    into = "reconciled_day (counter, day, run, sent_before)"
    keep = " ON DUPLICATE KEY UPDATE run = reconciled_day.run"
    session.insert_rows(into, rows, _ROWS_PER_STATEMENT, keep)


def unmark_days(session: Session, counter: str, run: int) -> int:
    """Take a run's marks away, in such a transaction; how many there were."""
    return session.execute(
        "DELETE FROM reconciled_day WHERE counter = %s AND run = %s", (counter, run)
    )


_NOTICE_MS: Final = 600_000
"""Milliseconds ahead, at the least, at which a breakdown begins of what was counted already: for
what applications count by the settings that they remember, and clocks that are ahead."""


def next_midnight(session: Session, name: str, now_ms: int) -> int:
    """The first midnight of a counter, in Unix minutes, that is so far ahead and behind all of its
    buckets in which something is counted already: a breakdown that begins then has whole days.

    Raises:
        ValueError: something is counted more than a day ahead; the message names the bucket.
        UnknownZone: this machine does not know the counter's time zone.
    """
    scheme = load_scheme(session, name)
    now, zone = now_ms // 1000, scheme.known_zone()
    since = -(-(now_ms + _NOTICE_MS) // 60_000)
    tomorrow = buckets.date_at(zone, now) + buckets.ONE_DAY
    ahead = min(buckets.day_begins(zone, tomorrow), day_label(tomorrow)) // 60 * 60 - 1
    # The key of events with dimensions; buckets of 0 hold nothing that a breakdown would lack. A
    # share lock, so that open transactions of applications which have counted ahead are waited for.
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
                " would hold the events from its end on only. If these were counted by mistake,"
                f" `countersink increment {name} --at {at} --amount {-amount}` takes them back, or"
                " `countersink backfills undo` where a backfill counted them; then declare the"
                " breakdown"
            )
        since = max(since, scheme.ends_at(label) // 60)
    return scheme.first_minute(buckets.date_at(zone, since * 60 - 1) + buckets.ONE_DAY)


_MOST_AHEAD_S: Final = 86_400
"""Seconds ahead at which something may be counted that a new breakdown begins behind."""
