"""`countersink partitions`: where the partitions lie, how full they are, and how many there are."""

import csv
import io
import re
from collections.abc import Iterator

import pytest
import redis

from countersink.cli.servers import RedisServer
from tests.cli.command import Servers, one_sentence
from tests.support.redis_cluster import RedisCluster
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=0) as started:
        yield started


def test_of_an_empty_redis_there_is_one(servers: Servers) -> None:
    found = servers.run("partitions", "--format", "json").json
    assert found["partitions"] == 1
    assert found["nodes"] == found["warnings"] == []
    [stream] = found["streams"]
    assert stream == {
        "partition": 0,
        "stream": "{countersink:0}:events",
        "node": None,
        "entries": 0,
        "pending": 0,
        "bytes": None,
        "oldest": None,
        "lag_ms": None,
        "beyond": False,
    }
    shown = servers.call("partitions")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.split()[:3] == ["partition", "node", "entries"]


def test_how_full_they_are(servers: Servers, redis_client: redis.Redis) -> None:
    for _ in range(3):
        servers.call("increment", "c")
    stream = "{countersink:0}:events"
    redis_client.xgroup_create(stream, "countersink", "0")
    redis_client.xreadgroup("countersink", "somebody", {stream: ">"}, count=2)
    [found] = servers.call("partitions", "--format", "json").json["streams"]
    assert (found["entries"], found["pending"]) == (3, 2)
    assert found["bytes"] > 0
    assert found["lag_ms"] >= 0
    assert found["oldest"].endswith("Z")
    shown = servers.call("partitions", "--format", "csv")
    [row] = csv.DictReader(io.StringIO(shown.out))
    assert {name: row[name] for name in ("partition", "node", "entries")} == {
        "partition": "0",
        "node": "",
        "entries": "3",
    }


def test_their_number_is_set_and_those_beyond_it_are_said(
    servers: Servers, redis_client: redis.Redis
) -> None:
    done = servers.call("partitions", "set", "3", "--format", "json")
    assert done.status == 0
    assert [each["partition"] for each in done.json["streams"]] == [0, 1, 2]
    assert redis_client.get("countersink:partitions") == b"3"
    redis_client.sadd("countersink:partitions:used", 2)
    redis_client.xadd("{countersink:2}:events", {"a": "b"})
    fewer = servers.call("partitions", "set", "1")
    assert fewer.status == 0
    assert fewer.err == (
        "warning: producers do not send to partition 2 any more; 1 of its entries wait, and workers"
        " read it on\n"
    )
    streams = servers.call("partitions", "--format", "json").json["streams"]
    assert [(each["partition"], each["beyond"]) for each in streams] == [(0, False), (2, True)]


def test_a_number_that_is_none_is_mended(servers: Servers, redis_client: redis.Redis) -> None:
    redis_client.set("countersink:partitions", "many")
    refused = one_sentence(servers.call("partitions"), 1)
    assert "set a number from 1 to 1024 with countersink partitions set" in refused
    assert servers.call("partitions", "set", "2").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set"], "say how many, from 1 to 1024"),
        (["set", "0"], "not in the range 1<=x<=1024"),
        (["set", "1025"], "not in the range 1<=x<=1024"),
        (["set", "x"], "not a valid integer"),
        (["get"], "'get'"),
        (["3"], "'3'"),
    ],
)
def test_wrong_arguments_are_refused(servers: Servers, arguments: list[str], said: str) -> None:
    assert said in one_sentence(servers.call("partitions", *arguments), 2)


def test_info_says_where_streams_lie(servers: Servers) -> None:
    found = servers.call("info", "--format", "json").json
    assert found["away"] == []
    assert [(each["partition"], each["node"]) for each in found["streams"]] == [(0, None)]


def test_a_master_without_any_is_said_and_how_many_give_it_one(cluster: RedisCluster) -> None:
    servers = Servers(cluster.url, "")
    # Partitions 0 and 1 lie on two of three masters.
    document = servers.call("partitions", "set", "2", "--format", "json").json
    places = [cluster.master_of(partition) for partition in range(2)]
    [bare] = [shard.master for shard in cluster.shards if shard.master not in places]
    assert [each["node"] for each in document["streams"]] == [address(place) for place in places]
    [warning] = document["warnings"]
    said = re.fullmatch(
        f"no partition lies on {address(bare)}, which takes no entries:"
        r" countersink partitions set (\d+)",
        warning,
    )
    assert said is not None
    document = servers.call("partitions", "set", said[1], "--format", "json").json
    assert document["warnings"] == []
    assert {each["node"]: bool(each["partitions"]) for each in document["nodes"]} == {
        address(shard.master): True for shard in cluster.shards
    }


def test_a_master_that_is_away_holds_up_none_of_the_others(cluster: RedisCluster) -> None:
    servers = Servers(cluster.url, "")
    servers.call("partitions", "set", "12")
    # What is stored there is the number of partitions, or is not: both ways the rest is shown.
    for shard in cluster.shards:
        shard.master.freeze()
        document = servers.call("partitions", "--format", "json").json
        shard.master.thaw()
        unknown = [each for each in document["streams"] if each["entries"] is None]
        assert unknown
        assert {each["node"] for each in unknown} == {address(shard.master)}
        [away] = [each for each in document["nodes"] if each["error"]]
        assert away["node"] == address(shard.master)
        assert any("is away" in each for each in document["warnings"])
        has_number = cluster.shard_of("countersink:partitions") is shard
        assert document["partitions"] == (None if has_number else 12)
        eventually(cluster.is_whole)


def address(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"
