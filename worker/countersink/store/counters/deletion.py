"""Deletes a counter or a key beside those who count: rows per transaction, passes, tries, and the
errors if others hold its rows or count faster; the SQL is in ``deletion_sql.py``.

In short transactions at REPEATABLE READ, each of which takes some rows away and corrects the ledger
by their sum: so the tables agree with the ledger at every moment, and whoever was killed in the
middle begins again. The SELECT … FOR UPDATE locks the rows and the gaps between them, so that the
DELETE finds the same ones. It waits for workers, whose transactions are short; where the wait is
long (an open transaction of the application) it goes on row by row, so that nobody waits behind it.

A pass takes as many rows as there were when it began, and there is another one only as long as
there are fewer and fewer: so it ends, however fast others count. Of a key there is another one
until one transaction finds all that is left: retention may move rows to where the pass has been.
What backfills of the counter wrote down goes first, and with it they end.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from countersink.runtime.limits import key_bytes
from countersink.store import links
from countersink.store.apply.control import Control, bump, exclusive, short_waits
from countersink.store.connection import Session
from countersink.store.counters import deletion_sql
from countersink.store.counters.breakdowns import is_breakdown, names_of
from countersink.store.counters.catalog import ZONE_STAYS, load
from countersink.store.counters.deletion_sql import Deleted as Deleted
from countersink.store.errors import Conflict
from countersink.store.tracked.definitions import refuse_tracked

ROWS: Final = 1000
"""Rows per transaction."""
FEW: Final = 5000
"""Rows that are left for the transaction that keeps everybody from counting."""
MOST: Final = 50_000
"""Rows that it takes at most, should so many come before it begins."""
ATTEMPTS: Final = 20
"""How often in a row to try what others hold, for a second each."""

_LONGEST_PAUSE: Final = 0.2
_ABOUT_A_COUNTER: Final = (
    "counter_ledger",
    "counter_keys",
    "day_note",
    "visitor_salt",
)
"""Tables in which something is left of a counter when its rows are gone."""
_TOMBSTONE: Final = (
    "INSERT INTO counter (name, zone_fixed) VALUES (%s, UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE"
    " zone_fixed = UTC_TIMESTAMP(3), created = NULL, keep_steps = NULL, rolled_quarter = NULL,"
    " rolled_hour = NULL, rolled_day = NULL, rolled_month = NULL, max_keys = NULL,"
    " app_slots = DEFAULT(app_slots), dimensions = NULL, salt_days = NULL"
)
"""Time zone and resolution stay: applications may go on counting by them for a minute."""
_PASSES: Final = 20

Reached = Callable[[str], object]
Result = TypeVar("Result")


class _Faster(Exception):
    """More than :data:`MOST` rows are left."""


class _Backfilled(Exception):
    """A backfill has begun, and added something, since its predecessors were ended."""


@dataclass(slots=True)
class _Deleting:
    """One deletion. ``reached``, ``pause`` and ``attempts`` are those of :func:`delete_key`."""

    session: Session
    counter: str
    reached: Reached
    pause: Callable[[float], object]
    attempts: int
    size: int

    def key_once(self, key: bytes) -> tuple[Deleted, bool]:
        """Delete a key's rows in order, not turning back to what is counted meanwhile; also whether
        it took several transactions: between two of them retention may have moved rows to a wider
        bucket, which begins where this has been.
        """
        deleted, several = Deleted(), False
        after: datetime | None = None
        while True:
            place = (self.session, self.counter, key, after)
            page, after = self._next(partial(deletion_sql.delete_buckets, *place))
            deleted += page
            if after is None:
                return deleted, several
            several = True

    def backfills(self) -> None:
        """End the counter's backfills, and delete what they wrote down."""
        session, counter = self.session, self.counter
        self._next(lambda _: deletion_sql.end_runs(session, counter))
        for run in deletion_sql.runs_with_corrections(session, counter):
            while self._next(partial(deletion_sql.delete_corrections, session, counter, run)):
                pass
        for source in deletion_sql.sources(session, counter):
            while self._next(partial(deletion_sql.delete_chunks, session, counter, source)):
                pass

    def once_through(self, most: int) -> Deleted:
        """Delete the counter's rows in order, about ``most`` of them."""
        deleted = Deleted()
        last: deletion_sql.Position | None = None
        inside = False
        while deleted.rows < most:
            # First the rest of the bucket, then those after it: each is one range of the index.
            where, args = "counter = %s", tuple[object, ...]((self.counter,))
            if last is not None and inside:
                where, args = f"{where} AND bucket = %s AND counter_key >= %s", (*args, *last)
            elif last is not None:
                where, args = f"{where} AND bucket > %s", (*args, last[0])
            delete = partial(deletion_sql.delete_rows, self.session, where, args)
            page, at = self._next(delete)
            deleted += page
            if at is None and not inside:
                break
            last, inside = at or last, at is not None
        return deleted

    def finish_alone(self) -> Deleted:
        """Delete what was counted meanwhile, and the counter itself, while nobody is counting."""
        for _ in range(_PASSES):
            try:
                return self._finish_alone()
            except _Backfilled:
                self.backfills()
        raise Conflict(f"{self.counter} is backfilled again and again: stop that first")

    def _finish_alone(self) -> Deleted:
        try:
            return exclusive(self.session, self._finish, attempts=self.attempts, pause=self.pause)
        except _Faster:
            raise Conflict(
                f"{self.counter} is counted faster than it can be deleted (more than {MOST:,} rows"
                " came meanwhile): stop its producers, and run this again"
            ) from None
        except Conflict as error:
            raise self._held(error) from error

    def _finish(self, control: Control) -> Deleted:
        refuse_tracked(self.session, self.counter)
        if not deletion_sql.finish(self.session, self.counter):
            raise _Backfilled
        if names_of(self.session, self.counter):
            raise Conflict(f"{self.counter} has got breakdowns meanwhile: run this again")
        if deletion_sql.rows_left(self.session, self.counter, MOST + 1) > MOST:
            raise _Faster
        deleted, page = Deleted(), Deleted(ROWS)
        while page.rows == ROWS:
            page, _ = deletion_sql.delete_rows(
                self.session, "counter = %s", (self.counter,), ROWS, " NOWAIT"
            )
            deleted += page
        for place in _ABOUT_A_COUNTER:
            self.session.execute(f"DELETE FROM {place} WHERE counter = %s", (self.counter,))
        links.delete_of(self.session, self.counter)
        if is_breakdown(self.counter):
            # Applications may go on counting in it for a minute: its row stays until it is deleted
            # once more.
            old = f"DELETE FROM counter WHERE name = %s AND zone_fixed < {ZONE_STAYS}"
            self.session.execute(old, (self.counter,))
            self.session.execute(
                "UPDATE counter SET created = NULL, dimensions = NULL,"
                " zone_fixed = COALESCE(zone_fixed, UTC_TIMESTAMP(3)) WHERE name = %s",
                (self.counter,),
            )
        else:
            self.session.execute(_TOMBSTONE, (self.counter,))
        bump(self.session)
        self.reached("before_commit")
        return deleted

    def _held(self, error: Conflict) -> Conflict:
        return Conflict(
            f"another transaction holds rows of {self.counter} all the time ({error}):"
            " end it, or run this again later, which goes on where this stopped",
            code=error.code,
        )

    def _next(self, delete: Callable[[int], Result]) -> Result:
        """One transaction, which is given how many rows to delete."""
        for attempt in range(1, self.attempts + 1):
            size = self.size
            try:
                with self.session.transaction():
                    done = delete(size)
                    self.reached("before_commit")
            except Conflict as error:
                if attempt == self.attempts:
                    raise self._held(error) from error
                self.size = 1
                self.pause(random.uniform(0.0, _LONGEST_PAUSE))
            else:
                self.size = min(ROWS, 4 * size)
                return done
        raise AssertionError("there is at least one attempt")


