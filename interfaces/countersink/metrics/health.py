"""``Health``: a process is stuck after ``LIVES_WITHIN_S``, unready if a server does not answer in
time, with the text; states in which a process is unready are in ``health()`` of its command in
``cli/commands/``.

Servers are asked for that, who may hang: bounded, and not again for every scrape.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Generic, TypeVar

from countersink.database.session import connect as connect_mysql
from countersink.metrics.table import Sample, Samples
from countersink.stream.connection import cluster_of, mapped
from countersink.stream.connection import connect as connect_redis

LIVES_WITHIN_S: Final = 300.0
"""Seconds without a move of the main loop after which a process counts as stuck. Waiting for a
server that is away moves it every few seconds, and a frozen one is given up after its time-out: a
restart would help neither."""
ANSWER_S: Final = 1.0
"""Seconds that a server has to answer."""
WITHIN_S: Final = 1.5
"""Seconds that whoever asks waits at most, whatever hangs."""
KEPT_S: Final = 1.0
"""Seconds that an answer is good for."""
LONGEST_S: Final = 60.0
"""Seconds that one is waited for, and is good for because it took long to ask, as a rule."""
Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """Asks again when the last answer is old, once however many want it. For any thread.

    Args:
        ask: what to call; it may raise, and it may hang.
        kept_s: seconds that an answer is good for, however many want it; an error as well.
        within_s: seconds after which whoever waits gives up, and others do not begin to wait.
        rest: what takes long to ask is good for so many times as long,
        longest_s: but for so many seconds at most: its server may have stood still for a moment.

    Attributes:
        last: what was asked last; None: nothing yet.
    """

    def __init__(
        self,
        ask: Callable[[], Answer],
        *,
        kept_s: float,
        within_s: float = LONGEST_S,
        rest: float = 0.0,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._within_s = within_s
        self._rest = rest
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self.last: Future[Answer] | None = None
        self._asked_at = 0.0
        self._good_until = 0.0

    def get(self) -> Answer:
        """The answer.

        Raises:
            TimeoutError: it does not come in time; or as ``ask``.
        """
        asked = self.start()
        return asked.result(max(0.0, self._asked_at + self._within_s - time.monotonic()))

    def start(self) -> Future[Answer]:
        """Ask, unless the last answer is good or somebody asks already; wait for nothing."""
        with self._lock:
            now = time.monotonic()
            if self.last is not None and not (self.last.done() and now >= self._good_until):
                return self.last
            asked: Future[Answer] = Future()
            asked.set_running_or_notify_cancel()  # so that no waiter can cancel it
            # On a thread: it may hang for longer than anybody waits. There is just this one.
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
        rest = min(self._rest * (now - began), self._longest_s)
        self._good_until = now + max(self._kept_s, rest)


Probe = CachedAnswer[bool]
Probes = Mapping[str, Probe]
"""By server: ``redis``, ``mysql``."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The health of a process: its samples, the servers it needs, whether it lives, why it is not
    ready. Everything is asked when somebody asks.

    Attributes:
        process: the command, such as ``worker``.
        samples: its own figures.
        probes: the servers that it uses.
        needs: those of them that it cannot do its part without; None: all.
        moved: when its main loop last moved, on :func:`time.monotonic`; None: it has none that
            could be stuck.
        busy: why it is not ready although its servers answer, such as ``starting``; empty: it is.
    """

    process: str
    samples: Callable[[], Samples]
    probes: Probes = field(default_factory=dict)
    needs: frozenset[str] | None = None
    moved: Callable[[], float] | None = None
    busy: Callable[[], str] = lambda: ""

    def lives(self) -> bool:
        """Whether its main loop moves."""
        return self.moved is None or time.monotonic() - self.moved() < LIVES_WITHIN_S

    def unready(self) -> str:
        """Why it is not ready, in words; empty if it is."""
        needed = {name: each for name, each in self.probes.items() if self._needs(name)}
        return self._unready(answering(needed))

    def everything(self) -> Samples:
        """All samples: those that every process has, and its own."""
        up = answering(self.probes)
        yield Sample(
            "countersink_build_info", 1, {"version": installed_version(), "process": self.process}
        )
        yield Sample("countersink_ready", float(not self._unready(up)))
        for server, answers in up.items():
            yield Sample("countersink_server_up", float(answers), {"server": server})
        yield from self.samples()

    def _needs(self, server: str) -> bool:
        return self.needs is None or server in self.needs

    def _unready(self, up: Mapping[str, bool]) -> str:
        if not self.lives():
            return "stuck"
        away = [name for name, answers in up.items() if not answers and self._needs(name)]
        return f"{' and '.join(away)} did not answer" if away else self.busy()


@cache
def installed_version() -> str:
    """Of countersink; empty in a source tree that is not installed."""
    try:
        return version("countersink")
    except PackageNotFoundError:
        return ""


def probes(*, redis: str | None = None, mysql: str | None = None) -> Probes:
    """Probes of the servers at these URLs.

    Raises:
        StreamMisconfigured: the URL cannot be used.
    """
    asked: dict[str, Callable[[], bool]] = {}
    if redis is not None:
        client = connect_redis(redis, socket_timeout=ANSWER_S, client_name="countersink-probe")

        cluster = cluster_of(client)

        def ping() -> bool:
            with mapped():
                # Of a cluster any node is good enough: those that were lost are asked last.
                return bool(client.ping() if cluster is None else cluster.topology(0.0).masters)

        asked["redis"] = ping
    if mysql is not None:
        asked["mysql"] = partial(_is_there, mysql)
    return {
        name: CachedAnswer(ask, kept_s=KEPT_S, within_s=WITHIN_S) for name, ask in asked.items()
    }


def _is_there(mysql: str) -> bool:
    with connect_mysql(mysql, read_timeout=ANSWER_S) as session:  # the database is there
        return bool(session.query("SELECT 1"))


def answering(probes: Probes) -> dict[str, bool]:
    """Which of them answer; all are asked at the same time."""
    for probe in probes.values():
        probe.start()
    return {name: _answers(probe) for name, probe in probes.items()}


def _answers(probe: Probe) -> bool:
    try:
        return probe.get()
    except Exception:
        return False  # whatever it is; who needs the server says what ails it
