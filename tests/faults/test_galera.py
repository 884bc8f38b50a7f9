"""The writer node of a Galera cluster is killed, frozen and cut off while everything is counted.

Workers and commands name the nodes in different orders. What the cluster has committed is not lost:
so not one increment may be missing or count twice, whatever part of the program it came by.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest
import redis

from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.errors import SequenceUncertain, StoreError
from countersink.store.migrate import migrate
from countersink.store.verify import open_session, verify
from tests.support.galera import GaleraCluster, GaleraNode, installed
from tests.support.processes import Child, Children
from tests.support.run_app import CHUNK
from tests.support.traffic import backlog
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not installed(), reason="galera-4 or rsync is not installed"),
]

CHUNKS: Final = 150
LINES: Final = 50_000
WITHIN_S: Final = 120.0
FAST: Final[dict[str, Any]] = {
    "batch_entries": 5,
    "batch_wait_ms": 20,
    "claim_idle_ms": 400,
    "claim_every_s": 0.1,
    "stop_within_s": 40.0,
}


@pytest.fixture(scope="module")
def cluster(servers_directory: Path) -> Iterator[GaleraCluster]:
    """Three nodes, with the tables."""
    with GaleraCluster(servers_directory) as started:
        migrate(started.url())
        yield started


@dataclass
class Load:
    """What counts beside the workers, in threads, and what each of them has had confirmed.

    Attributes:
        orders: transactions of an application that are committed; of one whose COMMIT was lost its
            row tells.
        handed: values of a sequence.
        passes: of compaction.
        errors: what must not happen.
    """

    cluster: GaleraCluster
    name: str
    orders: int = 0
    handed: list[int] = field(default_factory=list)
    passes: int = 0
    errors: list[BaseException] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        with Store(self.cluster.url()) as store, connect(self.cluster.url()) as session:
            for table in (self.shop, self.orders_table):
                session.execute(
                    f"CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, node INT)"
                )
            store.tracked.track(self.shop)
        works = [self._sequence, self._compaction, *(partial(self._app, n) for n in range(3))]
        self.threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self.threads:
            thread.start()

    @property
    def shop(self) -> str:
        """A tracked table, and its counter."""
        return f"shop_{self.name}"

    @property
    def orders_table(self) -> str:
        """A table with as many rows as its counter was counted in the same transactions."""
        return f"orders_{self.name}"

    def stop(self) -> None:
        """End all of it; nothing may have gone wrong."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()
        assert self.errors == []

    def _run(self, work: Callable[[], object]) -> None:
        try:
            while not self.stopped.is_set():
                work()
                self.stopped.wait(0.005)
        except BaseException as error:
            self.errors.append(error)

    def _sequence(self) -> None:
        with Store(self.cluster.url()) as store:
            while not self.stopped.is_set():
                try:
                    self.handed.append(store.sequences.next(self.name))
                except SequenceUncertain:
                    continue  # maybe one is lost, which it says
                except StoreError:
                    self.stopped.wait(0.1)

    def _compaction(self) -> None:
        first, *others = self.cluster.nodes
        url = self.cluster.url(*others, first)
        try:
            compact(partial(open_tables, url), CompactOptions(before=date.max, rows=200, share=0.5))
            self.passes += 1
        except StoreError:
            self.stopped.wait(0.1)

    def _app(self, number: int) -> None:
        """Transactions through one node, whichever is the writer, as long as it is there."""
        node = self.cluster.nodes[number]
        with Store(self.cluster.url()) as store:
            while not self.stopped.is_set():
                try:
                    self._transactions(store, node, number)
                except (pymysql.err.MySQLError, StoreError, OSError):
                    self.stopped.wait(0.1)

    def _transactions(self, store: Store, node: GaleraNode, number: int) -> None:
        app = pymysql.connect(
            host="127.0.0.1",
            port=node.port,
            user="app",
            password="geheim",
            database="counts",
            connect_timeout=2,
            read_timeout=8,
        )
        try:
            while not self.stopped.is_set():
                with app.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {self.orders_table} (node) VALUES ({number})")
                    cursor.execute(f"INSERT INTO {self.shop} (node) VALUES ({number})")
                    if number == 1:
                        cursor.execute(
                            f"DELETE FROM {self.shop} WHERE node = 0 ORDER BY id LIMIT 1"
                        )
                store.increment(app, self.orders_table, str(number))
                app.commit()
                self.orders += 1
                self.stopped.wait(0.01)
        finally:
            app.close()


