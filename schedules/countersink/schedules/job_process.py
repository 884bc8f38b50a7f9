"""The job process, which executes runs one after another: its start, its stop by signals, its exit
status, its waiting while Redis is away, and its log lines."""

import logging
import os
import secrets
import time
from typing import Final

import redis

from countersink.database.url import Settings
from countersink.runtime.log import Log
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Outage
from countersink.schedules.jobs import JOBS, Registry, load
from countersink.schedules.options import JobProcessOptions
from countersink.schedules.report import (
    LOGGER,
    ProcessVitals,
    ScheduleAction,
    adopt,
)
from countersink.schedules.rq_worker import Process, RunWorker, connect_queue, install
from countersink.stream.connection import connect
from countersink.stream.errors import translate

DONE: Final = 0
_AGAIN_S: Final = 0.5
"""Seconds from the end of an RQ worker in this process to the start of the next one."""
_ASK_EVERY_S: Final = 0.1
_IDLE_S: Final = 3.0
"""Seconds that a stop may take while no run is being executed. If it takes longer, Redis does not
answer, and the process ends at once."""


def run(
    options: JobProcessOptions,
    *,
    registry: Registry = JOBS,
    stop: Stop | None = None,
    vitals: ProcessVitals | None = None,
) -> int:
    """Execute runs until a stop is requested (by SIGTERM, SIGINT or ``stop``), and return the exit
    status, 0.

    At a signal, the current run is asked to end. If it has not ended after ``stop_within_s``
    seconds, or at a second signal, its process is killed, and the run is taken over later; this
    process then ends with the status 1, without a return. If the stop was requested by ``stop`` and
    not by a signal, this function waits until the current run has ended by itself. While Redis is
    away, the job process waits for it. If a signal comes while Redis does not answer and there is
    no run, the process may end with the status 0, without a return.

    Args:
        options: the options of the job process.
        registry: the jobs, by name.
        stop: the request to stop, with which another thread can end the process; None if only
            signals can.
        vitals: the state and numbers for metrics; they are updated during the call. None if nobody
            reads them.

    Raises:
        Misconfigured, StreamMisconfigured: one of the URLs cannot be used.
    """
    Settings.parse(options.mysql_url)
    name = process_name()
    log, stop = Log(LOGGER, process=name), stop or Stop()
    adopt(log, "rq.worker", "rq.job", "rq.queue", "rq.registry")
    # Checks the URL only: the runs use this Redis, not this process.
    connect(options.redis_url).close()
    with connect_queue(options.jobs_redis_url, client_name="countersink-jobs") as client:
        process = Process(options, registry, log, os.getpid())
        install(process)
        for kind in registry.values():
            load(kind)  # imported once, and not in every work horse
        supervisor = _Supervisor(name, stop, process, vitals or ProcessVitals())
        try:
            with stop_by_signals(
                stop,
                log,
                options.stop_within_s,
                doing="ending in good order",
                asked=supervisor.ask_to_end,
                forced=supervisor.kill,
            ):
                log(ScheduleAction.STARTED, "a job process starts", pid=os.getpid())
                while not stop.requested:
                    supervisor.work(client)
                supervisor.kill()
                log(ScheduleAction.STOPPED, "a job process ends")
        finally:
            supervisor.ended = True
            install(None)
    return DONE


class _Supervisor:
    """Keeps an RQ worker running in this process, and ends its current run at a stop."""

    def __init__(self, name: str, stop: Stop, process: Process, vitals: ProcessVitals) -> None:
        self._name = name
        self._log = process.log
        self._stop = stop
        self._process = process
        self.vitals = vitals
        self.ended = False
        self._outage = Outage("Redis", process.log)
        self._worker: RunWorker | None = None

    def work(self, client: redis.Redis) -> None:
        """Run one RQ worker until a stop is requested, or until it ends by itself, as when Redis is
        away. If it ended by itself, kill the current run and wait half a second before returning,
        so that the caller can start another worker."""
        self.vitals.step("waiting")
        try:
            worker = RunWorker(
                client,
                f"{self._name}-{secrets.token_hex(4)}",  # RQ refuses a name that is still there
                self._process,
                self._stop,
                self._outage,
                self.vitals,
            )
            if self._worker is None:
                self._log(ScheduleAction.READY, "waiting for runs")
            self._worker = worker
            worker.work(logging_level=None)
        except Exception as error:
            # RQ deregisters at a Redis that is away, or another error: start a new worker.
            self._outage.failed(translate(error))
        if not self._stop.requested:
            self.kill()  # a run without a supervising worker
            self._stop.wait(_AGAIN_S)

    def ask_to_end(self) -> None:
        """Ask the current run to end, and each run that begins later; each is asked once. Return
        when :attr:`ended` is set, which :func:`run` does at its end. Called at the first signal, on
        a thread of its own.

        If there has been no run for ``_IDLE_S`` seconds and :attr:`ended` is not set, the main
        thread hangs in a call to Redis. Then exit the process immediately with status 0: without a
        run, nothing is lost.
        """
        asked_pid, busy = 0, time.monotonic()
        while not self.ended:
            worker = self._worker
            if worker is not None and worker.horse_pid:
                busy = time.monotonic()
                if worker.horse_pid != asked_pid:
                    asked_pid = worker.horse_pid
                    worker.ask_horse_to_end()
            elif time.monotonic() - busy > _IDLE_S:
                self._log(ScheduleAction.STOPPED, "a job process ends: Redis does not answer")
                os._exit(DONE)
            time.sleep(_ASK_EVERY_S)

    def kill(self) -> None:
        """Kill the process of the current run, if there is one, and wait for its end. Unless this
        run is over, another process takes it over later."""
        worker = self._worker
        if worker is not None and worker.horse_pid:
            self._log(
                ScheduleAction.STOP_FORCED,
                "the current run is killed: unless it is over, it is taken over later",
                level=logging.WARNING,
            )
            worker.kill_horse_group()
            worker.wait_for_horse()
