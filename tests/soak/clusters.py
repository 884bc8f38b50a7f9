"""Faults at random on clusters: `python -m tests.soak.clusters ACT --seconds N --seed S`.

Rounds of a minute or two, until the time is up: everything counts on a cluster at once (a producer,
two workers, compaction, a backfill, a sequence, an application's own transactions, a tracked
table), while one fault after the other, drawn from the seed, befalls it. Then all of it is compared
with what was sent, and verify has to find nothing. One line per round. The exit status is 1 at the
first round that was not exact, with the command that plays it again.

Redis replicates asynchronously: what a master has confirmed and not sent when it dies is lost. So
each increment of the acts on Redis has a key of its own; those that are missing are counted and
named, and none may be there twice. On the other acts nothing may be missing.
"""

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pymysql
import redis

from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.errors import Unavailable
from countersink.store.migrate import migrate
from countersink.store.settings import Settings
from countersink.stream.connection import connect as connect_redis
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.support import galera, group_replication
from tests.support.databases import new_name
from tests.support.failover_load import Load, Seen
from tests.support.galera import GaleraCluster, GaleraNode
from tests.support.group_replication import GroupMember, ReplicationGroup
from tests.support.processes import Children
from tests.support.redis_cluster import ClusterServer, RedisCluster
from tests.support.replication import run
from tests.support.sentinels import MASTER, SENTINEL_PASSWORD, Watched
from tests.support.servers import MySQLServer, RedisServer
from tests.support.templates import SMALL, template
from tests.support.waiting import eventually

FAULTS_PER_ROUND: Final = 4
PARTITIONS: Final = 12
BACK_S: Final = 90.0
"""Within so many seconds a cluster is whole again."""
SWITCHED_S: Final = 10.0
"""A sentinel that was told to switch over is told again after so many seconds."""
FROZEN_S: Final = (1.0, 8.0)
PROBE_S: Final = 0.05
NAMED: Final = 10
"""So many of the lost increments are named."""

Fault = Callable[[random.Random], None]
Deed = Callable[[Any], object]
"""What is done to a server, or undone."""


class Probe:
    """How long none of some servers commits anything, by a connection to each; the engine's own
    part of the time without counting. A context manager.

    Args:
        servers: of which at least one takes writes; they have the table ``beats.beat``.
        primary: a query with a row where a server is the one to write to; asked of each connection.
    """

    def __init__(self, servers: Sequence[MySQLServer], primary: str = "SELECT 1") -> None:
        self._primary = primary
        self.longest_s = 0.0
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(each,)) for each in servers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self, server: MySQLServer) -> None:
        settings = Settings.parse(server.url_for("beats"))
        while not self._stopping.wait(PROBE_S):
            with (
                contextlib.suppress(pymysql.err.Error, OSError),
                closing(
                    pymysql.connect(
                        host=settings.host,
                        port=settings.port,
                        user=settings.user,
                        password=settings.password,
                        database=settings.database,
                        connect_timeout=1,
                        read_timeout=1,
                        autocommit=True,
                    )
                ) as connection,
                connection.cursor() as cursor,
            ):
                is_primary = cursor.execute(self._primary) > 0
                while is_primary and not self._stopping.wait(PROBE_S):
                    cursor.execute("INSERT INTO beat VALUES ()")
                    self._committed()

    def _committed(self) -> None:
        with self._lock:
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self._last)
            self._last = now


class Ground(ABC):
    """The servers of an act, which live as long as it does; a context manager."""

    loaded: type[Load] = Load

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._stack = ExitStack()

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

    def probe(self) -> AbstractContextManager[Probe | None]:
        """Measures how long the engine itself takes no writes; None: nothing does."""
        return contextlib.nullcontext()

    def load(self, children: Children, mysql_url: str, directory: Path) -> Load:
        """What counts."""
        client = self._stack.enter_context(connect_redis(self.redis_url))
        return self.loaded(children, client, self.redis_url, mysql_url, directory)


