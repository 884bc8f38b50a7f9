"""Moving many parts, at a pace, around what cannot be moved."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from countersink.schedules.moving import LOCK_WAIT_S, Moved, Part, move
from countersink.schedules.pace import Pace
from countersink.schedules.places import Place
from countersink.schedules.ranges import keys_of
from countersink.store import tables
from countersink.store.connection import Connect, Session
from countersink.store.errors import BadData, Conflict, StoreError, Unavailable
from countersink.store.rerun import rerun

READ_TIMEOUT_S: Final = 120.0
"""Seconds that a look through a bucket may take: some 500 million rows."""
UNDISTURBED: Final = 8
"""Times as many rows are moved at once where nobody is in the way as where somebody may be."""
_DISTURBED: Final = 16
"""Part of the rows that are tried at once where others were in the way time and again."""
_RECONNECTS: Final = 3
_RECONNECT_PAUSE_S: Final = 0.5

Result = TypeVar("Result")


def open_tables(mysql_url: str) -> Session:
    """A session as moving needs it, on tables of our version.

    Raises:
        SchemaMismatch: there are none, or others.
        StoreError: as :func:`countersink.store.connection.connect`.
    """
    return tables.open_tables(
        mysql_url,
        isolation="REPEATABLE READ",
        read_timeout=READ_TIMEOUT_S,
        lock_wait=LOCK_WAIT_S,
    )


class Mover:
    """Moves parts on a session of its own, which it makes again when it is lost. For one thread.

    Args:
        connect: makes sessions as :func:`open_tables` does.
        pace: how to rest between transactions.
        rows: slot rows to move in a transaction, to begin with.

    Raises:
        ValueError: fewer than one row.

    Attributes:
        ranges: transactions that moved something.
        before: rows in their buckets of the keys from which something moved.
        after: rows of the same keys that are there now.
        moved: rows that were added elsewhere and deleted.
        busy: keys that others held; they are left for the next time.
        overflowing: keys whose sum does not fit BIGINT; they are left as they are.
    """

    def __init__(self, connect: Connect, pace: Pace, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"{rows} rows per transaction: at least 1 is needed")
        self._connect = connect
        self._pace = pace
        self._rows = self._size = rows
        self._session: Session | None = None
        self.ranges = 0
        self.before = 0
        self.after = 0
        self.moved = 0
        self.busy: list[Place] = []
        self.overflowing: list[Place] = []

    def run(self, work: Callable[[Session], Result]) -> Result:
        """Run ``work``, which can be run again, on the session.

        Again where the session was lost, or where it met something that passes (a table that is
        being altered).

        Raises:
            Unavailable: lost time and again.
            Conflict: met something time and again.
            StoreError: what ``work`` raised.
        """
        return rerun(partial(self._on_session, work), pause=self._pace.pause)

    def size(self, *, disturbing: bool) -> int:
        """How many slot rows the next part should have.

        More and more as long as nobody was in the way, and fewer where somebody was; never more
        than at first where it would be ``disturbing`` to hold many for longer.
        """
        return min(self._size, self._rows) if disturbing else self._size

    def move(self, part: Part) -> None:
        """Move a part, and where that is refused its halves, down to single keys.

        Returns early when the pace says stop; what is left is found by the next pass.

        Raises:
            Outdated: the rest may not go to that month any more.
            StoreError: as any query.
        """
        pending: list[tuple[Part, list[bytes] | None]] = [(part, None)]
        refused = False
        while pending and not self._pace.stopped:
            one, keys = pending.pop()
            try:
                self._note(self._on_session(partial(move, part=one)))
            except (Conflict, BadData) as error:
                refused = refused or isinstance(error, Conflict)
                if keys is None:
                    keys = self._keys(one)
                if one.first == one.last:
                    self._leave(one, error)
                else:
                    pending += [_between(one, half) for half in reversed(_halves(keys)) if half]
            self._pace.rest()
        if refused:
            self._size = max(1, self._rows // _DISTURBED, self._size // 4)
        else:
            self._size = min(self._rows * UNDISTURBED, self._size * 2)

    def close(self) -> None:
        """Close the session. Never raises."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> "Mover":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_session(self, work: Callable[[Session], Result]) -> Result:
        for attempt in range(_RECONNECTS):
            try:
                return work(self._open())
            except Unavailable:
                if self._pace.stopped:
                    raise
                self._pace.pause(_RECONNECT_PAUSE_S * (attempt + 1))
        return work(self._open())

    def _open(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    def _note(self, done: Moved) -> None:
        self.ranges += bool(done.moved)
        self.before += done.before
        self.after += done.after
        self.moved += done.moved

    def _keys(self, part: Part) -> list[bytes]:
        return self.run(partial(keys_of, part=part))

    def _leave(self, part: Part, error: StoreError) -> None:
        left = self.overflowing if isinstance(error, BadData) else self.busy
        left.append(Place(part.counter, part.bucket, part.first))


def _halves(keys: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    middle = (len(keys) + 1) // 2
    return keys[:middle], keys[middle:]


def _between(part: Part, keys: list[bytes]) -> tuple[Part, list[bytes]]:
    return replace(part, first=keys[0], last=keys[-1]), keys
