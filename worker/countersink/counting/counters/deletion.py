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

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from countersink.counting.apply.control import Control, bump, exclusive, short_waits
from countersink.counting.counters import deletion_sql
from countersink.counting.counters.all_counters import refuse_tracked
from countersink.counting.counters.breakdowns import names_of
from countersink.counting.counters.catalog import ZONE_STAYS, load
from countersink.counting.counters.deletion_sql import Deleted as Deleted
from countersink.database.errors import Conflict
from countersink.database.session import Session, explained, rerun
from countersink.runtime.limits import key_bytes

ROWS: Final = 1000
"""Rows per transaction."""
FEW: Final = 5000
"""Rows that are left for the transaction that keeps everybody from counting."""
MOST: Final = 50_000
"""Rows that it takes at most, should so many come before it begins."""
ATTEMPTS: Final = 20
"""How often in a row to try what others hold, for a second each."""

_REST_OF_BUCKET: Final = "counter = %s AND bucket = %s AND counter_key >= %s"
_BUCKETS_BEHIND: Final = "counter = %s AND bucket > %s"
_ABOUT_A_COUNTER: Final = (
    "counter_ledger",
    "counter_keys",
    "day_note",
    "reconciled_day",
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

Reached = Callable[[str], object]
Result = TypeVar("Result")


class _Meanwhile(Exception):
    """What came while a counter was deleted, so that it stays; says what to do."""


@dataclass(slots=True)
class _Deleting:
    """One deletion. ``reached`` and ``pause`` are those of :func:`delete_key`."""

    session: Session
    counter: str
    reached: Reached
    pause: Callable[[float], object]
    size: int

    def end_backfills(self, run: Callable[[Callable[[int], object]], object]) -> None:
        """End the counter's backfills, and delete what they wrote down; ``run`` is given pieces of
        the work, as :meth:`next`.
        """
        place = self.session, self.counter
        run(lambda _: deletion_sql.end_runs(*place))
        for delete in (deletion_sql.delete_corrections, deletion_sql.delete_chunks):
            while run(partial(delete, *place)):
                pass

    def once_through(self, most: int) -> Deleted:
        """Delete the counter's rows in order, about ``most`` of them."""
        deleted = Deleted()
        where, args = "counter = %s", tuple[object, ...]((self.counter,))
        while deleted.rows < most:
            page, last = self.next(partial(deletion_sql.delete_rows, self.session, where, args))
            deleted += page
            # First the rest of the bucket, then those after it: each is one range of the index.
            if last is not None:
                where, args = _REST_OF_BUCKET, (self.counter, *last)
            elif where == _REST_OF_BUCKET:
                where, args = _BUCKETS_BEHIND, args[:2]
            else:
                break
        return deleted

    def finish(self) -> Deleted:
        """Delete what was counted meanwhile, and the counter itself, while nobody is counting."""
        try:
            with self._held():
                return exclusive(self.session, self._finish, attempts=ATTEMPTS, pause=self.pause)
        except _Meanwhile as error:
            raise Conflict(f"{self.counter} {error}") from None

    def _finish(self, control: Control) -> Deleted:
        place = self.session, self.counter
        refuse_tracked(*place)
        self.end_backfills(lambda work: work(ROWS))
        if names_of(*place):
            raise _Meanwhile("has got breakdowns meanwhile: run this again")
        if deletion_sql.rows_left(*place, MOST + 1) > MOST:
            raise _Meanwhile(
                f"is counted faster than it can be deleted (more than {MOST:,} rows came"
                " meanwhile): stop its producers, and run this again"
            )
        deleted, _ = deletion_sql.delete_rows(
            self.session, "counter = %s", (self.counter,), deletion_sql.EVERYTHING, " NOWAIT"
        )
        for table in _ABOUT_A_COUNTER:
            self.session.execute(f"DELETE FROM {table} WHERE counter = %s", (self.counter,))
        self.session.execute(
            f"DELETE FROM api_key WHERE scopes = 'share' AND {deletion_sql.LINKED_COUNTER} = %s",
            (self.counter,),
        )
        # Applications may go on counting in a breakdown for a minute: its row stays until it is
        # deleted once more.
        old = (
            "DELETE FROM counter WHERE name = %s AND breakdown_of IS NOT NULL"
            f" AND zone_fixed < {ZONE_STAYS}"
        )
        if not self.session.execute(old, (self.counter,)):
            self.session.execute(_TOMBSTONE, (self.counter,))
        bump(self.session)
        self.reached("before_commit")
        return deleted

    def _held(self) -> AbstractContextManager[None]:
        return explained(
            f"another transaction holds rows of {self.counter} all the time",
            "end it, or run this again later, which goes on where this stopped",
        )

    def next(self, delete: Callable[[int], Result]) -> Result:
        """One transaction, which is given how many rows to delete; row by row where others hold
        some.
        """

        def attempt() -> Result:
            size, self.size = self.size, 1
            with self.session.transaction():
                done = delete(size)
                self.reached("before_commit")
            self.size = min(ROWS, 4 * size)
            return done

        with self._held():
            return rerun(attempt, attempts=ATTEMPTS, pause=self.pause)


def delete_key(
    session: Session,
    counter: str,
    key: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
) -> Deleted:
    """Delete one key of a counter, in all its buckets.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: its name.
        key: the key.
        reached: called before each COMMIT; for tests that kill the process there.
        pause: how to wait where others hold rows, in seconds.

    Raises:
        Conflict: others held rows all the time; what was deleted is deleted, and it can go on.
    """
    deleting = _Deleting(session, counter, reached, pause, ROWS)
    wanted = key_bytes(key)
    deleted = Deleted()
    after: datetime | None = None
    with short_waits(session):
        while True:
            first = after is None
            place = session, counter, wanted, after
            page, after = deleting.next(partial(deletion_sql.delete_buckets, *place))
            deleted += page
            # Between two transactions retention may have moved rows to a wider bucket, which begins
            # where this has been.
            if first and after is None:
                break
    if load(session).cap(counter) is not None:
        # Let everybody look anew which keys the days of counters have that have a cap.
        exclusive(session, lambda control: bump(session), attempts=ATTEMPTS)
    return deleted


def delete_counter(
    session: Session,
    counter: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
) -> Deleted:
    """Delete a counter: rows, ledger, settings, and what its backfills wrote down, but for the list
    of their runs. As :func:`delete_key`.

    Raises:
        Conflict: as there; or it is counted faster than it can be deleted.
    """
    deleting = _Deleting(session, counter, reached, pause, ROWS)
    deleted = Deleted()
    with short_waits(session):
        deleting.end_backfills(deleting.next)
        left = deletion_sql.rows_left(session, counter)
        while True:
            deleted += deleting.once_through(left)
            before, left = left, deletion_sql.rows_left(session, counter)
            if not FEW < left < before:
                break
    return deleted + deleting.finish()
