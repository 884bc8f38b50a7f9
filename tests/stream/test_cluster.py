"""Redis Cluster: one URL, by which each command finds the master of its key."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ClusterDownError

from countersink.backfill import reconcile
from countersink.cli.private_server import LOOPBACK, free_port
from countersink.stream import cluster as cluster_module
from countersink.stream import names
from countersink.stream.cluster import ClusterClient
from countersink.stream.connection import command, connect, mapped
from countersink.stream.entry import offset_ms
from countersink.stream.errors import (
    StreamError,
    StreamMisconfigured,
    StreamRefused,
    StreamUnavailable,
)
from countersink.stream.progress import stream_state
from tests.backfill.helpers import options
from tests.stream.test_sentinel import in_a_child
from tests.support.examples import MANY
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.redis_cluster import ClusterServer, RedisCluster
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(servers_directory: Path) -> Iterator[RedisCluster]:
    """Three masters; a test that changes them makes its own."""
    with RedisCluster(servers_directory, replicas=0) as made:
        yield made


@pytest.fixture
def client(cluster: RedisCluster) -> Iterator[ClusterClient]:
    """A client of the cluster, which is empty."""
    for server in cluster.servers:
        cluster.ask(server, "FLUSHALL")
    with connected(cluster.url) as made:
        yield made


def connected(url: str) -> ClusterClient:
    client = connect(url)
    assert isinstance(client, ClusterClient)
    return client


def text(server: Any) -> str:
    return f"{LOOPBACK}:{server.port}"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis+cluster://a:1,b:2,c:3", [("a", 1), ("b", 2), ("c", 3)]),
        ("redis+cluster://a,b:2/", [("a", 6379), ("b", 2)]),
        ("valkey+cluster://u:p@a/0", [("a", 6379)]),
        ("redis+cluster://[::1],[fe80::1]:5/0?socket_timeout=2", [("::1", 6379), ("fe80::1", 5)]),
        ("valkeys+cluster://s.example?db=0", [("s.example", 6379)]),
    ],
)
def test_a_url_names_nodes(url: str, hosts: list[tuple[str, int]]) -> None:
    assert list(connected(url)._hosts) == hosts


def test_options_are_those_of_a_redis_url() -> None:
    client = connected(f"rediss+cluster://app:p%40w@a,b?ssl_ca_certs={__file__}&socket_timeout=7")
    for pool in (client.connection_pool, client.node(client._hosts[1]).connection_pool):
        options = pool.connection_kwargs
        assert (options["username"], options["password"]) == ("app", "p@w")
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (7, 5)
        assert (options["ssl_ca_certs"], options["ssl_check_hostname"]) == (__file__, True)
        assert options["retry"]._retries == 0
        assert pool.connection_class is redis.SSLConnection


def test_each_command_goes_to_the_master_of_its_key(
    cluster: RedisCluster, client: ClusterClient
) -> None:
    for number in range(30):
        stream = names.stream_key(number)
        key = command(client, "XADD", stream, "*", "a", "1", "a", "2")
        assert command(client, "XRANGE", stream, "-", "+") == [[key, [b"a", b"1", b"a", b"2"]]]
        assert stream_state(client, stream, make=True).last == key.decode()  # a script
        (found,) = command(
            client, *("XREADGROUP", "GROUP", names.GROUP, "me", "STREAMS", stream, ">")
        )
        assert found[1][0][0] == key
        assert command(client, "XPENDING", stream, names.GROUP)[0] == 1
        assert client.xinfo_groups(stream)[0]["pending"] == 1
        with cluster.client(cluster.master_of(number)) as master:
            assert master.xlen(stream) == 1
    assert len(list(client.scan_iter("*:events"))) == 30
    assert client.ping() is True


def test_a_pipeline_spans_masters_and_keeps_the_order(client: ClusterClient) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(50):
        pipe.set(f"k{number}", number)
        pipe.incr(f"k{number}")
        pipe.hset(f"k{number}", "a", 1)
    found = pipe.execute(raise_on_error=False)
    assert found[::3] == [True] * 50
    assert found[1::3] == list(range(1, 51))
    assert all("WRONGTYPE" in str(error) for error in found[2::3])
    pipe.hset("k1", "a", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        pipe.execute()
    assert pipe.execute() == []


def test_a_script_that_a_node_does_not_have_is_given_to_it(
    cluster: RedisCluster, client: ClusterClient
) -> None:
    number = client.register_script("return redis.call('INCR', KEYS[1])")
    for turn in (1, 2):
        assert {number(keys=[f"n{key}"]) for key in range(30)} == {turn}
        for server in cluster.servers:
            cluster.ask(server, "SCRIPT", "FLUSH")


def test_the_clock_is_that_of_the_keys_master(cluster: RedisCluster, client: ClusterClient) -> None:
    proxy_of = cluster.master_of(0)
    with RedisProxy((LOOPBACK, proxy_of.port)) as proxy, announced(cluster, proxy_of, proxy):
        asked = proxy.when("TIME", Phase.BEFORE, Deed.PASS, times=0)
        fresh = connected(cluster.url)
        assert abs(offset_ms(fresh, names.stream_key(0))) < 1000
        assert asked.acted == 1
        other = next(n for n in range(20) if cluster.master_of(n) is not proxy_of)
        offset_ms(fresh, names.stream_key(other))
        assert asked.acted == 1


def test_reconciling_begins_by_the_latest_of_all_clocks(cluster: RedisCluster) -> None:
    """A master that is asked later stands for one whose clock is ahead."""
    last = cluster.shards[-1].master
    ahead: list[int] = []

    def now() -> int:
        seconds, microseconds = cluster.ask(last, "TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def later(_: object) -> None:
        begun = now()
        ahead.append(eventually(lambda: (then := now()) > begun + 10 and then))

    with RedisProxy((LOOPBACK, last.port)) as proxy, announced(cluster, last, proxy):
        proxy.when("TIME", Phase.BEFORE, Deed.PASS, call=later, times=0)
        t0 = reconcile.begin(cluster.url, options())
    assert ahead
    assert t0 is not None
    assert t0 >= ahead[0]


def test_a_child_has_connections_of_its_own(client: ClusterClient) -> None:
    client.set("k", 1)
    assert in_a_child(lambda: int(client.incr("k"))) == 2
    assert client.get("k") == b"2"


def test_threads_share_a_client(cluster: RedisCluster, client: ClusterClient) -> None:
    with connected(cluster.url) as fresh:

        def add(key: str) -> None:
            for _ in range(50):
                fresh.incr(key)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(add, "aabbcc"))  # raises what one of them does
    assert [client.get(key) for key in "abc"] == [b"100"] * 3


# ----------------------------------------------------------------------------------- partitions


def test_four_partitions_per_master_and_a_share_of_each_for_every_master(
    cluster: RedisCluster, client: ClusterClient
) -> None:
    assert names.masters(client) == [text(shard.master) for shard in cluster.shards]
    assert names.partitions(client) == 12
    chosen = [names.choose_partition(client, number / 900, 12) for number in range(900)]
    per_master = Counter(names.master_of(client, partition) for partition in chosen)
    assert set(per_master.values()) == {300}
    for partition in range(12):
        assert names.master_of(client, partition) == text(cluster.master_of(partition))
    away = text(cluster.shards[1].master)
    others = [names.choose_partition(client, n / 900, 12, away={away}) for n in range(900)]
    per_master = Counter(names.master_of(client, partition) for partition in others)
    assert set(per_master.values()) == {450}
    moved = [one for one, other in zip(chosen, others, strict=True) if one != other]
    assert {names.master_of(client, partition) for partition in moved} == {away}


def test_a_partition_is_in_use_where_its_stream_exists(client: ClusterClient) -> None:
    assert names.used_partitions(client) == list(range(12))
    names.note_use(client, 500)
    names.set_partitions(client, 3)
    assert names.used_partitions(client) == [0, 1, 2]
    key = client.xadd(names.stream_key(700), {"a": 1})
    client.xdel(names.stream_key(700), key)
    assert names.used_partitions(client) == [0, 1, 2, 700]


def test_masters_that_refuse_are_named_and_the_others_tell(
    cluster: RedisCluster, client: ClusterClient
) -> None:
    masters = [shard.master for shard in cluster.shards]
    for server in masters:
        cluster.ask(server, "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
    beyond = [next(n for n in range(700, 800) if cluster.master_of(n) is each) for each in masters]
    for partition in beyond:
        client.xadd(names.stream_key(partition), {"a": 1})
    told: list[tuple[str, StreamError]] = []

    def known() -> set[int]:
        told.clear()
        app = connect(f"redis+cluster://app:secret@{cluster.hosts}")
        return set(names.used_partitions(app, on_silence=lambda *each: told.append(each)))

    assert known() == {*range(12), *beyond}
    assert told == []
    cluster.ask(masters[0], "ACL", "SETUSER", "app", "-exists")
    cluster.ask(masters[1], "ACL", "DELUSER", "app")
    assert known() == {*range(12), beyond[2]}
    assert {node for node, _ in told} == {text(each) for each in masters[:2]}
    app = connect(f"redis+cluster://app:secret@{cluster.hosts}")
    with pytest.raises(StreamRefused, match="refuses"):
        names.used_partitions(app)
    cluster.ask(masters[2], "ACL", "SETUSER", "app", "-exists")
    with pytest.raises(StreamRefused, match="refuses"):
        known()


# ------------------------------------------------------------------------- once, and not again


class announced:
    """A node that says that it is where the proxy is."""

    def __init__(self, cluster: RedisCluster, server: Any, proxy: RedisProxy) -> None:
        self._cluster, self._server, self._port = cluster, server, proxy.port

    def __enter__(self) -> None:
        self._set(self._port)

    def __exit__(self, *_: object) -> None:
        self._set(self._server.port)

    def _set(self, port: int) -> None:
        self._cluster.ask(self._server, "CONFIG", "SET", "cluster-announce-port", port)

        def told() -> bool:
            return all(
                port in [each[2][1] for each in self._cluster.ask(server, "CLUSTER SLOTS")]
                for server in self._cluster.servers
            )

        eventually(told)


def test_a_command_whose_reply_is_lost_is_sent_once(cluster: RedisCluster) -> None:
    server = cluster.master_of("once")
    with (
        RedisProxy((LOOPBACK, server.port)) as proxy,
        announced(cluster, server, proxy),
        cluster.client(server) as direct,
        connected(cluster.url) as client,
    ):
        cut = proxy.when("XADD", Phase.AFTER, Deed.CUT, times=2)
        with pytest.raises(StreamUnavailable), mapped():
            client.xadd("once", {"a": 1})
        pipe = client.pipeline(transaction=False)
        for number in range(3):
            pipe.xadd("once", {"a": number})
        with pytest.raises(StreamUnavailable), mapped():
            pipe.execute(raise_on_error=False)
        assert cut.acted == 2
        assert direct.xlen("once") == 4


@pytest.mark.random
def test_moved_slots_are_followed_and_each_command_is_executed_once(
    servers_directory: Path,
) -> None:
    """While a slot moves, and after that; with streams in it, and before they are made."""
    with (
        RedisCluster(servers_directory, masters=2, replicas=0) as cluster,
        connected(cluster.url) as client,
    ):
        source, target = (shard.master for shard in cluster.shards)
        mine = [n for n in range(20 if MANY else 10) if cluster.master_of(n) is source]
        there, fresh = names.stream_key(mine[0]), names.stream_key(mine[1])
        client.xadd(there, {"a": 0})
        stream_state(client, there, make=True)
        done = threading.Event()
        sent = 1

        def move() -> None:
            for partition in mine:
                slot = key_slot(names.stream_key(partition).encode())
                cluster.move(slot, slot, source, target)
            done.set()

        mover = threading.Thread(target=move)
        mover.start()
        again = 0
        while again < (20 if MANY else 5):
            again += done.is_set()
            pipe = client.pipeline(transaction=False)
            pipe.xadd(there, {"a": 1}).xadd(there, {"a": 2}).xlen(there)
            assert pipe.execute()[2] == sent + 2
            client.xadd(there, {"a": 3})
            sent += 3
            stream_state(client, there)
        mover.join()
        stream_state(client, fresh, make=True)

        def known() -> bool:
            names.masters(client)
            return {names.master_of(client, each) for each in mine} == {text(target)}

        eventually(known)
        with cluster.client(target) as direct:
            assert direct.xlen(there) == sent
            assert direct.exists(fresh)


# ------------------------------------------------------------------------------------- outages


def test_a_wrong_password_is_a_misconfiguration(cluster: RedisCluster) -> None:
    for url in (f"redis+cluster://{cluster.hosts}", f"redis+cluster://:wrong@{cluster.hosts}"):
        with pytest.raises(StreamMisconfigured, match="refuses"):
            command(connect(url), "XLEN", "k")


def test_what_is_no_cluster_is_said(redis_url: str) -> None:
    hosts = redis_url.partition("://")[2].rpartition("/")[0]
    with pytest.raises(StreamMisconfigured, match="no node of a cluster: use a redis:// URL"):
        command(connect(f"redis+cluster://{hosts}"), "PING")


@pytest.mark.usefixtures("client")
def test_nodes_that_are_away_or_silent_are_passed_over(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "QUESTION_TIMEOUT", 0.2)
    alive = cluster.shards[1].master.port
    client = connect(cluster.url_for(f"{LOOPBACK}:{free_port()},{LOOPBACK}:{alive}"))
    assert client.ping()
    frozen = cluster.shards[0].master
    frozen.freeze()
    try:
        client = connect(cluster.url)  # it is the first
        partition = next(n for n in range(20) if cluster.shard_of(n).master is not frozen)
        assert command(client, "XLEN", names.stream_key(partition)) == 0
        assert names.partitions(client) == 12
        silent: list[str] = []
        found = names.used_partitions(client, on_silence=lambda node, _: silent.append(node))
        assert (found, silent) == (list(range(12)), [text(frozen)])
    finally:
        frozen.thaw()
    eventually(lambda: cluster.is_whole())


@pytest.mark.clusters
def test_a_node_that_is_cut_off_does_not_tell_where_slots_are(servers_directory: Path) -> None:
    with RedisCluster(servers_directory, replicas=0) as cluster, connected(cluster.url) as client:
        old, new, other = cluster.servers
        key = next(f"k{n}" for n in range(99) if cluster.master_of(f"k{n}") is old)
        assert client.master_of(key) == (LOOPBACK, old.port)
        cluster.replace(key, new)
        fresh = connected(cluster.url_for(f"{text(old)},{text(other)}"))
        assert fresh.incr(key) == 1
        with pytest.raises(ClusterDownError):
            client.incr(key)  # it had learnt before

        def reached(server: ClusterServer) -> bool:
            client.topology(0.0)
            return bool(client.master_of(key) == (LOOPBACK, server.port))

        assert reached(new)
        assert client.incr(key) == 2
        for server in (new, other):
            server.freeze()
        assert reached(new)
        for server in (new, other):
            server.thaw()
        cluster.make_anew()  # its epochs are lower
        eventually(lambda: reached(old))  # those that were silent are asked after a while
        assert client.incr(key) == 1


@pytest.mark.clusters
def test_a_promoted_replica_is_found_and_a_dead_master_is_an_outage(
    servers_directory: Path,
) -> None:
    with RedisCluster(servers_directory) as cluster, connected(cluster.url) as client:
        number = client.register_script("return redis.call('INCR', KEYS[1])")
        assert number(keys=["k"]) == 1
        shard = cluster.shard_of("k")
        replica = cluster.promote(shard)
        assert number(keys=["k"]) == 2  # a promotion in good order costs no command
        assert client.master_of("k") == (LOOPBACK, replica.port)
        with cluster.client(shard.master) as old:
            eventually(lambda: old.info("replication")["role"] == "slave")
        cluster.wait_replicated()
        replica.kill()
        with pytest.raises(StreamUnavailable):
            command(client, "GET", "k")

        def found() -> bool:
            try:
                return bool(command(client, "GET", "k") == b"2")
            except StreamUnavailable:
                return False

        eventually(found, 30)
        assert client.master_of("k") == (LOOPBACK, shard.master.port)
        other = next(f"o{n}" for n in range(99) if cluster.shard_of(f"o{n}") is not shard)
        cluster.uncover(other)
        with pytest.raises(StreamUnavailable, match="slot"):
            command(client, "GET", other)
        assert command(client, "GET", "k") == b"2"


@pytest.mark.clusters
def test_tls_verifies_certificate_and_name(servers_directory: Path) -> None:
    with RedisCluster(servers_directory, masters=1, replicas=0, tls=True) as cluster:
        assert connect(cluster.url).set("k", 1)
        with pytest.raises(StreamUnavailable, match=r"(?i)certificate verify failed"):
            command(connect(cluster.url.partition("?")[0]), "PING")
        named = cluster.url_for(f"localhost:{cluster.servers[0].port}")
        with pytest.raises(StreamUnavailable, match=r"(?i)mismatch|not valid for"):
            command(connect(named), "PING")
