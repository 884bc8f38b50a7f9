"""One worker process (``run``): start, stop by signals or when drained (``worker/intake.py`` tells
when), exit status; its loop: apply a batch, entry by entry if it keeps failing (``TRIES``),
acknowledge it; the lease of the worker's slot (``LEASE_S``)."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import redis

from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applied, Applier
from countersink.database.errors import SchemaMismatch, StoreError
from countersink.database.lease import lease_worker_slot, release_worker_slot, renew_worker_slot
from countersink.database.session import Session
from countersink.database.sessions import (
    BRIEF_READ_TIMEOUT_S,
    KeptSession,
    open_tables,
    passes,
    require_schema,
)
from countersink.database.url import Settings
from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log, error_text, logged
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Patience
from countersink.stream.connection import connect, is_cluster
from countersink.stream.errors import StreamError
from countersink.stream.group import Group
from countersink.stream.progress import TIMEOUT_S
from countersink.worker.intake import Intake, ReadBatch, buried
from countersink.worker.options import WorkerOptions
from countersink.worker.report import (
    LOGGER,
    BatchReport,
    LossWatch,
    SaltPublisher,
    Vitals,
    WorkerAction,
    heartbeat,
)

if TYPE_CHECKING:
    from countersink.worker.readers import Readers

TRIES: Final = 3
"""How often an entry may fail in an unforeseen way before it is buried."""
LEASE_S: Final = 60.0
RENEW_EVERY_S: Final = 15.0
"""Between two renewals; also keeps the server from ending the session as idle."""
DONE: Final = 0
FAILED: Final = 1


def run(
    options: WorkerOptions,
    *,
    stop: Stop | None = None,
    reached: Callable[[str], object] = lambda point: None,
    vitals: Vitals | None = None,
) -> int:
    """Run a worker until it is told to stop (SIGTERM, SIGINT or ``stop``) or, when draining, until
    nothing is left.

    Servers that are away, now or later, are waited for. In the main thread the signals' handlers
    are set and put back.

    Args:
        options: the settings.
        stop: to stop it from another thread.
        reached: called at each named point of a batch: ``read``, those of
            :data:`countersink.counting.apply.applier.POINTS`, ``acknowledged``. For tests that kill
            the process there.
        vitals: written while it runs, for whoever watches it.

    Returns:
        0 when all that was read was applied and acknowledged; 1 when entries stay pending (they are
        redelivered to other workers), or the tables are too new for this program.

    Raises:
        StreamMisconfigured, Misconfigured: one of the URLs cannot be used.
    """
    settings = Settings.parse(options.mysql_url)
    consumer = process_name()
    log, stop = Log(LOGGER, consumer=consumer), stop or Stop()
    with (
        connect(options.redis_url, client_name="countersink-worker") as client,
        # For what must not hold anything up when Redis is frozen: figures and farewells.
        connect(options.redis_url, socket_timeout=TIMEOUT_S) as hasty,
        logged(options.log_format),
        stop_by_signals(
            stop,
            log,
            options.stop_within_s,
            doing="finishing what was read",
            left=": the batch stays pending and will be redelivered",
        ),
    ):
        if is_cluster(options.redis_url):
            from countersink.worker.readers import Readers  # noqa: PLC0415 (few have a cluster)

            connected = partial(connect, options.redis_url, client_name="countersink-worker")
            source: Intake | Readers = Readers(connected, client, consumer, options, stop, log)
        else:
            source = Intake(Group(client, [], consumer), options, log)
        loop = Loop(
            options, settings, source, hasty, consumer, stop, log, reached, vitals or Vitals()
        )
        return loop.run()


@dataclass(repr=False, eq=False)
class Loop:
    """A worker: moves entries until stopped or drained. For one thread.

    The fields are those of :func:`countersink.worker.loop.run`, where the batches come from, and
    a client of Redis that does not wait.
    """

    _options: WorkerOptions
    _settings: Settings
    _source: "Intake | Readers"
    _hasty: redis.Redis
    _consumer: str
    _stop: Stop
    _log: Log
    _tell: Callable[[str], object]
    _vitals: Vitals

    def __post_init__(self) -> None:
        self._figures = self._vitals.figures
        self._heartbeat = heartbeat(self._hasty, self._consumer, self._figures)
        self._report = BatchReport(self._figures, self._log)
        self._redis = Patience("Redis", _is_stream_error, self._stop, self._log, self._note)
        self._mysql = Patience("MySQL", passes, self._stop, self._log, self._note)
        # With a short time-out: renewing a lease is not worth waiting for a frozen MySQL.
        brief = partial(open_tables, self._settings, read_timeout=BRIEF_READ_TIMEOUT_S)
        self._slot = Slot(brief, self._consumer, self._log)
        self._salts = SaltPublisher(brief, self._hasty, self._log)
        self._losses = LossWatch(brief, self._hasty, self._log)
        self._batch = ReadBatch()

    def run(self) -> int:
        """Consume, then leave nothing behind that need not stay; the exit status."""
        self._log(
            WorkerAction.STARTED, "a worker starts", pid=os.getpid(), drain=self._options.drain
        )
        status = DONE
        try:
            with self._heartbeat.kept():
                drained = self._consume()
            if drained:
                self._log(WorkerAction.DRAINED, "the streams are empty and nothing is pending")
        except SchemaMismatch as error:
            self._log(WorkerAction.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
            status = FAILED
        except GivenUp:
            pass
        except Exception as error:
            self._log(
                WorkerAction.CRASHED,
                "an unexpected error outside of any entry ends the worker",
                level=logging.CRITICAL,
                bug=error,
            )
            status = FAILED
        self._leave()
        pending = len(self._batch.deliveries) + self._source.waiting  # read, not acknowledged
        if pending:
            status = FAILED
        left = "what it leaves pending is redelivered" if pending else "it leaves nothing pending"
        self._log(
            WorkerAction.STOPPED,
            f"a worker ends; {left}",
            level=logging.WARNING if pending else logging.INFO,
            pending=pending,
            entries=self._figures.entries,
            rows=self._figures.rows,
        )
        return status

    def _consume(self) -> bool:
        # MySQL first: nothing is read, and so nothing made to wait, before it could be applied.
        slot = self._mysql.call(self._slot.take)
        self._figures.slot = slot
        streams = self._redis.call(self._source.begin)
        # At once, as producers may wait for them; and a worker that drains may end soon.
        self._salts.keep()
        self._source.aside(self._publish)
        self._log(WorkerAction.READY, "reading", slot=slot, streams=streams)
        connect = partial(open_tables, self._settings)
        with closing(Applier(connect, slot, reached=self._reached)) as applier:
            return self._move(applier)

    def _move(self, applier: Applier) -> bool:
        """Go on until a stop is requested and all that was read is acknowledged, or, when draining,
        until nothing is left; whether it is the latter.

        Raises:
            GivenUp: a stop was requested while a server was away; what is in hand stays pending.
            SchemaMismatch: the tables were migrated by a newer version.
        """
        while True:
            stopping = self._stop.requested
            self._batch = self._redis.call(self._next)
            if self._batch.deliveries:
                self._settle(applier, self._batch)
                self._batch = ReadBatch()
            elif stopping or self._batch.drained:
                return self._batch.drained
            else:
                self._figures.state = "idle" if not self._batch.silent else "waiting"
            self._figures.cut_off(self._source.away)
            self._vitals.step()
            self._figures.slot = applier.slot = self._slot.keep()
            self._report.progress()
            if not self._stop.requested:
                self._salts.keep()
                self._source.aside(self._publish)

    def _next(self) -> ReadBatch:
        # Asked at each try: what was read already is handed out whatever Redis does.
        return self._source.next(fresh=not self._stop.requested)

    def _settle(self, applier: Applier, batch: ReadBatch) -> None:
        self._figures.state = "applying"
        self._reached("read")
        begun = time.monotonic()
        applied = self._apply(applier, list(batch.entries.values()))
        took = time.monotonic() - begun
        self._redis.call(lambda: self._source.acknowledge(batch))
        self._reached("acknowledged")
        self._figures.lost = self._source.lost
        repeats = len(batch.deliveries) - len(batch.entries)
        self._report.batch(applied, repeats, took)

    def _apply(self, applier: Applier, entries: Sequence[Incoming]) -> Applied:
        """Apply the entries, one by one where something unforeseen goes wrong; what came of it.

        Raises:
            GivenUp: a stop was requested while MySQL was away; nothing, or everything, was
                applied.
            SchemaMismatch: the tables were migrated by a newer version.
        """
        done = self._try(applier, entries)
        if isinstance(done, Applied):
            return done
        self._log(
            WorkerAction.BATCH_FAILED,
            "an unexpected error: applying the batch entry by entry",
            level=logging.ERROR,
            bug=done,
            entries=len(entries),
        )
        each = [self._alone(applier, entry) for entry in entries]
        return Applied(*(sum(figures) for figures in zip(*map(astuple, each), strict=True)))

    def _alone(self, applier: Applier, entry: Incoming) -> Applied:
        failure: Exception | None = None
        for _ in range(TRIES):
            done = self._try(applier, [entry])
            if isinstance(done, Applied):
                return done
            failure = done
        self._log(
            WorkerAction.ENTRY_FAILED,
            "an entry keeps failing in an unexpected way: it goes to the dead letters",
            level=logging.ERROR,
            bug=failure,
            entry=entry.id.hex(),
        )
        return self._mysql.call(partial(applier.apply, [buried(entry)]))

    def _try(self, applier: Applier, entries: Sequence[Incoming]) -> Applied | Exception:
        """What came of the entries, or the unexpected error."""
        try:
            return self._mysql.call(partial(applier.apply, entries))
        except (GivenUp, SchemaMismatch):
            raise
        except Exception as error:
            applier.close()
            return error

    def _leave(self) -> None:
        self._figures.state = "stopping"
        self._slot.release()
        self._salts.close()
        self._losses.close()
        # Where Redis does not serve the consumer stays: with nothing pending any other worker
        # forgets it later; with something pending it has to stay.
        with suppress(StreamError):
            self._source.leave(self._hasty)
            self._heartbeat.withdraw()

    def _reached(self, point: str) -> None:
        self._vitals.reached(point)
        self._tell(point)

    def _publish(self) -> None:
        self._heartbeat.publish()
        self._salts.publish()
        self._losses.look()

    def _note(self, error: Exception) -> None:
        self._vitals.step()
        self._figures.failed(error_text(error))
        self._source.aside(self._heartbeat.publish)


def _is_stream_error(error: Exception) -> bool:
    return isinstance(error, StreamError)


@dataclass(repr=False, eq=False)
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

    _connect: Callable[[], Session]
    _holder: str
    _log: Log
    renew_every_s: float = RENEW_EVERY_S

    def __post_init__(self) -> None:
        self._session = KeptSession(self._connect)
        self._next = 0.0
        self._number = 0

    def take(self) -> int:
        """Lease a slot.

        Raises:
            StoreError: call again; SchemaMismatch: or do not.
        """
        self._number = lease_worker_slot(self._session(), self._holder, LEASE_S)
        self._next = time.monotonic() + self.renew_every_s
        return self._number

    def keep(self) -> int:
        """The slot to use, its lease renewed when that is due; another slot where the lease was
        lost. Only after :meth:`take`.

        Never raises for MySQL's sake: whatever ails it is noticed, and said, where batches are
        applied.

        Raises:
            SchemaMismatch: the tables were migrated by a newer version meanwhile.
        """
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.renew_every_s
            try:
                self._renew()
            except StoreError as error:
                self._session.close()
                if isinstance(error, SchemaMismatch) and error.newer:
                    raise
        return self._number

    def release(self) -> None:
        """Give the slot back, if the session is open still.

        Never raises: a lease that cannot be given back runs out.
        """
        with suppress(StoreError):
            if self._session.is_open:
                release_worker_slot(self._session(), self._number, self._holder)
        self._session.close()

    def _renew(self) -> None:
        session, before = self._session(), self._number
        require_schema(session)  # a connection that is always busy is never made anew and checked
        if not renew_worker_slot(session, before, self._holder, LEASE_S):
            self._number = lease_worker_slot(session, self._holder, LEASE_S)
            self._log(
                WorkerAction.SLOT,
                "the slot's lease had run out",
                level=logging.WARNING,
                slot=self._number,
                before=before,
            )
