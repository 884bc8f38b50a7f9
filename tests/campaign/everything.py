"""A round of `everything`: all processes at once as an operator runs them, faults drawn from a
seed, and the book beside the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import redis

from countersink.cli.private_server import free_port
from countersink.database.migrate import migrate
from countersink.store import Store
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect
from tests.campaign.app import TABLES
from tests.campaign.book import BREAKDOWNS, CAP, Book
from tests.campaign.crew import App, Crew, countersink, seller
from tests.campaign.sources import MAP, AccessLog, Files, Packets, Posts
from tests.campaign.strikes import Blow, Strikes, small_disk
from tests.soak.rounds import Outcome
from tests.support.entries import again_and_again
from tests.support.oracle import Oracle
from tests.support.ports import Ports
from tests.support.proxies import MySQLProxy, RedisProxy
from tests.support.proxies.http_proxy import HttpProxy
from tests.support.servers import MySQLServer, RedisServer
from tests.support.traffic import STREAM, backlog
from tests.support.waiting import eventually

RECOVERED_S: Final = 120.0
STRUCK_S: Final = 600.0
"""After so long no further fault begins."""
MEMORY_BYTES: Final = 1 << 20
"""Bytes that the application with little memory may keep there."""
SETTINGS: Final = {
    "COUNTERSINK_WORKER_CLAIM_IDLE_MS": "2000",
    "COUNTERSINK_WORKER_CLAIM_EVERY_S": "0.5",
    "COUNTERSINK_JOBS_COMPACT_SHARE": "1",
    "COUNTERSINK_JOBS_COMPACT_GRACE_S": "60",
    "COUNTERSINK_SCHEDULER_COMPACT_CRON": "*/3 * * * * *",
    "COUNTERSINK_SCHEDULER_RETENTION_CRON": "*/5 * * * * *",
    "COUNTERSINK_SCHEDULER_VERIFY_CRON": "*/7 * * * * *",
    "COUNTERSINK_SCHEDULER_PRUNE_CRON": "*/10 * * * * *",
    "COUNTERSINK_SCHEDULER_ALARMS_CRON": "off",
    "COUNTERSINK_SCHEDULER_LOOK_EVERY_S": "1",
    "COUNTERSINK_TAIL_ROTATE_WAIT": "1",
}
WORKERS: Final = ("worker 1", "worker 2")
JOBS: Final = ("jobs 1", "jobs 2")
APPS: Final = ("app 1", "app 2", "named app")


class Everything:
    """The servers, the processes and the book of a round; a context manager."""

    def __init__(
        self, redis_server: RedisServer, mysql_server: MySQLServer, seed: int, directory: Path
    ) -> None:
        self._redis_server, self._mysql_server = redis_server, mysql_server
        self._stack = ExitStack()
        self.book = Book()
        self.idle_s = 0.0
        self.mysql_url = mysql_server.url_for("campaign")
        migrate(self.mysql_url)
        enter = self._stack.enter_context
        self._client = enter(connect(redis_server.url, socket_timeout=2.0))
        self._redis_proxy = enter(RedisProxy.to(redis_server.url))
        self._mysql_proxy = enter(MySQLProxy.to(self.mysql_url))
        self._ports = Ports()
        self._stack.callback(self._ports.close)
        web, metrics = self._ports.draw(), self._ports.draw()
        statsd = free_port()  # not held: it listens by UDP
        self._http_proxy = enter(HttpProxy.to(web))
        self._disk = enter(small_disk(directory / "disk"))
        self._spool = self._disk / "spool"
        self._spool.mkdir()
        base = int(self._client.time()[0]) // 60
        self._settle_counters()
        environment = {
            "COUNTERSINK_REDIS_URL": self._redis_proxy.url(redis_server.url),
            "COUNTERSINK_MYSQL_URL": self._mysql_proxy.url(self.mysql_url),
            "COUNTERSINK_JOBS_REDIS_URL": redis_server.url,  # RQ is told by pub/sub
            "COUNTERSINK_PRODUCER_SPOOL": str(self._spool),
            "XDG_STATE_HOME": str(self._disk),
            **SETTINGS,
        }
        (directory / "map.toml").write_text(MAP)
        log = directory / "access.log"
        self._tail = ("tail", str(log), "--counter", "lines", "--position-file", str(self._disk))
        self.apps = {
            name: App(
                self.book,
                directory,
                {
                    "redis_url": environment["COUNTERSINK_REDIS_URL"],
                    "seed": seed,
                    "source": name,
                    "base": base,
                    "named": name == "named app",
                    "pause": 0.05,
                    "options": {"spool": str(self._spool)}
                    | ({"max_bytes_in_memory": MEMORY_BYTES} if name == "app 2" else {}),
                },
            )
            for name in APPS
        }
        ports = ("--port", str(statsd), "--metrics-port", str(metrics))
        url = environment["COUNTERSINK_MYSQL_URL"]
        commands = {
            **dict.fromkeys(WORKERS, countersink("worker")),
            "scheduler": countersink("scheduler"),
            **dict.fromkeys(JOBS, countersink("jobs")),
            "web": countersink("web", "--without-keys", "--port", str(web)),
            "statsd": countersink("statsd", "--map", str(directory / "map.toml"), *ports),
            "tail": countersink(*self._tail, "--follow"),
            **{name: app.command for name, app in self.apps.items()},
            "shop": seller(url),
        }
        self.crew = enter(Crew(commands, environment, self._ended))
        self._strikes = Strikes(
            seed,
            self.crew,
            {"MySQL": mysql_server, "Redis": redis_server},
            {"MySQL": self._mysql_proxy, "Redis": self._redis_proxy, "HTTP": self._http_proxy},
            self._client,
            self._disk,
        )
        post = f"{self._http_proxy.url}/v1/increments?wait=stored"
        self._packets = Packets(self.book, self.crew, statsd, f"http://127.0.0.1:{metrics}/metrics")
        self._stack.callback(self._packets.close)
        self._steps: list[Callable[[], object]] = [
            Posts(self.book, post, seed, base).step,
            self._packets.step,
            AccessLog(self.book, log).step,
            Files(self.book, self.crew, directory, 2_000).step,
            self._look,
        ]
        self._known, self._since = -1, 0.0

    def __enter__(self) -> Everything:
        return self

    def __exit__(self, *error: Any) -> None:
        self._redis_server.thaw()
        self._mysql_server.thaw()
        self._stack.__exit__(*error)

    def play(self, blows: Sequence[Blow]) -> Outcome:
        """All of it; what came of it."""
        for name in self.crew.commands:
            self.crew.start(name)
        with again_and_again(*self._steps) as going:
            self._get_on(going)
            self._since, self.idle_s = time.monotonic(), 0.0
            until = self._since + STRUCK_S
            for blow in blows:
                print(blow, flush=True)
                self._strikes.befall(blow)
                self._get_on(going, wholly=blow.settles)
                if not going() or time.monotonic() > until:
                    break  # a sender has failed: it is raised below
            self._get_on(going)
        self._finish()
        self._check()
        slowest_ns = max(app.slowest_ns for app in self.apps.values())
        return Outcome(
            events=self.book.events,
            faults=self._strikes.done,
            idle_s=self.idle_s,
            slowest_s=slowest_ns / 1e9,
        )

    # -- what goes on --------------------------------------------------------------------------

    def _settle_counters(self) -> None:
        with Store(self.mysql_url) as store, open_session(self.mysql_url) as session:
            store.counters.set(
                "views",
                resolution="minute",
                keep="minute=1d,hour=3650d",
                dimensions=("page", "country"),
                breakdowns=BREAKDOWNS,
            )
            store.counters.set("visitors", salt_days=0)
            store.counters.set("capped", max_keys=CAP)
            for table in TABLES:
                session.execute(table)
            store.tracked.track("shop")

    def _ended(self, name: str, how: str, status: int) -> None:
        if name in self.apps:
            self.apps[name].ended(how)
        elif name == "statsd" and how == "terminated":
            assert status == 0, self.crew.now[name].output()[-3000:]
            self._packets.statuses[self.crew.now[name]] = status

    def _look(self) -> None:
        """How long no entry is acknowledged."""
        time.sleep(0.02)
        found, now = self._known, time.monotonic()
        with suppress(redis.RedisError):
            stream: Any = self._client.xinfo_stream(STREAM)
            found = stream["entries-added"] - stream["length"]
            now = time.monotonic()
        self.idle_s = max(self.idle_s, now - self._since)
        if found > self._known:
            self._known, self._since = found, now

    def _get_on(self, going: Callable[[], bool], *, wholly: bool = True) -> None:
        """Until an entry is applied, or wholly: until entries are and requests answered again."""
        requests_then, known = self.book.events["requests"], self._known

        def on() -> bool:
            self.crew.revive()
            answered = self.book.events["requests"] > requests_then or not wholly
            return (self._known > known + 5 * wholly and answered) or not going()

        eventually(on, RECOVERED_S, message=self._said)

    def _said(self) -> str:
        return "\n".join(
            f"--- {name}\n{child.output()[-1500:]}" for name, child in self.crew.now.items()
        )

    # -- the end -------------------------------------------------------------------------------

    def _finish(self) -> None:
        """All that was sent is applied, and every process has ended in good order."""
        self.crew.settle()
        for name in (*APPS, "shop"):
            self.crew.end(name)
        for name in ("web", "statsd", "tail", "scheduler", *JOBS):
            assert self.crew.stop(name) == 0, f"{name}: {self.crew.said[name][-40:]}"
        for words in (self._tail, ("spool", "replay", str(self._spool))):
            command = self.crew.children.countersink(*words, environment=self.crew.environment)
            assert command.wait() == 0, command.output()
        eventually(lambda: backlog(self._client) == 0, RECOVERED_S, message=self._said)
        for name in WORKERS:
            assert self.crew.stop(name) == 0, f"{name}: {self.crew.said[name][-40:]}"

    def _check(self) -> None:
        """The tables are what the book says."""
        lines = self.book.differences(self.mysql_url)
        with Oracle(self.mysql_url) as oracle:
            dead = oracle.rows("SELECT reason, detail FROM dead_row LIMIT 3")
            sales = oracle.rows("SELECT id, invoice FROM sales")
            sold = oracle.rows("SELECT product, SUM(pieces) FROM sales GROUP BY 1 ORDER BY 1")
            counted = oracle.rows(
                "SELECT CONVERT(counter_key USING utf8mb4), SUM(amount) FROM counter_slot"
                " WHERE counter = 'sold' GROUP BY 1 ORDER BY 1"
            )
            ((rows,),) = oracle.rows("SELECT COUNT(*) FROM shop")
            failed = oracle.rows(
                "SELECT detail FROM job_run WHERE job = 'verify' AND state = 'failed'"
                " AND detail LIKE '%see countersink verify%'"
            )
            ((self.book.events["scheduled jobs"],),) = oracle.rows(
                "SELECT COUNT(*) FROM job_run WHERE state = 'done'"
            )
        said = [line.split() for line in self.crew.said["shop"]]
        committed = {int(number) for what, number in said if what == "sold"}
        taken = [int(number) for what, number in said if what == "number"]
        self.book.events["transactions"] = len(sales)
        self.book.events["numbers"] = len(taken)
        with Store(self.mysql_url) as store, open_session(self.mysql_url) as session:
            found = {
                "dead letters": (dead, []),
                "sales": (committed - {id for id, _ in sales}, set()),
                "sold": (counted, sold),
                "invoices": (sorted(invoice for _, invoice in sales), [*range(1, len(sales) + 1)]),
                "rows": (store.row_count("shop"), rows),
                "numbers": (len(set(taken)), len(taken)),
                "verify": (verify(session).differences, []),
                "scheduled verify": (failed, []),
            }
        lines += [
            f"{name}: {is_} and not {must}" for name, (is_, must) in found.items() if is_ != must
        ]
        assert not lines, "\n".join(
            [f"{len(lines)} differences", *(line[:300] for line in lines[:40])]
        )
