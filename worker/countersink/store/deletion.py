"""Deleting a counter, or a key of it, beside whoever counts.

In short transactions at REPEATABLE READ, each of which takes some rows away and corrects the ledger
by their sum: so the tables agree with the ledger at every moment, and whoever was killed in the
middle begins again. The SELECT … FOR UPDATE locks the rows and the gaps between them, so that the
DELETE finds the same ones. It waits for workers, whose transactions are short; where the wait is
long (an open transaction of the application) it goes on row by row, so that nobody waits behind it.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

from countersink.store.connection import LOCK_WAIT, Session
from countersink.store.control import Control, exclusive
from countersink.store.errors import Conflict
from countersink.store.keys import key_bytes

ROWS: Final = 1000
"""Rows per transaction."""
FIRST_APP_SLOT: Final = 256
LAST_APP_SLOT: Final = 511
"""Rows in these slots come into the ledger when compaction moves them."""
ATTEMPTS: Final = 20
"""How often in a row to try what others hold, for a second each."""

_LOCK_WAIT: Final = 1
_LONGEST_PAUSE: Final = 0.2
_PASSES: Final = 5
_FEW: Final = 5000
"""Rows that may be left for the transaction that keeps everybody from counting."""

Reached = Callable[[str], object]
Table = Literal["counter_slot", "counter_month"]

_TABLES: Final[tuple[Table, ...]] = ("counter_slot", "counter_month")
_INSIDE: Final = "counter = %s AND bucket = %s AND counter_key >= %s"
_BEYOND: Final = "counter = %s AND bucket > %s"


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted.

    Attributes:
        rows: of counter_slot and counter_month.
        amount: their sum.
    """

    rows: int = 0
    amount: int = 0

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.rows + other.rows, self.amount + other.amount)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one table: where they are, and in the order of which index they go."""

    table: Table
    index: Literal["PRIMARY", "by_key"]
    where: str
    args: tuple[object, ...]

    @property
    def columns(self) -> str:
        """What of each row is in the ledger, all of it, and where it is."""
        if self.table == "counter_month":
            return "amount, amount, bucket, counter_key"
        outside = f"slot NOT BETWEEN {FIRST_APP_SLOT} AND {LAST_APP_SLOT}"
        return f"IF({outside}, amount, 0), amount, bucket, counter_key"

    @property
    def order(self) -> str:
        """The order of the index, below what ``where`` fixes."""
        key = "" if self.index == "by_key" else ", counter_key"
        return f"bucket{key}" + ("" if self.table == "counter_month" else ", slot")


@dataclass(frozen=True, slots=True)
class _Page:
    """The rows that went in one transaction, and where the last of them was."""

    deleted: Deleted
    last: tuple[object, object] | None


class _Deleting:
    """One deletion. ``reached`` and ``pause`` are those of :func:`delete_key`."""

    def __init__(
        self,
        session: Session,
        counter: str,
        reached: Reached,
        pause: Callable[[float], object],
        attempts: int,
    ) -> None:
        self._session = session
        self._counter = counter
        self._reached = reached
        self._pause = pause
        self._attempts = attempts
        self._size = ROWS

    def until_none_is_left(self, part: _Part) -> Deleted:
        """Delete the rows of ``part``, few enough that others do not make as many meanwhile."""
        deleted = Deleted()
        while True:
            page, complete = self._next(part)
            deleted += page.deleted
            if complete:
                return deleted

    def once_through(self, table: Table) -> Deleted:
        """Delete the counter's rows in order, not turning back to what is counted meanwhile."""
        part = whole = _Part(table, "PRIMARY", "counter = %s", (self._counter,))
        deleted = Deleted()
        last: tuple[object, object] | None = None
        while True:
            page, complete = self._next(part)
            deleted += page.deleted
            last = page.last or last
            if complete and (part.where != _INSIDE or last is None):
                return deleted
            # First the rest of the bucket, then those after it: each is one range of the index.
            if complete and last is not None:
                part = replace(whole, where=_BEYOND, args=(self._counter, last[0]))
            elif last is not None:
                part = replace(whole, where=_INSIDE, args=(self._counter, *last))

    def _finish(self, control: Control) -> Deleted:
        deleted = Deleted()
        for table in _TABLES:
            part = _Part(table, "PRIMARY", "counter = %s", (self._counter,))
            while True:
                page = _delete_first(self._session, self._counter, part, ROWS, " NOWAIT")
                deleted += page.deleted
                if page.deleted.rows < ROWS:
                    break
        for statement in (
            "DELETE FROM counter_ledger WHERE counter = %s",
            "DELETE FROM counter_policy WHERE counter = %s",
            "DELETE FROM counter WHERE name = %s",
        ):
            self._session.execute(statement, (self._counter,))
        self._session.execute("UPDATE control SET policy_version = policy_version + 1 WHERE id = 1")
        self._reached("before_commit")
        return deleted

    def finish_alone(self) -> Deleted:
        """Delete what was counted meanwhile, and the counter itself, while nobody is counting."""
        try:
            return exclusive(
                self._session, self._finish, attempts=self._attempts, pause=self._pause
            )
        except Conflict as error:
            raise self._held(error) from error

    def _held(self, error: Conflict) -> Conflict:
        return Conflict(
            f"another transaction holds rows of {self._counter} all the time ({error}):"
            " end it, or run this again later, which goes on where this stopped",
            code=error.code,
        )

    def _next(self, part: _Part) -> tuple[_Page, bool]:
        """One transaction; also whether it found all that there was."""
        for attempt in range(1, self._attempts + 1):
            size = self._size
            try:
                with self._session.transaction():
                    page = _delete_first(self._session, self._counter, part, size, "")
                    self._reached("before_commit")
            except Conflict as error:
                if attempt == self._attempts:
                    raise self._held(error) from error
                self._size = 1
                self._pause(random.uniform(0.0, _LONGEST_PAUSE))
            else:
                self._size = min(ROWS, 4 * size)
                return page, page.deleted.rows < size
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
    """Delete one key of a counter, in all its buckets and months.

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
    deleting = _Deleting(session, counter, reached, pause, attempts)
    args = (counter, key_bytes(key))
    with _short_waits(session):
        return sum(
            (
                deleting.until_none_is_left(
                    _Part(table, "by_key", "counter = %s AND counter_key = %s", args)
                )
                for table in _TABLES
            ),
            Deleted(),
        )


def delete_counter(
    session: Session,
    counter: str,
    *,
    reached: Reached = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
    attempts: int = ATTEMPTS,
) -> Deleted:
    """Delete a counter: rows, months, ledger, policies, settings. As :func:`delete_key`."""
    deleting = _Deleting(session, counter, reached, pause, attempts)
    deleted = Deleted()
    with _short_waits(session):
        for _ in range(_PASSES):
            found = sum((deleting.once_through(table) for table in _TABLES), Deleted())
            deleted += found
            if found.rows < _FEW:
                break
    return deleted + deleting.finish_alone()


@contextmanager
def _short_waits(session: Session) -> Iterator[None]:
    session.execute("SET SESSION innodb_lock_wait_timeout = %s", (_LOCK_WAIT,))
    try:
        yield
    finally:
        if not session.closed:
            session.execute("SET SESSION innodb_lock_wait_timeout = %s", (LOCK_WAIT,))


def _delete_first(session: Session, counter: str, part: _Part, size: int, wait: str) -> _Page:
    """Delete the first ``size`` rows, and take their sum off the ledger."""
    rows = session.query(
        f"SELECT {part.columns} FROM {part.table} FORCE INDEX ({part.index}) WHERE {part.where}"
        f" ORDER BY {part.order} LIMIT %s FOR UPDATE{wait}",
        (*part.args, size),
    )
    if not rows:
        return _Page(Deleted(), None)
    session.execute(
        f"DELETE FROM {part.table} WHERE {part.where} ORDER BY {part.order} LIMIT %s",
        (*part.args, len(rows)),
    )
    from_ledger = sum(int(row[0]) for row in rows)
    if from_ledger:
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount) VALUES (%s, 0, %s)"
            + session.dialect.upsert_add("counter_ledger", "amount"),
            (counter, -from_ledger),
        )
    return _Page(
        Deleted(len(rows), sum(int(row[1]) for row in rows)), (rows[-1][2], bytes(rows[-1][3]))
    )
