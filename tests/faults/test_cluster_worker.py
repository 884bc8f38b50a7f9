"""Workers on a Redis Cluster: masters are killed, freeze and are promoted, slots move, workers are
killed; what was stored counts once, and one silent node holds up nobody else."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from countersink.counting.apply import queue_losses
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.runtime.process import Stop
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_KEY, stream_key
from countersink.stream.progress import samples
from tests.faults.stage import FAST_WORKER
from tests.support.oracle import Oracle
from tests.support.processes import Child, Children
from tests.support.producing import producing
from tests.support.redis_cluster import ClusterServer, RedisCluster
from tests.support.traffic import Cell, Row, Traffic, day_of
from tests.support.valkey import valkey_server
from tests.support.waiting import eventually

PARTITIONS = 12
COUNTER = "by_a_producer"
APPLIED_WITHIN = 60.0
AVOIDED_S = 0.5
"""Seconds for which a partition that did not take an entry is sent nothing."""


class Feeder:
    """Sends entries to random partitions from a thread. One that is not answered goes to another
    partition, the same bytes, until it is: as producers do.

    Args:
        url: of the cluster.
        seed: what is drawn from.
        replicas: that have to have an entry before it counts as stored: WAIT.
    """

    def __init__(self, url: str, seed: int, *, replicas: int = 0) -> None:
        self._client: Any = connect(url, socket_timeout=1.0)
        self._traffic = Traffic(seed)
        self._replicas = replicas
        self._stop = Stop()
        self._failed = False
        self._avoided: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="feeder")
        self.stored: dict[str, list[Row]] = {}
        self.partitions = list(range(PARTITIONS))
        """Those that are sent to."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._failed = kind is not None
        self._stop.request()
        self._thread.join()
        self._client.close()

    def send_more(self, entries: int = 50) -> None:
        """Wait until so many more were stored."""
        enough = len(self.stored) + entries
        eventually(lambda: len(self.stored) >= enough, APPLIED_WITHIN)

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            rows = self._traffic.rows(5)
            entry = self._traffic.entry(time.time_ns() // 1_000_000, rows)
            # What is not stored by the end may count or not, so there is no end before.
            while not self._stores(entry.fields()):
                if self._failed:
                    return
            self.stored[entry.id] = rows

    def _stores(self, fields: dict[Any, Any]) -> bool:
        now = time.monotonic()
        serving = [n for n in self.partitions if self._avoided.get(n, 0.0) <= now]
        partition = self._traffic.random.choice(serving or self.partitions)
        try:
            stored = self._add(stream_key(partition), fields)
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError):
            stored = False
        if not stored:
            self._avoided[partition] = now + AVOIDED_S
            time.sleep(0.01)
        return stored

    def _add(self, stream: str, fields: dict[Any, Any]) -> bool:
        self._client.xlen(stream)  # follows where the stream has moved to
        address = self._client.master_of(stream)
        if address is None:
            return False
        with self._client.asked(address) as node:
            pipeline = node.pipeline(transaction=False)
            pipeline.xadd(stream, fields)
            pipeline.execute_command("WAIT", self._replicas, 200)
            return bool(pipeline.execute()[1] >= self._replicas)


