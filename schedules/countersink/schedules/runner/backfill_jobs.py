"""Jobs in RQ's queue that help a backfill count its chunks: time limit, enqueueing, and the texts
why chunks were not counted.

Which pieces there are, and which of them are counted, is in MySQL alone: such a job may be lost,
killed, or run twice, and nothing is counted twice or not at all. So these jobs have no row in
``job_run``, and nobody tries them again but the process that runs the backfill.
"""

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Final

import redis

from countersink.runtime.errors import GivenUp
from countersink.runtime.log import error_text
from countersink.schedules.errors import RunFailed
from countersink.schedules.report import EVERY_S, ScheduleAction
from countersink.schedules.runner.rq import (
    PIECES,
    Process,
    connect_queue,
    enqueue,
    fetched,
    installed,
    is_timeout,
    make_queue,
    waits_or_works,
)
from countersink.store.errors import StoreError
from countersink.stream.connection import mapped
from countersink.stream.names import process_key
from countersink.stream.progress import TTL_S

LIMIT_S: Final = 300
"""Seconds that a job may take. It is told to end well before: scheduled runs wait in the same
queue. What is left then is another job's."""
_TOLD_AFTER: Final = 0.8
_WORK: Final = ("countersink.backfill.count.job", "work")
"""By name: backfill may import nothing from here, nor may it be imported."""
_SILENT_S: Final = 3 * EVERY_S
"""Seconds after which a job process that says nothing is not counted on."""
_MAX_SAID: Final = 500


def perform(run: int, rate: float | None, max_rejects: int | None, limit_s: int) -> str:
    """Count what is pending of a backfill; RQ calls this. Why not all of it, or nothing.

    Raises:
        RunFailed: RQ keeps it as failed, too.
    """
    process = installed()
    log = partial(process.log, job="backfill", run=run)
    until = time.monotonic() + _TOLD_AFTER * limit_s

    def enough() -> bool:
        return process.ending or time.monotonic() >= until

    log(ScheduleAction.RUN_STARTED, "pieces of a backfill are counted")
    work = partial(
        load(),
        process.options.mysql_url,
        run,
        stop=enough,
        rate=rate,
        max_rejects=max_rejects,
    )
    try:
        said = process.retried(work, enough, lambda: process.ending)
    except (GivenUp, StoreError) as error:
        log(ScheduleAction.RUN_FAILED, "MySQL did not do its part", error=error_text(error))
        raise RunFailed(f"MySQL did not do its part: {error_text(error)}") from None
    except BaseException as error:
        raise RunFailed(_failure(process, run, error, limit_s)) from None
    if said:
        log(ScheduleAction.RUN_FAILED, "these pieces cannot be counted here", error=said)
    else:
        log(ScheduleAction.RUN_DONE, "no more pieces of a backfill are counted here")
    return said[:_MAX_SAID]


def load() -> Callable[..., str]:
    """What counts the pieces, its module imported now.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, name = _WORK
    found: Callable[..., str] = getattr(import_module(module), name)
    return found


def _failure(process: Process, run: int, error: BaseException, limit_s: int) -> str:
    if is_timeout(error):
        return f"one piece took longer than the limit of {limit_s} s"
    process.log(
        ScheduleAction.CRASHED,
        "an unexpected error while pieces of a backfill were counted",
        level=logging.ERROR,
        bug=error,
        job="backfill",
        run=run,
    )
    return type(error).__name__


class BackfillJobs:
    """The job processes as the process that runs a backfill sees them; its
    :class:`countersink.backfill.count.task.Team`. For one thread; a context manager.

    Args:
        url: of RQ's Redis.

    Raises:
        StreamMisconfigured: the URL cannot be used, or is that of a Redis Cluster.
    """

    def __init__(self, url: str) -> None:
        self._client: redis.Redis = connect_queue(url, client_name="countersink-backfill")
        self._queue = make_queue(self._client)
        self._token = secrets.token_hex(4)
        self._jobs: defaultdict[int, list[str]] = defaultdict(list)

    def __enter__(self) -> "BackfillJobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Jobs that wait find nothing to do, and end."""
        self._client.close()

    def processes(self) -> int:
        """How many job processes are there.

        Raises:
            StreamError: Redis does not serve.
        """
        with mapped():
            keys = list(self._client.scan_iter(process_key("jobs", "*"), count=1000))
            left = [self._client.pttl(key) for key in keys]
        # By how long the key has yet to live: clocks differ.
        least = (TTL_S - _SILENT_S) * 1000
        return sum(int(ms) > least for ms in left)

    def enqueue(self, run: int, number: int, terms: Mapping[str, object]) -> None:
        """Ask for one more process to count what is pending of a run.

        Args:
            terms: the arguments ``rate`` and ``max_rejects`` of :func:`perform`.

        Raises:
            StreamError: it may be in the queue or not.
        """
        name = f"backfill-{run}-{self._token}-{number}"
        self._jobs[run].append(name)
        enqueue(
            self._queue,
            PIECES,
            args=(run,),
            kwargs={**terms, "limit_s": LIMIT_S},
            timeout=LIMIT_S,
            description=f"pieces of backfill {run}",
            job_id=name,
        )

    def alive(self, run: int) -> int:
        """How many of the jobs that were enqueued here for a run wait or work.

        Raises:
            StreamError: Redis does not serve.
        """
        with mapped():
            waiting = set(self._queue.get_job_ids())
            found = [fetched(self._client, name) for name in self._jobs[run]]
        return sum(job is not None and waits_or_works(job, waiting) for job in found)

    def said(self, run: int) -> list[str]:
        """Why jobs that have ended counted no more; each reason once.

        Raises:
            StreamError: Redis does not serve.
        """
        reasons: dict[str, None] = {}
        with mapped():
            for name in self._jobs[run]:
                job = fetched(self._client, name)
                said = None if job is None else job.return_value()
                if isinstance(said, str) and said:
                    reasons[said] = None
        return list(reasons)
