"""Moving a range of one bucket's rows into slot 0 or into a month, in one short transaction.

At REPEATABLE READ the locking read takes the range's rows and the gaps between them: until the
COMMIT nobody changes a row of it or inserts one, so what is deleted is what was summed up. Whoever
reads sees all of it or nothing. At READ COMMITTED a row that comes in between would be deleted
without having been added; that the numbers of rows agree is checked all the same.

The locking read does not wait: a row that somebody holds makes it fail at once, instead of queueing
workers up behind a transaction that itself waits.

What goes into a month goes there by what the counter was when the pass looked at it. So that is
looked at again under the share lock of control that applying transactions take as well, before any
other lock: whoever deletes a counter, or gives it another policy, holds that row alone. If there is
a cap on its keys, those that the day still has are to be counted anew: the row by which makers of
keys take turns is held from then on, which comes before the rows that are moved for them, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from countersink.store import cells, key_caps
from countersink.store.app_slots import APP_ROWS
from countersink.store.buckets import label_time
from countersink.store.connection import Session
from countersink.store.control import read_control
from countersink.store.errors import Conflict

COMPACTED: Final = 0
"""The slot that compaction moves into."""
LOCK_WAIT_S: Final = 1
"""Seconds that a statement after the first may wait for a lock."""

_BIGINT: Final = (-(2**63), 2**63 - 1)
_ROWS: Final = "counter_slot FORCE INDEX (PRIMARY)"


class Outdated(Exception):
    """The counter, or policies, are not what they were when the pass looked; nothing was moved."""


@dataclass(frozen=True, slots=True)
class Month:
    """A month that rows go to, and what makes it the right one.

    Attributes:
        label: of the first of the month.
        rolled_up_to: the first day of the counter that stays, as the pass knows it.
        version: of the policies that the pass goes by.
        capped_day: the day of the bucket, if the counter has a cap on the keys of its days.
    """

    label: int
    rolled_up_to: date
    version: int
    capped_day: date | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Keys of one bucket, and where its rows go.

    Attributes:
        counter: the counter.
        bucket: the bucket's label.
        first: the first key.
        last: the last key, included.
        month: where to move, out of every slot; None: from the other slots to slot 0.
    """

    counter: str
    bucket: int
    first: bytes
    last: bytes
    month: Month | None = None

    @property
    def lowest_slot(self) -> int:
        """The lowest slot whose rows move."""
        return COMPACTED + 1 if self.month is None else COMPACTED

    def where(self) -> tuple[str, list[object]]:
        """The condition for its keys, and the values for it."""
        where = "counter = %s AND bucket = %s AND counter_key"
        args: list[object] = [self.counter, label_time(self.bucket), self.first]
        if self.first == self.last:
            # By equality: the end of a range would look at, and lock, the next key's first row.
            return f"{where} = %s", args
        return f"{where} BETWEEN %s AND %s", [*args, self.last]


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a part.

    Attributes:
        before: rows in the bucket of the keys from which something moved.
        after: rows of the same keys that are there now.
        moved: rows that were added elsewhere and deleted.
    """

    before: int = 0
    after: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class _Key:
    """One key's rows, summed up by the server."""

    key: bytes
    amount: int
    moving: int
    rows: int
    app_amount: int
    app_rows: int


def move(session: Session, part: Part) -> Moved:
    """Move what there is; committed when it returns. To be run again after any error.

    Args:
        session: at REPEATABLE READ with a short lock wait, outside a transaction.
        part: what to move and where to.

    Raises:
        Outdated: that month may not be the one by now; nothing was moved.
        Conflict: somebody holds a row; nothing was moved.
        BadData: a sum does not fit BIGINT; nothing was moved.
        Unavailable: the connection is lost; everything was moved or nothing.
        StoreError: as any query; nothing was moved.
    """
    with session.transaction():
        if part.month is not None:
            _check(session, part.counter, part.month)
            if part.month.capped_day is not None:
                key_caps.count_anew(session, (part.counter, part.month.capped_day))
        keys = _lock(session, part)
        moving = [one for one in keys if one.moving]
        moved = sum(one.moving for one in moving)
        if moving:
            _add(session, part, moving)
            _add_to_ledger(session, part, moving)
            deleted = _delete(session, part)
            if deleted != moved:
                raise Conflict(
                    f"{moved:,} rows were added up and {deleted:,} deleted, so nothing was moved:"
                    " rows came in between, which InnoDB at REPEATABLE READ does not allow"
                )
    before = sum(one.rows for one in moving)
    return Moved(before, len(moving) if part.month is None else before - moved, moved)


