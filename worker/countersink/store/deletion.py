"""Deleting a counter, or a key of it, beside whoever counts.

In short transactions at REPEATABLE READ, each of which takes the first rows away and corrects the
ledger by their sum: so the tables agree with the ledger at every moment, and whoever was killed in
the middle begins again. The SELECT … FOR UPDATE locks the rows and the gaps between them, so that
the DELETE finds the same ones. It does not wait for rows that others hold (an open transaction of
the application, say), since all who write would then queue up behind it: it asks for fewer, later.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersink.store.connection import Session
from countersink.store.control import Control, exclusive
from countersink.store.errors import Conflict
from countersink.store.totals_sql import key_bytes

ROWS: Final = 1000
"""Rows per transaction."""
FIRST_APP_SLOT: Final = 256
LAST_APP_SLOT: Final = 511
"""Rows in these slots come into the ledger when compaction moves them."""
_ATTEMPTS: Final = 40
_LONGEST_PAUSE: Final = 0.2


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

    table: str
    index: str
    where: str
    order: str
    args: tuple[object, ...]

    @property
    def sums(self) -> str:
        """What of each row is in the ledger, and all of it."""
        if self.table == "counter_month":
            return "amount, amount"
        outside = f"slot NOT BETWEEN {FIRST_APP_SLOT} AND {LAST_APP_SLOT}"
        return f"IF({outside}, amount, 0), amount"


def delete_key(
    session: Session,
    counter: str,
    key: str,
    *,
    reached: Callable[[str], object] = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
) -> Deleted:
    """Delete one key of a counter, in all its buckets and months.

    Args:
        session: at REPEATABLE READ, outside a transaction.
        counter: its name.
        key: the key.
        reached: called before each COMMIT; for tests that kill the process there.
        pause: how to wait where others hold rows, in seconds.

    Raises:
        Conflict: others held rows all the time; what was deleted is deleted, and it can go on.
    """
    where, args = "counter = %s AND counter_key = %s", (counter, key_bytes(key))
    deleted = Deleted()
    for part in (
        _Part("counter_slot", "by_key", where, "bucket, slot", args),
        _Part("counter_month", "by_key", where, "bucket", args),
    ):
        deleted += _delete(session, counter, part, reached, pause)
    return deleted


def delete_counter(
    session: Session,
    counter: str,
    *,
    reached: Callable[[str], object] = lambda point: None,
    pause: Callable[[float], object] = time.sleep,
) -> Deleted:
    """Delete a counter: rows, months, ledger, policies, settings. As :func:`delete_key`."""
    parts = (
        _Part("counter_slot", "PRIMARY", "counter = %s", "bucket, counter_key, slot", (counter,)),
        _Part("counter_month", "PRIMARY", "counter = %s", "bucket, counter_key", (counter,)),
    )
    deleted = Deleted()
    for part in parts:
        deleted += _delete(session, counter, part, reached, pause)
    # What was counted meanwhile, and the counter itself, while nobody is counting.
    return deleted + exclusive(
        session, partial(_finish, session, counter, parts, reached), pause=pause
    )


def _delete(
    session: Session,
    counter: str,
    part: _Part,
    reached: Callable[[str], object],
    pause: Callable[[float], object],
) -> Deleted:
    """Delete the rows of ``part`` until there are few enough for one transaction, and those too."""
    deleted = Deleted()
    size, failures = ROWS, 0
    while True:
        try:
            with session.transaction():
                found = _delete_first(session, counter, part, size)
                reached("before_commit")
        except Conflict as error:
            failures += 1
            if failures == _ATTEMPTS:
                raise Conflict(
                    f"another transaction holds rows of {counter} all the time ({error}):"
                    " end it, or run this again later, which goes on where this stopped",
                    code=error.code,
                ) from error
            size = max(1, size // 2)
            pause(random.uniform(0.0, _LONGEST_PAUSE))
            continue
        deleted += found
        if found.rows < size:
            return deleted
        size, failures = min(ROWS, 2 * size), 0


def _delete_first(session: Session, counter: str, part: _Part, size: int) -> Deleted:
    """Delete the first ``size`` rows, and take their sum off the ledger."""
    rows = session.query(
        f"SELECT {part.sums} FROM {part.table} FORCE INDEX ({part.index}) WHERE {part.where}"
        f" ORDER BY {part.order} LIMIT %s FOR UPDATE NOWAIT",
        (*part.args, size),
    )
    if not rows:
        return Deleted()
    session.execute(
        f"DELETE FROM {part.table} WHERE {part.where} ORDER BY {part.order} LIMIT %s",
        (*part.args, len(rows)),
    )
    from_ledger = sum(int(row[0]) for row in rows)
    if from_ledger:
        _add_to_ledger(session, counter, -from_ledger)
    return Deleted(len(rows), sum(int(row[1]) for row in rows))


def _add_to_ledger(session: Session, counter: str, amount: int) -> None:
    session.execute(
        "INSERT INTO counter_ledger (counter, slot, amount) VALUES (%s, 0, %s)"
        + session.dialect.upsert_add("counter_ledger", "amount"),
        (counter, amount),
    )


def _finish(
    session: Session,
    counter: str,
    parts: tuple[_Part, ...],
    reached: Callable[[str], object],
    control: Control,
) -> Deleted:
    """Delete what is left of a counter, in the transaction that holds control alone."""
    deleted = Deleted()
    for part in parts:
        while True:
            found = _delete_first(session, counter, part, ROWS)
            deleted += found
            if found.rows < ROWS:
                break
    session.execute("DELETE FROM counter_ledger WHERE counter = %s", (counter,))
    session.execute("DELETE FROM counter_policy WHERE counter = %s", (counter,))
    session.execute("DELETE FROM counter WHERE name = %s", (counter,))
    session.execute("UPDATE control SET policy_version = policy_version + 1 WHERE id = 1")
    reached("before_commit")
    return deleted
