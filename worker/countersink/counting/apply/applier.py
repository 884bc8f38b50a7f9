"""The transaction that applies a batch of entries: its order, what is done with entries older than
the guards (``too_old``), and running it again; statements are in ``cells.py`` and ``guards.py``.

One READ COMMITTED transaction does it all: the share lock on control, a guard row per entry, the
sums into the worker's own slot (of new keys only as many as a counter's cap has room for), the
ledger, the dead rows. Whatever goes wrong, everything is
undone and can simply be run again, even where the outcome of the COMMIT is unknown: the guards
decide what is new.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from countersink.counting.apply import dead, guards
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.cells import RowName, run_again, upsert
from countersink.counting.apply.control import Control, read_control
from countersink.counting.apply.dead import DeadRow
from countersink.counting.apply.key_caps import Capped
from countersink.counting.apply.refusals import dead_row, refuse
from countersink.counting.counters.catalog import Catalog, load
from countersink.database.errors import Conflict, DuplicateKey, StoreError, UnknownZone
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import KeptSession, open_tables
from countersink.runtime.dead_letter import WHOLE_ENTRY, Bad, DeadReason, RowRefusal

POINTS: Final = ("begun", "guarded", "upserted", "before_commit", "committed")
"""Where ``reached`` is called, in this order; for tests that kill the process there."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch; all of it is committed, and may be acknowledged.

    Attributes:
        applied: entries counted now.
        duplicates: entries that were counted before, or twice in the batch.
        rows: rows counted.
        cells: rows of counter_slot that were written: one per (counter, bucket, key).
        dead: rows, and entries as a whole, that could not be counted.
        too_old: entries put among the dead rows because they may have been counted before.
        overflown: new keys beyond their counter's cap, those of each bucket.
        not_kept: of the dead ones, those that are only a number, as there is no room for more.
    """

    applied: int = 0
    duplicates: int = 0
    rows: int = 0
    cells: int = 0
    dead: int = 0
    too_old: int = 0
    overflown: int = 0
    not_kept: int = 0


class Applier:
    """Applies batches on a connection of its own. For one thread.

    Args:
        connect: a URL, or how to get a session (READ COMMITTED) whose tables were checked, as by
            :func:`countersink.database.sessions.require_schema`.
        slot: where to add; affects speed only. May be changed between two batches.
        reached: called with each of :data:`POINTS`.
        pause: how to wait before a rerun, in seconds.
    """

    def __init__(
        self,
        connect: Connect | str,
        slot: int,
        *,
        reached: Callable[[str], object] = lambda point: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        opening = partial(open_tables, connect) if isinstance(connect, str) else connect
        self._session = KeptSession(opening)
        self.slot = slot
        self._reached = reached
        self._pause = pause
        self._catalog: Catalog | None = None

    def apply(self, entries: Sequence[Incoming]) -> Applied:
        """Count the entries that were not counted before; committed when it returns.

        Reruns by itself what met another transaction. After any error nothing is lost by calling it
        again with the same entries, and more: it reconnects.

        Raises:
            Unavailable: no server, or lost; the outcome is unknown.
            Conflict: others were in the way at every attempt.
            Refused: the server will not, for a reason somebody has to look into.
            SchemaMismatch: the tables do not fit this program.
        """
        unique: dict[bytes, Incoming] = {}
        for entry in entries:
            unique.setdefault(entry.id, entry)
        try:
            session = self._session()
            attempt = partial(run_again, session, partial(self._attempt, session, unique))
            applied = rerun(attempt, pause=self._pause)
            self._session.used()
        except StoreError as error:
            self._session.close()
            if isinstance(error, UnknownZone):
                self._catalog = None  # it may be put right
            raise
        return replace(applied, duplicates=len(entries) - applied.applied - applied.too_old)

    def close(self) -> None:
        """Close the connection, and forget what was read; the next :meth:`apply` begins anew."""
        self._session.close()
        self._catalog = None

    def _attempt(
        self,
        session: Session,
        pending: dict[bytes, Incoming],
        left_out: Mapping[RowName, RowRefusal],
    ) -> Applied:
        """Transaction over ``pending``, once what was counted before is taken out of it; the rows
        ``left_out`` are dead.
        """
        while pending:
            try:
                with session.transaction():
                    applied, capped = self._work(session, list(pending.values()), left_out)
                    self._reached("before_commit")
                self._reached("committed")
                capped.remember()
                return applied
            except DuplicateKey as error:
                # Rolled back. What is there now stays there; the others are tried again.
                counted = guards.known(session, list(pending))
                for entry_id in counted:
                    del pending[entry_id]
                if not counted:
                    raise Conflict("a guard was there, and then was not") from error
        return Applied()

    def _work(
        self, session: Session, entries: list[Incoming], left_out: Mapping[RowName, RowRefusal]
    ) -> tuple[Applied, Capped]:
        control = read_control(session)
        if self._catalog is None or self._catalog.version != control.catalog_version:
            # The lock on control keeps it so until the transaction ends.
            self._catalog = load(session)
        self._reached("begun")
        guards.insert(session, [(entry.id, entry.at) for entry in entries], control)
        self._reached("guarded")
        young = [entry for entry in entries if entry.at >= control.watermark]
        old = [entry for entry in entries if entry.at < control.watermark]
        young, refused = refuse(session, young, self._catalog, left_out=left_out)
        upserted = partial(self._reached, "upserted")
        amounts, capped = upsert(session, self.slot, young, self._catalog, upserted)
        dead_rows = [row for entry in young for row in entry.dead] + refused
        for entry in old:
            dead_rows += _too_old(entry, control)
        not_kept = dead.record(session, dead_rows) if dead_rows else 0
        applied = Applied(
            applied=len(young),
            rows=sum([len(entry.rows) for entry in young]),
            cells=amounts.cells,
            dead=len(dead_rows),
            too_old=len(old),
            overflown=capped.keys,
            not_kept=not_kept,
        )
        return applied, capped


def _too_old(entry: Incoming, control: Control) -> list[DeadRow]:
    """Dead letters for an entry whose guard, if it had one, may be gone.

    It gets a new guard all the same: a later delivery must not put it here again after somebody
    retried it.
    """
    detail = (
        f"first sent at {entry.at} (Unix ms), and guards are kept from {control.watermark} on:"
        " it may have been counted already"
    )
    if any(row.position == WHOLE_ENTRY for row in entry.dead):
        return list(entry.dead)
    # A payload that would be cut off could not be retried: its rows can, one by one.
    if entry.payload is not None and len(entry.payload) <= dead.MAX_PAYLOAD:
        whole = Bad(WHOLE_ENTRY, DeadReason.TOO_OLD, detail, entry.payload)
        return [DeadRow.of(entry.id, entry.stream, entry.at, whole)]
    refusal = RowRefusal(DeadReason.TOO_OLD, detail)
    return [dead_row(entry, row, refusal) for row in entry.rows] + list(entry.dead)
