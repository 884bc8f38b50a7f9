"""Clusters on which everything counts at once (a producer, two workers, compaction, a backfill, a
sequence, an application's own transactions, a tracked table), and the faults that may befall them.

Redis replicates asynchronously: what a master has confirmed and not sent when it dies is lost. So
each increment on the grounds of Redis has a key of its own; those that are missing are counted and
named, and none may be there twice. On the others nothing may be missing.
"""

import contextlib
import random
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Self

import pymysql
import redis

from countersink.database.connection import connect
from countersink.database.errors import Refused, StoreError, Unavailable
from countersink.database.migrate import migrate
from countersink.database.session import Session
from countersink.store import Store
from countersink.stream.connection import connect as connect_redis
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.support import group_replication
from tests.support.databases import new_name
from tests.support.failover_load import Load
from tests.support.galera import GaleraCluster, GaleraNode
from tests.support.group_replication import GroupMember, ReplicationGroup
from tests.support.oracle import connect as connect_plainly
from tests.support.processes import Children
from tests.support.redis_cluster import ClusterServer, RedisCluster
from tests.support.replication import run
from tests.support.sentinels import MASTER, SENTINEL_PASSWORD, Watched
from tests.support.servers import MySQLServer, RedisServer
from tests.support.templates import SMALL, template
from tests.support.waiting import eventually

PARTITIONS: Final = 12
BACK_S: Final = 90.0
"""Within so many seconds a cluster is whole again."""
SWITCHED_S: Final = 10.0
"""A sentinel that was told to switch over is told again after so many seconds."""

Meanwhile = Callable[[], object]
"""What goes on while a fault lasts."""
Fault = Callable[[random.Random, Meanwhile], None]
Deed = Callable[[Any], object]
"""What is done to a server, or undone."""


