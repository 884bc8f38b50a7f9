"""The transaction that moves rows: it adds up the rows of a range of keys, inserts the sums into
slot 0 of the same or a wider bucket, and deletes the rows. ``Mover`` does this for whole buckets.

The transaction begins with a locking read. At REPEATABLE READ this locks the rows of the range and
the gaps between them: until the COMMIT, no other session changes a row there or inserts one, so
exactly the rows that were added up are deleted. Readers see the whole move or nothing. (At READ
COMMITTED a row that is inserted in between would be deleted without having been added, so the
numbers of rows are compared.) Rows of other widths between the range's keys are locked, too. The
locking read does not wait: it fails at once if another session has locked a row. If it waited for
a transaction that itself waits, workers would queue up behind it.

After the COMMIT, workers that waited for these rows may deadlock with each other, even though they
lock in the same order. If InnoDB has purged the deleted rows, the workers' locks have become
locks of the gap (as for INSERT ... ON DUPLICATE KEY UPDATE at READ COMMITTED: MySQL's bug 76927),
and each worker inserts into the other's gap. One is rolled back, and runs its transaction again.

A move into a wider bucket is right only if the counter is still as the pass (one run over all
counters) read it. So before the locking read, the transaction takes the share lock on the control
row, as workers do, and checks the counter. A change of a counter locks that row exclusively.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from countersink.counting.apply.guards import read_control
from countersink.counting.counters.buckets import width_of
from countersink.counting.errors import DamagedSketch, NoSketches
from countersink.counting.ledger import BucketSums, post, subtract
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
"""Seconds that a statement may wait for a lock; the locking read does not wait."""

_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move. ``moved`` rows were added up elsewhere and deleted. Their keys had
    ``before`` rows in their buckets until then, and have ``after`` rows there now."""

    before: int = 0
    after: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class _Key:
    """The sums over the rows of one key in a bucket: ``amount`` and ``moving``, the amount and the
    number of the rows to move; ``sketched``, how many of them have sketches; ``rows``, the number
    of all."""

    bucket: int
    key: bytes
    amount: int
    moving: int
    sketched: int
    rows: int


def move(session: Session, part: BucketRange) -> Moved:
    """Move the rows of a range in one transaction, and return the numbers of rows. After any error,
    it may be called again. All errors but Unavailable mean that nothing was moved.

    Args:
        session: a session at REPEATABLE READ with a short lock wait, outside a transaction.
        part: the range of keys, and the bucket to which their rows move.

    Raises:
        Outdated: the wider bucket may be wrong by now.
        Conflict: another session has locked a row.
        DamagedSketch, NoSketches: a sketch is damaged, or a library missing.
        Unavailable: the connection is lost; either everything was moved, or nothing.
        StoreError: any other error of a query.
    """
    with session.transaction():
        if part.to is not None:
            _check(session, part.counter, part.to)
        keys = _lock(session, part)
        moving = [one for one in keys if one.moving]
        moved = sum(one.moving for one in moving)
        if moving:
            sums = _add(session, part, moving)
            _move_sketches(session, part, moving)
            deleted = _delete(session, part)
            if deleted != moved:
                raise Conflict(
                    f"{moved:,} rows were added up and {deleted:,} deleted, so nothing was moved:"
                    " rows came in between, which InnoDB at REPEATABLE READ does not allow"
                )
            if part.to is not None:
                _post(session, part, part.to, moving, sums)
    before = sum(one.rows for one in moving)
    return Moved(before, len(moving) if part.to is None else before - moved, moved)


def _check(session: Session, counter: str, to: Wider) -> None:
    """Take share locks on the control row and the counter's row. Raise Outdated if any counter was
    changed since the pass read the catalog, or if this one is not rolled up to ``to.rolled_to``."""
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
    """Add the rows that move, summed by key, to slot 0 of the bucket to which they move. Return
    (key, sum) of each key."""
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
    """Post to the ledger that the rows of ``keys`` left their buckets, and ``sums`` came into the
    wider bucket. If rows and ledger differed before the move, they differ as much after it."""
    left, came = BucketSums(), BucketSums()
    for one in keys:
        left.add_row(part.counter, one.bucket, one.key, one.amount)
    for key, amount in sums:
        came.add_row(part.counter, to.label, key, amount)
    post(session, COMPACTED, came)
    subtract(session, left)


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
"""Seconds that a statement may take: enough to read a bucket of some 500 million rows."""
TOGETHER: Final = 300
"""Number of buckets that one transaction moves, at most."""
UNDISTURBED: Final = 8
"""Factor by which the rows of a transaction grow, at most, while there are no conflicts."""
_DISTURBED: Final = 16
"""Divisor by which the rows of a transaction shrink, at most, after conflicts."""

