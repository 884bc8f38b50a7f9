"""One worker process: start, stop by signals or when drained, what it logs of that, and its exit
status."""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Final

import redis

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import Log, error_text, set_up, take_down
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Patience
from countersink.store.errors import SchemaMismatch
from countersink.store.sessions import LEASE_READ_TIMEOUT_S, open_tables, passes
from countersink.store.settings import Settings
from countersink.stream.connection import connect as connect_redis
from countersink.stream.errors import StreamError
from countersink.stream.group import Group
from countersink.stream.heartbeat import TIMEOUT_S
from countersink.stream.names import stream_keys
from countersink.worker.intake import Intake
from countersink.worker.loop import BatchApplier, Loop, Slot
from countersink.worker.options import WorkerOptions
from countersink.worker.report import LOGGER, BatchReport, Vitals, WorkerAction, heartbeat

DONE: Final = 0
FAILED: Final = 1
_FAREWELL_S: Final = 1.0
"""Seconds that each server has for a farewell."""


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
            :data:`countersink.store.apply.apply.POINTS`, ``acknowledged``. For tests that kill the
            process there.
        vitals: written while it runs, for whoever watches it.

    Returns:
        0 when all that was read was applied and acknowledged; 1 when entries stay pending (they are
        redelivered to other workers), or the tables are too new for this program.

    Raises:
        StreamMisconfigured, Misconfigured: one of the URLs cannot be used.
    """
    settings = Settings.parse(options.mysql_url)
    client = connect_redis(options.redis_url, client_name="countersink-worker")
    # For what must not hold anything up when Redis is frozen: figures and farewells.
    hasty = connect_redis(options.redis_url, socket_timeout=TIMEOUT_S)
    consumer = process_name()
    log, stop = Log(LOGGER, consumer=consumer), stop or Stop()
    handler = set_up(options.log_format)
    try:
        with stop_by_signals(
            stop,
            log,
            options.stop_within_s,
            doing="finishing what was read",
            left=": the batch stays pending and will be redelivered",
        ):
            process = _Process(
                options, settings, client, hasty, consumer, stop, log, reached, vitals or Vitals()
            )
            return process.run()
    finally:
        take_down(handler)
        client.close()
        hasty.close()


class _Process:
    """The parts of a worker, put together."""

    def __init__(
        self,
        options: WorkerOptions,
        settings: Settings,
        client: redis.Redis,
        hasty: redis.Redis,
        consumer: str,
        stop: Stop,
        log: Log,
        reached: Callable[[str], object],
        vitals: Vitals,
    ) -> None:
        self._options = options
        self._client = client
        self._consumer = consumer
        self._stop = stop
        self._log = log
        self._tell = reached
        self._vitals = vitals
        self._loop: Loop | None = None
        self._figures = vitals.figures
        self._hasty = hasty
        self._heartbeat = heartbeat(hasty, consumer, self._figures)
        self._redis = Patience("Redis", _is_stream_error, stop, log, self._note)
        self._mysql = Patience("MySQL", passes, stop, log, self._note_and_publish)
        self._connect = partial(open_tables, settings)
        # With a short time-out: renewing a lease is not worth waiting for a frozen MySQL.
        brief = partial(open_tables, settings, read_timeout=LEASE_READ_TIMEOUT_S)
        self._slot = Slot(brief, consumer, log)

    def run(self) -> int:
        """Consume, then leave nothing behind that need not stay."""
        self._log(
            WorkerAction.STARTED, "a worker starts", pid=os.getpid(), drain=self._options.drain
        )
        status = DONE
        try:
            drained = self._consume()
            if drained:
                self._log(WorkerAction.DRAINED, "the streams are empty and nothing is pending")
        except SchemaMismatch as error:
            self._log(WorkerAction.SCHEMA_TOO_NEW, error_text(error), level=logging.ERROR)
            status = FAILED
        except GivenUp:
            status = FAILED if self._in_hand() else DONE
        except Exception as error:
            self._log(
                WorkerAction.CRASHED,
                "an unexpected error outside of any entry ends the worker",
                level=logging.CRITICAL,
                bug=error,
            )
            status = FAILED
        self._leave()
        pending = self._in_hand()
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
        # No group is made here: reading does that where one is missing. A full Redis refuses to
        # make groups, be they there or not, and could never be emptied.
        streams = self._redis.call(lambda: stream_keys(self._client))
        group = Group(self._client, streams, self._consumer)
        self._log(WorkerAction.READY, "reading", slot=slot, streams=len(streams))
        applier = BatchApplier(self._connect, slot, self._mysql, self._log, self._reached)
        self._loop = Loop(
            intake=Intake(group, self._options, self._log),
            applier=applier,
            group=group,
            patience=self._redis,
            slot=self._slot,
            stop=self._stop,
            figures=self._figures,
            heartbeat=self._heartbeat,
            reporter=BatchReport(self._figures, self._log),
            reached=self._reached,
            step=self._vitals.step,
        )
        try:
            return self._loop.run()
        finally:
            applier.close()

    def _in_hand(self) -> int:
        return 0 if self._loop is None else self._loop.in_hand

    def _leave(self) -> None:
        self._figures.state = "stopping"
        self._slot.release(within_s=_FAREWELL_S)
        client = self._hasty
        try:
            Group(client, stream_keys(client), self._consumer).delete_consumer()
            self._heartbeat.withdraw()
        except StreamError as error:
            # With nothing pending any other worker forgets it later; with something pending it has
            # to stay.
            self._log(
                WorkerAction.LEFT_CONSUMER,
                "the consumer stays: Redis does not serve",
                error=error_text(error),
            )

    def _reached(self, point: str) -> None:
        self._vitals.reached(point)
        self._tell(point)

    def _note(self, error: Exception) -> None:
        self._vitals.step()
        self._figures.failed(error_text(error))

    def _note_and_publish(self, error: Exception) -> None:
        self._note(error)
        self._heartbeat.publish()


def _is_stream_error(error: Exception) -> bool:
    return isinstance(error, StreamError)
