"""``--jobs``: counting a large source by child processes: from which size on (``LEAST_BYTES``), how
far ahead chunks are planned, and the notices when this process counts on alone.

This process plans the chunks, and its children count them (``_count``). What is counted is in the
tables, whoever has counted it. So whatever becomes of a child, another one counts its chunk; and
whatever becomes of this process, another run of the same command does.
"""

import multiprocessing
import signal
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from countersink.backfill import run_state
from countersink.backfill.count.follower import Follower
from countersink.backfill.count.sources import Settled
from countersink.backfill.count.targets import target_of
from countersink.backfill.count.task import LOOK_S, LineRate, ProgressWatch, Task, Work, opened
from countersink.backfill.errors import BackfillError, SourceChanged, SourceDiffers
from countersink.backfill.input.content import Content
from countersink.backfill.input.files import Input
from countersink.backfill.options import BackfillOptions
from countersink.backfill.rejects import RejectsSpool
from countersink.store.connection import Session
from countersink.store.counters.catalog import load
from countersink.store.errors import StoreError
from countersink.store.sessions import PatientSession, open_tables

LEAST_BYTES: Final = 64 * 1024 * 1024
"""Fewer bytes are counted in the time that it takes to start processes."""
_IN_VAIN: Final = 3
"""Children, per process that is to count, that may end without anything having been counted."""
_AHEAD: Final = 1000
"""Chunks, per process, that are planned before some are counted."""
_SPAWN: Final = multiprocessing.get_context("spawn")


def count_by_children(
    work: Work, source: Input, content: Content, follower: Follower, settled: Settled
) -> tuple[str, ...]:
    """Have child processes count what is not counted of a source, if they are asked for and it is
    worth while.

    Whatever of it is not counted afterwards is for the caller to count.

    Args:
        work: whose source it is.
        source: where its content is.
        content: its bytes.
        follower: of the source; plans its chunks.
        settled: which source it is.

    Returns:
        Notices for people.

    Raises:
        RunEnded: the run was undone, or its counter deleted, meanwhile.
        Unreadable: the content cannot be read.
        StoreError: MySQL did not do its part; what was counted is counted.
    """
    size = content.size
    if work.options.jobs < 2 or not content.plain or size is None or settled.ended:
        return ()
    _, counted = work.link.run(_left, settled.source, size)
    if size - counted < LEAST_BYTES:
        return ()
    with closing(_Children(work, source, settled, size)) as children:
        return _supervise(work, children, content, follower, settled.source)


def _left(session: Session, source: int, end: int) -> tuple[int, int]:
    """How many chunks of a source before ``end`` are pending, and how many bytes are counted."""
    ((pending, counted),) = session.query(
        "SELECT COALESCE(SUM(state = 'pending'), 0),"
        " COALESCE(SUM(IF(state = 'done', end_at - start_at, 0)), 0) FROM backfill_chunk"
        " WHERE source = %s AND end_at <= %s",
        (source, end),
    )
    return int(pending), int(counted)


def _supervise(
    work: Work, children: "_Children", content: Content, follower: Follower, source: int
) -> tuple[str, ...]:
    """Plan, and see to it that children count, until all is counted; or notices why not all is."""
    run, jobs = work.task.run, work.options.jobs
    figures = work.link.run(run_state.figures, run)
    follower.take_over()
    planned = False
    while not work.stop():
        work.link.run(run_state.require_running, run)
        pending, counted = work.link.run(_left, source, follower.held_to)
        before, figures = figures, work.link.run(run_state.figures, run)
        if figures != before:
            children.in_vain = 0
        content.seek(counted)  # its place is what is shown as done
        work.watch.add(figures - before)
        if notices := children.fill(min(jobs, pending)):
            return notices
        if not planned and pending < jobs * _AHEAD:
            planned = follower.plan()
        elif pending:
            time.sleep(LOOK_S)
        else:
            break
    return ()


@dataclass(slots=True)
class _Children:
    """The child processes that count a source.

    Attributes:
        in_vain: how many were started since something was counted.
    """

    _work: Work
    _source: Input
    _settled: Settled
    _end: int
    in_vain: int = 0
    _children: list[tuple[Connection, SpawnProcess]] = field(default_factory=list)

    def close(self) -> None:
        """End them, each after the chunk at hand."""
        for pipe, _process in self._children:
            pipe.close()
        for _pipe, process in self._children:
            process.join()
        self._work.watch.jobs = 0

    def fill(self, wanted: int) -> tuple[str, ...]:
        """Start children until so many are there; or notices why they are of no use."""
        for child in [*self._children]:
            pipe, process = child
            if pipe.poll():
                self._children.remove(child)
                why = ""
                with pipe, suppress(EOFError, OSError):  # it says nothing if it was killed
                    why = pipe.recv()
                process.join()
                if why:
                    return (f"the child processes do not count all of it ({why}): counted here",)
        missing = wanted - len(self._children)
        if missing > 0 and self.in_vain >= _IN_VAIN * self._work.options.jobs:
            return ("the child processes end without having counted anything: counted here",)
        for _ in range(missing):
            self._children.append(self._start())
            self.in_vain += 1
        self._work.watch.jobs = len(self._children)
        return ()

    def _start(self) -> tuple[Connection, SpawnProcess]:
        work = self._work
        ours, theirs = _SPAWN.Pipe()
        with theirs:
            process = _SPAWN.Process(
                target=_count,
                args=(
                    *(theirs, work.mysql_url, work.options, work.task.run, work.task.spool),
                    *(self._source, self._settled, self._end),
                ),
                daemon=True,
            )
            resource_tracker.ensure_running()  # here: it changes what is blocked
            # For good in the child: a terminal's Ctrl-C is for this process, which tells it.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        return ours, process


def _count(
    pipe: Connection,
    mysql_url: str,
    options: BackfillOptions,
    run: int,
    spool: RejectsSpool | None,
    source: Input,
    settled: Settled,
    end: int,
) -> None:
    """Main function of a child: counts planned chunks before ``end`` until the other end of the
    pipe is closed, by its parent or the parent's death; sends the reason where it cannot.
    """
    stop = pipe.poll
    rate = None if options.rate is None else options.rate / options.jobs
    with (
        suppress(StoreError, SourceDiffers),  # the parent finds it as well
        PatientSession(partial(open_tables, mysql_url), stop).open() as link,
    ):
        target = link.run(target_of, run, options.mode)
        work = Work(
            mysql_url=mysql_url,
            options=options,
            link=link,
            task=Task(run, options.counter, target, options.rejects_allowed, spool),
            catalog=link.run(load),
            pace=LineRate(rate, stop),
            watch=ProgressWatch(lambda progress: None, [source]),
            stop=stop,
        )
        try:
            with opened(work, source) as at_hand:
                if at_hand is None:
                    raise SourceChanged(f"{source.name} is empty by now")
                Follower(work, at_hand, settled).as_planned(end)
        except BackfillError as error:
            with suppress(OSError):  # the parent is gone
                pipe.send(str(error))
