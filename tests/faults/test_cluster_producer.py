"""Masters of a Redis Cluster die, freeze, are replaced and lose slots while producers send: callers
do not notice, entries go to the masters that serve, and each increment is stored once by its id.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest
import redis

from countersink.cli.commands.increment import send_one
from countersink.cli.errors import Failure
from countersink.logs import Parser
from countersink.logs.lines import Hits, Summary
from countersink.logs.position import LogMark
from countersink.logs.sender import LogSender
from countersink.logs.tail import tail_pipe
from countersink.producers import Producer
from countersink.producers.spool.replay import replay
from countersink.runtime.process import Stop
from countersink.stream import names
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError, StreamRefused, StreamUnavailable
from countersink.stream.names import used_partitions
from tests.logs.tailing import COUNTER as PAGE_VIEWS
from tests.logs.tailing import Recorder, Tailing, counted, line, write
from tests.producers.helpers import Entry, distinct, entries
from tests.support.redis_cluster import ClusterServer, RedisCluster, Shard
from tests.support.waiting import eventually

COUNTER = "hits"
QUICK = {"flush_interval": 0.02, "socket_timeout": 0.5}
MANY = 50_000


def stored(client: redis.Redis) -> list[Entry]:
    """All entries of all streams, one of each id; copies are identical to the byte."""
    found: list[Entry] = []
    for partition in used_partitions(client):
        found += entries(client, names.stream_key(partition))
    return distinct(found)


def increments(client: redis.Redis) -> int:
    """What a worker would count."""
    return sum(amount for entry in stored(client) for *_, amount in entry.rows)


def readable(client: redis.Redis) -> bool:
    """Whether all masters serve."""
    try:
        return bool(used_partitions(client))
    except StreamError:
        return False


@dataclass
class Scene:
    """A cluster, a producer, and the increments that it was given."""

    cluster: RedisCluster
    producer: Producer
    given: int = 0

    @property
    def partition(self) -> int:
        """Where the producer sends to."""
        return self.producer._link._route.partition

    @property
    def shard(self) -> Shard:
        """Where that lies."""
        return self.cluster.shard_of(self.partition)

    def count(self, times: int = 1000) -> None:
        """Increment; under a key of a few."""
        for _ in range(times):
            self.producer.increment(COUNTER, f"key-{self.given % 7}")
            self.given += 1

    def count_until(self, done: Callable[[], bool]) -> None:
        """Increment until it is done, and some more."""
        while not done():
            self.count(20)
            Event().wait(0.005)  # not a million of them
        self.count()

    def settle(self) -> None:
        """Everything is stored."""
        assert self.producer.flush(60), self.producer.stats()
        stats = self.producer.stats()
        assert (stats.dropped, stats.accepted) == (0, self.given)

    def store(self, times: int = 1000) -> None:
        """Increment, and wait until everything is stored."""
        self.count(times)
        self.settle()

    def goes_to(self, partition: int, client: redis.Redis) -> None:
        """What is sent now is stored in a partition."""
        before = client.xlen(names.stream_key(partition))
        self.store()
        assert client.xlen(names.stream_key(partition)) > before

    def check(self) -> None:
        """Each increment is in the streams once, by the ids; all masters must serve."""
        self.settle()
        with connect(self.cluster.url) as client:
            eventually(lambda: readable(client), 30)
            eventually(lambda: increments(client) == self.given, 30)


@pytest.fixture
def alone(servers_directory: Path) -> Iterator[RedisCluster]:
    """Three masters without replicas."""
    with RedisCluster(servers_directory, replicas=0) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """The same, for tests whose troubles end."""
    with RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=0) as made:
        yield made


@pytest.fixture
def shared(lasting: RedisCluster) -> Iterator[RedisCluster]:
    """It, empty, with a user ``app`` who may do all."""
    for server in lasting.servers:
        lasting.ask(server, "FLUSHALL")
        allow(lasting, server)
    yield lasting
    allow_all(lasting)


def allow_all(cluster: RedisCluster) -> None:
    """No server refuses anything any more."""
    for server in cluster.servers:
        server.thaw()
        cluster.ask(server, "CONFIG", "SET", "maxmemory", 0)
        allow(cluster, server)


def start_all(cluster: RedisCluster) -> None:
    """Servers that were killed or frozen are back."""
    for server in cluster.servers:
        server.thaw()
        server.start()
    eventually(cluster.is_whole, 30)


def allow(cluster: RedisCluster, server: ClusterServer) -> None:
    cluster.ask(server, "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")


def app_url(cluster: RedisCluster) -> str:
    return f"redis+cluster://app:secret@{cluster.hosts}"


def refuse(cluster: RedisCluster, server: ClusterServer, how: str) -> None:
    """Let a server take no entries, for a reason that stays; it answers all the same."""
    commands: dict[str, tuple[str | int, ...]] = {
        "NOPERM": ("ACL", "SETUSER", "app", "-xadd"),
        "WRONGPASS": ("ACL", "DELUSER", "app"),
        "OOM": ("CONFIG", "SET", "maxmemory", 1),
    }
    cluster.ask(server, *commands[how])


@pytest.fixture
def replicated(servers_directory: Path) -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    with RedisCluster(servers_directory) as made:
        yield made


@pytest.fixture
def short_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that was left is tried again soon."""
    monkeypatch.setattr(names, "RETURN_SECONDS", 0.3)