def _check(session: Session, counter: str, month: Month) -> None:
    """Hold the counter and the policies as they are, and see that they are what they were."""
    version = read_control(session).policy_version
    # A locking read, as it reads what is, not a snapshot.
    found = session.query(
        "SELECT rolled_up_to FROM counter WHERE name = %s LOCK IN SHARE MODE", (counter,)
    )
    on_record = found[0][0] if found else None
    # The day only grows while the counter is there: another pass may have been here.
    if version != month.version or on_record is None or on_record < month.rolled_up_to:
        raise Outdated(f"{counter} was changed or deleted since the pass looked at it")


def _lock(session: Session, part: Part) -> list[_Key]:
    where, args = part.where()
    # Only sums come over the wire: reading the rows one by one would cost more than moving them.
    # Counted by COUNT, not SUM, which adds decimals.
    moving = f"slot >= {part.lowest_slot:d}"
    found = session.query(
        f"SELECT counter_key, COALESCE(SUM(IF({moving}, amount, NULL)), 0),"
        f" COUNT(IF({moving}, 1, NULL)), COUNT(*),"
        f" COALESCE(SUM(IF({APP_ROWS}, amount, NULL)), 0), COUNT(IF({APP_ROWS}, 1, NULL))"
        f" FROM {_ROWS} WHERE {where} GROUP BY counter_key FOR UPDATE NOWAIT",
        args,
    )
    return [_Key(bytes(key), *map(int, numbers)) for key, *numbers in found]


def _add(session: Session, part: Part, keys: list[_Key]) -> None:
    if part.month is None:
        table, columns = "counter_slot", "counter, bucket, counter_key, slot, amount"
        head, tail = cells.head(session, part.counter, part.bucket), f"', {COMPACTED:d}, "
    else:
        table, columns = "counter_month", "counter, bucket, counter_key, amount"
        head, tail = cells.head(session, part.counter, part.month.label), "', "
    clause = session.dialect.upsert_add(table, "amount")
    size = cells.per_statement(session)
    for start in range(0, len(keys), size):
        values = ", ".join(
            f"{head}{one.key.hex()}{tail}{amount:d})"
            for one in keys[start : start + size]
            for amount in _in_bigint(one.amount)
        )
        session.execute(f"INSERT INTO {table} ({columns}) VALUES {values}{clause}")


def _add_to_ledger(session: Session, part: Part, keys: list[_Key]) -> None:
    """Book what came out of the application's slots, also where it adds up to nothing."""
    if any(one.app_rows for one in keys):
        session.execute(
            "INSERT INTO counter_ledger (counter, slot, amount) VALUES (%s, %s, %s)"
            + session.dialect.upsert_add("counter_ledger", "amount"),
            (part.counter, COMPACTED, sum(one.app_amount for one in keys)),
        )


def _delete(session: Session, part: Part) -> int:
    where, args = part.where()
    # With a table in front, as MariaDB knows no index hints without: by any other index the DELETE
    # would lock rows of other buckets.
    return session.execute(
        f"DELETE counter_slot FROM {_ROWS} WHERE {where} AND slot >= {part.lowest_slot:d}", args
    )


def _in_bigint(amount: int) -> Iterator[int]:
    """An amount in pieces that fit the column: a sum beyond it may fit what is there already."""
    least, most = _BIGINT
    while not least <= amount <= most:
        piece = most if amount > 0 else least
        yield piece
        amount -= piece
    yield amount
