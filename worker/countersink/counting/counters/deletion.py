"""Deletion of a counter, or of one key, while others count. Decides how many rows one transaction
deletes, how often it passes over the rows, and when it gives up. See ``deletion_sql.py`` for the
SQL.

Each transaction is short and at REPEATABLE READ. It deletes some rows, and subtracts their sum from
the ledger. So tables and ledger always agree, and a deletion that was killed can be run again.
Workers' transactions are short, so a deletion waits for them. If it has to wait long (for an open
transaction of the application), it deletes row by row, so that nobody waits behind it.

Deletion of a counter: First, the records of its backfills are deleted; this ends the runs of these
backfills. One pass deletes as many rows as there were at its beginning. Another pass follows only
if fewer rows are left than before, and still more than ``FEW``. So the deletion ends, however fast
others count. The last transaction deletes the remaining rows and the counter itself, and nobody can
count meanwhile.

Deletion of a key: Passes are repeated until a single transaction finds all rows that are left. This
is because retention may move rows to a bucket that a pass has already left behind.
"""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from countersink.counting.apply.guards import Control, bump, exclusive, short_waits
from countersink.counting.counters import deletion_sql
from countersink.counting.counters.all_counters import (
    ZONE_STAYS,
    insert_rows,
    is_breakdown,
    names_of,
    refuse_tracked,
)
from countersink.counting.counters.catalog import load
from countersink.counting.counters.deletion_sql import Deleted as Deleted
from countersink.database.errors import Conflict
from countersink.database.session import Session, explained, rerun
from countersink.runtime.limits import key_bytes

ROWS: Final = 1000
"""Number of rows that one transaction deletes."""
FEW: Final = 5000
"""Number of rows that may be left for the last transaction, during which nobody can count."""
MOST: Final = 50_000
"""Maximum number of rows that the last transaction deletes, if more arrived before it began."""
ATTEMPTS: Final = 20
"""Maximum number of attempts in a row, of a second each, to lock rows that others hold."""

_REST_OF_BUCKET: Final = "counter = %s AND bucket = %s AND counter_key >= %s"
_BUCKETS_BEHIND: Final = "counter = %s AND bucket > %s"
_ABOUT_A_COUNTER: Final = (
    "counter_ledger",
    "counter_keys",
    "day_note",
    "reconciled_day",
    "visitor_salt",
)
"""Tables that may still have rows of a counter when its rows of ``counter_slot`` are deleted."""
_TOMBSTONE: Final = (
    "UPDATE counter SET zone_fixed = UTC_TIMESTAMP(3), created = NULL,"
    " keep_steps = IF(time_zone = %s AND resolution = %s, %s, NULL), rolled_quarter = NULL,"
    " rolled_hour = NULL, rolled_day = NULL, rolled_month = NULL, max_keys = NULL,"
    " app_slots = DEFAULT(app_slots), dimensions = NULL, salt_days = NULL, better = DEFAULT(better)"
    " WHERE name = %s"
)
"""SQL that resets a counter's row, given the default settings. Time zone and resolution stay:
applications may still count by them for a minute. Other default steps might not fit them."""

Reached = Callable[[str], object]
Result = TypeVar("Result")


class _NotFinished(Exception):
    """A counter cannot be deleted because others count it too fast, or have given it breakdowns.
    The message says what to do; :meth:`_Deletion.finish` raises a Conflict with this message
    instead.
    """