def begun(cluster: RedisCluster, spool: Path | None = None) -> Scene:
    """A producer that has stored something."""
    scene = Scene(cluster, Producer(cluster.url, spool=spool, **QUICK))  # type: ignore[arg-type]
    scene.store()
    return scene


def test_the_death_of_a_master_holds_up_nobody(shared: RedisCluster, short_absence: None) -> None:
    scene = begun(shared)
    with scene.producer:
        home, victim = scene.partition, scene.shard.master
        victim.kill()
        scene.store(MANY)
        assert scene.shard.master is not victim
        victim.start()
        # It goes back, without a restart and without a word of anybody.
        scene.count_until(lambda: scene.partition == home)
        scene.settle()
        eventually(shared.is_whole, 30)
        with connect(shared.url) as client:
            scene.goes_to(home, client)
        scene.check()


@pytest.mark.parametrize("how", ["NOPERM", "WRONGPASS", "OOM"])
def test_where_a_master_refuses_others_take_it(
    shared: RedisCluster, tmp_path: Path, how: str
) -> None:
    """If all refuse it is as with one Redis: rows wait, and are counted once somebody acted."""
    url = app_url(shared)
    with (
        Producer(url, spool=tmp_path / "spool", **QUICK) as producer,  # type: ignore[arg-type]
        connect(shared.url) as client,
    ):
        scene = Scene(shared, producer)
        scene.store()
        refuse(shared, scene.shard.master, how)
        scene.count()
        eventually(lambda: increments(client) == scene.given)
        for server in shared.servers:
            refuse(shared, server, how)
        scene.count()
        assert producer.flush(60)
        assert (producer.stats().spooled > 0, producer.stats().dropped) == (True, 0)
        assert "\n" not in str(producer.stats().last_error)
        assert increments(client) == scene.given - 1000
        allow_all(shared)
        eventually(lambda: increments(client) == scene.given, 30)


@pytest.mark.parametrize("how", ["NOPERM", "WRONGPASS", "OOM"])
def test_commands_go_past_masters_that_refuse(
    shared: RedisCluster, tmp_path: Path, how: str
) -> None:
    left_behind(tmp_path, 3000)
    url = app_url(shared)
    first, *others = (shard.master for shard in shared.shards)
    for server in others:
        refuse(shared, server, how)
    for _ in range(6):  # each chooses at random
        send_one(url, COUNTER, "k", 1, None)
    with connect(url) as client:
        for _ in range(3):
            assert replay(tmp_path, client).entries >= 0
    with connect(shared.url) as client:
        assert increments(client) == 3006
    refuse(shared, first, how)
    with pytest.raises(Failure if how == "OOM" else StreamRefused) as caught:
        send_one(url, COUNTER, "k", 1, None)
    assert "\n" not in str(caught.value)
    left_behind(tmp_path, 10)
    with connect(url) as client, pytest.raises(StreamError):
        replay(tmp_path, client)
    allow_all(shared)
    with connect(url) as client:
        assert replay(tmp_path, client).increments == 10
        assert increments(client) == 3016


def left_behind(spool: Path, number: int) -> None:
    """Fill a spool, as a process that ended without Redis does."""
    with Producer("redis://127.0.0.1:1/0", spool=spool, flush_interval=0.02) as producer:
        for each in range(number):
            producer.increment(COUNTER, str(each % 100))
        assert producer.flush(10)


