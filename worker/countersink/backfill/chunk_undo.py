"""Taking one chunk back, in one transaction with the note that it was."""

from collections.abc import Callable, Iterator
from functools import partial

from countersink.backfill import journal
from countersink.backfill.listing import Run
from countersink.backfill.options import BackfillError
from countersink.backfill.other_slots import SLOTS, with_room
from countersink.store import adding
from countersink.store.amounts import Amounts
from countersink.store.connection import Session
from countersink.store.control import read_control

Reached = Callable[[str], object]


class ChunkUndo:
    """One chunk that is to be taken back.

    Args:
        run: whose chunk it is, or was.
        source, start_at: which one.
        reached: called with ``before_commit``.
    """

    def __init__(self, run: Run, source: int, start_at: int, reached: Reached) -> None:
        self._run = run
        self._at = source, start_at
        self._reached = reached
        self._taken: Amounts | None = None

    def take_back(self, session: Session) -> Amounts | None:
        """Take it back; what was added by that, None if another undo has. After Unavailable to be
        called again, on another session.

        Raises:
            BackfillError: its journal is damaged.
            StoreError: as any transaction.
        """
        # In more and more parts: the amount itself may be all that a slot can take.
        return with_room(session, partial(self._attempt, session))

    def _attempt(self, session: Session, slot: int, parts: int) -> Amounts | None:
        with session.transaction():
            found = session.query(
                "SELECT amount FROM backfill_chunk WHERE source = %s AND start_at = %s"
                " AND run = %s AND state = 'done' FOR UPDATE",
                (*self._at, self._run.id),
            )
            if not found:
                return self._taken  # by a COMMIT whose reply was lost
            # Whoever deletes the counter holds it alone in the end.
            read_control(session)
            amounts = journal.read(session, self._run.counter, *self._at)
            self._check(amounts, int(found[0][0]))
            taken = amounts.negated()
            for number, part in _spread(taken, slot, parts):
                adding.add(session, number, part)
            journal.delete(session, *self._at)
            forget_rejects(session, *self._at)
            session.execute(
                "UPDATE backfill_chunk SET state = 'undone' WHERE source = %s AND start_at = %s",
                self._at,
            )
            session.execute(
                "UPDATE backfill_run SET seen = UTC_TIMESTAMP(3) WHERE id = %s", (self._run.id,)
            )
            self._reached("before_commit")
            self._taken = taken
        return taken

    def _check(self, amounts: Amounts, amount: int) -> None:
        written_down = sum(amounts.sums().values())
        if written_down != amount:
            source, start_at = self._at
            raise BackfillError(
                f"the journal of source {source} from byte {start_at:,} on says {written_down:,}"
                f" where {amount:,} was added: it is damaged, so nothing of that chunk was taken"
                " back; restore table backfill_journal from a backup"
            )


def _spread(amounts: Amounts, slot: int, parts: int) -> Iterator[tuple[int, Amounts]]:
    """The same in ``parts`` slots, of which ``slot`` is one."""
    if parts == 1:
        yield slot, amounts
        return
    for part in range(parts):
        share = Amounts()
        for counter in amounts.sums():
            for bucket, keys in amounts.of(counter).items():
                for key, amount in keys.items():
                    # Whole numbers that add up, whatever the sign.
                    piece = amount * (part + 1) // parts - amount * part // parts
                    share.add(counter, bucket, key, piece)
        yield SLOTS[0] + (slot + part) % (SLOTS[1] - SLOTS[0]), share


def forget_rejects(session: Session, source: int, start_at: int) -> None:
    """Delete the rejected lines of a chunk."""
    session.execute(
        "DELETE FROM backfill_reject WHERE source = %s AND start_at = %s", (source, start_at)
    )
