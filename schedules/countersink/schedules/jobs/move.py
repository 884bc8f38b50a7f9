"""The transaction that moves rows of a range into slot 0 or a wider bucket: lock wait, smaller and
larger ranges after conflicts, reconnects.

At REPEATABLE READ the locking read takes the range's rows and the gaps between them: until the
COMMIT no session changes a row of it or inserts one, so the deleted rows are those of the sum.
Readers see the whole move or nothing. At READ COMMITTED a row that comes in between would be
deleted without having been added; the numbers of rows are compared all the same. Only rows of the
range's own width move; rows of other widths between its keys are locked, too.

The locking read does not wait: if another session holds a row, it fails at once, instead of
queueing workers up behind a transaction that itself waits.

Workers that wait for rows of the range may deadlock with each other after the COMMIT, though they
lock in one order: if InnoDB has purged the rows by then, their locks have become locks of the gap
(as for INSERT ... ON DUPLICATE KEY UPDATE at READ COMMITTED, too: MySQL's bug 76927), and they
insert into each other's gaps. One is rolled back, and runs again.

A move into a wider bucket depends on the counter as the pass read it. So the counter is checked
under the share lock of control that applying transactions take as well, before any other lock:
sessions that delete or change a counter lock that row exclusively.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from countersink.counting.apply.guards import read_control
from countersink.counting.counters.buckets import width_of
from countersink.counting.errors import DamagedSketch, NoSketches
from countersink.counting.ledger import BucketSums, post
from countersink.counting.visitors import rows as sketches
from countersink.database import sessions, sql
from countersink.database.errors import Conflict
from countersink.database.session import Connect, Session, rerun
from countersink.database.sql import COMPACTED, datetime_of, label_of, width_number
from countersink.runtime.retry import Pace
from countersink.schedules.errors import Outdated
from countersink.schedules.jobs import JobOutcome
from countersink.schedules.jobs.ranges import (
    BucketKey,
    BucketRange,
    Wider,
    keys_of,
    next_part,
    small_buckets,
)

LOCK_WAIT_S: Final = 1
"""Seconds that a statement after the first may wait for a lock."""

_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class Moved:
    """Numbers of rows in a bucket ``before`` and ``after`` a move, of the keys with rows to move;
    rows ``moved`` were added elsewhere and deleted.
    """

    before: int = 0
    after: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class _Key:
    """One key's rows in a bucket, summed up by the server."""

    bucket: int
    key: bytes
    amount: int
    moving: int
    sketched: int
    rows: int


def move(session: Session, part: BucketRange) -> Moved:
    """Move the rows of a range; committed on return. Can be called again after any error.

    Args:
        session: at REPEATABLE READ with a short lock wait, outside a transaction.
        part: the range.

    Raises:
        Outdated: the destination may be wrong by now; nothing was moved.
        Conflict: another session holds a row; nothing was moved.
        DamagedSketch, NoSketches: a sketch is damaged, or a library missing; nothing was moved.
        Unavailable: the connection is lost; everything was moved or nothing.
        StoreError: as any query; nothing was moved.
    """
    with session.transaction():
        if part.to is not None:
            _check(session, part.counter, part.to)
        keys = _lock(session, part)
        moving = [one for one in keys if one.moving]
        moved = sum(one.moving for one in moving)
        if moving:
            sums = _add(session, part, moving)
            if part.to is not None:
                _post(session, part, part.to, moving, sums)
            _move_sketches(session, part, moving)
            deleted = _delete(session, part)
            if deleted != moved:
                raise Conflict(
                    f"{moved:,} rows were added up and {deleted:,} deleted, so nothing was moved:"
                    " rows came in between, which InnoDB at REPEATABLE READ does not allow"
                )
    before = sum(one.rows for one in moving)
    return Moved(before, len(moving) if part.to is None else before - moved, moved)


def _check(session: Session, counter: str, to: Wider) -> None:
    """Lock the counter and the catalog, and check that they are as the pass read them."""
    version = read_control(session).catalog_version
    # A locking read reads the present row, not a snapshot.
    found = session.query(
        f"SELECT rolled_{width_of(to.label)} FROM counter WHERE name = %s LOCK IN SHARE MODE",
        (counter,),
    )
    on_record = found[0][0] if found else None
    # It only grows while the counter is there: another pass may have been here.
    if version != to.version or on_record is None or on_record < datetime_of(to.rolled_to):
        raise Outdated(f"{counter} was changed or deleted since the pass looked at it")


def _lock(session: Session, part: BucketRange) -> list[_Key]:
    where, args = part.where()
    width = width_number(part.bucket)
    # Only sums come over the wire: reading the rows one by one would cost more than moving them.
    # Counted by COUNT, not SUM, which adds decimals.
    moving = f"slot >= {part.lowest_slot:d}"
    # The bucket is read only where there are several: reading times is expensive.
    bucket = "bucket, " if part.others else ""
    found = session.query(
        f"SELECT {bucket or 'NULL, '}counter_key, COALESCE(SUM(IF({moving}, amount, NULL)), 0),"
        f" COUNT(IF({moving}, 1, NULL)), COUNT(IF({moving} AND sketched, 1, NULL)), COUNT(*)"
        f" FROM {_ROWS} WHERE {where} GROUP BY {bucket}counter_key FOR UPDATE NOWAIT",
        args,
    )
    return [
        _Key(label_of(at, width) if at else part.bucket, bytes(key), *map(int, numbers))
        for at, key, *numbers in found
    ]


