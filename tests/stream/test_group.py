"""The consumer group: nothing is skipped, nobody else's entry is removed."""

from collections.abc import Callable

import pytest
import redis

from countersink.stream import group as module
from countersink.stream.connection import command, connect
from countersink.stream.decode import decode
from countersink.stream.entry import Delivery, Sealed, encode_rows, new_entry_id
from countersink.stream.errors import StreamMisconfigured, StreamUnavailable
from countersink.stream.group import Group
from countersink.stream.names import GROUP, stream_key
from tests.support.factories import RedisFactory

STREAM = stream_key(0)
MakeGroup = Callable[[str], Group]


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return connect(redis_url)


@pytest.fixture
def group(redis_url: str) -> MakeGroup:
    def make(consumer: str) -> Group:
        made = Group(connect(redis_url), [STREAM], consumer)
        made.ensure()
        return made

    return make


def send(client: redis.Redis, key: str = "k", stream_id: str = "*") -> str:
    sealed = Sealed(new_entry_id(1), 1, encode_rows([("c", key, 1, 1)]))
    added = client.xadd(STREAM, sealed.fields(), id=stream_id)
    assert isinstance(added, bytes)
    return added.decode()


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.stream_id for delivery in deliveries]


def acknowledge(group: Group, deliveries: list[Delivery]) -> int:
    return group.acknowledge((d.stream, d.stream_id, decode(d).id) for d in deliveries)


def test_what_lay_there_before_the_group_is_read(client: redis.Redis, group: MakeGroup) -> None:
    first = send(client)
    worker = group("w")
    worker.ensure()  # once more
    assert ids(found := worker.read(10, 0)) == [first]
    assert acknowledge(worker, found) == 1
    assert client.xlen(STREAM) == 0
    assert worker.claim(0, 10).deliveries == []


def test_an_entry_of_others_at_the_same_stream_id_is_left_alone(
    client: redis.Redis, group: MakeGroup
) -> None:
    send(client, stream_id="5-1")
    worker = group("w")
    ours = worker.read(10, 0)
    client.delete(STREAM)
    worker.ensure()
    send(client, "somebody else's", stream_id="5-1")
    assert acknowledge(worker, ours) == 0
    assert client.xlen(STREAM) == 1


def test_an_entry_without_an_id_is_acknowledged_by_its_hash(
    client: redis.Redis, group: MakeGroup
) -> None:
    client.xadd(STREAM, {"rows": '[["c","é\\u0000",1,1]]', "x": b"\xff\x00"})
    command(client, "XADD", STREAM, "*", "rows", "[]", "rows", "[]")
    worker = group("w")
    assert acknowledge(worker, worker.read(10, 0)) == 2


def test_an_entry_without_an_id_is_told_from_another(client: redis.Redis, group: MakeGroup) -> None:
    client.xadd(STREAM, {"rows": "[]"}, id="5-1")
    worker = group("w")
    ours = worker.read(10, 0)
    client.delete(STREAM)
    worker.ensure()
    client.xadd(STREAM, {"rows": '[["c","",1,1]]'}, id="5-1")
    assert acknowledge(worker, ours) == 0
    assert client.xlen(STREAM) == 1


def test_entries_touched_lately_are_not_claimed(client: redis.Redis, group: MakeGroup) -> None:
    send(client)
    group("alive").read(10, 0)
    assert group("w").claim(60_000, 10).deliveries == []


def test_what_was_trimmed_is_given_up_once(client: redis.Redis, group: MakeGroup) -> None:
    worker = group("w")
    lost, kept = send(client), send(client)
    worker.read(10, 0)
    client.xdel(STREAM, lost)
    claimed = worker.claim(0, 10)
    assert (ids(claimed.deliveries), claimed.lost) == ([kept], [lost])
    assert worker.claim(0, 10).lost == []


