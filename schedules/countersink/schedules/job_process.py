"""The job process: start, stop by signals, exit status, waiting while Redis is away, its log lines;
and ``RunHeartbeat``, the thread that writes a run's sign of life to ``job_run`` and finds out that
another process has taken the run over. How often, and for how long it may fail:
``schedules/options.py``."""

import ctypes
import logging
import mmap
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Self

import redis

from countersink.database.errors import StoreError
from countersink.database.sessions import brief_session
from countersink.database.url import Settings
from countersink.runtime.log import Log
from countersink.runtime.process import Stop, process_name, stop_by_signals
from countersink.runtime.retry import Outage
from countersink.schedules import runs
from countersink.schedules.jobs import JOBS, Registry, load
from countersink.schedules.options import JobsOptions
from countersink.schedules.report import (
    LOGGER,
    ProcessVitals,
    ScheduleAction,
    adopt,
)
from countersink.schedules.rq_worker import Process, RunWorker, connect_queue, install
from countersink.schedules.runs import Attempt
from countersink.stream.connection import connect
from countersink.stream.errors import translate

DONE: Final = 0
_AGAIN_S: Final = 0.5
"""Seconds after RQ's worker ended by itself."""
_TELL_EVERY_S: Final = 0.1
_IDLE_S: Final = 3.0
"""Seconds that a stop may take with no run at hand: more means that Redis does not answer."""


def run(
    options: JobsOptions,
    *,
    registry: Registry = JOBS,
    stop: Stop | None = None,
    vitals: ProcessVitals | None = None,
) -> int:
    """Run jobs until told to stop (SIGTERM, SIGINT or ``stop``); the exit status, 0.

    The run at hand is told to end; if it does not, its process is killed, and the run is taken over
    later. Servers that are away are waited for.

    Args:
        options: the settings.
        registry: the jobs.
        stop: to stop it from another thread.
        vitals: written while it runs, for whoever watches it.

    Raises:
        Misconfigured, StreamMisconfigured: one of the URLs cannot be used.
    """
    Settings.parse(options.mysql_url)
    name = process_name()
    log, stop = Log(LOGGER, process=name), stop or Stop()
    adopt(log, "rq.worker", "rq.job", "rq.queue", "rq.registry")
    # For the runs; they ask it, not this process.
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
                asked=supervisor.tell,
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
    """Keeps an RQ worker at work."""

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
        """Let one RQ worker work, until it has to stop or Redis is away."""
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
            self._outage.over()
            if self._worker is None:
                self._log(ScheduleAction.READY, "waiting for runs")
            self._worker = worker
            worker.work(logging_level=None)
        except Exception as error:
            # RQ's farewell to a Redis that is away; whatever else it is, a new worker helps.
            self._outage.failed(translate(error))
        if not self._stop.requested:
            self.kill()  # a run that nobody watches any more
            self._stop.wait(_AGAIN_S)

    def tell(self) -> None:
        """Tell the run at hand, and one that begins right now, to end; until the process has.

        Without a run nothing is lost by ending the process while it hangs in a call.
        """
        told, busy = 0, time.monotonic()
        while not self.ended:
            worker = self._worker
            if worker is not None and worker.horse_pid:
                busy = time.monotonic()
                if worker.horse_pid != told:
                    told = worker.horse_pid
                    worker.tell_horse()
            elif time.monotonic() - busy > _IDLE_S:
                self._log(ScheduleAction.STOPPED, "a job process ends, without a farewell to Redis")
                os._exit(DONE)
            time.sleep(_TELL_EVERY_S)

    def kill(self) -> None:
        """Kill the run at hand, if there is one; it is taken over later."""
        worker = self._worker
        if worker is not None and worker.horse_pid:
            self._log(
                ScheduleAction.STOP_FORCED,
                "the run at hand is killed: unless it is over, it is taken over later",
                level=logging.WARNING,
            )
            worker.end_horse()
            worker.wait_for_horse()


def shared_moment() -> ctypes.c_double:
    """A moment, at first infinite, that this process and those that it forks afterwards share."""
    moment = ctypes.c_double.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_double)))
    moment.value = inf
    return moment


@dataclass(repr=False, eq=False)
class RunHeartbeat:
    """Signs of life of an attempt that has begun, inside a ``with`` block.

    Args:
        held_until: where it tells the process that watches over the run until when the run is
            surely its own, on :func:`time.monotonic`, which is one clock for all processes of a
            host; infinite while there is no run.
        options: where, on a connection of its own, how long, and how often.
        attempt: whose.
        since: when it was begun at the earliest, on the same clock.
    """

    _held_until: ctypes.c_double
    _options: JobsOptions
    _attempt: Attempt
    _since: float

    def __post_init__(self) -> None:
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the run is another's, or may be: nobody was told of this one for long."""
        return self._lost or time.monotonic() >= self._held_until.value

    def __enter__(self) -> Self:
        self._held_until.value = self._since + self._options.silent_s
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the signs of life."""
        self._ended.set()
        # Joined for good order; one that hangs ends with its short time-out.
        self._thread.join(2 * self._options.beat_every_s)
        self._held_until.value = inf

    def _run(self) -> None:
        session = brief_session(self._options.mysql_url)
        while not self._ended.wait(self._options.beat_every_s):
            begun = time.monotonic()
            with suppress(StoreError):  # again soon; `lost` says when it is too late
                if not runs.beat(session(), self._attempt):
                    self._lost = True
                    break
                self._held_until.value = begun + self._options.silent_s
        session.close()