def _add(session: Session, part: BucketRange, keys: list[_Key]) -> list[tuple[bytes, int]]:
    """Add the moving rows at their destination; returns the sums by key."""
    label = part.bucket if part.to is None else part.to.label
    head = sql.head(session.literal, part.counter, label)
    tail = f"', {width_number(label):d}, {COMPACTED:d}, "
    into = "counter_slot (counter, bucket, counter_key, width, slot, amount)"
    clause = session.dialect.upsert_add("counter_slot", "amount")
    by_key: dict[bytes, int] = {}
    for one in keys:
        by_key[one.key] = by_key.get(one.key, 0) + one.amount
    sums = sorted(by_key.items())
    for some in sql.parts(sums, sql.CELLS_PER_STATEMENT):
        values = ", ".join(f"{head}{key.hex()}{tail}{amount:d})" for key, amount in some)
        session.execute(f"INSERT INTO {into} VALUES {values}{clause}")
    return sums


def _post(
    session: Session, part: BucketRange, to: Wider, keys: list[_Key], sums: list[tuple[bytes, int]]
) -> None:
    """Post the move to the ledger with the amounts found: existing differences stay as they are."""
    left, came = BucketSums(), BucketSums()
    for one in keys:
        left.add_row(part.counter, one.bucket, one.key, one.amount)
    for key, amount in sums:
        came.add_row(part.counter, to.label, key, amount)
    moved = came.postings()[part.counter] - left.postings()[part.counter]
    post(session, COMPACTED, [(part.counter, moved)])


def _move_sketches(session: Session, part: BucketRange, moving: list[_Key]) -> None:
    where, args = part.where()
    sketches.move(
        session,
        part.counter,
        where,
        args,
        sketches={(one.bucket, one.key): one.sketched for one in moving},
        lowest_slot=part.lowest_slot,
        to=None if part.to is None else part.to.label,
    )


def _delete(session: Session, part: BucketRange) -> int:
    where, args = part.where()
    # With a table in front, as MariaDB accepts no index hint without: by any other index the DELETE
    # would lock rows of other buckets. No condition on slots where every slot moves: the end of
    # a range would be the next key's row.
    slots = f" AND slot >= {part.lowest_slot:d}" if part.to is None else ""
    return session.execute(f"DELETE counter_slot FROM {_ROWS} WHERE {where}{slots}", args)


READ_TIMEOUT_S: Final = 120.0
"""Seconds that a read of a bucket may take: some 500 million rows."""
TOGETHER: Final = 300
"""Buckets moved at once, at most."""
UNDISTURBED: Final = 8
"""Factor of the rows moved at once without conflicts."""
_DISTURBED: Final = 16
"""Divisor of the rows moved at once after repeated conflicts."""

Result = TypeVar("Result")


def open_tables(mysql_url: str) -> Session:
    """A session for moving rows, on tables of this version.

    Raises:
        SchemaMismatch: there are no tables, or tables of another version.
        StoreError: as :func:`countersink.database.connection.connect`.
    """
    return sessions.open_tables(
        mysql_url, isolation="REPEATABLE READ", read_timeout=READ_TIMEOUT_S, lock_wait=LOCK_WAIT_S
    )


@dataclass(slots=True, kw_only=True)
class PassDone:
    """Result of a pass, so far or in all: rows moved, and places left unchanged.

    Attributes:
        rows_before: rows of the keys that were compacted.
        rows_after: rows of these keys that are there now.
        ranges: transactions that moved rows.
        rolled_up: rows that were added to wider buckets.
        counters: number of counters whose buckets are rolled up.
        busy: keys that an open transaction held; the next pass comes back to them.
        unreadable: keys with damaged sketches, or whose union needs a missing library.
        astride: buckets in two months, or in two days where they were to become wider.
        unknown: buckets of no known width.
        seconds: duration.
        share: of the counters that it has read, from 0 to 1.
        finished: False while it goes on, and if it was stopped.
    """

    rows_before: int = 0
    rows_after: int = 0
    ranges: int = 0
    rolled_up: int = 0
    counters: int = 0
    busy: list[BucketKey] = field(default_factory=list)
    unreadable: list[BucketKey] = field(default_factory=list)
    astride: list[BucketKey] = field(default_factory=list)
    unknown: list[BucketKey] = field(default_factory=list)
    seconds: float = 0.0
    share: float = 0.0
    finished: bool = False
    _noted: set[BucketKey] = field(default_factory=set, repr=False)

    def note(self, places: list[BucketKey], counter: str, label: int) -> None:
        """Add a bucket to a list of places, once."""
        if (place := BucketKey(counter, label)) not in self._noted:
            self._noted.add(place)
            places.append(place)

    @property
    def left(self) -> dict[str, list[BucketKey]]:
        """Places left unchanged, by the reason."""
        every = {
            "keys left for the next run, as other transactions held them": self.busy,
            "keys left as they are, as their different members cannot be read": self.unreadable,
            "buckets left as they are, as they lie in two months or days": self.astride,
            "buckets left as they are, as their width is unknown": self.unknown,
        }
        return {why: places for why, places in every.items() if places}

    def outcome(self, summary: str) -> JobOutcome:
        """Result of the job: ``summary``, places left by reason, and an early stop."""
        for why, places in self.left.items():
            summary += f"; {why}: {len(places):,}, first {places[0]}"
        rows = self.rows_before - self.rows_after + self.rolled_up
        summary = summary if self.finished else f"{summary}; stopped early, the next run goes on"
        return JobOutcome(rows, summary, finished=self.finished)