@dataclass(slots=True)
class _Deletion:
    """One deletion of a counter or a key. ``size`` is the number of rows that the next transaction
    deletes. ``reached`` is called before each COMMIT of a deletion, for tests. ``pause`` sleeps for
    the given seconds while other transactions hold rows.
    """

    session: Session
    counter: str
    reached: Reached
    pause: Callable[[float], object]
    size: int

    def end_backfills(self, run: Callable[[Callable[[int], object]], object]) -> None:
        """End the counter's backfills, and delete their records.

        Args:
            run: a function that calls one step of this work in a transaction and returns its
                result, as :meth:`transact` does. The step's argument is the number of rows to
                delete.
        """
        place = self.session, self.counter
        run(lambda _: deletion_sql.end_runs(*place))
        for delete in (deletion_sql.delete_corrections, deletion_sql.delete_chunks):
            while run(partial(delete, *place)):
                pass

    def delete_pass(self, most: int) -> Deleted:
        """Delete about ``most`` rows of the counter, in the order of the primary key from the first
        row on, in several transactions. Return what was deleted: fewer rows if no more are left.
        """
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
        """Delete the rows that are left, and the counter's ledger, settings, notes and the like, in
        one transaction. Return what was deleted in ``counter_slot``. Nobody can count meanwhile.
        The row in ``counter`` is reset, but keeps time zone and resolution. Only a breakdown's row
        is deleted, in the breakdown's second deletion (see :func:`delete_counter`).

        Raises:
            Conflict: others hold rows, or more than :data:`MOST` rows are left, or the counter has
                breakdowns.
            TrackedCounter: the counter belongs to a tracked table.
        """
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
            "DELETE FROM api_key WHERE scopes = 'share' AND JSON_CONTAINS(counters, %s)",
            (json.dumps(self.counter),),
        )
        # Applications may go on counting in a breakdown for a minute: its row stays until the
        # breakdown is deleted again.
        old = (
            "DELETE FROM counter WHERE name = %s AND breakdown_of IS NOT NULL"
            f" AND zone_fixed < {ZONE_STAYS}"
        )
        if not self.session.execute(old, (self.counter,)):
            if not is_breakdown(self.counter):  # else another deletion may have deleted its row
                insert_rows(self.session, [self.counter], control.defaults)
            self.session.execute(_TOMBSTONE, (*control.defaults, self.counter))
        bump(self.session)
        self.reached("before_commit")
        return deleted

    def _held(self) -> AbstractContextManager[None]:
        return explained(
            f"another transaction keeps holding rows of {self.counter}",
            "end it, or run this again later to continue the deletion",
        )

    def transact(self, delete: Callable[[int], Result]) -> Result:
        """Run ``delete`` in a transaction, and return its result. After a conflict with another
        transaction, run it again. The argument of ``delete`` is the number of rows to delete: 1
        after a conflict, and four times as many after each success, up to :data:`ROWS`.

        Raises:
            Conflict: other transactions held rows at each of :data:`ATTEMPTS` attempts.
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
    """Delete one key of a counter, with its sketches, in all buckets of the counter. Return the
    number of deleted rows and the sum of their amounts; both are 0 if the counter has no such key.
    Breakdowns of the counter stay as they are.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: the counter's name.
        key: the key.
        reached: called with the text ``before_commit`` before each COMMIT of a deletion; tests kill
            the process there.
        pause: sleeps for the given seconds while other transactions hold rows.

    Raises:
        Conflict: other transactions held rows at each attempt. Rows deleted so far stay deleted,
            and another call continues.
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
    """Delete a counter: its rows and sketches, ledger, settings, notes, share links, salts, marks
    of reconciled days, and the records of its backfills. The list of the backfills' runs stays. So
    do the counter's time zone and resolution, by which applications may still count for a while.
    Return the number of rows that were deleted in ``counter_slot``, and the sum of their amounts.

    If the counter is a breakdown, a second deletion, ten minutes later or more, deletes its last
    row in the table ``counter``: see :func:`removed_breakdowns`.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: the counter's name.
        reached: called with the text ``before_commit`` before each COMMIT, for tests.
        pause: sleeps for the given seconds while other transactions hold rows.

    Raises:
        Conflict: other transactions held rows at each attempt; or others count the counter faster
            than it can be deleted; or the counter has breakdowns, which must be deleted before.
            Rows deleted so far stay deleted.
        TrackedCounter: the counter belongs to a tracked table.
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


def removed_breakdowns(session: Session, counter: str | None = None) -> list[str]:
    """Return the names of the breakdowns that were removed from the settings of a counter, or of
    all counters if ``counter`` is None: the caller deletes them by :func:`delete_counter`. For a
    minute after this deletion, applications may still count in a breakdown. So its name is returned
    again, ten minutes after the first deletion, until a second one has deleted its ``counter`` row.
    """
    found = session.query(
        "SELECT name FROM counter WHERE breakdown_of = COALESCE(%s, breakdown_of)"
        f" AND dimensions IS NULL AND (zone_fixed IS NULL OR zone_fixed < {ZONE_STAYS})"
        " ORDER BY name",
        (counter,),
    )
    return [name for (name,) in found]
