"""Different members by way of a Redis Cluster and of Sentinel: salts reach whoever sends, whichever
server is away, and what was stored is counted once with its members."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from countersink.producers import Producer
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_KEY
from tests.support.processes import Children
from tests.support.producing import producing
from tests.support.redis_cluster import RedisCluster
from tests.support.sentinels import Watched
from tests.support.waiting import eventually

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(300)]
WITHIN = 60.0


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    with Store(mysql_url) as opened:
        opened.counters.set("visitors", salt_days=0)
        yield opened


@contextmanager
def seeing(redis_url: str, store: Store, counter: str, members: int = 0) -> Iterator[list[int]]:
    """Members are seen meanwhile, every one twice, at least so many; then they are counted."""

    def see(producer: Producer, number: int) -> None:
        for _ in range(2):
            producer.seen(counter, f"/{number % 3}", f"member {number}")

    with producing(redis_url, see, least=members) as seen:
        yield seen
    eventually(lambda: store.totals.total(counter) == 2 * len(seen), WITHIN)
    for key in range(3):
        found = store.totals.unique(counter, key=f"/{key}")
        assert found.low <= len(seen[key::3]) <= found.high


def test_salts_are_published_where_one_master_is_dead(
    servers_directory: Path, mysql_url: str, store: Store, children: Children
) -> None:
    with RedisCluster(servers_directory, replicas=0) as cluster:
        with connect(cluster.url) as client:
            client.set(PARTITIONS_KEY, 12)
        worker = children.worker(cluster.url, mysql_url)
        eventually(lambda: " ready " in worker.output(), message=worker.output)
        dead = cluster.shards[1].master
        dead.kill()
        for number in range(4):  # in several partitions
            store.counters.set(f"later-{number}", salt_days=1)
            with seeing(cluster.url, store, f"later-{number}", members=30):
                pass
        dead.start()
        eventually(cluster.is_whole, WITHIN)
        with seeing(cluster.url, store, "visitors", members=30):
            pass


def test_members_count_once_while_masters_of_a_cluster_are_replaced(
    servers_directory: Path, mysql_url: str, store: Store, children: Children
) -> None:
    with RedisCluster(servers_directory, replicas=1) as cluster:
        worker = children.worker(cluster.url, mysql_url)
        eventually(lambda: " ready " in worker.output(), message=worker.output)
        with seeing(cluster.url, store, "visitors") as seen:
            for shard in cluster.shards:
                there = len(seen)
                eventually(lambda there=there: len(seen) > there + 300)  # type: ignore[misc]
                cluster.promote(shard)


def test_members_count_once_where_the_master_behind_sentinels_is_killed(
    servers_directory: Path, mysql_url: str, store: Store, children: Children
) -> None:
    store.counters.set("during", salt_days=0)
    with Watched(servers_directory) as servers:
        worker = children.worker(servers.url, mysql_url)
        eventually(lambda: " ready " in worker.output(), message=worker.output)
        with seeing(servers.url, store, "visitors", members=300):
            pass
        servers.wait_replicated()
        servers.master.kill()
        with seeing(servers.url, store, "during") as seen:
            eventually(lambda: servers.is_master(servers.replica), WITHIN)
            there = len(seen)
            eventually(lambda: len(seen) > there + 300)