@pytest.mark.clusters
@pytest.mark.timeout(120)
def test_a_replay_goes_past_however_many_masters_that_hang(
    servers_directory: Path, tmp_path: Path, short_absence: None
) -> None:
    left_behind(tmp_path, 3000)
    with RedisCluster(servers_directory, masters=8, replicas=0) as cluster:
        for server in cluster.servers:  # as long as none is known to be dead
            cluster.ask(server, "CONFIG", "SET", "cluster-node-timeout", 600_000)
        serving = cluster.master_of(9)
        for server in cluster.servers:
            if server is not serving:
                server.freeze()
        url = cluster.url + "?socket_timeout=0.5"
        with connect(url) as client:
            assert replay(tmp_path, client).increments == 3000
            send_one(url, COUNTER, "k", 1, None)
        for server in cluster.servers:
            server.thaw()
        with connect(cluster.url) as client:
            eventually(lambda: readable(client), 30)
            assert increments(client) == 3001


def test_masters_that_answer_and_take_nothing_are_tried_once_each(
    shared: RedisCluster, tmp_path: Path, short_absence: None
) -> None:
    """Each takes longer to fail than one that was left is left alone."""
    left_behind(tmp_path, 10)
    url = shared.url + "?socket_timeout=0.3"
    try:
        for server in shared.servers:
            shared.ask(server, "CLIENT", "PAUSE", 600_000, "WRITE")
        with connect(url) as client, pytest.raises(StreamUnavailable):
            replay(tmp_path, client)
        with pytest.raises(Failure, match="may or may not be stored"):
            send_one(url, COUNTER, "k", 1, None)
    finally:
        for server in shared.servers:
            shared.ask(server, "CLIENT", "UNPAUSE")
    with connect(url) as client:
        assert replay(tmp_path, client).increments == 10


@contextmanager
def piped(client: redis.Redis) -> Iterator[tuple[int, Recorder]]:
    """A tail that reads a pipe: what to write to, and what it told."""
    read, write_end = os.pipe()
    told = Recorder()
    sender = LogSender(client, counter=PAGE_VIEWS, full=1_000_000, notice=told.notice, stop=Stop())
    hits = Hits(Parser("path"), told, Summary())
    failures: list[BaseException] = []

    def body() -> None:
        try:
            tail_pipe(sender, read, hits, name="-")
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=body)
    thread.start()
    try:
        yield write_end, told
    finally:
        os.close(write_end)
        thread.join(30)
    os.close(read)
    assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize("how", ["NOPERM", "freeze"])
def test_a_tail_of_a_pipe_goes_to_another_master(shared: RedisCluster, how: str) -> None:
    url = app_url(shared) + "?socket_timeout=0.5"
    with connect(url) as client, connect(shared.url) as looking:
        with piped(client) as (write_end, told):

            def sent(path: str) -> None:
                os.write(write_end, line(path) + b"\n")
                eventually(lambda: counted(looking)[path] == 1)

            sent("/a")
            home = next(n for n in range(12) if looking.exists(names.stream_key(n)))
            master = shared.master_of(home)
            master.freeze() if how == "freeze" else refuse(shared, master, how)
            os.write(write_end, line("/b") + b"\n")
            others = [n for n in range(12) if shared.shard_of(n).master is not master]
            eventually(lambda: any(looking.exists(names.stream_key(n)) for n in others))
            master.thaw()
            allow(shared, master)
            eventually(shared.is_whole)
            sent("/c")
        assert counted(looking) == {"/a": 1, "/b": 1, "/c": 1}
        assert told.notices == []


def test_the_place_of_a_mark_does_not_depend_on_where_slots_lie(
    shared: RedisCluster,
) -> None:
    """So two tails that begin while slots move meet, and one of them is refused."""
    with connect(shared.url) as client:

        def places() -> list[int]:
            return [LogMark(client, f"log {number}").partition for number in range(30)]

        before = places()
        old = shared.master_of(0)
        new = next(server for server in shared.servers if server is not old)
        shared.move_stream(0, old, new)
        assert places() == before
        shared.move_stream(0, new, old)


@pytest.mark.clusters
def test_a_frozen_master_is_not_noticed_by_callers(alone: RedisCluster) -> None:
    """What it had stored, and did not answer, lies on another master as well, with the same id."""
    scene = begun(alone)
    with scene.producer:
        victim = scene.shard.master
        victim.freeze()
        scene.store(300_000)
        assert scene.shard.master is not victim
        assert scene.producer.stats().resent > 0
        assert "rows go to" not in (scene.producer.stats().last_error or "")
        victim.thaw()
        scene.check()


