"""Servers, proxies, processes and books of one fault scenario."""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from countersink.backfill.spans import LINES
from countersink.database.errors import StoreError
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect, script
from countersink.stream.entry import Sealed
from countersink.stream.errors import StreamError
from countersink.stream.names import GROUP
from countersink.worker import WorkerOptions, run
from tests.support.entries import again_and_again, compacted
from tests.support.forked import ForkedChildren
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.proxies import Deed, MySQLProxy, Phase, RedisProxy, Request, Rule
from tests.support.servers import MySQLServer, RedisServer
from tests.support.traffic import STREAM, Traffic, backlog, now_ms, send
from tests.support.waiting import eventually

ACKNOWLEDGE = "acknowledge"
"""The proxy's kind for the script that acknowledges."""
ROWS_PER_ENTRY = 20
APPLIED_WITHIN = 60.0
"""Seconds in which a backlog must be gone: far more than it takes, for a busy machine."""

FAST_WORKER: dict[str, Any] = {
    "batch_entries": 20,
    "batch_wait_ms": 50,
    "claim_idle_ms": 400,
    "claim_every_s": 0.1,
}
"""Options with which a worker looks after lost entries at once, not after a minute."""
CLAIMS_LATE: dict[str, Any] = {"claim_every_s": 600.0}
"""Options with which a worker looks for lost entries once, at its start: a recovery that a scenario
is about must not be done for it by the sweep."""