Result = TypeVar("Result")


def open_tables(mysql_url: str) -> Session:
    """Return a session for moving rows, after a check of the tables' version. Raises SchemaMismatch
    if there are no tables, or if they have another version than this program needs. Raises another
    StoreError as :func:`countersink.database.connection.connect`."""
    return sessions.open_tables(
        mysql_url, isolation="REPEATABLE READ", read_timeout=READ_TIMEOUT_S, lock_wait=LOCK_WAIT_S
    )


@dataclass(slots=True, kw_only=True)
class PassDone:
    """The result of a pass so far: rows that were moved, and buckets or keys that were left.

    Attributes:
        rows_before: number of rows that the compacted keys had.
        rows_after: number of rows that these keys had right after they were compacted.
        ranges: number of transactions that moved rows.
        rolled_up: number of rows that were added to wider buckets.
        counters: number of counters with rolled-up buckets, also of those without rows to move.
        busy: keys whose rows another transaction had locked; the next pass comes back to them.
        unreadable: keys with damaged sketches, or keys whose sketches need a missing library.
        astride: due buckets that stay: they or their wider bucket cross the end of a day or month.
        unknown: buckets of an unknown width.
        seconds: duration of the pass; 0 until its end.
        share: share of the counters that compaction has read, from 0 to 1.
        finished: whether the pass has ended without being stopped.
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

    def note(self, listed: list[BucketKey], counter: str, label: int) -> None:
        """Add a bucket to ``listed``, a list of this result, unless it was noted before."""
        if (bucket := BucketKey(counter, label)) not in self._noted:
            self._noted.add(bucket)
            listed.append(bucket)

    @property
    def left(self) -> dict[str, list[BucketKey]]:
        """The buckets and keys that were left as they are, by reason (a text), if there are any."""
        every = {
            "keys left for the next run, as other transactions held them": self.busy,
            "keys left as they are, as their different members cannot be read": self.unreadable,
            "buckets left as they are, as they lie in two months or days": self.astride,
            "buckets left as they are, as their width is unknown": self.unknown,
        }
        return {why: left for why, left in every.items() if left}

    def outcome(self, summary: str) -> JobOutcome:
        """Return a job's result. Its sentence is ``summary``, then how many buckets or keys were
        left, and why, and, if the pass was stopped, a note of that."""
        for why, left in self.left.items():
            summary += f"; {why}: {len(left):,}, first {left[0]}"
        rows = self.rows_before - self.rows_after + self.rolled_up
        summary = summary if self.finished else f"{summary}; stopped early, the next run goes on"
        return JobOutcome(rows, summary, finished=self.finished)


class Mover:
    """Moves rows on its own session, which it opens again after a loss. For use in one thread.

    Args:
        connect: opens sessions as :func:`open_tables` does.
        pace: makes the pauses between transactions, and knows whether to stop.
        rows: slot rows that a transaction moves at first; ValueError if fewer than one.

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
        """Call ``work`` with the session, and return its result. ``work`` is called again after a
        loss of the session, and after a Conflict (for example, a table is being altered).

        Raises:
            Unavailable: the server was away for a minute, or is away when the pass is to stop.
            StoreError: another error of ``work``; a Conflict only after several attempts.
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
        """Move the rows of the next keys of a bucket, as :meth:`move` does. The next keys are those
        after the key ``after``; if it is None, those from the first key on. The rows move to the
        wider bucket ``to``; if it is None, to slot 0 of the same bucket. Return the last of these
        keys; None if there are none. The number of rows that move at once grows without conflicts
        and shrinks after them.

        If ``above`` is not 0 (in an open bucket), the first and the last key have more than
        ``above`` rows to move; smaller keys between them move, too. The number of rows then stays
        at or below its initial value, because long locks would disturb writers."""
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
        """Move the rows of all keys of the buckets ``labels`` (sorted, of one width) to the bucket
        ``to``, as :meth:`move` does: a stop ends it early, keys may stay, its errors are raised."""
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
        """Move a range. After a conflict or an unreadable sketch, move the halves of the range, and
        so on. A key that fails alone stays, and is added to a list in ``done``. Return early if the
        pass is to stop. Other errors of :func:`move` are raised: Outdated and StoreError."""
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
                    listed = self.done.busy if held else self.done.unreadable
                    listed.append(BucketKey(one.counter, one.bucket, one.first))
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
