"""The control row (watermark, version of the catalog, strict, max_keys): its share lock in every
batch, and the exclusive lock for changes, with its attempts and waits.

Every batch reads it under a share lock that lasts as long as the transaction. A change takes the
exclusive lock, so no transaction that has read the old values is still to be committed.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from countersink.database.errors import Refused
from countersink.database.session import LOCK_WAIT, Session, rerun
from countersink.database.sql import NOW_MS

EXCLUSIVE_LOCK_WAIT: Final = 1
"""Seconds to wait for the exclusive lock: meanwhile no worker gets the share lock."""
EXCLUSIVE_ATTEMPTS: Final = 20

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Control:
    """The values of the control row.

    Attributes:
        watermark: Unix ms; guards of entries first sent before it may have been pruned.
        now: Unix ms on the server's clock.
        catalog_version: grows with every change of the settings of counters.
        strict: rows of counters that were not created are refused.
        max_keys: maximum keys per day of a counter without a cap of its own; None: any number.
    """

    watermark: int
    now: int
    catalog_version: int
    strict: bool
    max_keys: int | None


def read_control(session: Session, lock: str = "LOCK IN SHARE MODE") -> Control:
    """Read the row under a lock that lasts until the transaction ends.

    Under the share lock watermark and catalog do not change, so an entry that is young enough is
    still young enough when its guard is inserted.

    Raises:
        Refused: the row is missing.
    """
    rows = session.query(
        f"SELECT pruned_before, {NOW_MS}, catalog_version, strict, max_keys FROM control"
        f" WHERE id = 1 {lock}"
    )
    if not rows:
        raise Refused(
            "the row of table control is missing: restore it, with its pruned_before, from a backup"
        )
    watermark, now, version, strict, max_keys = rows[0]
    return Control(int(watermark), int(now), int(version), bool(strict), max_keys)


def exclusive(
    session: Session,
    work: Callable[[Control], Result],
    *,
    attempts: int = EXCLUSIVE_ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    before: Callable[[], object] = lambda: None,
) -> Result:
    """Run ``work`` in a transaction that holds the exclusive lock on the control row; committed
    when it returns.

    A request for the exclusive lock blocks new readers, so an attempt waits for one second at most.

    Args:
        session: outside a transaction.
        work: is given the row; may be run again after a conflict with another transaction.
        attempts: maximum number of attempts to get the lock.
        pause: sleeps for some seconds between attempts.
        before: called in the transaction before the lock is requested: takes other locks, so that
            nobody waits for the control row meanwhile.

    Raises:
        Conflict: other transactions held the row at each attempt; nothing was done.
    """

    def attempt() -> Result:
        with session.transaction():
            before()
            return work(read_control(session, lock="FOR UPDATE"))

    with short_waits(session):
        return rerun(attempt, attempts=attempts, pause=pause)


def bump(session: Session) -> None:
    """Increase the version of the catalog: each worker reads the catalog before its next batch."""
    session.execute("UPDATE control SET catalog_version = catalog_version + 1 WHERE id = 1")


def short_waits(session: Session) -> AbstractContextManager[None]:
    """Limit lock waits of a session to one second, as other transactions wait behind it."""
    return session.variable("innodb_lock_wait_timeout", EXCLUSIVE_LOCK_WAIT, LOCK_WAIT)
