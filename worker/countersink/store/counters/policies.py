"""Policies of all counters as a worker knows them: time zone and resolution by event time (error
for an unknown zone), caps of keys, marks of reconciled buckets, memory of known keys.

A policy holds for the events from one minute on, until the next one's begins: by the time of the
event, not of the counting, so it does not matter when or by whom an event is counted. A counter
that nobody has said anything about counts days in UTC.

Buckets finer than days may be kept for a while only. Retention then adds them up in wider ones,
which are those of a policy of their own: it *rolls* another one, and no event is counted under it.

Marks are part of the policies, by whose version workers see that there are new ones: a mark is on a
bucket that a backfill has set to what its sources say. What was accepted before that reconcile
began is in its sources, whether or not it had arrived. So what of it arrives afterwards (out of the
spool of a host that was dead) is not counted on top. A mark says which entries these are.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from countersink.runtime.dimensions import RowKey
from countersink.store.apply.control import read_control
from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import Breakdown, Dimensioned, read_dimensioned
from countersink.store.counters.buckets import Resolution
from countersink.store.errors import Refused, UnknownZone
from countersink.store.sql import insert_rows, label_of, label_text, label_time, marks, parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Time zone and resolution of a counter from a time on.

    Attributes:
        number: 0 for a counter's first policy, then 1, 2, …; see
            :mod:`countersink.store.counters.buckets`.
        valid_from: Unix minutes; the first event time it is for.
        time_zone: IANA name; whose midnights begin the days.
        resolution: ``day``, ``hour``, ``quarter`` (of an hour) or ``minute``.
        used_to: the largest label it has, once another policy has taken over; None before.
        rolls: number of the policy whose buckets are rolled up to its own; None: events are counted
            in these.
        rolled_to: Unix minutes; of one that rolls: all its buckets hold is before this, and what is
            before it may be in them. None: not known, or it does not roll.
        counter: whose it is, for messages.

    Its methods raise Refused where they need its time zone and this machine does not know it, which
    is found out only then: it is the matter of this counter alone.
    """

    number: int = 0
    valid_from: int = 0
    time_zone: str = "UTC"
    resolution: Resolution = "day"
    used_to: int | None = None
    rolls: int | None = None
    rolled_to: int | None = None
    counter: str = field(default="", compare=False, repr=False)

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
        """The label of the bucket for an event at this Unix minute."""
        return buckets.label(self.number, self._zone(), self.resolution, minute)

    def starts_at(self, label: int) -> int:
        """Unix seconds at which one of its buckets begins."""
        return buckets.starts_at(self._zone(), self.resolution, label)

    def ends_at(self, label: int) -> int:
        """Unix seconds at which one of its buckets has ended."""
        return buckets.ends_at(self._zone(), self.resolution, label)

    def local_day(self, label: int) -> date:
        """The date of one of its buckets, in its own time zone."""
        # A day's bucket says its date itself.
        zone = self.time_zone if self.resolution == "day" else self.known_zone()
        return buckets.local_day(zone, self.resolution, label)

    def _zone(self) -> str:
        """Its time zone, known or not where buckets are the same in all of them."""
        return self.known_zone() if self.resolution == "day" else self.time_zone


