"""``Health``, the health of a process (alive, ready) and its samples; ``probes``, which ask Redis
and MySQL whether they answer; ``CachedAnswer``, the result of one call for many callers.

A server may hang. So a probe has a timeout, and its result serves all requests of the next second.
See ``health()`` of each command in ``cli/commands/`` for the states in which the process is not
ready.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Generic, TypeVar

from countersink.database.connection import connect as connect_mysql
from countersink.metrics.table import Sample, Samples
from countersink.stream.connection import cluster_of, mapped, memory_use
from countersink.stream.connection import connect as connect_redis

STUCK_AFTER_S: Final = 300.0
"""Seconds without progress of the main loop after which a process counts as stuck. A process that
only waits for a server is not stuck, and a restart would not help it: its loop makes progress every
few seconds while the server is away, and a call to a server that hangs has a timeout."""
ANSWER_S: Final = 1.0
"""Seconds within which a server must answer a probe."""
WITHIN_S: Final = 1.5
"""Seconds that a caller waits for the result of a probe."""
KEPT_S: Final = 1.0
"""Seconds for which the result of a probe is kept for further callers."""
LONGEST_S: Final = 60.0
"""Default of two limits in seconds: how long a caller waits, and how long a slow result is kept."""
Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """The result of a function, kept for some time and shared by all callers. The function runs in
    a thread, and never twice at the same time. Thread-safe.

    Args:
        ask: the function; it may raise, and it may hang.
        kept_s: minimum seconds for which a result, or an error, is kept after its call has ended.
        within_s: seconds after the start of a call at which :meth:`get` stops waiting for it.
        kept_factor: a result is kept for longer than ``kept_s`` if its call took long: for the
            duration of the call times this factor.
        max_kept_s: maximum seconds for which a result is kept because of ``kept_factor``. The
            server may have been slow just once.

    Attributes:
        last: the Future of the last call, running or ended; None before the first call.
    """

    def __init__(
        self,
        ask: Callable[[], Answer],
        *,
        kept_s: float,
        within_s: float = LONGEST_S,
        kept_factor: float = 0.0,
        max_kept_s: float = LONGEST_S,
    ) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._within_s = within_s
        self._kept_factor = kept_factor
        self._max_kept_s = max_kept_s
        self._lock = threading.Lock()
        self.last: Future[Answer] | None = None
        self._asked_at = 0.0
        self._kept_until = 0.0

    def get(self) -> Answer:
        """Return the kept result. If there is none, wait for the call that is running, or start a
        call and wait for it; return its result.

        Raises:
            TimeoutError: the call has no result ``within_s`` seconds after its start. The call
                goes on.
            Exception: ``ask`` raised it. An error is kept as a result is, and raised for each
                caller.
        """
        asked = self.start()
        return asked.result(max(0.0, self._asked_at + self._within_s - time.monotonic()))

    def start(self) -> Future[Answer]:
        """Return the Future of the call that is running, or whose result is kept. If there is none,
        start a call. Never wait for a result."""
        with self._lock:
            now = time.monotonic()
            if self.last is not None and not (self.last.done() and now >= self._kept_until):
                return self.last
            asked: Future[Answer] = Future()
            asked.set_running_or_notify_cancel()  # so that no waiter can cancel it
            # In a thread: the call may hang for longer than callers wait. There is one at most.
            threading.Thread(target=self._run, args=(asked,), name="asking", daemon=True).start()
            self.last, self._asked_at = asked, now
            return asked

    def _run(self, asked: Future[Answer]) -> None:
        began = time.monotonic()
        try:
            answer = self._ask()
        except Exception as error:
            self._keep(began)
            asked.set_exception(error)
        else:
            self._keep(began)
            asked.set_result(answer)

    def _keep(self, began: float) -> None:
        now = time.monotonic()
        seconds = min(self._kept_factor * (now - began), self._max_kept_s)
        self._kept_until = now + max(self._kept_s, seconds)


Probe = CachedAnswer[str]
"""The cached reason why a server cannot be used, such as ``is full``; empty if it can."""
Probes = Mapping[str, Probe]
"""Probes by the name of their server, ``redis`` or ``mysql``."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a process: whether it is alive, why it is not ready, and its samples.
    Everything is computed on request.

    Attributes:
        process: the command that the process runs, such as ``worker``.
        samples: yields the samples that only processes of this command have.
        probes: a probe for each server that the process uses, by name: ``redis``, ``mysql``.
        needs: returns whether the process needs the server of this name now in order to be ready.
        moved: returns the time at which the main loop last made progress, on the clock
            :func:`time.monotonic`; None where the process has no loop that could be stuck.
        busy: returns a reason why the process is not ready although its servers answer, such as
            ``starting``; an empty text if there is none.
    """

    process: str
    samples: Callable[[], Samples]
    probes: Probes = field(default_factory=dict)
    needs: Callable[[str], bool] = lambda server: True
    moved: Callable[[], float] | None = None
    busy: Callable[[], str] = lambda: ""

    def lives(self) -> bool:
        """Return whether the main loop has made progress in the last :data:`STUCK_AFTER_S` seconds;
        True if the process has no such loop."""
        return self.moved is None or time.monotonic() - self.moved() < STUCK_AFTER_S

    def unready_reason(self) -> str:
        """Return the reason why the process is not ready; an empty text if it is ready. The reason
        is the first of these that applies: ``stuck``; the servers that it needs and cannot use,
        such as ``redis did not answer``; the reason of ``busy``."""
        needed = {name: each for name, each in self.probes.items() if self.needs(name)}
        return self._unready_reason(probe_servers(needed))

    def all_samples(self) -> Samples:
        """Yield the samples that every process has, then those of ``samples``."""
        found = probe_servers(self.probes)
        yield Sample(
            "countersink_build_info", 1, {"version": installed_version(), "process": self.process}
        )
        yield Sample("countersink_ready", float(not self._unready_reason(found)))
        for server, trouble in found.items():
            yield Sample("countersink_server_up", float(not trouble), {"server": server})
        yield from self.samples()

    def _unready_reason(self, found: Mapping[str, str]) -> str:
        if not self.lives():
            return "stuck"
        unusable = [f"{name} {why}" for name, why in found.items() if why and self.needs(name)]
        return " and ".join(unusable) or self.busy()


@cache
def installed_version() -> str:
    """Return the installed version of countersink; empty in a source tree that is not installed."""
    try:
        return version("countersink")
    except PackageNotFoundError:
        return ""


def probes(*, redis: str | None = None, mysql: str | None = None, stores: bool = False) -> Probes:
    """Return a probe for each server whose URL is given, by the names ``redis`` and ``mysql``.
    A probe connects when it is asked. MySQL's URL is checked only then: with a wrong URL,
    MySQL counts as a server that does not answer.

    ``stores``: whether the process stores increments. If so, a full Redis cannot be used (``is
    full``). A Redis Cluster never counts as full: the process stores on another master.

    Raises:
        StreamMisconfigured: Redis's URL is not valid.
    """
    asked: dict[str, Callable[[], str]] = {}
    if redis is not None:
        client = connect_redis(redis, socket_timeout=ANSWER_S, client_name="countersink-probe")

        cluster = cluster_of(client)

        def use_redis() -> str:
            if cluster is not None:
                with mapped():
                    # Any node will do: nodes that failed before are asked last.
                    return "" if cluster.topology(0.0).masters else "has no master"
            return "is full" if memory_use(client).full and stores else ""

        asked["redis"] = use_redis
    if mysql is not None:
        asked["mysql"] = partial(_select_1, mysql)
    return {
        name: CachedAnswer(ask, kept_s=KEPT_S, within_s=WITHIN_S) for name, ask in asked.items()
    }


def _select_1(mysql: str) -> str:
    with connect_mysql(mysql, read_timeout=ANSWER_S) as session:  # fails without the database
        session.query("SELECT 1")
    return ""


def probe_servers(probes: Probes) -> dict[str, str]:
    """Return for each server why it cannot be used, or an empty text if it can. Without an answer
    within :data:`WITHIN_S`, or with an error, the reason is ``did not answer``. All servers are
    probed at the same time; results of the last :data:`KEPT_S` seconds are used again."""
    for probe in probes.values():
        probe.start()
    return {name: _trouble(probe) for name, probe in probes.items()}


def _trouble(probe: Probe) -> str:
    try:
        return probe.get()
    except Exception:
        return "did not answer"  # the part that needs the server logs the error
