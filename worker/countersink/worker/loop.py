"""The worker's loop: apply a batch, entry by entry if it keeps failing (``TRIES``), acknowledge it;
the lease of the worker's slot (``LEASE_S``)."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Final

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log
from countersink.runtime.process import Stop
from countersink.runtime.retry import Patience
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applied, Applier
from countersink.store.connection import Session
from countersink.store.errors import SchemaMismatch, StoreError
from countersink.store.lease import lease_worker_slot, release_worker_slot, renew_worker_slot
from countersink.store.migrate import require_schema
from countersink.stream.group import Group
from countersink.stream.heartbeat import Heartbeat
from countersink.worker.intake import Intake, ReadBatch, buried
from countersink.worker.report import BatchReport, WorkerAction, WorkerFigures

TRIES: Final = 3
"""How often an entry may fail in an unforeseen way before it is buried."""
LEASE_S: Final = 60.0
RENEW_EVERY_S: Final = 15.0
"""Between two renewals; also keeps the server from ending the session as idle."""


class Loop:
    """Moves entries until stopped or drained. For one thread; every part is handed in.

    Args:
        intake: where batches come from.
        applier: where they go.
        group: for acknowledging.
        patience: waits for Redis.
        slot: kept leased.
        stop: asked between batches.
        figures, heartbeat, reporter: what is told about it.
        reached: called with ``read`` and ``acknowledged``; for tests that kill the process there.
        step: called between batches: it moves.
    """

    def __init__(
        self,
        *,
        intake: Intake,
        applier: "BatchApplier",
        group: Group,
        patience: Patience,
        slot: "Slot",
        stop: Stop,
        figures: WorkerFigures,
        heartbeat: Heartbeat,
        reporter: BatchReport,
        reached: Callable[[str], object],
        step: Callable[[], None],
    ) -> None:
        self._intake = intake
        self._applier = applier
        self._group = group
        self._batch = ReadBatch()
        self._patience = patience
        self._slot = slot
        self._stop = stop
        self._figures = figures
        self._heartbeat = heartbeat
        self._reporter = reporter
        self._reached = reached
        self._step = step

    def run(self) -> bool:
        """Go on until a stop is requested and all that was read is acknowledged, or, when draining,
        until nothing is left; whether it is the latter.

        Raises:
            GivenUp: a stop was requested while a server was away; what is in hand stays pending.
            SchemaMismatch: the tables were migrated by a newer version.
        """
        while True:
            stopping = self._stop.requested
            self._batch = self._patience.call(self._next)
            if self._batch.deliveries:
                self._settle(self._batch)
                self._batch = ReadBatch()
            elif stopping or self._batch.drained:
                return self._batch.drained
            else:
                self._figures.state = "idle"
            self._between()

    @property
    def in_hand(self) -> int:
        """Deliveries that were read and are not acknowledged."""
        return len(self._batch.deliveries) + self._intake.waiting

    def _next(self) -> ReadBatch:
        # Asked at each try: what was read already is handed out whatever Redis does.
        return self._intake.next(fresh=not self._stop.requested)

    def _settle(self, batch: ReadBatch) -> None:
        self._figures.state = "applying"
        self._reached("read")
        begun = time.monotonic()
        applied = self._applier.apply(batch)
        took = time.monotonic() - begun
        self._patience.call(lambda: self._group.acknowledge(batch.deliveries))
        self._reached("acknowledged")
        self._figures.lost = self._intake.lost
        self._reporter.batch(applied, batch.repeats, took)

    def _between(self) -> None:
        self._step()
        self._figures.slot = self._slot.keep()
        self._applier.use_slot(self._figures.slot)
        self._reporter.progress()
        if not self._stop.requested:
            self._heartbeat.publish()


class BatchApplier:
    """Applies batches through one connection: as a whole, or entry by entry where something
    unforeseen goes wrong. For one thread.

    Args:
        connect: makes a session with the right tables.
        slot: the slot to count into.
        patience: waits for MySQL.
        log: the worker's.
        reached: called with each of :data:`countersink.store.apply.apply.POINTS`.
    """

    def __init__(
        self,
        connect: Callable[[], Session],
        slot: int,
        patience: Patience,
        log: Log,
        reached: Callable[[str], object] = lambda point: None,
    ) -> None:
        self._connect = connect
        self._slot = slot
        self._patience = patience
        self._log = log
        self._reached = reached
        self._applier = Applier(connect, slot, reached=reached)

    def use_slot(self, slot: int) -> None:
        """Count into another slot from the next batch on."""
        self._applier.slot = self._slot = slot

    def apply(self, batch: ReadBatch) -> Applied:
        """Apply the batch and return what came of it; waits as long as MySQL is away.

        Raises:
            GivenUp: a stop was requested while MySQL was away; nothing, or everything, was
                applied.
            SchemaMismatch: the tables were migrated by a newer version.
        """
        entries = list(batch.entries.values())
        try:
            return self._try(entries)
        except (GivenUp, SchemaMismatch):
            raise
        except Exception as error:
            self._log(
                WorkerAction.BATCH_FAILED,
                "an unexpected error: applying the batch entry by entry",
                level=logging.ERROR,
                bug=error,
                entries=len(entries),
            )
            self._renew()
        applied = [self._alone(entry) for entry in entries]
        return total(applied)

    def close(self) -> None:
        """Close the connection."""
        self._applier.close()

    def _try(self, entries: Sequence[Incoming]) -> Applied:
        return self._patience.call(lambda: self._applier.apply(entries))

    def _alone(self, entry: Incoming) -> Applied:
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                return self._try([entry])
            except (GivenUp, SchemaMismatch):
                raise
            except Exception as error:
                failure = error
                self._renew()
        self._log(
            WorkerAction.ENTRY_FAILED,
            "an entry keeps failing in an unexpected way: it goes to the dead letters",
            level=logging.ERROR,
            bug=failure,
            entry=entry.id.hex(),
        )
        return self._try([buried(entry)])

    def _renew(self) -> None:
        self._applier.close()
        self._applier = Applier(self._connect, self._slot, reached=self._reached)


def total(parts: Sequence[Applied]) -> Applied:
    """The sum of several results."""
    return Applied(*(sum(figures) for figures in zip(*map(astuple, parts), strict=True)))


class Slot:
    """The worker's slot: a lease on one of 1 to 255, so that two workers never wait for each
    other's rows. For one thread.

    A slot decides speed only. A worker whose lease ran out while it was busy, and whose slot
    another one has taken, may go on using it: their transactions then wait for each other, and
    every count is as right as before.

    Args:
        connect: makes a session; called again after every error.
        holder: the consumer's name.
        log: the worker's.
        renew_every_s: seconds between two renewals.
    """

    def __init__(
        self,
        connect: Callable[[], Session],
        holder: str,
        log: Log,
        *,
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._connect = connect
        self._holder = holder
        self._log = log
        self._every = renew_every_s
        self._session: Session | None = None
        self._next = 0.0
        self._number: int | None = None

    def take(self) -> int:
        """Lease a slot.

        Raises:
            StoreError: call again; SchemaMismatch: or do not.
        """
        self._number = lease_worker_slot(self._open(), self._holder, LEASE_S)
        self._next = time.monotonic() + self._every
        return self._number

    def keep(self) -> int:
        """The slot to use, its lease renewed when that is due; another slot where the lease was
        lost.

        Never raises for MySQL's sake: whatever ails it is noticed, and said, where batches are
        applied.

        Raises:
            SchemaMismatch: the tables were migrated by a newer version meanwhile.
        """
        if self._number is None:
            raise RuntimeError("take() comes first")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            try:
                self._renew(self._number)
            except StoreError as error:
                if isinstance(error, SchemaMismatch) and error.newer:
                    raise
                self._drop()
        return self._number

    def release(self, *, within_s: float = 1.0) -> None:
        """Give the slot back, if that takes no longer than ``within_s`` seconds.

        Never raises: a lease that cannot be given back runs out.
        """
        session = self._session
        if self._number is None or session is None or session.closed:
            return
        timer = threading.Timer(within_s, session.abort)
        timer.daemon = True
        timer.start()
        try:
            release_worker_slot(session, self._number, self._holder)
        except StoreError:
            self._drop()
        finally:
            timer.cancel()
            session.close()

    def _renew(self, number: int) -> None:
        session = self._open()
        require_schema(session)  # a connection that is always busy is never made anew and checked
        if not renew_worker_slot(session, number, self._holder, LEASE_S):
            self._number = lease_worker_slot(session, self._holder, LEASE_S)
            self._log(
                WorkerAction.SLOT,
                "the slot's lease had run out",
                level=logging.WARNING,
                slot=self._number,
                before=number,
            )

    def _open(self) -> Session:
        if self._session is None or self._session.closed:
            self._session = self._connect()
        return self._session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close(hard=True)
            self._session = None
