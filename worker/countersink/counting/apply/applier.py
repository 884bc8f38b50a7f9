"""The transaction that applies a batch of entries, and its repetition after errors. See
``cells.py`` and ``guards.py`` for the statements.

The transaction is at READ COMMITTED. It takes the share lock on the control row, and inserts a
guard for each entry. It adds the sums of the rows to the worker's slot and to the ledger. New keys
beyond a counter's cap are counted in the key ``__overflow__``. Rows that cannot be counted are
stored as dead letters. Entries that are too old are stored as dead letters, too: their guards may
have been deleted, so they may have been counted before.

After any error the transaction is rolled back, and can be run again. This is safe even if nobody
knows whether the COMMIT succeeded: the guards tell which entries are new.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from countersink.counting.apply import dead, guards
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.cells import RowName, run_again, upsert
from countersink.counting.apply.dead import DeadRow
from countersink.counting.apply.guards import Control, read_control
from countersink.counting.apply.key_caps import Place
from countersink.counting.apply.refusals import dead_row, refuse
from countersink.counting.counters.catalog import Catalog, load
from countersink.database.errors import Conflict, DuplicateKey, StoreError, UnknownZone
from countersink.database.session import Connect, Session, rerun
from countersink.database.sessions import KeptSession, open_tables
from countersink.runtime.dead_letter import WHOLE_ENTRY, Bad, DeadReason, RowRefusal

POINTS: Final = ("begun", "guarded", "upserted", "before_commit", "committed")
"""Points of the transaction at which ``reached`` is called, in order; tests use them."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a committed batch. All entries of the batch can be acknowledged.

    Attributes:
        applied: number of entries that were applied now, including entries whose rows became dead
            letters, but without those in ``too_old``.
        duplicates: number of entries that were applied before, or that the batch contains twice.
        rows: number of rows that were counted.
        cells: number of rows of ``counter_slot`` that were written, one for each (counter, bucket,
            key).
        dead: number of new dead letters (of rows, or of whole entries), including ``not_kept``.
        too_old: number of entries that became dead letters because they may have been counted
            before.
        overflown: number of new keys that were counted in the key ``__overflow__`` because of a
            cap. A key that is new in several buckets counts several times.
        not_kept: number of dead letters that were not stored, because there was no room for them.
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
    """Applies batches on its own connection. Only one thread may use it.

    Args:
        connect: a URL; or a function that opens a session at READ COMMITTED and checks the tables,
            as :func:`countersink.database.sessions.require_schema` does.
        slot: the slot to which amounts are added. It matters for speed only, and may be changed
            between two batches.
        reached: called at each of :data:`POINTS` with its name; for tests.
        pause: sleeps for the given seconds before a transaction is run again.
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
        """Count those entries that were not applied before, and store dead letters of the rows that
        cannot be counted. When this returns, all is committed.

        A transaction that conflicts with another one is run again. After any error it is safe to
        call this again with the same entries, also together with further ones. After each of the
        errors below, the next call opens a new connection.

        Raises:
            Unavailable: the server does not answer, or the connection was lost. The batch may or
                may not be committed.
            BadData: the server will never store a value of some row.
            Conflict: the transaction conflicted with others at every attempt.
            Refused: the server refuses, for a reason that an operator has to remove; or
                (UnknownZone) this machine does not know the time zone of a counter.
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
                self._catalog = None  # an operator may correct the zone
            raise
        return replace(applied, duplicates=len(entries) - applied.applied - applied.too_old)

    def close(self) -> None:
        """Close the connection and forget the catalog. The next :meth:`apply` connects again, and
        reads the catalog again.
        """
        self._session.close()
        self._catalog = None

    def _attempt(
        self,
        session: Session,
        pending: dict[bytes, Incoming],
        left_out: Mapping[RowName, RowRefusal],
    ) -> Applied:
        """Apply the entries in ``pending`` in one transaction. If some were applied before, roll
        back, remove them from ``pending``, and apply the others in another transaction. Rows in
        ``left_out`` become dead letters.

        Raises:
            Conflict: an INSERT failed because of a guard, but the guard was deleted meanwhile.
        """
        while pending:
            try:
                with session.transaction():
                    applied, new_keys = self._work(session, list(pending.values()), left_out)
                    self._reached("before_commit")
                self._reached("committed")
                assert self._catalog is not None  # read by _work
                for place, keys in new_keys.items():
                    self._catalog.made.add(*place, keys)
                return applied
            except DuplicateKey as error:
                # Rolled back. Guards that exist now are committed; other entries are tried again.
                counted = guards.known(session, list(pending))
                for entry_id in counted:
                    del pending[entry_id]
                if not counted:
                    raise Conflict("a guard existed, and was deleted meanwhile") from error
        return Applied()

    def _work(
        self, session: Session, entries: list[Incoming], left_out: Mapping[RowName, RowRefusal]
    ) -> tuple[Applied, Mapping[Place, Sequence[str]]]:
        control = read_control(session)
        if self._catalog is None or self._catalog.version != control.catalog_version:
            # The lock on control keeps the catalog unchanged until the transaction ends.
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
            overflown=sum(map(len, capped.moved.values())),
            not_kept=not_kept,
        )
        return applied, capped.made


def _too_old(entry: Incoming, control: Control) -> list[DeadRow]:
    """Return the dead letters of an entry that is too old: its guard may have been deleted, so
    nobody knows whether the entry was counted.

    If ``entry.dead`` has one for the whole entry, ``entry.dead`` is returned. Otherwise it is one
    for the whole entry if its payload can be stored, else one for each row, with those in
    ``entry.dead``. The caller has inserted a new guard for the entry: if Redis delivers the entry
    again after its dead letters were retried, it is a duplicate and does not become dead letters
    once more.

    Args:
        entry: the entry.
        control: the control row; its watermark is named in the texts.
    """
    detail = (
        f"first sent at {entry.at} (Unix ms), before {control.watermark}, from which on guards are"
        " kept: it may have been counted already"
    )
    if any(row.position == WHOLE_ENTRY for row in entry.dead):
        return list(entry.dead)
    # A payload that is cut off cannot be retried, but each of its rows can.
    if entry.payload is not None and len(entry.payload) <= dead.MAX_PAYLOAD:
        letter = Bad(WHOLE_ENTRY, DeadReason.TOO_OLD, detail, entry.payload)
        return [DeadRow.from_bad(entry.id, entry.stream, entry.at, letter)]
    refusal = RowRefusal(DeadReason.TOO_OLD, detail)
    return [dead_row(entry, row, refusal) for row in entry.rows] + list(entry.dead)