class Scene:
    """A cluster, and workers that count what is sent to it.

    Args:
        cluster: its partitions are spread when the scene is made.
        mysql_url: of the tables.
        children: of the test.
    """

    def __init__(self, cluster: RedisCluster, mysql_url: str, children: Children) -> None:
        self.cluster = cluster
        self.mysql_url = mysql_url
        self.children = children
        with connect(cluster.url) as client:
            client.set(PARTITIONS_KEY, PARTITIONS)

    def of(self, server: ClusterServer) -> list[int]:
        """The partitions of a server."""
        return [n for n in range(PARTITIONS) if self.cluster.master_of(n) is server]

    def missing(self, ids: Iterable[str]) -> set[str]:
        """Those of these entries that are not applied."""
        with Oracle(self.mysql_url) as oracle:
            rows = oracle.rows("SELECT entry_id FROM applied_entry")
        return set(ids) - {bytes(row[0]).hex() for row in rows}

    def wait_applied(self, *feeders: Feeder) -> None:
        """Until all that was stored before this call is applied."""
        stored = {entry for feeder in feeders for entry in list(feeder.stored)}
        eventually(
            lambda: not self.missing(stored),
            APPLIED_WITHIN,
            message=lambda: "\n".join(child.output()[-3000:] for child in self.children),
        )

    def wait_counted_there(self, feeder: Feeder, partitions: list[int]) -> None:
        """Until something that is sent to these partitions from now on is applied."""
        before, others = set(feeder.stored), feeder.partitions
        feeder.partitions = partitions
        feeder.send_more(5)
        new = set(feeder.stored) - before
        eventually(lambda: len(self.missing(new)) < len(new))
        feeder.partitions = others

    def workers(self, count: int = 2) -> list[Child]:
        """Some that read."""
        url = f"{self.cluster.url}?socket_timeout=1"  # a node that hangs is soon known to
        made = [self.children.worker(url, self.mysql_url, **FAST_WORKER) for _ in range(count)]
        for worker in made:
            eventually(lambda w=worker: " ready " in w.output(), message=worker.output)  # type: ignore[misc]
        return made

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count with a producer meanwhile; afterwards wait until exactly that is in the tables."""

        def increment(producer: Producer, number: int) -> None:
            producer.increment(COUNTER, f"key-{number % 10}")

        with producing(self.cluster.url, increment) as done:
            yield
        assert done
        eventually(lambda: self.counted() == len(done), APPLIED_WITHIN)

    def counted(self) -> int:
        with Oracle(self.mysql_url) as oracle:
            return oracle.ledger().get(COUNTER, 0)

    def look(self) -> int:
        """Look for lost entries as workers do; how many were found so far."""
        with open_tables(self.mysql_url) as session, connect(self.cluster.url) as client:
            queue_losses.watch(session, partial(samples, client))
            return queue_losses.total(session)

    def backlog(self) -> tuple[int, int]:
        """Entries in all streams of all masters, and how many of them are pending."""
        entries = pending = 0
        for server in filter(self.cluster.is_master, self.cluster.servers):
            with self.cluster.client(server) as client:
                for stream in client.scan_iter("*:events"):
                    entries += int(client.xlen(stream))
                    groups: Any = client.xinfo_groups(stream)
                    pending += sum(int(each["pending"]) for each in groups)
        return entries, pending

    def finish(self, *feeders: Feeder) -> set[str]:
        """Workers end in good order, a drain leaves nothing, and the tables hold what was applied
        of what was stored, once; the ids of what is missing.
        """
        for worker in [child for child in self.children.running() if child.name == "worker"]:
            worker.terminate()
            assert worker.wait() == 0, worker.output()
            assert "Traceback" not in worker.output()
        drain = self.children.worker(self.cluster.url, self.mysql_url, drain=True, **FAST_WORKER)
        assert drain.wait() == 0, drain.output()
        assert self.backlog() == (0, 0)
        missing = self.missing({entry for feeder in feeders for entry in feeder.stored})
        expected: Counter[Cell] = Counter()
        for feeder in feeders:
            for entry, rows in feeder.stored.items():
                for counter, key, minute, amount in rows if entry not in missing else ():
                    expected[counter, day_of(minute), key.encode()] += amount
        with Oracle(self.mysql_url) as oracle:
            for cell, total in oracle.totals().items():
                if cell[0] == COUNTER:  # the producer's, which was checked
                    expected[cell] = total
            oracle.check(expected)
            assert oracle.dead() == set()
        with open_session(self.mysql_url) as session:
            assert verify(session).differences == []
            assert queue_losses.total(session) <= len(missing)
        return missing


@pytest.fixture
def program(request: pytest.FixtureRequest, servers_directory: Path) -> list[str] | None:
    """What the nodes run: Redis, or Valkey where a test asks for it."""
    wanted = getattr(request, "param", "redis")
    return [str(valkey_server(servers_directory))] if wanted == "valkey" else None


@pytest.fixture
def masters(
    servers_directory: Path, program: list[str] | None, mysql_url: str, children: Children
) -> Iterator[Scene]:
    """Three masters: nobody takes over."""
    with RedisCluster(servers_directory, replicas=0, program=program) as made:
        yield Scene(made, mysql_url, children)


@pytest.fixture
def scene(
    servers_directory: Path, program: list[str] | None, mysql_url: str, children: Children
) -> Iterator[Scene]:
    """Three masters, each with a replica."""
    with RedisCluster(servers_directory, replicas=1, program=program) as made:
        yield Scene(made, mysql_url, children)


def test_a_frozen_master_holds_up_its_own_partitions_only(masters: Scene) -> None:
    frozen = masters.cluster.shards[0].master
    workers = masters.workers(1)
    with ExitStack() as stack, Feeder(masters.cluster.url, 1) as feeder:
        feeder.send_more()
        frozen.freeze()
        stack.callback(frozen.thaw)
        workers += masters.workers(1)  # which comes when it is away already
        feeder.partitions = [
            n for n in range(PARTITIONS) if masters.cluster.shard_of(n).master != frozen
        ]
        there = Feeder(masters.cluster.url, 2)
        there.partitions = feeder.partitions
        with there:  # these are applied while the master is still frozen
            there.send_more()
        masters.wait_applied(there)
        workers[1].terminate()
        workers[1].wait()
        assert " stopped " in workers[1].output()  # in time, and in order
        stack.close()
        feeder.partitions = list(range(PARTITIONS))
        feeder.send_more()
    masters.wait_applied(feeder)
    assert workers[0].running
    assert masters.finish(feeder, there) == set()


@pytest.mark.clusters
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "deed", "waits"),
    [
        ("redis", "kill", True),
        ("redis", "kill", False),
        ("valkey", "kill", False),
        ("redis", "freeze", True),
    ],
    ids=["killed-WAIT", "killed", "killed-valkey", "frozen-WAIT"],
    indirect=["program"],
)
def test_masters_are_replaced_and_come_back(scene: Scene, deed: str, waits: bool) -> None:
    others: list[Feeder] = []
    scene.workers()
    with (
        Feeder(scene.cluster.url, 4, replicas=int(waits)) as one,
        Feeder(scene.cluster.url, 5, replicas=int(waits)) as two,
    ):
        for shard in scene.cluster.shards[:2]:
            one.send_more()
            theirs = scene.of(shard.master)
            getattr(shard.master, deed)()
            try:
                scene.cluster.wait_promoted(shard)
                with Feeder(scene.cluster.url, 12 + len(others)) as there:
                    others.append(there)
                    scene.wait_counted_there(there, theirs)
                one.send_more()
                two.send_more()
                if waits:
                    scene.wait_applied(one)
            finally:
                shard.master.thaw()
                shard.master.start()
            eventually(scene.cluster.is_whole, APPLIED_WITHIN)
            one.send_more()
    missing = scene.finish(one, two, *others)
    print(f"{len(missing)} of {len(one.stored) + len(two.stored)} entries were lost")
    assert not waits or not missing


@pytest.mark.clusters
@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", ["none", "min-replicas-to-write", "WAIT"])
def test_what_no_replica_has_is_lost_with_its_master_unless_a_setting_prevents_it(
    scene: Scene,
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_losses, "LOOK_EVERY_MS", 0)
    shard = scene.cluster.shards[0]
    if setting == "min-replicas-to-write":
        for server in scene.cluster.servers:
            scene.cluster.ask(server, "CONFIG", "SET", setting, 1)
    with Feeder(scene.cluster.url, 13, replicas=int(setting == "WAIT")) as feeder:
        feeder.send_more()
        shard.replicas[0].freeze()
        scene.cluster.ask(shard.master, "CLIENT", "KILL", "TYPE", "replica")
        feeder.send_more(100)
        scene.look()
        shard.master.kill()
        shard.replicas[0].thaw()
        scene.cluster.wait_promoted(shard)
        feeder.send_more(20)
        shard.master.start()  # without a replica the other one would refuse what workers write
        eventually(scene.cluster.is_whole, APPLIED_WITHIN)
    missing = scene.finish(feeder)  # and the others count once
    print(f"{len(missing)} of {len(feeder.stored)} entries were lost")
    assert bool(missing) == (setting == "none")
    monkeypatch.setattr(queue_losses, "CERTAIN_MS", 0)
    noticed = scene.look()
    assert bool(noticed) == bool(missing)
    assert noticed <= len(missing)


@pytest.mark.clusters
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["redis", "valkey"], indirect=True)
def test_slots_move_under_load(masters: Scene) -> None:
    masters.workers()
    with (
        masters.counting(),
        Feeder(masters.cluster.url, 8) as one,
        Feeder(masters.cluster.url, 9) as two,
    ):
        one.send_more()
        for turn in range(3):
            for partition in range(PARTITIONS):
                source = masters.cluster.master_of(partition)
                others = [
                    shard.master for shard in masters.cluster.shards if shard.master is not source
                ]
                masters.cluster.move_stream(partition, source, others[turn % 2])
                two.send_more(5)
    masters.wait_applied(one, two)
    assert masters.finish(one, two) == set()


@pytest.mark.clusters
@pytest.mark.timeout(300)
def test_workers_are_killed_again_and_again(masters: Scene) -> None:
    with Feeder(masters.cluster.url, 10) as one, Feeder(masters.cluster.url, 11) as two:
        for _ in range(4):
            workers = masters.workers()
            one.send_more()
            for worker in workers:
                worker.kill()
    masters.workers()
    masters.wait_applied(one, two)
    assert masters.finish(one, two) == set()
