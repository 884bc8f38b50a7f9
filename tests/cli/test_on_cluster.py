"""Commands, reads and scheduled jobs on a Redis Cluster: healthy, and with a master that hangs, or
that is dead and has no replica."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from countersink.counting.apply import guards
from countersink.database.connection import connect as connect_mysql
from countersink.metrics.health import probe_servers, probes
from countersink.producers import Producer
from countersink.schedules.errors import Alarm
from countersink.schedules.jobs import Context, checks, retention
from countersink.schedules.options import JobOptions
from countersink.stream.connection import connect
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.cli.command import Result, Servers, one_sentence
from tests.support.oracle import Oracle
from tests.support.processes import PROJECT, Children
from tests.support.redis_cluster import ClusterServer, RedisCluster, Shard
from tests.support.traffic import Traffic, now_ms
from tests.support.waiting import eventually

PARTITIONS = 12
LINE = '1.2.3.4 - - [23/Nov/2026:10:00:00 +0000] "GET /{} HTTP/1.1" 200 12 "-" "x"\n'
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=0) as made:
        yield made


@pytest.fixture
def cluster(started: RedisCluster) -> Iterator[RedisCluster]:
    """Three masters without replicas, and twelve empty partitions, some on each."""
    for server in started.servers:
        started.ask(server, "FLUSHALL")
    with connect(started.url) as client:
        client.set(PARTITIONS_KEY, PARTITIONS)
    yield started
    for server in started.servers:
        server.thaw()
        server.start()
    eventually(started.is_whole)


@pytest.fixture
def servers(cluster: RedisCluster, mysql_url: str) -> Servers:
    return Servers(cluster.url, mysql_url)


@pytest.fixture
def context(cluster: RedisCluster, mysql_url: str) -> Context:
    options = JobOptions(ledger_days=3)
    return Context(mysql_url=mysql_url, redis_url=cluster.url, options=options, stop=lambda: False)


def fill(cluster: RedisCluster, *, sent_ago_ms: int = 0) -> Traffic:
    """Put an entry into each partition."""
    traffic = Traffic(1)
    with connect(cluster.url) as client:
        at = now_ms(client) - sent_ago_ms
        for partition in range(PARTITIONS):
            fields: Any = traffic.entry(at).fields()
            client.xadd(stream_key(partition), fields)
    return traffic


def total(servers: Servers, counter: str, *more: str) -> int:
    rows = servers.rows(counter, "--by", "total", *more)
    found: int = rows[0]["total"]
    return found


def address(server: ClusterServer) -> str:
    return f"127.0.0.1:{server.port}"


def statuses(doctor: Result) -> set[tuple[str, str]]:
    return {(line["check"], line["status"]) for line in doctor.json["lines"]}


def prunable(servers: Servers) -> None:
    """Let all that waits be counted, and its guards be so old that they may go."""
    servers.apply()
    servers.execute(
        "UPDATE applied_entry SET keep_from = CONV(SUBSTR(HEX(entry_id), 1, 12), 16, 10)"
    )


def watermark(servers: Servers) -> int:
    with connect_mysql(servers.mysql_url) as session:
        return guards.watermark(session)


def gone(shard: Shard, how: str) -> None:
    """Let its master hang, or die."""
    if how == "hangs":
        shard.master.freeze()
    else:
        shard.master.kill()


def test_every_command_sees_all_masters(
    servers: Servers, cluster: RedisCluster, context: Context, log: Path
) -> None:
    traffic = fill(cluster)
    state = servers.json("info")
    assert (state["backlog"], state["away"]) == (PARTITIONS, [])
    assert {stream["node"] for stream in state["streams"]} == {
        address(shard.master) for shard in cluster.shards
    }
    assert checks.alarms(context).detail == "nothing to report"
    servers.apply()
    with Oracle(servers.mysql_url) as oracle:
        oracle.check(traffic.expected)
    log.write_text("".join(map(LINE.format, "abc")))
    counted = [servers.call("tail", str(log), "--counter", "hits") for _ in range(2)]
    assert [each.out for each in counted] == [
        f"hits: counted {lines}, rejected 0\n" for lines in (3, 0)
    ]
    assert total(servers, "hits", "--include-pending") == 3
    servers.apply()
    assert total(servers, "hits") == 3
    assert servers.json("info")["backlog"] == 0
    assert servers.call("verify").status == 0
    found = statuses(servers.call("doctor", "--format", "json"))
    assert {("partitions", "ok"), ("redis cluster", "ok"), ("redis coverage", "ok")} <= found
    assert ("redis role", "warn") in found  # no replicas
    assert not {check for check, status in found if status == "fail" and "redis" in check}


def test_nothing_is_decided_on_what_a_silent_master_may_hold(
    servers: Servers, cluster: RedisCluster, context: Context
) -> None:
    fill(cluster, sent_ago_ms=9 * DAY_MS)
    prunable(servers)
    shard = cluster.shards[1]
    gone(shard, "hangs")
    with pytest.raises(StreamUnavailable, match="nothing was pruned"):
        retention.prune(context)
    assert watermark(servers) == 0
    with pytest.raises(Alarm, match="entries lost by Redis are unknown"):
        checks.alarms(context)
    refused = servers.call("totals", "--all", "--include-pending")
    assert address(shard.master) in one_sentence(refused, 1)
    plain = servers.call("totals", "--all", "--format", "json")
    assert plain.json["complete_up_to"] is None
    assert "freshness unknown: " in plain.err
    shard.master.thaw()
    eventually(cluster.is_whole)
    retention.prune(context)
    assert watermark(servers) > 0


@pytest.mark.clusters
@pytest.mark.parametrize("how", ["hangs", "dies"])
@pytest.mark.parametrize("number", range(3))
def test_a_master_that_is_away_holds_up_nobody(
    servers: Servers, cluster: RedisCluster, context: Context, number: int, how: str
) -> None:
    fill(cluster)
    shard = cluster.shards[number]
    theirs = [n for n in range(PARTITIONS) if cluster.shard_of(n) is shard]
    gone(shard, how)
    state = servers.json("info")
    assert [each["node"] for each in state["away"]] == [address(shard.master)]
    assert state["backlog"] == PARTITIONS - len(theirs)
    assert [s["partition"] for s in state["streams"] if s["entries"] is None] == theirs
    assert address(shard.master) in servers.call("info").out
    for _ in range(4):  # they choose at random
        assert servers.call("increment", "sent").status == 0
    assert servers.json("info")["backlog"] == state["backlog"] + 4
    lines = servers.call("doctor", "--format", "json").json["lines"]
    assert any(
        (each["check"], each["status"]) == ("redis node", "fail")
        and address(shard.master) in each["found"]
        for each in lines
    )
    assert servers.call("dead", "list").status == 0
    assert probe_servers(probes(redis=cluster.url)) == {"redis": ""}
    with pytest.raises(StreamUnavailable, match="nothing was pruned"):
        retention.prune(context)
    shard.master.thaw()
    shard.master.start()
    eventually(cluster.is_whole)
    assert servers.json("info")["backlog"] == PARTITIONS + 4
    servers.apply()
    assert total(servers, "sent") == 4


def test_doctor_names_hash_slots_that_were_left_on_their_way(
    servers: Servers, cluster: RedisCluster
) -> None:
    source, target = (shard.master for shard in cluster.shards[:2])
    ids = [cluster.ask(each, "CLUSTER", "MYID").decode() for each in (source, target)]

    def warned() -> list[str]:
        lines = servers.call("doctor", "--format", "json").json["lines"]
        found = [each for each in lines if each["check"] == "redis slots"]
        return [each["found"] for each in found if each["status"] == "warn"]

    assert warned() == []
    try:
        for slot in range(7):
            cluster.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            cluster.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        [said] = warned()
        assert said.startswith("7 hash slots MIGRATING or IMPORTING")
        assert f"(0 of {address(source)} and {address(target)}, 1 of " in said
        assert " and 2 more)" in said
    finally:
        for slot in range(7):
            for server in (source, target):
                cluster.ask(server, "CLUSTER", "SETSLOT", slot, "STABLE")


@pytest.mark.clusters
@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_the_http_interface_goes_on_without_a_master(
    servers: Servers, cluster: RedisCluster, children: Children, how: str
) -> None:
    key = servers.json("key", "create", "k", "--scope", "admin")["key"]
    web = children.countersink("web", "--port", "0", environment=servers.variables())
    [page] = eventually(lambda: re.findall(r"listening at (http://\S+)", web.output()))
    with requests.Session() as client:
        client.headers["Authorization"] = f"Bearer {key}"

        def sent() -> int:
            url = f"{page}/v1/increments?wait=stored"
            return client.post(url, json={"counter": "sent"}, timeout=60).status_code

        assert sent() == 200
        assert client.get(f"{page}/v1/system", timeout=60).json()["away"] == []
        shard = cluster.shards[1]
        gone(shard, how)
        assert [sent() for _ in range(3)] == [200, 200, 200]
        assert client.get(f"{page}/readyz", timeout=60).status_code == 200

        def away() -> bool:
            nodes = client.get(f"{page}/v1/system", timeout=60).json()["away"]
            return [each["node"] for each in nodes] == [address(shard.master)]

        eventually(away)
        eventually(
            lambda: "\ncountersink_queue_nodes_away 1.0" in client.get(f"{page}/metrics").text
        )
        totals = f"{page}/v1/counters/sent/totals?by=total"
        refused = client.get(f"{totals}&include_pending=true", timeout=60)
        assert refused.status_code == 503
        shard.master.thaw()
        shard.master.start()
        eventually(cluster.is_whole)
        eventually(
            lambda: (
                client.get(f"{totals}&include_pending=true", timeout=60).json().get("rows")
                == [{"total": 4}]
            )
        )


def test_a_master_without_a_partition_is_said_and_how_many_give_it_one(
    cluster: RedisCluster,
) -> None:
    servers = Servers(cluster.url, "")
    # Partitions 0 and 1 lie on two of three masters.
    document = servers.json("partitions", "set", "2")
    places = [cluster.master_of(partition) for partition in range(2)]
    [bare] = [shard.master for shard in cluster.shards if shard.master not in places]
    assert [each["node"] for each in document["streams"]] == [address(place) for place in places]
    [warning] = document["warnings"]
    said = re.fullmatch(
        f"no partition is on {address(bare)}, which gets no entries:"
        r" countersink partitions set (\d+)",
        warning,
    )
    assert said is not None
    document = servers.json("partitions", "set", said[1])
    assert document["warnings"] == []
    assert {each["node"]: bool(each["partitions"]) for each in document["nodes"]} == {
        address(shard.master): True for shard in cluster.shards
    }


@pytest.mark.clusters
def test_doctor_looks_at_every_node(mysql_url: str, tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster:
        servers = Servers(cluster.url, mysql_url)

        def doctor() -> Any:
            done = servers.call("doctor", "--format", "json")
            assert done.err == ""
            return done.json["lines"]

        def line(check: str) -> Any:
            [found] = [each for each in doctor() if each["check"] == check]
            return found

        found = line("redis cluster")
        assert (found["status"], found["found"]) == ("ok", "3 masters, 3 replicas")
        assert line("redis persistence")["found"].endswith("(each of 6 nodes)")
        assert line("redis role")["status"] == "warn"
        for server in cluster.servers:
            cluster.ask(server, "CONFIG", "SET", "min-replicas-to-write", 1)
        assert line("redis role")["status"] == "ok"
        replica = cluster.shards[1].replicas[0]
        cluster.ask(replica, "CONFIG", "SET", "appendfsync", "everysec")
        warned = doctor()
        [said] = [
            each["found"]
            for each in warned
            if each["check"] == "redis persistence" and each["status"] == "warn"
        ]
        assert said.startswith(f"{address(replica)}: appendonly yes, appendfsync everysec")
        for shard in cluster.shards:
            cluster.ask(shard.master, "CONFIG", "SET", "cluster-require-full-coverage", "yes")
        assert line("redis coverage")["status"] == "warn"
        replica.freeze()
        assert address(replica) in line("redis node")["found"]
        replica.thaw()
        eventually(cluster.is_whole)
        for shard in cluster.shards:
            cluster.ask(shard.master, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        cluster.uncover(0)
        assert any(
            (each["check"], each["status"]) == ("redis slots", "fail")
            and "1 hash slot not served" in each["found"]
            for each in doctor()
        )


def test_a_slot_without_a_master_is_said_in_one_line(mysql_url: str, tmp_path: Path) -> None:
    with RedisCluster(tmp_path, replicas=0) as cluster:
        servers = Servers(cluster.url, mysql_url)
        servers.call("partitions", "set", "6")
        cluster.uncover(0)
        state = servers.json("info")
        assert [each["node"] for each in state["away"]] == ["no master"]
        assert [s["partition"] for s in state["streams"] if s["entries"] is None] == [0]
        shown = servers.call("partitions")
        assert shown.status == 0
        assert "no master of the cluster has the hash slot" in shown.err
        refused = servers.call("totals", "--all", "--include-pending")
        assert "no master of the cluster has the hash slot" in one_sentence(refused, 1)
        for _ in range(3):
            assert servers.call("increment", "sent").status == 0


def test_processes_need_the_documented_rights_alone(
    servers: Servers, cluster: RedisCluster, log: Path
) -> None:
    acl = (PROJECT / "ops" / "redis" / "users.acl").read_text()
    users = re.findall(r"^user (countersink_(\w+)) (.*)$", acl, re.MULTILINE)
    for server in cluster.servers:
        for name, _, rights in users:
            rules = re.sub(r">\S+", ">secret", rights).split()
            cluster.ask(server, "ACL", "SETUSER", name, "reset", *rules)
        cluster.ask(server, "ACL", "LOG", "RESET")
    urls = {short: f"redis+cluster://{name}:secret@{cluster.hosts}" for name, short, _ in users}

    def done(user: str, *arguments: str) -> Result:
        found = Servers(urls[user], servers.mysql_url).call(*arguments)
        assert found.status == 0, found.out + found.err
        return found

    log.write_text(LINE.format("a"))
    with Producer(urls["app"]) as producer:
        producer.increment("page_views", "/home", 3)
        assert producer.flush(30)
        done("app", "increment", "page_views", "/home")
        done("tail", "tail", str(log), "--counter", "hits")
        done("worker", "worker", "--drain")
        assert producer.flush(30, applied=True)
    for user in ("web", "operator"):
        rows = done(
            user, "totals", "page_views", "--by", "total", "--include-pending", "--format", "json"
        ).json["rows"]
        assert rows == [{"total": 4}]
    for command in ("info", "partitions", "doctor"):
        done("operator", command)
    done("operator", "partitions", "set", "8")
    job = Context(
        mysql_url=servers.mysql_url,
        redis_url=urls["jobs"],
        options=JobOptions(),
        stop=lambda: False,
    )
    retention.prune(job)
    checks.alarms(job)
    refused = [entry for server in cluster.servers for entry in cluster.ask(server, "ACL", "LOG")]
    assert refused == []


def test_the_jobs_need_a_redis_of_their_own(servers: Servers) -> None:
    for command in ("scheduler", "jobs", "up"):
        said = one_sentence(servers.call(command), 1)
        assert (
            "set COUNTERSINK_JOBS_REDIS_URL to a redis://, rediss:// or redis+sentinel://" in said
        )
