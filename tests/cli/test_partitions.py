"""`countersink partitions`: where the partitions lie, how full they are, and how many there are."""

import csv
import io

import redis

from tests.cli.command import Servers, one_sentence


def test_of_an_empty_redis_there_is_one(servers: Servers) -> None:
    found = servers.json("partitions")
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
    info = servers.json("info")
    assert (info["away"], [each["node"] for each in info["streams"]]) == ([], [None])


def test_how_full_they_are(servers: Servers, redis_client: redis.Redis) -> None:
    for _ in range(3):
        servers.call("increment", "c")
    stream = "{countersink:0}:events"
    redis_client.xgroup_create(stream, "countersink", "0")
    redis_client.xreadgroup("countersink", "somebody", {stream: ">"}, count=2)
    [found] = servers.json("partitions")["streams"]
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
        "warning: producers no longer send to partition 2; workers still read it: 1 entry waits\n"
    )
    streams = servers.json("partitions")["streams"]
    assert [(each["partition"], each["beyond"]) for each in streams] == [(0, False), (2, True)]


def test_a_number_that_is_none_is_mended(servers: Servers, redis_client: redis.Redis) -> None:
    redis_client.set("countersink:partitions", "many")
    refused = one_sentence(servers.call("partitions"), 1)
    assert "set a number from 1 to 1024 with countersink partitions set" in refused
    assert servers.call("partitions", "set", "2").status == 0
