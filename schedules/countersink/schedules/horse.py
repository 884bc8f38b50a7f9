"""RQ's worker as the job process needs it: told to stop without a signal handler of its own, and
not ended by a Redis that is away for a while.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

import redis
from rq import Worker
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer

from countersink.schedules.logs import Action
from countersink.schedules.patience import Outage
from countersink.schedules.perform import Process
from countersink.schedules.queue import RunJob, make_queue
from countersink.schedules.stopping import SIGNALS, Stop
from countersink.schedules.vitals import Vitals

IDLE_S: Final = 1
"""Seconds that one read of the queue waits: a stop goes unnoticed so long. RQ takes whole ones."""
_TTL_S: Final = IDLE_S + 15
"""RQ reads for 15 s less than this."""
MONITOR_S: Final = 5
"""Seconds between two looks at a work horse, and two signs of life of it in Redis; fewer where a
lease is as short."""


class Gone(StopRequested):  # type: ignore[misc] # RQ is checked as if untyped
    """Redis was lost while the worker had nothing to do; RQ ends its work for it without a word."""


class RunWorker(Worker):  # type: ignore[misc] # RQ is checked as if untyped
    """Takes runs from the queue, and lets a forked work horse do each.

    Args:
        client: RQ's Redis.
        name: that no worker had before.
        process: handed to the work horses.
        stop: when to end.
        outage: where a Redis that is away is announced.
        beat: called with what the process does, every few seconds.
        vitals: where started runs are counted.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        process: Process,
        stop: Stop,
        outage: Outage,
        beat: Callable[[str], None],
        vitals: Vitals,
    ) -> None:
        super().__init__(
            [make_queue(client)],
            name=name,
            connection=client,
            job_class=RunJob,
            serializer=JSONSerializer,
            worker_ttl=_TTL_S,
            job_monitoring_interval=max(1, min(MONITOR_S, int(process.options.lease_s))),
            log_job_description=False,
        )
        self._process = process
        self._asked = stop
        self._outage = outage
        self._beat = beat
        self._vitals = vitals

    def tell_horse(self) -> None:
        """Ask the work horse, if there is one, to end in good order; from any thread."""
        if self.horse_pid:
            try:
                os.kill(self.horse_pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has just ended

    def end_horse(self) -> None:
        """Kill the work horse and whatever it started; from any thread."""
        pid = self.horse_pid
        if pid:
            for kill in (os.killpg, os.kill):  # it may not lead its group yet
                try:
                    kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> Any:
        """The next job; in short reads, so that a stop is noticed."""
        while True:
            self._beat("idle")
            if self._asked.requested:
                raise StopRequested
            found = super().dequeue_job_and_maintain_ttl(IDLE_S, IDLE_S)
            self._outage.over()
            if found is not None:
                return found

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's; outside of a run a lost connection ends :meth:`work`, whose own way of waiting
        would not notice a stop.
        """
        try:
            super().heartbeat(timeout, pipeline)
        except redis.RedisError as error:
            if not self.horse_pid:
                raise Gone from error

    def set_current_job_working_time(self, *args: Any, **kwargs: Any) -> None:
        """RQ's; a Redis that is away does not end the watch over a run."""
        self._tolerant(lambda: super(RunWorker, self).set_current_job_working_time(*args, **kwargs))

    def maintain_heartbeats(self, job: Any) -> None:
        """RQ's; a Redis that is away does not end the watch over a run. A work horse that hangs is
        killed once its run may have been taken over for long.
        """
        process = self._process
        if time.monotonic() > process.held.until + process.options.lease_s:
            process.held.until = inf  # once
            process.log(
                Action.RUN_LOST,
                "the run at hand has lost its lease and does not end: its process is killed",
                level=logging.WARNING,
                run=job.id,
            )
            self.end_horse()
            return
        self._beat("running")
        self._tolerant(lambda: super(RunWorker, self).maintain_heartbeats(job))

    def fork_work_horse(self, job: Any, queue: Any) -> None:
        """RQ's, with signals held back until the child has its own handlers."""
        self._beat("running")
        self._vitals.runs += 1
        self._process.held.until = inf
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def setup_work_horse_signals(self) -> None:
        """In the child: SIGTERM asks the run to end in good order, Ctrl-C is the parent's."""
        # The pipe is the parent's: a number written to it would be a signal to the parent.
        signal.set_wakeup_fd(-1)
        process = self._process
        process.told = self._asked.requested

        def told(*_: object) -> None:
            process.told = True

        signal.signal(signal.SIGTERM, told)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def subscribe(self) -> None:
        """Nothing: this process takes no commands from Redis."""

    def unsubscribe(self) -> None:
        """Nothing."""

    def _install_signal_handlers(self) -> None:
        """Nothing: the process has its own."""

    def _tolerant(self, work: Callable[[], object]) -> None:
        try:
            work()
        except redis.RedisError:
            time.sleep(0)  # said where the queue is read
