"""What a job process does for a backfill: takes pending chunks of a run and counts them until none
is left, and says why it could not.

It shares nothing with the process that planned them but the tables and the files: each chunk is
counted in one transaction, for whoever has it locked, if its bytes are those that were planned.
"""

import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from countersink.backfill import history, run_state
from countersink.backfill.count import sources
from countersink.backfill.count.sources import Source
from countersink.backfill.count.targets import target_of
from countersink.backfill.count.task import LOOK_S, LineRate, Task, reader_of
from countersink.backfill.count.transaction import count_planned
from countersink.backfill.errors import BackfillError, RunEnded, SourceChanged, Unreadable
from countersink.backfill.formats import Reader
from countersink.backfill.input.content import Content, head_of, open_content
from countersink.backfill.input.files import Input, expand
from countersink.store.connection import Session
from countersink.store.counters import policies
from countersink.store.sessions import PatientSession, open_tables

IDLE_S: Final = 2.0
"""Seconds to wait for more to be planned."""
_AT_ONCE: Final = 8
"""Chunks to choose from, so that two jobs seldom want the same one."""


def work(
    mysql_url: str,
    run: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    rate: float | None = None,
    max_rejects: int | None = None,
) -> str:
    """Count what is pending of a run; why not all of it, in a sentence, or nothing.

    Args:
        mysql_url: the database.
        run: its number.
        stop: asked before each chunk; true: end.
        rate: lines per second at most; None: as fast as it goes.
        max_rejects: more rejected lines than this end the run; None: any number may be.

    Raises:
        StoreError: MySQL did not do its part; calling it again goes on.
    """
    with (
        PatientSession(partial(open_tables, mysql_url), stop).open() as link,
        ExitStack() as opened,
    ):
        desk = _Desk(link, LineRate(rate, stop), stop, opened)
        try:
            desk.count_all(run, max_rejects)
        except RunEnded:
            return ""
        except BackfillError as error:
            return _here(error)
        return "; ".join(desk.unreadable.values())


def _found(path: str) -> Input:
    """The file of this path.

    Raises:
        Unreadable: there is none here that can be read.
    """
    found, failed = expand([path])
    if failed:
        raise Unreadable(f"{path}: {failed[0].detail}")
    if len(found) != 1 or found[0].size is None:
        raise Unreadable(f"{path} is no file here")
    return found[0]


def _here(error: BackfillError) -> str:
    return f"on {socket.gethostname()}: {error}"


@dataclass(slots=True)
class _Desk:
    """Counts chunks, with one source open at a time.

    Attributes:
        unreadable: sources that cannot be read here, and why.
    """

    _link: PatientSession
    _pace: LineRate
    _stop: Callable[[], bool]
    _opened: ExitStack
    _open: tuple[Source, Content, Reader] | None = None
    unreadable: dict[int, str] = field(default_factory=dict)

    def count_all(self, run: int, max_rejects: int | None) -> None:
        """Count until nothing is pending that can be counted here.

        Raises:
            RunEnded, BackfillError, StoreError: as :func:`count_planned`.
        """
        about = self._link.run(history.run, run)
        target = target_of(run, about.counter, about.mode)
        task = Task(run, about.counter, target, max_rejects)
        idle_until = time.monotonic() + IDLE_S
        while not self._stop() and time.monotonic() < idle_until:
            pending = self._link.run(self._pending, run)
            if not pending and self.unreadable:
                return
            if any(self._count(task, source, start_at) for source, start_at in pending):
                idle_until = time.monotonic() + IDLE_S
            else:
                time.sleep(LOOK_S)

    def _pending(self, session: Session, run: int) -> list[tuple[int, int]]:
        """Some chunks, in no order."""
        run_state.require_running(session, run)
        without = ", ".join(str(int(source)) for source in self.unreadable) or "0"
        found = session.query(
            "SELECT source, start_at FROM backfill_chunk WHERE run = %s AND state = 'pending'"
            f" AND source NOT IN ({without}) ORDER BY source, start_at LIMIT %s",
            (run, _AT_ONCE),
        )
        random.shuffle(found)
        return [(int(source), int(start_at)) for source, start_at in found]

    def _count(self, task: Task, number: int, start_at: int) -> bool:
        """Count a chunk, if it is still to be had."""
        if self._stop() or number in self.unreadable:
            return False
        try:
            source, content, reader = self._at_hand(number)
            self._pace.wait()
            if self._stop():
                return False
            counted = self._link.run(count_planned, task, source, start_at, content, reader)
        except (Unreadable, SourceChanged) as error:
            self.unreadable[number] = _here(error)
            return False
        if counted is None:
            return False
        self._pace.note(counted.lines)
        return True

    def _at_hand(self, number: int) -> tuple[Source, Content, Reader]:
        """A source, opened."""
        if self._open is None or self._open[0].id != number:
            self._opened.close()
            self._open = None
            source = self._link.run(sources.read, number)
            if source is None:
                raise SourceChanged(f"source {number} is not there any more")
            content = self._opened.enter_context(open_content(_found(source.path)))
            if not content.plain:
                raise Unreadable(f"{source.path} is compressed here")
            head = head_of(content)
            in_force = self._link.run(policies.load)
            reader = reader_of(source.recipe, source.counter, in_force, head)
            self._open = (source, content, reader)
        return self._open
