"""Deletion of a counter or a key while others count: rows per transaction, passes, attempts, and
errors if other transactions hold its rows or count faster. See ``deletion_sql.py`` for the SQL.

Each short transaction at REPEATABLE READ deletes some rows and subtracts their sum from the ledger:
so tables and ledger always agree, and a deletion that was killed can be run again. It waits for
workers, whose transactions are short; after a long wait (for an open transaction of the
application) it deletes row by row, so that nobody waits behind it.

A pass over a counter deletes as many rows as there were at its begin, and another pass follows only
while fewer rows are left than before: so it ends, however fast others count. Passes over a key
follow until one transaction finds all rows left, as retention may move rows to buckets that the
pass has left behind. Records of the counter's backfills are deleted first, which ends its runs.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from countersink.counting.apply.guards import Control, bump, exclusive, short_waits
from countersink.counting.counters import deletion_sql
from countersink.counting.counters.all_counters import names_of, refuse_tracked
from countersink.counting.counters.catalog import ZONE_STAYS, load
from countersink.counting.counters.deletion_sql import Deleted as Deleted
from countersink.database.errors import Conflict
from countersink.database.session import Session, explained, rerun
from countersink.runtime.limits import key_bytes

ROWS: Final = 1000
"""Rows per transaction."""
FEW: Final = 5000
"""Rows that are left for the last transaction, during which nobody can count."""
MOST: Final = 50_000
"""Maximum rows of the last transaction, where more arrive before it begins."""
ATTEMPTS: Final = 20
"""Maximum attempts in a row to lock rows that others hold, of a second each."""

_REST_OF_BUCKET: Final = "counter = %s AND bucket = %s AND counter_key >= %s"
_BUCKETS_BEHIND: Final = "counter = %s AND bucket > %s"
_ABOUT_A_COUNTER: Final = (
    "counter_ledger",
    "counter_keys",
    "day_note",
    "reconciled_day",
    "visitor_salt",
)
"""Tables that still have rows of a counter after its rows of ``counter_slot`` were deleted."""
_TOMBSTONE: Final = (
    "INSERT INTO counter (name, zone_fixed) VALUES (%s, UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE"
    " zone_fixed = UTC_TIMESTAMP(3), created = NULL, keep_steps = NULL, rolled_quarter = NULL,"
    " rolled_hour = NULL, rolled_day = NULL, rolled_month = NULL, max_keys = NULL,"
    " app_slots = DEFAULT(app_slots), dimensions = NULL, salt_days = NULL"
)
"""SQL that resets a counter's row. Time zone and resolution stay, as applications may go on
counting by them for a minute."""

Reached = Callable[[str], object]
Result = TypeVar("Result")


class _NotFinished(Exception):
    """A counter cannot be deleted because of concurrent changes; the message says what to do."""


@dataclass(slots=True)
class _Deletion:
    """A deletion. ``reached`` and ``pause`` are as for :func:`delete_key`."""

    session: Session
    counter: str
    reached: Reached
    pause: Callable[[float], object]
    size: int

    def end_backfills(self, run: Callable[[Callable[[int], object]], object]) -> None:
        """End the counter's backfills, and delete their records; ``run`` runs each piece of work,
        as :meth:`transact` does.
        """
        place = self.session, self.counter
        run(lambda _: deletion_sql.end_runs(*place))
        for delete in (deletion_sql.delete_corrections, deletion_sql.delete_chunks):
            while run(partial(delete, *place)):
                pass

    def delete_pass(self, most: int) -> Deleted:
        """Delete about ``most`` of the counter's rows, in primary-key order."""
        deleted = Deleted()
        where, args = "counter = %s", tuple[object, ...]((self.counter,))
        while deleted.rows < most:
            page, last = self.transact(partial(deletion_sql.delete_rows, self.session, where, args))
            deleted += page
            # First the rest of the bucket, then later buckets: each is one range of the index.
            if last is not None:
                where, args = _REST_OF_BUCKET, (self.counter, *last)
            elif where == _REST_OF_BUCKET:
                where, args = _BUCKETS_BEHIND, args[:2]
            else:
                break
        return deleted

    def finish(self) -> Deleted:
        """Delete the rows counted meanwhile, and the counter itself, while nobody can count."""
        try:
            with self._held():
                return exclusive(self.session, self._finish, attempts=ATTEMPTS, pause=self.pause)
        except _NotFinished as error:
            raise Conflict(f"{self.counter} {error}") from None

    def _finish(self, control: Control) -> Deleted:
        place = self.session, self.counter
        refuse_tracked(*place)
        self.end_backfills(lambda work: work(ROWS))
        if names_of(*place):
            raise _NotFinished("was given breakdowns during the deletion: run this again")
        if deletion_sql.rows_left(*place, MOST + 1) > MOST:
            raise _NotFinished(
                f"is counted faster than it can be deleted (more than {MOST:,} new rows): stop its"
                " producers, and run this again"
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
        # Applications may go on counting in a breakdown for a minute: its row stays until the
        # breakdown is deleted again.
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
            f"another transaction keeps holding rows of {self.counter}",
            "end it, or run this again later to continue the deletion",
        )

    def transact(self, delete: Callable[[int], Result]) -> Result:
        """Run ``delete`` in a transaction, given the number of rows to delete; a single row where
        other transactions hold rows.
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
        counter: the counter's name.
        key: the key.
        reached: called before each COMMIT; for tests that kill the process there.
        pause: sleeps for some seconds where other transactions hold rows.

    Raises:
        Conflict: other transactions held rows at each attempt; rows deleted so far stay deleted,
        and
            another call continues.
    """
    deletion = _Deletion(session, counter, reached, pause, ROWS)
    wanted = key_bytes(key)
    deleted = Deleted()
    after: datetime | None = None
    with short_waits(session):
        while True:
            first = after is None
            place = session, counter, wanted, after
            page, after = deletion.transact(partial(deletion_sql.delete_buckets, *place))
            deleted += page
            # Between two transactions retention may have moved rows to a wider bucket that begins
            # before ``after``.
            if first and after is None:
                break
    if load(session).cap(counter) is not None:
        # Workers read the catalog, and with it the keys of capped days, again.
        exclusive(session, lambda control: bump(session), attempts=ATTEMPTS)
    return deleted


def delete_counter(
    session: Session,
    counter: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
) -> Deleted:
    """Delete a counter: rows, ledger, settings, and records of its backfills except the list of
    runs. Arguments as for :func:`delete_key`.

    Raises:
        Conflict: as :func:`delete_key`; or it is counted faster than it can be deleted.
    """
    deletion = _Deletion(session, counter, reached, pause, ROWS)
    deleted = Deleted()
    with short_waits(session):
        deletion.end_backfills(deletion.transact)
        left = deletion_sql.rows_left(session, counter)
        while True:
            deleted += deletion.delete_pass(left)
            before, left = left, deletion_sql.rows_left(session, counter)
            if not FEW < left < before:
                break
    return deleted + deletion.finish()
