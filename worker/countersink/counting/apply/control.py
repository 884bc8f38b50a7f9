"""The one row of ``control`` (watermark, version of the catalog, strict): its share lock in every
batch, the exclusive lock for changes, how long and how often that is tried.

It is read under a share lock that lasts as long as the transaction. So whoever changes it, under an
exclusive lock, knows that no transaction that went by the old values is still to be committed.
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
"""Seconds to wait for the exclusive lock: meanwhile no worker gets the shared one."""
EXCLUSIVE_ATTEMPTS: Final = 20

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Control:
    """The values of the one row of ``control``.

    Attributes:
        watermark: Unix ms; the guards of entries that were first sent before it may have been
            pruned.
        now: Unix ms, on the server's clock.
        catalog_version: grows with every change of what counters count by.
        strict: rows of counters that nobody has made are refused.
        max_keys: keys that a day may have of counters without a cap of their own; None: any number.
    """

    watermark: int
    now: int
    catalog_version: int
    strict: bool
    max_keys: int | None


def read_control(session: Session, lock: str = "LOCK IN SHARE MODE") -> Control:
    """Read the row under a lock that lasts until the transaction ends.

    While an applying transaction holds the share lock the watermark stays where it is, so an entry
    that was found young enough is still so when its guard is inserted; and so does the catalog.

    Raises:
        Refused: the row is gone.
    """
    rows = session.query(
        f"SELECT pruned_before, {NOW_MS}, catalog_version, strict, max_keys FROM control"
        f" WHERE id = 1 {lock}"
    )
    if not rows:
        raise Refused(
            "table control has lost its row: restore it, with its pruned_before, from a backup"
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
    """Run ``work`` in a transaction that holds the row alone; committed when it returns.

    Whoever waits for the lock keeps new readers out, so it waits for a second at most, gives way,
    and tries again.

    Args:
        session: outside a transaction.
        work: is given the row; may be run again where it met another transaction.
        attempts: how often to ask for the lock.
        pause: how to wait between attempts, in seconds.
        before: called in the transaction before the row is asked for: waits for other locks, while
            nobody waits for this one.

    Raises:
        Conflict: others held the row at each of the attempts; nothing was done.
    """

    def attempt() -> Result:
        with session.transaction():
            before()
            return work(read_control(session, lock="FOR UPDATE"))

    with short_waits(session):
        return rerun(attempt, attempts=attempts, pause=pause)


def bump(session: Session) -> None:
    """Let every worker see, before it counts again, that something has changed."""
    session.execute("UPDATE control SET catalog_version = catalog_version + 1 WHERE id = 1")


def short_waits(session: Session) -> AbstractContextManager[None]:
    """Let a session wait for a lock for a second only, as others wait behind it."""
    return session.variable("innodb_lock_wait_timeout", EXCLUSIVE_LOCK_WAIT, LOCK_WAIT)