def test_orphans_among_many_pending_entries_are_found(
    client: redis.Redis, group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.stream.group._PENDING_PAGE", 2)
    sent = [send(client) for _ in range(9)]
    group("deleted").read(9, 0)
    worker = group("w")
    kept = [sent[i] for i in (0, 1, 3, 4, 5, 8)]
    command(client, "XCLAIM", STREAM, GROUP, "alive", 0, *kept)
    client.xgroup_delconsumer(STREAM, GROUP, "deleted")
    assert ids(worker.orphans(0, 10)) == [sent[i] for i in (2, 6, 7)]
    assert ids(worker.orphans(0, 2)) == [sent[i] for i in (2, 6)]


def test_orphans_of_a_stream_that_is_not_there_are_none(redis_url: str) -> None:
    assert Group(connect(redis_url), [STREAM], "w").orphans(0, 10) == []


@pytest.mark.parametrize("missing", ["group", "stream"])
def test_a_group_that_was_deleted_is_made_again_at_0(
    client: redis.Redis, group: MakeGroup, missing: str
) -> None:
    worker = group("w")
    if missing == "group":
        first = send(client)
        worker.read(10, 0)
        client.xgroup_destroy(STREAM, GROUP)
    else:
        client.delete(STREAM)
        first = send(client)
    assert worker.read(10, 0) == []
    assert ids(worker.read(10, 0)) == [first]


def test_claiming_survives_a_missing_group(client: redis.Redis, group: MakeGroup) -> None:
    worker = group("w")
    client.delete(STREAM)
    assert worker.claim(0, 10).deliveries == []


def test_a_consumer_with_pending_entries_is_not_deleted(
    client: redis.Redis, group: MakeGroup
) -> None:
    send(client)
    worker = group("w")
    pending = worker.read(10, 0)
    assert worker.delete_consumer() is False
    acknowledge(worker, pending)
    assert worker.delete_consumer() is True
    assert client.xinfo_consumers(STREAM, GROUP) == []


def test_deleting_a_consumer_of_a_missing_stream_is_done(redis_url: str) -> None:
    assert Group(connect(redis_url), [STREAM], "w").delete_consumer() is True


def test_a_full_redis_is_read_though_a_group_cannot_be_made(
    own_redis_server: RedisFactory,
) -> None:
    client = connect(own_redis_server().url)
    Group(client, [STREAM], "w").ensure()
    sent = send(client)
    client.config_set("maxmemory", "1")
    worker = Group(client, [STREAM, stream_key(1)], "w")
    assert acknowledge(worker, read := worker.read(10, 0)) == 1
    assert ids(read) == [sent]
    with pytest.raises(StreamUnavailable, match="Redis is full"):
        worker.read(10, 0)


def test_consumers_that_left_nothing_behind_are_idle(client: redis.Redis, group: MakeGroup) -> None:
    send(client)
    group("busy").read(10, 0)
    quiet = group("quiet")
    send(client)
    acknowledge(quiet, quiet.read(10, 0))
    worker = group("w")
    worker.read(10, 0)
    assert worker.idle_consumers(0) == ["quiet"]
    assert worker.idle_consumers(3_600_000) == []
    assert Group(client, ["nothing"], "w").idle_consumers(0) == []


def test_a_full_redis_without_any_group_is_read(own_redis_server: RedisFactory) -> None:
    client = connect(own_redis_server().url)
    sent = [send(client) for _ in range(3)]
    client.config_set("maxmemory", "1")
    worker = Group(client, [STREAM], "w")
    assert acknowledge(worker, read := worker.read(2, 0)) == 2
    assert ids(read) == sent[:2]
    assert acknowledge(worker, worker.read(2, 0)) == 1


def test_a_key_of_another_type_does_not_keep_the_others_from_being_read(
    client: redis.Redis, redis_url: str
) -> None:
    client.set(stream_key(1), "no stream")
    sent = send(client)
    worker = Group(connect(redis_url), [stream_key(1), STREAM], "w")
    assert ids(worker.read(10, 0)) == [sent]
    with pytest.raises(StreamMisconfigured, match="WRONGTYPE"):
        worker.read(10, 0)


def test_a_key_of_another_type_does_not_keep_the_others_from_being_taken_over(
    client: redis.Redis, redis_url: str, group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(client)
    client.set(stream_key(1), "no stream")
    group("dead").read(10, 0)
    worker = Group(connect(redis_url), [stream_key(1), STREAM], "w")
    monkeypatch.setattr(module, "DEAD_S", 0.0)
    claimed = worker.claim_dead(10)
    assert ids(claimed.deliveries) == [sent]
    assert ids(worker.claim(0, 10).deliveries) == [sent]
    assert worker.idle_consumers(0) == ["dead"]
    client.xgroup_delconsumer(STREAM, GROUP, "w")
    client.xgroup_delconsumer(STREAM, GROUP, "dead")
    orphans = worker.orphans(0, 10)
    assert ids(orphans) == [sent]
    acknowledge(worker, orphans)
    for ask in (
        lambda: worker.claim(0, 10),
        lambda: worker.orphans(0, 10),
        lambda: worker.idle_consumers(0),
    ):
        with pytest.raises(StreamMisconfigured, match="WRONGTYPE"):
            ask()


def test_orphans_ahead_of_the_clock_are_found(client: redis.Redis, group: MakeGroup) -> None:
    ahead = send(client, stream_id="99999999999999-0")
    group("deleted").read(2, 0)
    client.xgroup_delconsumer(STREAM, GROUP, "deleted")
    assert ids(group("w").orphans(60_000, 10)) == [ahead]