class Run:
    """Two workers, an app that counts, a backfill, and the load."""

    def __init__(
        self, children: Children, cluster: GaleraCluster, client: redis.Redis, url: str, log: Path
    ) -> None:
        self.cluster, self.client = cluster, client
        with connect(cluster.url()) as session:
            self.before = _sum(session, "app")
        first, second, third = cluster.nodes
        orders = cluster.url(first, second, third), cluster.url(third, second, first)
        self.workers = [children.worker(url, order, **FAST) for order in orders]
        self.app: Child = children.app(
            url,
            chunks=CHUNKS,
            per_second=12_000,
            wait_for_word=True,
            producer={"flush_interval": 0.02},
        )
        self.load = Load(cluster, log.stem)
        self.log = log
        log.write_text(
            "".join(
                f'10.0.0.{n % 250} - - [18/Nov/2026:12:00:{n % 60:02d} +0000] "GET /{log.stem}/{n}'
                ' HTTP/1.1" 200 5\n'
                for n in range(LINES)
            )
        )
        self.backfill = children.countersink(
            "backfill",
            str(log),
            "--counter",
            log.stem,
            environment={"COUNTERSINK_MYSQL_URL": orders[1]},
        )
        eventually(lambda: self.counted() >= 5 * CHUNK, WITHIN_S, message=self._said)
        # One that does not reach the database at its start says so, and ends.
        eventually(lambda: self.counted(log.stem) > 0, WITHIN_S, message=self.backfill.output)

    @property
    def writer(self) -> GaleraNode:
        """The node that takes our writes."""
        with connect(self.cluster.url()) as session:
            port = int(session.query("SELECT @@port")[0][0])
        return next(node for node in self.cluster.nodes if node.port == port)

    def counted(self, counter: str = "app") -> int:
        """How much of a counter is in the tables; fewer than before while no node answers."""
        try:
            with connect(self.cluster.url()) as session:
                return _sum(session, counter) - (self.before if counter == "app" else 0)
        except StoreError:
            return -1

    def goes_on(self) -> None:
        """Wait until more is counted than now."""
        found = self.counted()
        while found < 0:
            found = self.counted()
        if found < CHUNKS * CHUNK:
            eventually(lambda: self.counted() > found, WITHIN_S, message=self._said)

    def finish(self) -> None:
        """All was counted, once, on all of the nodes."""
        self.load.stop()
        self.app.say("")
        assert self.app.wait(WITHIN_S) == 0, self.app.output()
        assert json.loads(self.app.output().splitlines()[-1])["flushed"]
        eventually(lambda: backlog(self.client) == 0, WITHIN_S, message=self._said)
        for worker in self.workers:
            worker.terminate()
            assert worker.wait() == 0, worker.output()
        assert self.backfill.wait(WITHIN_S) == 0, self.backfill.output()
        self.cluster.wait(3)
        for node in self.cluster.nodes:
            self._holds(node)
        with open_session(self.cluster.url()) as session:
            assert verify(session).differences == []
        assert len(self.load.handed) == len(set(self.load.handed)) > 0
        assert self.load.passes > 0

    def _holds(self, node: GaleraNode) -> None:
        with connect(self.cluster.url(node), database=False) as session:
            session.execute("USE counts")
            session.execute("SET SESSION wsrep_sync_wait = 1")
            assert _sum(session, "app") - self.before == CHUNKS * CHUNK
            for table in (self.load.shop, self.load.orders_table):
                ((rows,),) = session.query(f"SELECT COUNT(*) FROM {table}")
                assert (table, _sum(session, table)) == (table, rows)
            assert rows >= self.load.orders
            assert _sum(session, self.log.stem) == LINES

    def _said(self) -> str:
        return "\n".join(worker.output()[-2000:] for worker in self.workers)


def _sum(session: Session, counter: str) -> int:
    ((found,),) = session.query(
        "SELECT COALESCE(SUM(amount), 0) FROM counter_slot WHERE counter = %s", (counter,)
    )
    return int(found)


def killed(run: Run, writer: GaleraNode) -> Callable[[], object]:
    writer.kill()
    return writer.start


def frozen(run: Run, writer: GaleraNode) -> Callable[[], object]:
    writer.freeze()
    return writer.thaw


def cut_off(run: Run, writer: GaleraNode) -> Callable[[], object]:
    writer.isolate(True)
    run.cluster.wait(2, among=[node for node in run.cluster.nodes if node is not writer])
    return partial(writer.isolate, False)


def donates(run: Run, writer: GaleraNode) -> Callable[[], object]:
    """Another node comes without data, and gets that of the writer, which is held up meanwhile."""
    other = next(node for node in run.cluster.nodes if node is not writer)
    other.kill()
    other.forget()
    other.extra = (f"--wsrep-sst-donor=node{writer.number}",)
    other.start()
    other.extra = ()
    return lambda: None


@pytest.mark.parametrize("deed", [killed, frozen, cut_off, donates])
def test_the_writer_fails_and_comes_back(
    children: Children,
    cluster: GaleraCluster,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    deed: Callable[[Run, GaleraNode], Callable[[], object]],
) -> None:
    run = Run(children, cluster, redis_client, redis_url, tmp_path / f"{deed.__name__}.log")
    for _ in range(2):
        writer, began = run.writer, time.monotonic()
        undo = deed(run, writer)
        run.goes_on()
        print(f"{deed.__name__}: counted again after {time.monotonic() - began:.1f} s")
        undo()
        cluster.wait(3)
    run.finish()