@pytest.mark.clusters
@pytest.mark.parametrize("spooled", [False, True], ids=["memory", "spool"])
@pytest.mark.parametrize("deed", ["kill", "freeze"])
def test_a_master_is_replaced_by_its_replica(
    replicated: RedisCluster, tmp_path: Path, short_absence: None, spooled: bool, deed: str
) -> None:
    scene = begun(replicated, tmp_path / "spool" if spooled else None)
    with scene.producer:
        shard, home = scene.shard, scene.partition
        replicated.wait_replicated()  # what had not reached the replica would be lost
        getattr(shard.master, deed)()
        scene.store(MANY)
        promoted = replicated.wait_promoted(shard)
        scene.count_until(lambda: scene.partition == home)
        scene.settle()
        with replicated.client(promoted) as client:
            scene.goes_to(home, client)
        start_all(replicated)
        scene.check()


@pytest.mark.parametrize(
    "spooled",
    [pytest.param(False, id="memory"), pytest.param(True, id="spool", marks=pytest.mark.clusters)],
)
def test_slots_move_while_it_sends(
    shared: RedisCluster, tmp_path: Path, seed: int, spooled: bool
) -> None:
    draw = random.Random(seed)
    scene = begun(shared, tmp_path / "spool" if spooled else None)
    with scene.producer:
        done, moved = Event(), []

        def move(partition: int, source: ClusterServer, target: ClusterServer) -> None:
            shared.move_stream(partition, source, target)
            moved.append(partition)

        def move_all() -> None:
            """From its home to another server, to the third one, and back."""
            try:
                homes = {partition: shared.shard_of(partition).master for partition in range(12)}
                away = {n: draw.sample([*{*shared.servers} - {homes[n]}], 2) for n in homes}
                for step in range(3):
                    for n in draw.sample(range(12), 12):
                        way = [homes[n], *away[n], homes[n]]
                        move(n, way[step], way[step + 1])
            finally:
                done.set()

        mover = Thread(target=move_all)
        mover.start()
        scene.count_until(done.is_set)
        mover.join()
        assert len(moved) == 36
        scene.settle()
        assert scene.producer.stats().resent == 0  # a redirection is no resend
        scene.check()


@pytest.mark.clusters
def test_all_masters_are_away_and_come_back(alone: RedisCluster, short_absence: None) -> None:
    scene = begun(alone)
    with scene.producer:
        for server in alone.servers:
            server.kill()
        failures = scene.producer._link.failures
        scene.count(MANY)
        eventually(lambda: scene.producer._link.failures >= failures + 5)
        assert not scene.producer.flush(0.2)
        assert not scene.producer.stats().connected
        start_all(alone)
        scene.check()


@pytest.mark.clusters
def test_applied_is_never_said_of_what_a_promotion_lost(replicated: RedisCluster) -> None:
    scene = begun(replicated)
    with scene.producer:
        shard, home = scene.shard, scene.partition
        replicated.wait_replicated()
        shard.replicas[0].freeze()
        scene.store()  # stored on the master alone
        shard.master.kill()
        assert not scene.producer.flush(1, applied=True)
        shard.replicas[0].thaw()
        replicated.wait_promoted(shard)
        # Workers apply what is left.
        with connect(replicated.url) as client:
            eventually(lambda: readable(client), 30)
            for partition in used_partitions(client):
                stream = names.stream_key(partition)
                found = [(e.stream_id, e["id"]) for e in entries(client, stream)]
                assert partition == home or not found
                for stream_id, _ in found:
                    client.xdel(stream, stream_id)
        assert not scene.producer.flush(5, applied=True)  # not known, and said so
        assert scene.producer.trail.reported_breaks
        assert scene.producer.flush(5, applied=True)  # what was stored since: nothing


@pytest.mark.clusters
def test_a_tail_waits_for_the_master_that_has_its_position(
    alone: RedisCluster, tmp_path: Path
) -> None:
    with connect(alone.url) as client:
        tailing = Tailing(client, tmp_path / "access.log")
        write(tailing.log, "/a", "/b")
        with tailing.following():
            eventually(lambda: counted(client) == {"/a": 1, "/b": 1})
            mark = tailing.mark
            master = alone.master_of(mark.partition)
            target = next(server for server in alone.servers if server is not master)
            alone.move_stream(mark.stream, master, target)
            write(tailing.log, "/c")
            eventually(lambda: counted(client) == {"/a": 1, "/b": 1, "/c": 1})
            target.kill()
            write(tailing.log, "/d")
            eventually(lambda: any("waiting for Redis" in each for each in tailing.told.notices))
            target.start()
            eventually(alone.is_whole, 30)
            eventually(lambda: counted(client).get("/d") == 1, 20)
        assert counted(client) == {"/a": 1, "/b": 1, "/c": 1, "/d": 1}
        assert tailing.mark.partition == mark.partition