class Stage:
    """What a scenario plays on; a context manager that leaves no process and no thread behind.

    The proxies stand before both servers; `worker` starts one behind them. Scenarios may run one
    after another on the same stage: `finish` then holds the tables against all they sent.
    """

    def __init__(
        self,
        redis_server: RedisServer,
        mysql_server: MySQLServer,
        mysql_url: str,
        seed: int,
        directory: Path,
    ) -> None:
        self.redis_server = redis_server
        self.mysql_server = mysql_server
        self.mysql_url = mysql_url
        self.seed = seed
        self.directory = directory
        """For spools and files of the scenario; empty at first."""
        self.traffic = Traffic(seed)
        self.random = self.traffic.random
        self.redis = connect(redis_server.url)
        self.redis_proxy = RedisProxy.to(redis_server.url)
        self.mysql_proxy = MySQLProxy.to(mysql_url)
        self.children = ForkedChildren()
        self.chunk_lines = LINES
        """Of a log, in one transaction of a backfill."""
        self.dead: set[tuple[str, int]] = set()
        """Dead letters there must be: (entry id, position)."""
        self.faults: Counter[str] = Counter()
        """Faults that no proxy counts: of servers and apps."""
        for name, kind in (("acknowledge", ACKNOWLEDGE), ("read", "XREADGROUP")):
            self.redis_proxy.name_script(hashlib.sha1(script(name).encode()).hexdigest(), kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            print(f"seed {self.seed}")
        self.children.__exit__(kind)
        self.redis_proxy.close()
        self.mysql_proxy.close()
        self.redis.close()

    def all_faults(self) -> Counter[str]:
        """Every fault so far, by kind."""
        return self.faults + self.redis_proxy.faults + self.mysql_proxy.faults

    def url(self, *, proxied: bool) -> str:
        """The database's, by way of the proxy or not."""
        return self.mysql_proxy.url(self.mysql_url) if proxied else self.mysql_url

    def forget(self) -> None:
        """Take all rules away."""
        self.redis_proxy.forget()
        self.mysql_proxy.forget()

    # -- input ---------------------------------------------------------------------------------

    def entry(self, rows: int = ROWS_PER_ENTRY) -> Sealed:
        """A new entry, booked."""
        return self.traffic.entry(now_ms(self.redis), rows)

    def send(self, entries: int, rows: int = ROWS_PER_ENTRY) -> list[Sealed]:
        """Seal and send so many entries, straight to Redis."""
        made = [self.entry(rows) for _ in range(entries)]
        send(self.redis, *made)
        return made

    @contextmanager
    def trickle(self) -> Iterator[None]:
        """Keep sending entries from a thread, each again and again until Redis has answered."""
        traffic = Traffic(self.random.getrandbits(32))
        at = now_ms(self.redis)

        def send_one() -> None:
            time.sleep(0.005)
            entry = traffic.entry(at)
            while True:
                try:
                    send(sender, entry)
                    return
                except StreamError:
                    time.sleep(0.05)

        try:
            with (
                connect(self.redis_server.url, socket_timeout=2.0) as sender,
                again_and_again(send_one),
            ):
                yield
        finally:
            self.traffic.expected.update(traffic.expected)
            self.traffic.increments += traffic.increments

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Compact all buckets again and again from a thread, whatever else happens."""

        def compact_all() -> None:
            time.sleep(0.02)
            try:
                compacted(self.mysql_url, rows=200, share=0.5)
            except StoreError:
                time.sleep(0.2)  # the server is away, or frozen

        with again_and_again(compact_all):
            yield

    # -- workers -------------------------------------------------------------------------------

    def worker(self, *, proxied: bool = True, **options: object) -> Child:
        """Start a worker that looks after lost entries quickly."""
        return self.children.worker(
            self.redis_proxy.url(self.redis_server.url) if proxied else self.redis_server.url,
            self.url(proxied=proxied),
            **{**FAST_WORKER, **options},
        )

    def victim_at(
        self, kind: str, phase: Phase, deed: Deed, do: str, **options: Any
    ) -> tuple[Child, Rule]:
        """Start a worker to which `do` (kill, stop, terminate) is done exactly at this point."""
        start, label = partial(self.worker, **options), f"worker {do}"
        return self.struck(start, kind, phase, deed, do, label=label)

    def struck(
        self, start: Callable[[], Child], kind: str, phase: Phase, deed: Deed, do: str, **more: Any
    ) -> tuple[Child, Rule]:
        """The same with any process; ``more`` is of the rule."""
        victim: Future[Child] = Future()

        def strike(_request: Request) -> None:
            getattr(victim.result(30), do)()

        rule = self.when(kind, phase, deed, call=strike, **more)
        victim.set_result(start())
        return victim.result(), rule

    def when(self, kind: str, phase: Phase, deed: Deed, **more: Any) -> Rule:
        """Add a rule to the proxy that knows this kind (capitals and scripts: Redis)."""
        if kind == "XREADGROUP" and phase is Phase.AFTER and "where" not in more:
            more["where"] = _has_entries
        if kind.isupper() or kind == ACKNOWLEDGE:
            return self.redis_proxy.when(kind, phase, deed, **more)
        return self.mysql_proxy.when(kind, phase, deed, **more)

    # -- looking -------------------------------------------------------------------------------

    def backlog(self) -> int:
        """Entries in the stream."""
        return backlog(self.redis)

    def pending(self) -> int:
        """Entries delivered and not acknowledged."""
        if not self.redis.exists(STREAM):
            return 0
        groups: Any = self.redis.xinfo_groups(STREAM)
        return sum(
            int(group["pending"]) for group in groups if group["name"] in (GROUP, GROUP.encode())
        )

    def wait_applied(self) -> None:
        """Wait until the stream is empty: whoever lives has applied and acknowledged all."""
        eventually(
            lambda: self.backlog() == 0,
            APPLIED_WITHIN,
            message=lambda: f"{self.backlog()} entries left, {self.pending()} of them pending",
        )

    def wait_for(self, event: threading.Event, what: str, child: Child) -> None:
        """Wait for an event of a rule on `child`'s requests."""
        if not event.wait(APPLIED_WITHIN):
            seen = [*self.redis_proxy.seen, *self.mysql_proxy.seen][-60:]
            raise AssertionError(
                f"never came: {what} (seed {self.seed})\n{child.output()}\n"
                + "\n".join(f"{request.connection} {request.text[:100]}" for request in seen)
            )

    def wait_acted(self, rule: Rule, times: int, child: Child) -> None:
        """Wait until a rule has acted so many times on `child`'s requests."""
        eventually(lambda: rule.acted >= times, APPLIED_WITHIN, message=child.output)

    def end(self, child: Child) -> None:
        """SIGTERM; the worker must end by itself and leave nothing pending with it."""
        child.terminate()
        assert child.wait() == 0, child.output()

    def check(self, note: str = "") -> None:
        """Hold the tables against the books."""
        with Oracle(self.mysql_url) as oracle:
            oracle.check(self.traffic.expected, f"{note} (seed {self.seed})")
            missing = self.dead - oracle.dead()
            assert not missing, f"dead letters missing {note} (seed {self.seed}): {missing}"

    def verify(self, note: str = "") -> None:
        """`countersink verify` finds nothing."""
        with open_session(self.mysql_url) as session:
            differences = verify(session).differences
        assert not differences, f"{note} (seed {self.seed}): {differences}"

    def wait_applied_by_worker(self) -> None:
        """Apply what there is with a worker nobody disturbs, in this process; it then ends."""
        options = WorkerOptions(
            redis_url=self.redis_server.url, mysql_url=self.mysql_url, drain=True, **FAST_WORKER
        )
        assert run(options) == 0

    def finish(self, note: str = "") -> None:
        """Apply what is left with a worker nobody disturbs, then hold the tables to the books."""
        self.forget()
        self.wait_applied_by_worker()
        assert self.backlog() == 0
        assert self.pending() == 0
        self.check(note)


def _has_entries(_request: Request, reply: bytes) -> bool:
    return reply[:2] not in (b"*-", b"$-", b"-N", b"-U") and b"rows" in reply