class Ground(ABC):
    """The servers of an act, which live as long as it does; a context manager."""

    loaded: Callable[..., Load] = Load

    def __init__(self, parent: Path) -> None:
        self._stack = ExitStack()
        directory = tempfile.TemporaryDirectory(prefix="ground-", dir=parent)
        self._directory = Path(self._stack.enter_context(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def redis_url(self) -> str:
        """The queue, which is empty at the beginning of a round."""

    @abstractmethod
    def fresh(self) -> str:
        """The URL of the database, with nothing in it but the tables; the queue is emptied, too."""

    @abstractmethod
    def faults(self) -> dict[str, Fault]:
        """What may befall it. Each returns when all is whole again."""

    def load(self, children: Children, mysql_url: str, directory: Path) -> Load:
        """What counts."""
        client = self._stack.enter_context(connect_redis(self.redis_url))
        return self.loaded(children, client, self.redis_url, mysql_url, directory)


class DatabaseGround(Ground):
    """One Redis, and several servers of MySQL or MariaDB."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        server = RedisServer(self._directory / "redis", appendfsync="always")
        self._redis = self._stack.enter_context(server)

    @property
    def redis_url(self) -> str:
        return self._redis.url

    def _emptied(self, writer: MySQLServer, url: str) -> str:
        with connect_redis(self.redis_url) as client:
            client.flushall()  # of the soak's own server

        def emptied() -> bool:
            # The faults of the round before may make the cluster regroup once more.
            with contextlib.suppress(Unavailable):
                run(writer, "DROP DATABASE IF EXISTS counts", "CREATE DATABASE counts")
                migrate(url)
                return True
            return False

        eventually(emptied, BACK_S)
        return url


class GaleraLoad(Load):
    """All that counts, and an application's transactions through each node, whichever is the
    writer, as long as it is there. ``sales`` has as many rows as its counter was counted in the
    same transactions; ``shop`` is a tracked table.
    """

    def __init__(self, cluster: GaleraCluster, *rest: Any) -> None:
        super().__init__(*rest)
        self.cluster = cluster
        self.sold = 0
        """Transactions that are committed; of one whose COMMIT was lost its row tells."""
        first, second, third = cluster.nodes
        orders = (first, second, third), (third, second, first), (second, third, first)
        self._urls = cycle([cluster.url(*nodes) for nodes in orders])

    def __enter__(self) -> Self:
        with Store(self.url) as store, connect(self.url) as session:
            for table in ("shop", "sales"):
                session.execute(
                    f"CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, node INT)"
                )
            store.tracked.track("shop")
        return super().__enter__()

    def works(self) -> list[Callable[[], None]]:
        return [*super().works(), *(partial(self._app, number) for number in range(3))]

    def process_url(self) -> str:
        return next(self._urls)

    def check(self) -> None:
        """The same on all of the nodes."""
        super().check()
        assert self.seen.passes > 0
        self.cluster.wait(3)
        for node in self.cluster.nodes:
            with connect(self.cluster.url(node), database=False) as session:
                session.execute("USE counts")
                session.execute("SET SESSION wsrep_sync_wait = 1")
                assert _sum(session, "app") == self.seen.counted
                for table in ("orders", "shop", "sales"):
                    ((rows,),) = session.query(f"SELECT COUNT(*) FROM {table}")
                    assert (table, _sum(session, table)) == (table, rows)
                assert rows >= self.sold > 0

    def _app(self, number: int) -> None:
        with Store(self.cluster.url()) as store:
            while not self._stopping.is_set():
                try:
                    self._transactions(store, number)
                except (pymysql.err.MySQLError, StoreError, OSError):
                    self._stopping.wait(0.1)

    def _transactions(self, store: Store, number: int) -> None:
        with connect_plainly(self.cluster.url(self.cluster.nodes[number])) as app:
            while not self._stopping.wait(0.01):
                app.begin()
                with app.cursor() as cursor:
                    cursor.execute(f"INSERT INTO shop (node) VALUES ({number})")
                    if number == 1:
                        cursor.execute("DELETE FROM shop WHERE node = 0 ORDER BY id LIMIT 1")
                    cursor.execute(f"INSERT INTO sales (node) VALUES ({number})")
                store.increment(app, "sales", str(number))
                app.commit()
                self.sold += 1


def _sum(session: Session, counter: str) -> int:
    ((found,),) = session.query(
        "SELECT COALESCE(SUM(amount), 0) FROM counter_slot WHERE counter = %s", (counter,)
    )
    return int(found)


class GaleraGround(DatabaseGround):
    """Three nodes; faults befall the one that is written to. Workers and commands name the nodes in
    different orders.
    """

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self.cluster = self._stack.enter_context(GaleraCluster(self._directory))
        self.loaded = partial(GaleraLoad, self.cluster)

    def fresh(self) -> str:
        return self._emptied(self.cluster.nodes[0], self.cluster.url())

    def faults(self) -> dict[str, Fault]:
        return {
            "killed": partial(self._befall, GaleraNode.kill, GaleraNode.start),
            "frozen": partial(self._befall, GaleraNode.freeze, GaleraNode.thaw),
            "cut off": partial(self._befall, self._cut_off, lambda node: node.isolate(False)),
            "donates": partial(self._befall, self._donates, lambda _: None),
        }

    def _befall(self, deed: Deed, undo: Deed, _: random.Random, meanwhile: Meanwhile) -> None:
        writer = self.cluster.writer()
        deed(writer)
        meanwhile()
        undo(writer)
        self.cluster.wait(3)

    def _cut_off(self, writer: GaleraNode) -> None:
        writer.isolate(True)
        self.cluster.wait(2, among=[node for node in self.cluster.nodes if node is not writer])

    def _donates(self, writer: GaleraNode) -> None:
        """Another node comes without data, and gets that of the writer, which is held up."""
        other = next(node for node in self.cluster.nodes if node is not writer)
        other.kill()
        other.forget()
        other.extra = (f"--wsrep-sst-donor=node{writer.number}",)
        other.start()
        other.extra = ()


class GroupGround(DatabaseGround):
    """Three members of Group Replication; faults befall the primary."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._networks = group_replication.can_be_cut()
        options = ("--log-bin-trust-function-creators=1",)
        made = ReplicationGroup(self._directory, networks=self._networks, extra=options)
        self.group = self._stack.enter_context(made)

    def fresh(self) -> str:
        return self._emptied(self.group.primary(), self.group.url())

    def faults(self) -> dict[str, Fault]:
        found: dict[str, Fault] = {
            "changed": self._change,
            "killed": self._kill,
            "frozen": self._freeze,
        }
        if self._networks:
            found |= {
                "cut off": partial(self._cut_off, clients=False),
                "cut off from clients, too": partial(self._cut_off, clients=True),
            }
        return found

    def _change(self, draw: random.Random, meanwhile: Meanwhile) -> None:
        """A planned switchover, told again where the last coordination is still ending."""
        primary = self.group.primary()
        new = draw.choice([member for member in self.group.members if member is not primary])

        def led() -> bool:
            try:
                new.lead()
            except Refused:
                return False
            return True

        eventually(led, BACK_S)
        meanwhile()
        assert self.group.primary() is new

    def _kill(self, _: random.Random, meanwhile: Meanwhile) -> None:
        primary = self.group.primary()
        primary.kill()
        meanwhile()
        self.group.next_primary(primary)
        primary.start()
        self._join(primary)

    def _freeze(self, _: random.Random, meanwhile: Meanwhile) -> None:
        primary = self.group.primary()
        primary.freeze()
        meanwhile()
        primary.thaw()
        self._whole(primary)

    def _cut_off(self, _: random.Random, meanwhile: Meanwhile, *, clients: bool) -> None:
        primary = self.group.primary()
        with group_replication.cut_off(primary, clients=clients):
            meanwhile()
        self._whole(primary)

    def _whole(self, member: GroupMember) -> None:
        """Until all are in the group again; one that left it for good is told to come back."""
        try:
            self.group.wait()
        except AssertionError:
            self._join(member)

    def _join(self, member: GroupMember) -> None:
        with contextlib.suppress(Unavailable):  # waited for no longer, the statement goes on
            member.join()
        self.group.wait()


class RedisLoad(Load):
    """Every increment has a key of its own, so that each that is missing has a name."""

    per_second = 400

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sessions = threading.local()

    def key(self, number: int) -> str:
        return str(number)

    def is_drained(self) -> bool:
        return not any(self._client.xlen(stream_key(number)) for number in range(PARTITIONS))

    def _acknowledged(self) -> int:
        if not hasattr(self._sessions, "own"):
            self._sessions.own = connect(self.url)
        session: Session = self._sessions.own
        rows = session.query("SELECT SUM(amount) FROM counter_ledger WHERE counter = 'app'")
        return int(rows[0][0] or 0)

    def check_app(self, store: Store) -> None:
        with connect(self.url) as session:
            rows = session.query(
                "SELECT counter_key, CAST(SUM(amount) AS SIGNED) FROM counter_slot"
                " WHERE counter = 'app' GROUP BY counter_key"
            )
        counted = {bytes(key).decode(): int(amount) for key, amount in rows}
        twice = {key: amount for key, amount in counted.items() if amount != 1}
        assert not twice, f"counted more than once: {twice}"
        sent = {self.key(number) for number in range(self.seen.counted)}
        assert counted.keys() <= sent
        self.lost = sorted(sent - counted.keys(), key=int)


class RedisGround(Ground):
    """Several servers of Redis, and one MariaDB."""

    loaded = RedisLoad

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._mysql = self._stack.enter_context(
            MySQLServer(
                self._directory / "mysql",
                kind="mariadb",
                template=template("mariadb"),
                extra=SMALL["mariadb"],
            )
        )
        self._database = ""

    def fresh(self) -> str:
        with connect_redis(self.redis_url) as client:
            for partition in range(PARTITIONS):
                client.delete(stream_key(partition))
        if self._database:
            run(self._mysql, f"DROP DATABASE {self._database}")
        self._database = new_name()
        url = self._mysql.url_for(self._database)
        migrate(url)
        return url


class ClusterGround(RedisGround):
    """Three masters, each with a replica."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._cluster = self._stack.enter_context(RedisCluster(self._directory))

    @property
    def redis_url(self) -> str:
        return self._cluster.url

    def fresh(self) -> str:
        url = super().fresh()
        with connect_redis(self.redis_url) as client:
            client.set(PARTITIONS_KEY, PARTITIONS)
        return url

    def faults(self) -> dict[str, Fault]:
        return {
            "master killed": partial(self._befall, ClusterServer.kill, ClusterServer.start),
            "master frozen": partial(self._befall, ClusterServer.freeze, ClusterServer.thaw),
            "slots moved": self._move,
        }

    def _masters(self) -> list[ClusterServer]:
        return [server for server in self._cluster.servers if self._cluster.is_master(server)]

    def _befall(self, deed: Deed, undo: Deed, draw: random.Random, meanwhile: Meanwhile) -> None:
        master = draw.choice(self._masters())
        shard = next(each for each in self._cluster.shards if master in each.servers)
        other = next(each for each in shard.servers if each is not master)
        deed(master)
        eventually(lambda: self._cluster.is_master(other), BACK_S)
        meanwhile()
        undo(master)
        eventually(lambda: not self._cluster.is_master(master), BACK_S)
        eventually(self._cluster.is_whole, BACK_S)

    def _move(self, draw: random.Random, _: Meanwhile) -> None:
        """The slots of a few partitions, to another master."""
        for partition in draw.sample(range(PARTITIONS), 3):
            source = self._cluster.master_of(partition)
            target = draw.choice([each for each in self._masters() if each is not source])
            self._cluster.move_stream(partition, source, target)
        eventually(self._cluster.is_whole, BACK_S)


class SentinelGround(RedisGround):
    """A master, its replica, three sentinels."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._servers = self._stack.enter_context(Watched(self._directory))
        for sentinel in self._servers.sentinels:
            with redis.Redis(port=sentinel.port, password=SENTINEL_PASSWORD) as client:
                # Within four of these a sentinel makes a promoted server a replica again, unless it
                # has heard by then that another one has promoted it: the fixture's are too short
                # for a switch-over on a busy machine.
                client.execute_command("SENTINEL", "DEBUG", "publish-period", 2000)

    @property
    def redis_url(self) -> str:
        return self._servers.url

    def faults(self) -> dict[str, Fault]:
        return {
            "master killed": partial(self._befall, RedisServer.kill, RedisServer.start),
            "master frozen": partial(self._befall, RedisServer.freeze, RedisServer.thaw),
            "switched over": self._switch,
        }

    def _befall(self, deed: Deed, undo: Deed, _: random.Random, meanwhile: Meanwhile) -> None:
        deed(self._servers.master)
        self._promoted()
        meanwhile()
        undo(self._servers.master)
        self._swapped()

    def _switch(self, _: random.Random, __: Meanwhile) -> None:
        """Told again and again: a sentinel refuses until it knows a replica that is good enough,
        and gives up when it is too slow.
        """

        def switched() -> bool:
            port = self._servers.sentinels[0].port
            try:
                with redis.Redis(port=port, password=SENTINEL_PASSWORD) as client:
                    client.execute_command("SENTINEL", "FAILOVER", MASTER)
                self._promoted(SWITCHED_S)
            except (redis.ResponseError, AssertionError):
                return False
            return True

        eventually(switched, BACK_S)
        self._swapped()

    def _promoted(self, within_s: float = BACK_S) -> None:
        eventually(lambda: self._servers.is_master(self._servers.replica), within_s)

    def _swapped(self) -> None:
        """Until the former master follows the new one."""
        former, new = self._servers.master, self._servers.replica
        eventually(lambda: self._servers.is_replica(former), BACK_S)
        self._servers.master, self._servers.replica = new, former

        def known() -> bool:
            states: list[Any] = [self._servers.state(each) for each in self._servers.sentinels]
            return all(not state["is_odown"] and not state["is_sdown"] for state in states)

        eventually(known, BACK_S)