class DatabaseGround(Ground):
    """One Redis, and several servers of MySQL or MariaDB."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        server = RedisServer(parent / "redis", appendfsync="always")
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
                run(
                    writer,
                    "DROP DATABASE IF EXISTS counts",
                    "CREATE DATABASE counts",
                    "CREATE DATABASE IF NOT EXISTS beats",
                    "CREATE TABLE IF NOT EXISTS beats.beat (id INT AUTO_INCREMENT PRIMARY KEY)",
                )
                migrate(url)
                return True
            return False

        eventually(emptied, BACK_S)
        return url


class GaleraGround(DatabaseGround):
    """Three nodes; faults befall the one that is written to."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._cluster = self._stack.enter_context(GaleraCluster(parent))

    def fresh(self) -> str:
        return self._emptied(self._cluster.nodes[0], self._cluster.url())

    def probe(self) -> Probe:
        return Probe(self._cluster.nodes)

    def faults(self) -> dict[str, Fault]:
        return {
            "killed": partial(self._befall, GaleraNode.kill, GaleraNode.start),
            "frozen": partial(self._befall, GaleraNode.freeze, GaleraNode.thaw),
            "cut off": partial(
                self._befall, lambda node: node.isolate(True), lambda node: node.isolate(False)
            ),
        }

    def _befall(self, deed: Deed, undo: Deed, draw: random.Random) -> None:
        writer = self._cluster.writer()
        deed(writer)
        wait(draw)
        undo(writer)
        self._cluster.wait(3)


