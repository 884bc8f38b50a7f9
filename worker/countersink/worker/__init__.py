"""The worker (``run``), which applies the entries of the streams to MySQL, each entry exactly once.

``run(WorkerOptions(redis_url=…, mysql_url=…))`` runs a worker in this process, from its start to
its exit status. The worker's loop: take a batch, apply it, acknowledge it. After an unexpected
error the entries are applied one by one (``TRIES``). Also the lease of the worker's slot
(``LEASE_S``)."""

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
    is_temporary,
    open_tables,
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
from countersink.worker.intake import Intake, ReadBatch, as_dead_letter
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

__all__ = ["Stop", "Vitals", "WorkerOptions", "run"]

TRIES: Final = 3
"""Unexpected errors of an entry after which it becomes a dead letter."""
LEASE_S: Final = 60.0
RENEW_EVERY_S: Final = 15.0
"""Seconds between two renewals of the lease, which also keep MySQL from ending an idle session."""
DONE: Final = 0
FAILED: Final = 1


def run(
    options: WorkerOptions,
    *,
    stop: Stop | None = None,
    on_point: Callable[[str], object] = lambda point: None,
    vitals: Vitals | None = None,
) -> int:
    """Run a worker until a stop (SIGTERM, SIGINT or ``stop``) or, with ``drain``, until the streams
    are empty and nothing is pending; return its exit status.

    The worker waits for servers that are away. Signals stop it only if this function is called in
    the main thread; the former signal handlers are restored at the end. A second signal, or the end
    of ``stop_within_s`` seconds after the first, ends the process with status 1 without a return.

    Args:
        options: the settings.
        stop: a stop that another thread may request; None if none does.
        on_point: a function to call at each named point of a batch, for tests that kill the process
            there: ``read``, those in :data:`countersink.counting.apply.applier.POINTS`,
            ``acknowledged``.
        vitals: state and times of the worker, updated while it runs, for other threads to read.

    Returns:
        0 if all entries that were read were applied and acknowledged; 1 if entries stay pending
            (other workers get them), if the tables are too new for this program, or after a bug.

    Raises:
        StreamMisconfigured, Misconfigured: one of the URLs cannot be used."""
    settings = Settings.parse(options.mysql_url)
    consumer = process_name()
    log, stop = Log(LOGGER, consumer=consumer), stop or Stop()
    with (
        connect(options.redis_url, client_name="countersink-worker") as client,
        # For commands that must not wait for a frozen Redis: heartbeats, and those of the end.
        connect(options.redis_url, socket_timeout=TIMEOUT_S) as brief_client,
        logged(options.log_format),
        stop_by_signals(
            stop,
            log,
            options.stop_within_s,
            doing="finishing the entries that were read",
            left=": the batch stays pending and will be redelivered",
        ),
    ):
        if is_cluster(options.redis_url):
            from countersink.worker.readers import Readers  # noqa: PLC0415 (few have a cluster)

            connected = partial(connect, options.redis_url, client_name="countersink-worker")
            source: Intake | Readers = Readers(connected, client, consumer, options, stop, log)
        else:
            source = Intake(Group(client, [], consumer), options, log)
        vitals = vitals or Vitals()
        return Loop(
            options, settings, source, brief_client, consumer, stop, log, on_point, vitals
        ).run()


