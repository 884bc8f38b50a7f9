"""What is attacked: the web process, its memory, its log, and traffic beside the attacks."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from countersink.database.sessions import open_tables
from countersink.store import Store, api_keys
from countersink.worker import WorkerOptions, run
from tests.support.processes import Child, Children
from tests.web.process import WebProcess, resident

LIVE = "live"
"""The counter of the traffic that must not be harmed."""
CONNECTIONS = 300
"""At once, at most."""
FAILURES = 10
"""Wrong keys that one address may show in a minute."""
OPTIONS = (
    *("--request-timeout-s", "2"),
    *("--public-counter", "public"),
    *("--public-counter", "public_badges"),
    *("--public-counter", "public_*"),
    *("--max-connections", str(CONNECTIONS)),
    *("--rate-per-address", "0"),
    *("--failures-per-minute", str(FAILURES)),
    *("--log-format", "json"),
)
MOST_MEMORY = 96 << 20
"""Bytes that an attack may make the process take besides what it had."""
PAUSE_S = 0.002
"""Between two requests of it: attackers need a processor, too."""
_PEAK = "5"
"""Written to ``clear_refs``, it sets the peak of resident memory to what is used now (proc(5))."""


@dataclass
class Target:
    """A running server.

    Attributes:
        child: its process.
        url: of its root, without a slash at the end.
        redis_url, mysql_url: the servers behind it.
        key: with all scopes.
        accepted: increments of live traffic that were accepted.
    """

    child: Child
    url: str
    redis_url: str
    mysql_url: str
    key: str = field(repr=False)
    accepted: int = 0

    @classmethod
    def start(cls, children: Children, redis_url: str, mysql_url: str, *options: str) -> Target:
        """Start it, with more ``options``; keys are needed."""
        with open_tables(mysql_url) as session:
            _, key = api_keys.create(session, "owner", api_keys.SCOPES)
        process = WebProcess.start(children, redis_url, mysql_url, *OPTIONS, *options)
        return cls(process.child, process.url, redis_url, mysql_url, key)

    @property
    def host(self) -> str:
        """Where it listens."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Where it listens."""
        return urlsplit(self.url).port or 0

    def apply(self) -> None:
        """Let a worker apply everything that the server has accepted, while it runs."""
        if self.child.running:
            assert self._increment("?wait=stored") == "200"
            self.accepted += 1
        options = WorkerOptions(redis_url=self.redis_url, mysql_url=self.mysql_url, drain=True)
        assert run(options) == 0

    def live_total(self) -> int:
        """What the tables say of the live traffic."""
        with Store(self.mysql_url) as store:
            return store.totals.total(LIVE)

    def forget_peak(self) -> None:
        """From now on :meth:`peak` is of what comes."""
        Path(f"/proc/{self.child.pid}/clear_refs").write_text(_PEAK)

    def peak(self) -> int:
        """The most resident memory since then, in bytes."""
        return resident(self.child, "VmHWM")

    def secrets(self) -> list[bytes]:
        """What it must tell nobody: the secret of the key, and the passwords of both servers."""
        passwords = [urlsplit(url).password for url in (self.redis_url, self.mysql_url)]
        return [word.encode() for word in (self.key.split("_", 2)[2], *passwords) if word]

    def open_files(self) -> int:
        """Descriptors that it has open: connections, mainly."""
        return len(list(Path(f"/proc/{self.child.pid}/fd").iterdir()))

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Nothing that is done in the block breaks it, fills its memory, keeps its live traffic
        out, or makes it talk."""
        self.forget_peak()
        before = self.peak()
        with self.live_traffic():
            yield
        assert self.child.running, self.child.output()[-3000:]
        assert self.peak() - before < MOST_MEMORY
        log = self.child.output().encode()
        for word in (b"Traceback", b"request_failed", *self.secrets()):
            assert word not in log, log[-3000:]

    def end(self) -> None:
        """It ends when told to, and all live traffic is counted, exactly."""
        self.child.terminate()
        assert self.child.wait() == 0
        self.apply()
        assert self.live_total() == self.accepted > 0

    @contextmanager
    def live_traffic(self) -> Iterator[None]:
        """Increments by a client that behaves, one after another until the end of the block: each
        is accepted at once, whatever goes on beside it."""
        stopping = threading.Event()
        answers: list[str] = []

        def send() -> None:
            try:
                while not answers or not stopping.wait(PAUSE_S):
                    answers.append(self._increment())
                    self.accepted += answers[-1] == "202"
            except OSError as error:
                answers.append(repr(error))

        thread = threading.Thread(target=send, name="live traffic")
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
        assert set(answers) == {"202"}, sorted(set(answers))

    def _increment(self, query: str = "") -> str:
        """On a connection of its own: new ones must get in, too."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(
                "POST",
                f"/v1/increments{query}",
                json.dumps({"counter": LIVE}),
                {"X-API-Key": self.key, "Content-Type": "application/json"},
            )
            return str(connection.getresponse().status)
        finally:
            connection.close()
