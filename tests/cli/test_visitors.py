"""`--visitor` of `countersink increment`, `tail` and `backfill`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.runtime.log import Log
from countersink.runtime.members import MAX_HASHES, Salt
from countersink.store import Store
from countersink.stream import names
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_KEY, salts_key, stream_key
from countersink.worker.report import LOGGER, SaltPublisher
from tests.cli.command import Result, Servers, call, one_sentence, piped
from tests.producers.members import FIRST, SALT, found, hashed, publish
from tests.support.proxies import Deed, Phase, RedisProxy

AT = "2026-11-20T22:00:00Z"
MINUTE = int(datetime(2026, 11, 20, 22, 0, tzinfo=UTC).timestamp()) // 60


@dataclass
class Visits:
    """A queue, and a log that `tail` counts the visitors of."""

    url: str
    client: redis.Redis
    log: Path

    def run(self, *arguments: str) -> Result:
        return call(*arguments, COUNTERSINK_REDIS_URL=self.url)

    def tail(self, *arguments: str) -> Result:
        return self.run("tail", str(self.log), "--counter", "visitors", *arguments)


@pytest.fixture
def visits(redis_url: str, redis_client: redis.Redis, log: Path) -> Visits:
    return Visits(redis_url, redis_client, log)


def line(host: str, agent: str, path: str = "/", minute: int = 0) -> bytes:
    when = f"20/Nov/2026:22:{minute:02}:00 +0000"
    return f'{host} - - [{when}] "GET {path} HTTP/1.1" 200 12 "-" "{agent}"\n'.encode()


def test_increment_tells_a_visitor(visits: Visits) -> None:
    publish(visits.client)
    done = visits.run("increment", "visitors", "/", "--visitor", "ann", "--at", AT)
    assert (done.status, done.out) == (0, "visitors / +1 is in the queue\n")
    assert visits.run("increment", "visitors", "/", "--visitor", "").status == 0
    given = ("--dimension", "page=/", "--visitor", "bob", "--at", AT)
    assert visits.run("increment", "visitors", *given).status == 0
    counts, hashes = found(visits.client)
    assert sum(counts.values()) == 3
    assert hashes["visitors", "/", MINUTE, 7] == {hashed("ann")}
    assert hashes["visitors", (("page", "/"),), MINUTE, 7] == {hashed("bob")}
    assert set().union(*hashes.values()) == set(map(hashed, ["ann", "bob", ""]))


def test_a_counter_that_is_made_again_is_not_counted_with_its_old_salt(servers: Servers) -> None:
    """No worker looks in between."""
    with connect(servers.redis_url) as client, Store(servers.mysql_url) as store:
        client.set(PARTITIONS_KEY, 2)
        publisher = SaltPublisher(lambda: open_tables(servers.mysql_url), client, Log(LOGGER))
        assert servers.call("counter", "set", "visitors", "--unique").status == 0
        publisher.keep()
        publisher.publish()
        assert client.hkeys(salts_key(stream_key(1))) == [b"visitors"]
        assert servers.call("counter", "delete", "visitors", "--yes").err == ""
        assert servers.call("counter", "set", "visitors", "--unique").status == 0
        with Producer(servers.redis_url) as producer:
            producer.seen("visitors", "/", "ann")
            assert not producer.flush(1.0)  # it waits for the new one
            publisher._due_at = 0.0
            publisher.keep()
            publisher.publish()
            assert producer.flush(20)
        publisher.close()
        servers.apply()
        assert store.totals.unique("visitors").total == 1
    away = {**servers.variables(), "COUNTERSINK_REDIS_URL": "redis://127.0.0.1:1/0"}
    done = call("counter", "delete", "visitors", "--yes", **away)
    assert (done.status, "which deletes them" in done.err) == (0, True)


def test_increment_says_what_is_missing(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SALT_SECONDS", 0.0)
    done = visits.run("increment", "visitors", "--visitor", "secret")
    assert done.status == 1
    assert "countersink counter set visitors --unique" in one_sentence(done)
    publish(visits.client, [Salt(1, MINUTE, None, SALT)])
    early = "2026-11-20T21:59:00Z"
    done = visits.run("increment", "visitors", "--visitor", "secret", "--at", early)
    assert (done.status, "it was forgotten" in one_sentence(done)) == (1, True)
    done = visits.run("increment", "visitors", "--visitor", "secret", "--amount", "2")
    assert (done.status, "--amount" in done.err) == (2, True)
    visits.client.hset("{countersink:0}:salts", "visitors", "secret")
    done = visits.run("increment", "visitors", "--visitor", "secret")
    assert (done.status, "no worker has made its salt yet" in done.err) == (1, True)
    assert "secret" not in done.err
    assert found(visits.client)[0] == {}


def test_tail_tells_visitors(visits: Visits) -> None:
    publish(visits.client)
    lines = [("192.0.2.1", "A"), ("192.0.2.1", "B"), ("192.0.2.2", "A"), ("192.0.2.1", "A")]
    visits.log.write_bytes(
        b"".join([line(*one) for one in lines]) + line("192.0.2.3", "é", "/b", 5)
    )
    done = visits.tail("--visitor", "host,agent")
    assert (done.status, done.err) == (0, "")
    assert done.out == "visitors: counted 5, rejected 0\n"
    assert visits.tail("--visitor", "host,agent").out.startswith("visitors: counted 0")
    counts, hashes = found(visits.client)
    assert counts == {("visitors", "/", MINUTE): 4, ("visitors", "/b", MINUTE + 5): 1}
    assert hashes == {
        ("visitors", "/", MINUTE, 7): {hashed(f"{host} {agent}") for host, agent in lines},
        ("visitors", "/b", MINUTE + 5, 7): {hashed("192.0.2.3 é")},
    }


def test_tail_splits_many_visitors_of_one_key(visits: Visits) -> None:
    publish(visits.client)
    hosts = [f"10.0.{number // 250}.{number % 250}" for number in range(MAX_HASHES + 100)]
    visits.log.write_bytes(b"".join([line(host, "A") for host in hosts * 2]))
    assert visits.tail("--visitor", "host").status == 0
    counts, hashes = found(visits.client)
    assert counts == {("visitors", "/", MINUTE): 2 * len(hosts)}
    assert hashes == {("visitors", "/", MINUTE, 7): set(map(hashed, hosts))}
    assert "nothing" in one_sentence(visits.tail("--visitor", "nothing"))


def test_tail_reads_a_pipe(visits: Visits) -> None:
    publish(visits.client)
    with piped(line("192.0.2.1", "A") * 3):
        done = visits.run("tail", "-", *("--counter", "visitors", "--visitor", "host,agent"))
    assert done.out == "visitors: counted 3, rejected 0\n"
    assert found(visits.client)[1] == {("visitors", "/", MINUTE, 7): {hashed("192.0.2.1 A")}}


def test_tail_without_a_salt_stops_before_the_lines(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "SALT_SECONDS", 0.0)
    visits.log.write_bytes(line("192.0.2.1", "secret"))
    done = visits.tail("--visitor", "host,agent")
    assert done.status == 1
    assert "countersink counter set visitors --unique" in done.err
    assert "secret" not in done.err
    publish(visits.client)
    assert visits.tail("--visitor", "host,agent").out.startswith("visitors: counted 1")


def test_tail_counts_hits_whose_salt_was_forgotten_without_their_visitors(visits: Visits) -> None:
    publish(visits.client, [Salt(4, MINUTE + 1, None, SALT)])
    visits.log.write_bytes(line("192.0.2.1", "A") * 2 + line("192.0.2.1", "A", minute=1))
    done = visits.tail("--visitor", "host")
    assert (done.status, done.out) == (0, "visitors: counted 3, rejected 0\n")
    assert "2 hits counted without visitors: the salt of that time was" in done.err
    counts, hashes = found(visits.client)
    assert counts == {("visitors", "/", MINUTE): 2, ("visitors", "/", MINUTE + 1): 1}
    assert hashes == {("visitors", "/", MINUTE + 1, 4): {hashed("192.0.2.1")}}
    publish(visits.client, [Salt(1, FIRST, MINUTE + 1, bytes(16)), Salt(2, MINUTE + 1, None, SALT)])
    visits.client.delete(stream_key(0))
    assert visits.tail("--visitor", "host", "--begin", "start").status == 0
    assert found(visits.client)[1] == {
        ("visitors", "/", MINUTE, 1): {hashed("192.0.2.1", bytes(16))},
        ("visitors", "/", MINUTE + 1, 2): {hashed("192.0.2.1")},
    }


@pytest.mark.parametrize("command", ["tail", "increment"])
@pytest.mark.parametrize("before", [[], [Salt(1, FIRST, MINUTE, bytes(16))]], ids=["first", "next"])
def test_a_salt_that_workers_make_late_is_waited_for(
    visits: Visits, command: str, before: list[Salt]
) -> None:
    """They were away when it was to be made."""
    if before:
        publish(visits.client, before)
    visits.log.write_bytes(line("ann", "A"))
    commands = {
        "tail": ("tail", str(visits.log), "--counter", "visitors", "--visitor", "host"),
        "increment": ("increment", "visitors", "/", "--visitor", "ann", "--at", AT),
    }
    with RedisProxy.to(visits.url) as proxy:
        proxy.when("HGET", Phase.AFTER, Deed.PASS, skip=2, call=lambda _: publish(visits.client))
        done = call(*commands[command], COUNTERSINK_REDIS_URL=proxy.url(visits.url))
    assert (done.status, done.err) == (0, "")
    assert found(visits.client)[1] == {("visitors", "/", MINUTE, 7): {hashed("ann")}}


def test_backfill_and_tail_tell_the_same_visitors(
    servers: Servers, log: Path, tmp_path: Path
) -> None:
    logged = [("192.0.2.1", "A"), ("192.0.2.1", "B"), ("192.0.2.2", "A"), ("192.0.2.1", "A")]
    log.write_bytes(b"".join([line(*one) for one in logged]))
    source, rejects = ("--counter", "visitors", "--visitor", "host,agent"), str(tmp_path / "no")
    backfill = ("backfill", str(log), *source, "--rejects", rejects)
    done = servers.call(*backfill)
    assert done.status == 1
    assert "`countersink counter set visitors --unique` first" in one_sentence(done)
    assert servers.call("counter", "set", "visitors", "--unique").status == 0
    servers.apply()  # which publishes the salt
    assert servers.call("tail", str(log), *source).status == 0
    servers.apply()
    asked = ("totals", "visitors", "--by", "total", "--format", "csv")
    assert servers.call(*asked).out.splitlines()[-1] == "4"
    assert servers.call(*asked, "--unique").out.splitlines()[-1].startswith("3")
    assert servers.call(*backfill).status == 0
    assert servers.call(*backfill).status == 0
    assert servers.call(*asked).out.splitlines()[-1] == "8"
    assert servers.call(*asked, "--unique").out.splitlines()[-1].startswith("3")