@dataclass(repr=False, eq=False)
class Loop:
    """The loop of a worker, until it is stopped or drained. For one thread.

    Its fields are the arguments of :func:`run`, the settings of MySQL, the source of batches, a
    client of Redis with a short timeout, the consumer's name and the log."""

    _options: WorkerOptions
    _settings: Settings
    _source: "Intake | Readers"
    _brief_client: redis.Redis
    _consumer: str
    _stop: Stop
    _log: Log
    _on_point: Callable[[str], object]
    _vitals: Vitals

    def __post_init__(self) -> None:
        self._figures = self._vitals.figures
        self._heartbeat = heartbeat(self._brief_client, self._consumer, self._figures)
        self._report = BatchReport(self._figures, self._log)
        self._redis = Patience("Redis", _is_stream_error, self._stop, self._log, self._note_failure)
        self._mysql = Patience("MySQL", is_temporary, self._stop, self._log, self._note_failure)
        # With a short timeout: the renewal of a lease must not wait for a frozen MySQL.
        brief = partial(open_tables, self._settings, read_timeout=BRIEF_READ_TIMEOUT_S)
        self._slot = Slot(brief, self._consumer, self._log)
        self._salts = SaltPublisher(brief, self._brief_client, self._log)
        self._losses = LossWatch(brief, self._brief_client, self._log)
        self._batch = ReadBatch()

    def run(self) -> int:
        """Apply entries until a stop, an error or, with ``drain``, until no entries are left; then
        release the slot, delete the consumer, and close the sessions. Return the exit status: 0, or
        1 if entries stay pending, if the tables are too new for this program, or after a bug."""
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
                "an unexpected error, not caused by an entry, ends the worker",
                level=logging.CRITICAL,
                bug=error,
            )
            status = FAILED
        self._leave()
        pending = len(self._batch.deliveries) + self._source.waiting  # read, not acknowledged
        if pending:
            status = FAILED
        left = "its pending entries will be redelivered" if pending else "it leaves nothing pending"
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
        # MySQL first: no entry is read, and so none becomes pending, before it could be applied.
        slot = self._mysql.call(self._slot.take)
        self._figures.slot = slot
        streams = self._redis.call(self._source.begin)
        # At once, as producers may wait for salts, and a draining worker may end soon.
        self._salts.keep()
        self._source.run_chore(self._publish)
        self._log(WorkerAction.READY, "reading", slot=slot, streams=streams)
        connect = partial(open_tables, self._settings)
        with closing(Applier(connect, slot, reached=self._reached)) as applier:
            return self._apply_batches(applier)

    def _apply_batches(self, applier: Applier) -> bool:
        """Apply batches. Return True when the streams are drained. Return False after a stop
        request, when all that was read is applied and acknowledged. (On a Redis Cluster, some
        entries may still be pending, as when their node is away.)

        Raises:
            GivenUp: a stop was requested while a server was away; entries that were read stay
                pending.
            SchemaMismatch: a newer version has migrated the tables."""
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
            self._figures.note_away(self._source.away)
            self._vitals.step()
            self._figures.slot = applier.slot = self._slot.keep()
            self._report.progress()
            if not self._stop.requested:
                self._salts.keep()
                self._source.run_chore(self._publish)

    def _next(self) -> ReadBatch:
        # Checked at each try: after a stop request, entries that were read need no Redis.
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
        """Apply the entries together; after an unexpected error, each alone. Return summed figures.
        An entry that fails :data:`TRIES` times becomes a dead letter.

        Raises:
            GivenUp: a stop was requested while MySQL was away. No entry is acknowledged, though
                some may have been applied.
            SchemaMismatch: a newer version has migrated the tables."""
        done = self._try(applier, entries)
        if isinstance(done, Applied):
            return done
        self._log(
            WorkerAction.BATCH_FAILED,
            "an unexpected error: the batch is applied entry by entry",
            level=logging.ERROR,
            bug=done,
            entries=len(entries),
        )
        each = [self._apply_one(applier, entry) for entry in entries]
        return Applied(*(sum(figures) for figures in zip(*map(astuple, each), strict=True)))

    def _apply_one(self, applier: Applier, entry: Incoming) -> Applied:
        failure: Exception | None = None
        for _ in range(TRIES):
            done = self._try(applier, [entry])
            if isinstance(done, Applied):
                return done
            failure = done
        self._log(
            WorkerAction.ENTRY_FAILED,
            "an entry failed repeatedly with an unexpected error: it goes to the dead letters",
            level=logging.ERROR,
            bug=failure,
            entry=entry.id.hex(),
        )
        return self._mysql.call(partial(applier.apply, [as_dead_letter(entry)]))

    def _try(self, applier: Applier, entries: Sequence[Incoming]) -> Applied | Exception:
        """Apply entries, waiting for MySQL. Return figures, or (not raised) an unexpected error.
        GivenUp and SchemaMismatch are raised, as :meth:`_apply` describes."""
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
        # If Redis does not serve, the consumer stays. Other workers delete it later, unless it has
        # pending entries.
        with suppress(StreamError):
            self._source.leave(self._brief_client)
            self._heartbeat.withdraw()

    def _reached(self, point: str) -> None:
        self._vitals.note_point(point)
        self._on_point(point)

    def _publish(self) -> None:
        self._heartbeat.publish()
        self._salts.publish()
        self._losses.watch()

    def _note_failure(self, error: Exception) -> None:
        self._vitals.step()
        self._figures.failed(error_text(error))
        self._source.run_chore(self._heartbeat.publish)


def _is_stream_error(error: Exception) -> bool:
    return isinstance(error, StreamError)


@dataclass(repr=False, eq=False)
class Slot:
    """The worker's lease of a slot from 1 to 255. Each worker has its own, so that workers do not
    wait for each other's rows. For one thread.

    The slot affects speed only. If a lease ran out and another worker leased the slot, both may use
    it: their transactions then wait for each other, and all counts stay correct.

    Args:
        connect: makes a session; called again after every error.
        holder: the consumer's name.
        log: the worker's log.
        renew_every_s: seconds between two renewals."""

    _connect: Callable[[], Session]
    _holder: str
    _log: Log
    renew_every_s: float = RENEW_EVERY_S

    def __post_init__(self) -> None:
        self._session = KeptSession(self._connect)
        self._next = 0.0
        self._number = 0

    def take(self) -> int:
        """Lease a slot; return its number. If none can be leased, return that of a random slot.

        Raises:
            SchemaMismatch: the tables have another version.
            StoreError: MySQL failed; a further call may succeed."""
        self._number = lease_worker_slot(self._session(), self._holder, LEASE_S)
        self._next = time.monotonic() + self.renew_every_s
        return self._number

    def keep(self) -> int:
        """Renew the lease if that is due. If the lease has expired, or if there was none, lease a
        slot as :meth:`take` does. Return the number of the slot. Call this only after :meth:`take`.

        Errors of MySQL other than the one below are ignored: the code that applies batches logs
        them.

        Raises:
            SchemaMismatch: a newer version has migrated the tables."""
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
        """Release the lease if the session is still open. Errors of MySQL are ignored, because a
        lease expires anyway."""
        with suppress(StoreError):
            if self._session.is_open:
                release_worker_slot(self._session(), self._number, self._holder)
        self._session.close()

    def _renew(self) -> None:
        session, before = self._session(), self._number
        require_schema(session)  # only new connections check it, and this one may last for long
        if not renew_worker_slot(session, before, self._holder, LEASE_S):
            self._number = lease_worker_slot(session, self._holder, LEASE_S)
            self._log(
                WorkerAction.SLOT,
                "the lease of the slot had expired: leased another slot",
                level=logging.WARNING,
                slot=self._number,
                before=before,
            )
