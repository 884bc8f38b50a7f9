"""Workers on a thread of the test's own process: the same code as the command's, stoppable without
a signal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import redis

from countersink.worker import Stop, Vitals, WorkerOptions, run
from countersink.worker.report import LOGGER
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually

AWAY = "mysql://root@127.0.0.1:1/away"
"""Where no server is."""


class Running:
    """A worker on a thread; a context manager that stops it."""

    def __init__(
        self,
        redis_url: str,
        mysql_url: str,
        *,
        reached: Callable[[str], object] = lambda point: None,
        vitals: Vitals | None = None,
        **options: Any,
    ) -> None:
        self._reached = reached
        self._vitals = vitals
        self.options = WorkerOptions(redis_url=redis_url, mysql_url=mysql_url, **options)
        self.stop = Stop()
        self.status: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker under test", daemon=True)

    def _run(self) -> None:
        try:
            self.status = run(
                self.options, stop=self.stop, on_point=self._reached, vitals=self._vitals
            )
        except BaseException as error:  # shown by join()
            self.error = error

    def start(self) -> Self:
        """Start it."""
        self._thread.start()
        return self

    def join(self, timeout: float = 60.0) -> int:
        """Wait for its end; its exit status."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the worker did not end within {timeout} s"
        if self.error is not None:
            raise self.error
        assert self.status is not None
        return self.status

    def end(self) -> int:
        """Ask it to stop and wait for its end; its exit status."""
        self.stop.request()
        return self.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop.request()
        self._thread.join(60.0)
        if kind is None and self.error is not None:
            raise self.error


@contextmanager
def watched(
    redis_url: str, mysql_url: str, **options: Any
) -> Iterator[tuple[Records, Running, Oracle]]:
    """What a running worker logs, the worker, and a look into its tables."""
    with (
        Records() as records,
        Running(redis_url, mysql_url, **options) as worker,
        Oracle(mysql_url) as oracle,
    ):
        yield records, worker, oracle


@contextmanager
def migrated_by_a_newer_version(oracle: Oracle) -> Iterator[None]:
    """For the time of the block; afterwards the tables are this version's again."""
    oracle.rows("INSERT INTO schema_version VALUES (9999, 'from the future', NOW(3))")
    try:
        yield
    finally:
        oracle.rows("DELETE FROM schema_version WHERE version = 9999")


def fill(client: redis.Redis, traffic: Traffic, count: int = 20) -> list[str]:
    """Send entries; their ids in the stream."""
    return send(client, *(traffic.entry(now_ms(client)) for _ in range(count)))


@contextmanager
def feeding(feed: Callable[[], object]) -> Iterator[None]:
    """Call a function again and again in a thread, until the end of the block."""
    enough = threading.Event()

    def go_on() -> None:
        while not enough.is_set():
            feed()

    feeder = threading.Thread(target=go_on)
    feeder.start()
    try:
        yield
    finally:
        enough.set()
        feeder.join()


def settled(oracle: Oracle, traffic: Traffic) -> bool:
    """Whether all of ``traffic``, and nothing else, was counted."""
    return not oracle.differences(traffic.expected)


def count(client: redis.Redis, oracle: Oracle, traffic: Traffic, entries: int = 20) -> None:
    """Send entries, and wait until a running worker has counted all of ``traffic``."""
    fill(client, traffic, entries)
    eventually(lambda: settled(oracle, traffic))


def check(mysql_url: str, traffic: Traffic) -> None:
    """All of ``traffic``, and nothing else, was counted, once."""
    with Oracle(mysql_url) as oracle:
        oracle.check(traffic.expected)


def drain(redis_url: str, mysql_url: str, **options: Any) -> int:
    """Run a worker until nothing is left; its exit status."""
    return Running(redis_url, mysql_url, drain=True, **options).start().join()


class Records:
    """The records that workers, or who else has the logger, log inside the block."""

    def __init__(self, logger: logging.Logger = LOGGER) -> None:
        self._logger = logger
        self.records: list[logging.LogRecord] = []
        self._handler = logging.Handler(logging.DEBUG)
        self._handler.emit = self.records.append  # type: ignore[method-assign, assignment]

    def actions(self) -> list[str]:
        """Their actions, in order."""
        return [str(getattr(record, "action", None)) for record in list(self.records)]

    def fields(self, action: str) -> list[dict[str, Any]]:
        """The fields of the records with this action."""
        return [
            getattr(record, "fields", {})
            for record in list(self.records)
            if getattr(record, "action", None) == action
        ]

    def __enter__(self) -> Self:
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._level)


@dataclass(frozen=True)
class Place:
    """The servers of a test, and workers that run on them."""

    redis_url: str
    client: redis.Redis
    mysql_url: str

    def running(self, **options: Any) -> Running:
        """A worker that is not started yet."""
        return Running(self.redis_url, self.mysql_url, **options)

    def watched(self, **options: Any) -> AbstractContextManager[tuple[Records, Running, Oracle]]:
        """What a running worker logs, the worker, and a look into its tables."""
        return watched(self.redis_url, self.mysql_url, **options)

    def drain(self, **options: Any) -> Records:
        """Run a worker until nothing is left; what it has logged."""
        with Records() as records:
            assert drain(self.redis_url, self.mysql_url, **options) == 0
        return records

    def fill(self, traffic: Traffic, count: int = 20) -> list[str]:
        """Send entries; their ids in the stream."""
        return fill(self.client, traffic, count)

    def check(self, traffic: Traffic) -> None:
        """All of ``traffic``, and nothing else, was counted, once."""
        check(self.mysql_url, traffic)