class Mover:
    """Moves ranges on its own session, which it opens again after a loss. For one thread.

    Args:
        connect: makes sessions as :func:`open_tables` does.
        pace: rests between transactions.
        rows: slot rows to move in a transaction, to begin with; ValueError: fewer than one.

    Attributes:
        done: the result so far.
    """

    def __init__(self, connect: Connect, pace: Pace, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"{rows} rows per transaction: at least 1 is needed")
        self._session = sessions.KeptSession(connect, lambda: pace.stopped, attempts=1)
        self._pace = pace
        self._rows = self._size = rows
        self.done = PassDone()

    def run(self, work: Callable[[Session], Result]) -> Result:
        """The result of ``work``, which runs again after a lost session, or an error that passes (a
        table being altered).

        Raises:
            Unavailable, Conflict: still after several attempts.
            StoreError: from ``work``.
        """
        return rerun(partial(self._session.run, work), pause=self._pace.pause)

    def move_next(
        self,
        counter: str,
        bucket: int,
        after: bytes | None,
        *,
        above: int = 0,
        to: Wider | None = None,
    ) -> bytes | None:
        """Move the next part of a bucket, and return its last key; None if there is none.

        Parts grow without conflicts and shrink after them. In an open bucket, where only keys with
        more than ``above`` rows move, they do not exceed the initial size: long locks would disturb
        writers.
        """
        rows = min(self._size, self._rows) if above else self._size
        find = partial(
            next_part, counter=counter, bucket=bucket, after=after, above=above, rows=rows, to=to
        )
        part = self.run(find)
        if part is None:
            return None
        self.move(part)
        return part.last

    def move_all(self, counter: str, labels: Sequence[int], to: Wider) -> None:
        """Move all rows of some buckets, whose labels are in order, small buckets together; errors
        are those of :meth:`move`.
        """
        while labels and not self._pace.stopped:
            some = labels[:TOGETHER]
            few = self.run(partial(small_buckets, counter=counter, labels=some, rows=self._size))
            if few:
                self.move(BucketRange.all_keys(counter, few, to))
            else:
                after: bytes | None = None
                while not self._pace.stopped:
                    after = self.move_next(counter, labels[0], after, to=to)
                    if after is None:
                        break
            labels = labels[len(few) or 1 :]

    def move(self, part: BucketRange) -> None:
        """Move a part; after an error its halves, down to single keys. Returns early when the pace
        says stop; the next pass finds the rest.

        Raises:
            Outdated, StoreError: as :func:`move`.
        """
        pending: list[tuple[BucketRange, list[bytes] | None]] = [(part, None)]
        refused = False
        while pending and not self._pace.stopped:
            one, keys = pending.pop()
            try:
                moved = self._session.run(move, one)
                self.done.ranges += bool(moved.moved)
                if one.to is None:
                    self.done.rows_before += moved.before
                    self.done.rows_after += moved.after
                else:
                    self.done.rolled_up += moved.moved
            except (Conflict, DamagedSketch, NoSketches) as error:
                held = isinstance(error, Conflict)
                refused = refused or held
                if one.others:
                    labels = (one.bucket, *one.others)
                    middle = len(labels) // 2
                    for some in (labels[middle:], labels[:middle]):
                        pending.append((replace(one, bucket=some[0], others=some[1:]), None))
                elif one.first == one.last:
                    places = self.done.busy if held else self.done.unreadable
                    places.append(BucketKey(one.counter, one.bucket, one.first))
                else:
                    if keys is None:
                        keys = self.run(partial(keys_of, part=one))
                    middle = (len(keys) + 1) // 2
                    for half in (keys[middle:], keys[:middle]):
                        if half:
                            pending.append((replace(one, first=half[0], last=half[-1]), half))
            self._pace.rest()
        if refused:
            self._size = max(1, self._rows // _DISTURBED, self._size // 4)
        else:
            self._size = min(self._rows * UNDISTURBED, self._size * 2)

    def close(self) -> None:
        """Close the session."""
        self._session.close()