def delete_key(
    session: Session,
    counter: str,
    key: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
    attempts: int = ATTEMPTS,
) -> Deleted:
    """Delete one key of a counter, in all its buckets.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: its name.
        key: the key.
        reached: called before each COMMIT; for tests that kill the process there.
        pause: how to wait where others hold rows, in seconds.
        attempts: how often in a row to try that, a second each.

    Raises:
        Conflict: others held rows all the time; what was deleted is deleted, and it can go on.
    """
    deleting = _Deleting(session, counter, reached, pause, attempts, ROWS)
    wanted = key_bytes(key)
    deleted = Deleted()
    with short_waits(session):
        for _ in range(_PASSES):
            found, several = deleting.key_once(wanted)
            deleted += found
            if not several:
                break
    if load(session).cap(counter) is not None:
        # Let everybody look anew which keys the days of counters have that have a cap.
        exclusive(session, lambda control: bump(session), attempts=attempts)
    return deleted


def delete_counter(
    session: Session,
    counter: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
    attempts: int = ATTEMPTS,
) -> Deleted:
    """Delete a counter: rows, ledger, settings, and what its backfills wrote down, but for the list
    of their runs. As :func:`delete_key`.

    Raises:
        Conflict: as there; or it is counted faster than it can be deleted.
    """
    deleting = _Deleting(session, counter, reached, pause, attempts, ROWS)
    deleted = Deleted()
    with short_waits(session):
        deleting.backfills()
        there = deletion_sql.rows_left(session, counter)
        for _ in range(_PASSES):
            deleted += deleting.once_through(there)
            before, there = there, deletion_sql.rows_left(session, counter)
            if there <= FEW or there >= before:
                break
    return deleted + deleting.finish_alone()