def counting(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Those of some policies that events are counted under."""
    return tuple(policy for policy in policies if policy.rolls is None)


DEFAULT: Final = Policy()
OUTDATED: Final = -1
"""A version that policies never have in the database."""


KEPT_UNSENT_MS: Final = 90 * 86_400_000
"""How long, in ms, an entry may have waited to be sent for its id to tell when it was made."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a reconciled bucket: entries accepted before a time are not counted in it.

    Attributes:
        sent_before: Unix ms.
        run: the backfill that set it.
    """

    sent_before: int
    run: int


Marks = Mapping[str, Mapping[int, Mark]]
"""By counter and label of the bucket."""


MOST_REMEMBERED: Final = 200_000
"""Keys that are remembered at once, of all days together: some 30 MB, 70 MB of the longest."""

_NONE: Final[Set[str]] = frozenset()


class KeyMemory:
    """Keys by (counter, day), up to :data:`MOST_REMEMBERED`; days that were asked for longest ago
    go first.

    To forget a key is always safe.
    """

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._held = 0
        self._keys: dict[tuple[str, date], set[str]] = {}

    def of(self, counter: str, day: date) -> Set[str]:
        """The keys that are remembered of a day."""
        place = counter, day
        found = self._keys.pop(place, None)
        if found is None:
            return _NONE
        self._keys[place] = found
        return found

    def add(self, counter: str, day: date, keys: Collection[str]) -> None:
        """Remember keys of a day, as many of them as there is room for."""
        if not keys:
            return
        own = self._keys.pop((counter, day), set())
        self._held -= len(own)
        while self._keys and self._held + len(own) + len(keys) > self._most:
            self._held -= len(self._keys.pop(next(iter(self._keys))))
        if len(own) + len(keys) <= self._most:
            own.update(keys)
        self._held += len(own)
        self._keys[counter, day] = own


@dataclass(frozen=True, slots=True)
class SaltPeriod:
    """When events happened whose members are hashed with a salt.

    Attributes:
        number: of the salt.
        counter: whose.
        begins: the first Unix minute.
        ends: the one after the last; None: it has no end.
    """

    number: int
    counter: str
    begins: int
    ends: int | None

    def __contains__(self, minute: int) -> bool:
        return self.begins <= minute and (self.ends is None or minute < self.ends)


@dataclass(eq=False, repr=False)
class Policies:
    """All policies, as of one moment.

    Attributes:
        version: of the policies; another number means that something changed.
        strict: rows of counters that nobody has made are refused.
        tracked: counters that only the triggers of tracked tables count.
        marked_before: no entry accepted at this time (Unix ms) or later meets a mark of
            :mod:`countersink.store.counters.policies`; 0 where there are none.
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
    _by_counter: Mapping[str, tuple[Policy, ...]]
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
        self._counting = {
            # Where somebody has deleted them by hand, it counts as if it never had any.
            counter: counting(policies) or (DEFAULT,)
            for counter, policies in self._by_counter.items()
        }
        self._begins = {
            counter: [policy.valid_from for policy in policies]
            for counter, policies in self._counting.items()
        }

    def of(self, counter: str) -> tuple[Policy, ...]:
        """A counter's policies, and those that roll them, the earliest first; at least one."""
        return self._by_counter.get(counter, (DEFAULT,))

    def at(self, counter: str, minute: int) -> Policy:
        """The policy for an event at a Unix minute."""
        policies = self._counting.get(counter, (DEFAULT,))
        if len(policies) == 1:
            return policies[0]
        return policies[max(0, bisect_right(self._begins[counter], minute) - 1)]

    def cap(self, counter: str) -> int | None:
        """How many keys a day of a counter may have; None for any number."""
        return self._caps.get(counter, self.default_cap)

    def numbered(self, counter: str, label: int) -> Policy:
        """The policy that a bucket was counted under.

        Raises:
            LookupError: the counter has had no such policy: the row was not written by countersink.
        """
        number = buckets.policy_number(label)
        for policy in self.of(counter):
            if policy.number == number:
                return policy
        raise LookupError(f"{counter!r} has a bucket {label_text(label)}, but no policy {number}")

    def shared_numbers(self, counters: Collection[str] | None = None) -> frozenset[int]:
        """The numbers of policies that each of some counters has had; None: each there could be."""
        if counters is None:
            own = set(self._by_counter.values()) | {(DEFAULT,)}
        else:
            own = {self.of(counter) for counter in counters}
        return frozenset.intersection(
            *(frozenset(policy.number for policy in policies) for policies in own)
        )

    def bucket(self, counter: str, minute: int) -> int:
        """The label of the bucket for an event at a Unix minute.

        Raises:
            Refused: the time zone is unknown on this machine; the version is outdated from then on.
        """
        if counter not in self._by_counter:
            return minute // 1440 * 86_400
        try:
            return self.at(counter, minute).label(minute)
        except Refused:
            # Whoever keeps these must read them again: the row may be put right by hand meanwhile.
            self.version = OUTDATED
            raise

    def first_minute(self, counter: str, day: date) -> int:
        """The first Unix minute that is of this day of a counter, or of a later one.

        Raises:
            Refused: a time zone is unknown on this machine.
        """
        own = counting(self.of(counter))
        for policy, following in zip(own, [*own[1:], None], strict=True):
            begin = max(0, -(-buckets.day_begins(policy.known_zone(), day) // 60))
            if following is None or begin < following.valid_from:
                break
        return begin if policy is own[0] else max(begin, policy.valid_from)

    def part(self, counter: str, minute: int) -> int:
        """What names the part of a bucket that an event at a Unix minute is in. Parts begin where
        the bucket does, and where a breakdown of the counter begins within it.

        It is the bucket's label with a minute added for each of these that has begun: so many are
        in no bucket, and a bucket's first part is named as itself.

        Raises:
            Refused: the time zone is unknown on this machine.
        """
        policy = self.at(counter, minute)
        label = policy.label(minute)
        own = self.dimensioned.get(counter)
        if own is None or not own.breakdowns:
            return label
        return label + 60 * own.begun(policy.starts_at(label) // 60, minute)

    def bucket_of(self, counter: str, part: int) -> int:
        """The label of the bucket that a :meth:`part` is of."""
        policy = self.numbered(counter, part)
        return part - (part - policy.number) % (buckets.WIDTH[policy.resolution] * 60)

    def holds(self, counter: str, breakdown: Breakdown, part: int) -> bool:
        """Whether a breakdown holds the events of a :meth:`part` of its counter."""
        label = self.bucket_of(counter, part)
        start = self.numbered(counter, label).starts_at(label) // 60
        own = self.dimensioned[counter]
        return own.begun(start, breakdown.since) <= (part - label) // 60

    def cells(self, counter: str, key: RowKey, minute: int) -> Iterator[tuple[str, int, str]]:
        """The (counter, bucket's label, key) of each row of ``counter_slot`` that a row of an entry
        is added to: that of its counter, and those of its breakdowns.

        Raises:
            Refused: as :meth:`bucket`.
        """
        yield counter, self.bucket(counter, minute), key if isinstance(key, str) else ""
        own = self.dimensioned.get(counter)
        if own is not None:
            for breakdown, composed in own.cells(key, minute):
                yield breakdown.name, self.bucket(breakdown.name, minute), composed

    def day(self, counter: str, label: int) -> date:
        """The day of a bucket, in its own time zone.

        Raises:
            Refused: as :meth:`bucket`.
            ValueError, OverflowError: there is no such day.
        """
        if counter not in self._by_counter:
            return DEFAULT.local_day(label)
        try:
            return self.numbered(counter, label).local_day(label)
        except Refused:
            self.version = OUTDATED
            raise

    def mark(self, counter: str, minute: int, accepted: int) -> Mark | None:
        """The mark that keeps an event at a Unix minute from being counted; None: it is counted.

        Args:
            counter: its counter.
            minute: its time.
            accepted: of its entry, :func:`countersink.store.counters.policies.accepted`.

        Raises:
            Refused: as :meth:`bucket`.
        """
        marks = self._marks.get(counter)
        if marks is None:
            return None
        found = marks.get(self.bucket(counter, minute))
        return found if found is not None and accepted < found.sent_before else None


def load(session: Session, *, old_marks: bool = False) -> Policies:
    """The policies, read in the transaction or snapshot that the caller began.

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
    return Policies(
        control.policy_version,
        control.strict,
        read_policies(session),
        frozenset(name for (name,) in tracked),
        load_marks(session, watermark=None if old_marks else control.watermark),
        {name: int(most) for name, most, _ in set_ones if most is not None},
        control.max_keys,
        read_dimensioned(session),
        {name: int(days) for name, _, days in set_ones if days is not None},
    )


def read_policies(
    session: Session, counters: Sequence[str] | None = None
) -> dict[str, tuple[Policy, ...]]:
    """The policies, the earliest first, of all counters that have some, or of some counters."""
    where, args = "", tuple[str, ...]()
    if counters is not None:
        where, args = f" WHERE counter IN ({marks(counters)})", tuple(counters)
    found: dict[str, tuple[Policy, ...]] = {}
    for counter, *columns in session.query(
        f"SELECT counter, {POLICY_COLUMNS} FROM counter_policy"
        f"{where} ORDER BY counter, valid_from, number",
        args,
    ):
        found[counter] = (*found.get(counter, ()), policy_of(counter, columns))
    return found


def load_own(session: Session, counter: str) -> tuple[Policy, ...]:
    """A counter's policies, as :meth:`Policies.of` has them."""
    return read_policies(session, [counter]).get(counter, (DEFAULT,))


POLICY_COLUMNS: Final = "number, valid_from, time_zone, resolution, used_to, rolls, rolled_to"
"""Columns of ``counter_policy``, as :func:`policy_of` takes them."""


def policy_of(counter: str, columns: Sequence[Any]) -> Policy:
    """The policy of :data:`POLICY_COLUMNS`."""
    number, valid_from, time_zone, resolution, used_to, rolls, rolled_to = columns
    begun = 0 if rolled_to is None else label_of(rolled_to) // 60
    return Policy(
        counter=counter,
        number=int(number),
        valid_from=label_of(valid_from) // 60,
        time_zone=time_zone,
        resolution=resolution,
        used_to=None if used_to is None else label_of(used_to),
        rolls=None if rolls is None else int(rolls),
        rolled_to=None if rolls is None else begun,
    )


_ROWS_PER_STATEMENT: Final = 1000


def accepted(entry_id: bytes, at: int) -> int:
    """Unix ms before which all of an entry was accepted by its producer, as far as can be told.

    A spooled entry is stamped ``at`` when it is first sent, but its id is as old as the record. An
    id that an app has named, or that another producer made in its own way, begins with anything: it
    is taken for a time only if that lies within 90 days before ``at``.
    """
    made = int.from_bytes(entry_id[:6], "big")
    return made if at - KEPT_UNSENT_MS <= made < at else at


def load_marks(session: Session, *, watermark: int | None = None) -> dict[str, dict[int, Mark]]:
    """The marks, of several on a bucket the latest.

    Args:
        session: in the transaction or snapshot that the caller began.
        watermark: leave out those that no entry sent at this time or later can meet.
    """
    where, args = "", tuple[object, ...]()
    if watermark is not None:
        where, args = " WHERE sent_before > %s", (watermark - KEPT_UNSENT_MS,)
    found: dict[str, dict[int, Mark]] = {}
    for counter, bucket, run, sent_before in session.query(
        f"SELECT counter, bucket, run, sent_before FROM reconciled_bucket{where}"
        " ORDER BY sent_before, run",
        args,
    ):
        found.setdefault(counter, {})[label_of(bucket)] = Mark(int(sent_before), int(run))
    return found


def marked_buckets(session: Session, counter: str, run: int) -> set[int]:
    """The labels of the buckets that a run has marked."""
    found = session.query(
        "SELECT bucket FROM reconciled_bucket WHERE counter = %s AND run = %s", (counter, run)
    )
    return {label_of(bucket) for (bucket,) in found}


def last_reconciles(
    session: Session, counter: str, labels: Iterable[int], *, later_than: int = 0
) -> dict[int, int]:
    """Those of some buckets that were reconciled, whenever it was, each with the last run that did.

    Args:
        session: where it must stay so, in a transaction that holds the share lock of control.
        labels: of the buckets.
        later_than: look at runs after this one only.
    """
    found: dict[int, int] = {}
    times = [label_time(label) for label in labels]
    for part in parts(times, _ROWS_PER_STATEMENT):
        rows = session.query(
            "SELECT bucket, MAX(run) FROM reconciled_bucket WHERE counter = %s"
            f" AND bucket IN ({marks(part)}) AND run > %s GROUP BY bucket",
            (counter, *part, later_than),
        )
        found |= {label_of(bucket): int(run) for bucket, run in rows}
    return found


def mark_buckets(
    session: Session, counter: str, run: int, sent_before: int, labels: Iterable[int]
) -> None:
    """Mark buckets, in a transaction that holds control alone and bumps the version."""
    rows = [(counter, label_time(label), run, sent_before) for label in sorted(labels)]
    into = "reconciled_bucket (counter, bucket, run, sent_before)"
    keep = " ON DUPLICATE KEY UPDATE run = reconciled_bucket.run"
    insert_rows(session, into, rows, _ROWS_PER_STATEMENT, keep)


def unmark_buckets(session: Session, counter: str, run: int) -> int:
    """Take a run's marks away, in such a transaction; how many there were."""
    return session.execute(
        "DELETE FROM reconciled_bucket WHERE counter = %s AND run = %s", (counter, run)
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
    since = -(-(now_ms + _NOTICE_MS) // 60_000)
    policies = load(session)
    # The key of events with dimensions; a label and the time at which its bucket begins may lie
    # half a day apart.
    # Buckets of 0 hold nothing that a breakdown would lack.
    beyond = session.query(
        "SELECT bucket, SUM(amount) FROM counter_slot FORCE INDEX (by_key) WHERE counter = %s"
        " AND counter_key = '' AND bucket > %s GROUP BY bucket HAVING SUM(amount) <> 0",
        (name, label_time(now_ms // 60_000 * 60 - 15 * 3600)),
    )
    for bucket, amount in beyond:
        label = label_of(bucket)
        try:
            policy = policies.numbered(name, label)
        except LookupError:
            continue
        if policies.bucket_of(name, label) != label:
            continue  # no bucket either: verify says so
        begins, ends = policy.starts_at(label), policy.ends_at(label)
        if begins > now_ms // 1000 + _MOST_AHEAD_S:
            raise ValueError(_too_far(name, begins, int(amount)))
        if begins > now_ms // 1000:
            since = max(since, ends // 60)
    day = buckets.date_at(policies.at(name, since).known_zone(), since * 60 - 1)
    return policies.first_minute(name, day + buckets.ONE_DAY)


_MOST_AHEAD_S: Final = 86_400
"""Seconds ahead at which something may be counted that a new breakdown begins behind."""


def _too_far(name: str, begins: int, amount: int) -> str:
    at = f"{label_time(begins).isoformat(timespec='minutes')}Z"
    return (
        f"{name} has {amount:,} counted ahead, in the bucket of {at}, and a new breakdown would"
        " hold the events from its end on only. If these were counted by mistake, `countersink"
        f" increment {name} --at {at} --amount {-amount}` takes them back, or `countersink"
        " backfills undo` where a backfill counted them; then declare the breakdown"
    )