class GroupGround(DatabaseGround):
    """Three members of Group Replication; faults befall the primary."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._networks = group_replication.can_be_cut()
        options = ("--log-bin-trust-function-creators=1",)
        made = ReplicationGroup(parent, networks=self._networks, extra=options)
        self._group = self._stack.enter_context(made)

    def fresh(self) -> str:
        return self._emptied(self._group.primary(), self._group.url())

    def probe(self) -> Probe:
        return Probe(self._group.members, group_replication.IS_PRIMARY)

    def faults(self) -> dict[str, Fault]:
        found: dict[str, Fault] = {"killed": self._kill, "frozen": self._freeze}
        if self._networks:
            found |= {"cut off": self._cut_off, "cut off from clients, too": self._cut_off_all}
        return found

    def _kill(self, draw: random.Random) -> None:
        primary = self._group.primary()
        primary.kill()
        wait(draw)
        self._group.next_primary(primary)
        primary.start()
        self._join(primary)

    def _freeze(self, draw: random.Random) -> None:
        primary = self._group.primary()
        primary.freeze()
        wait(draw)
        primary.thaw()
        self._whole(primary)

    def _cut_off(self, draw: random.Random, *, clients: bool = False) -> None:
        primary = self._group.primary()
        with group_replication.cut_off(primary, clients=clients):
            wait(draw)
        self._whole(primary)

    def _cut_off_all(self, draw: random.Random) -> None:
        self._cut_off(draw, clients=True)

    def _whole(self, member: GroupMember) -> None:
        """Until all are in the group again; one that left it for good is told to come back."""
        try:
            self._group.wait()
        except AssertionError:
            self._join(member)

    def _join(self, member: GroupMember) -> None:
        with contextlib.suppress(Unavailable):  # waited for no longer, the statement goes on
            member.join()
        self._group.wait()


class RedisLoad(Load):
    """Every increment has a key of its own, so that each that is missing has a name."""

    per_second = 400

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lost: list[str] = []
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
                parent / "mysql",
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
        self._cluster = self._stack.enter_context(RedisCluster(parent))

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

    def _befall(self, deed: Deed, undo: Deed, draw: random.Random) -> None:
        master = draw.choice(self._masters())
        shard = next(each for each in self._cluster.shards if master in each.servers)
        other = next(each for each in shard.servers if each is not master)
        deed(master)
        eventually(lambda: self._cluster.is_master(other), BACK_S)
        wait(draw)
        undo(master)
        eventually(lambda: not self._cluster.is_master(master), BACK_S)
        eventually(self._cluster.is_whole, BACK_S)

    def _move(self, draw: random.Random) -> None:
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
        self._servers = self._stack.enter_context(Watched(parent))
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

    def _befall(self, deed: Deed, undo: Deed, draw: random.Random) -> None:
        deed(self._servers.master)
        self._promoted()
        wait(draw)
        undo(self._servers.master)
        self._swapped()

    def _switch(self, _: random.Random) -> None:
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


ACTS: Final[dict[str, type[Ground]]] = {
    "redis_cluster": ClusterGround,
    "sentinel": SentinelGround,
    "galera": GaleraGround,
    "group_replication": GroupGround,
}


def wait(draw: random.Random) -> None:
    """As long as a fault lasts."""
    threading.Event().wait(draw.uniform(*FROZEN_S))


def why_missing(act: str) -> str | None:
    """Why an act cannot be played here; None if it can."""
    if act == "galera" and not galera.installed():
        return "Galera is not installed"
    if act == "group_replication" and not group_replication.installed():
        return "MySQL 9 is not there"
    return None


def play(act: str, seconds: float, seed: int, rounds: int = 0) -> bool:
    """Rounds until the time is up, or so many; whether all were exact."""
    # what is wrong is on purpose
    logging.getLogger("countersink").addHandler(logging.NullHandler())
    begun = time.monotonic()
    played = 0
    faults: Counter[str] = Counter()
    counted = lost = 0
    longest = ours = slowest = 0.0
    print(f"seed {seed} on {act}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
        ACTS[act](Path(directory)) as ground,
    ):
        while played < rounds if rounds else time.monotonic() - begun < seconds:
            found = _round(ground, act, seed + played, Path(directory), faults)
            if found is None:
                return False
            seen, engine_s, missing = found
            played += 1
            counted, lost = counted + seen.counted, lost + len(missing)
            longest, slowest = max(longest, seen.idle_s), max(slowest, seen.slowest_s)
            ours = max(ours, seen.idle_s - engine_s)
    print(
        f"{act}: {played} rounds in {time.monotonic() - begun:.0f} s, {faults.total()} faults"
        f" ({', '.join(f'{name} {count}' for name, count in faults.items())}),"
        f" {counted} increments, {lost} lost by replication of Redis, else difference 0;"
        f" at most {longest:.1f} s without counting, {ours:.1f} s more than the engine took no"
        f" writes in the same round; increment() {slowest * 1000:.1f} ms",
        flush=True,
    )
    return True


def _round(
    ground: Ground, act: str, seed: int, parent: Path, faults: Counter[str]
) -> tuple[Seen, float, Sequence[str]] | None:
    """A round: what was noticed, how long the engine took no writes (0: not known), and which
    increments are lost; None: it was not exact."""
    draw = random.Random(seed)
    begun = time.monotonic()
    names: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="round-", dir=parent) as directory,
        Children() as children,
    ):
        os.environ["XDG_STATE_HOME"] = str(Path(directory) / "state")
        try:
            url = ground.fresh()
            with ground.probe() as probe, ground.load(children, url, Path(directory)) as load:
                known = ground.faults()
                for _ in range(FAULTS_PER_ROUND):
                    names.append(draw.choice(sorted(known)))
                    known[names[-1]](draw)
                    load.wait_for_more()
                seen = load.finish()
        except Exception:
            traceback.print_exc()
            for child in children:
                print(f"--- {child.name}\n{child.output()[-3000:]}")
            print(f"FAILED, seed {seed}, after: {', '.join(names)}")
            print(f"play it again: python -m tests.soak.clusters {act} --seed {seed} --rounds 1")
            return None
    faults.update(names)
    engine_s = 0.0 if probe is None else probe.longest_s
    lost = load.lost if isinstance(load, RedisLoad) else []
    said = f"lost {len(lost)}: {', '.join(lost[:NAMED])}" if lost else "difference 0"
    print(
        f"seed {seed} {time.monotonic() - begun:.1f} s increments {seen.counted}, {said};"
        f" {seen.idle_s:.1f} s without counting, the engine {engine_s:.1f} s; {', '.join(names)}",
        flush=True,
    )
    return seen, engine_s, lost


def main() -> int:
    """Play an act; 0 when every round was exact."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.clusters", description=__doc__)
    parser.add_argument("act", choices=ACTS)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin rounds for so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rounds", type=int, default=0, help="play so many, whatever they take")
    options = parser.parse_args()
    if why := why_missing(options.act):
        print(f"{options.act}: {why}")
        return 1
    return 0 if play(options.act, options.seconds, options.seed, options.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
