"""``Producer.seen``: what is in the stream, compared with an oracle that hashes by itself."""

import json
import random
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis

from countersink.producers import Increment, InvalidBatch, Producer
from countersink.producers.buffer import queues, sightings
from countersink.runtime.dimensions import RowKey, check_row_key
from countersink.runtime.members import MAX_HASHES, Salt
from countersink.stream.connection import connect
from countersink.stream.names import salts_key
from tests.producers.helpers import STREAM, Queue, distinct, entries, total
from tests.producers.members import ENDLESS, FIRST, SALT, found, hashed, publish
from tests.support.entries import beside, together
from tests.support.examples import MANY
from tests.support.factories import RedisFactory
from tests.support.producing import recorder
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.traffic import now_minute
from tests.support.waiting import eventually

AWAY = "redis://127.0.0.1:1/0"
AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
MINUTE = int(AT.timestamp()) // 60


@pytest.fixture(autouse=True)
def _asks_soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a salt that was not there, and does not take one for due."""
    monkeypatch.setattr(sightings, "ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(sightings, "SALT_SECONDS", 0.0)


@pytest.mark.random
def test_random_sightings_come_to_what_an_oracle_says(queue: Queue) -> None:
    randomly = random.Random(7)
    salts = [
        Salt(1, FIRST, MINUTE - 5, bytes(16)),
        Salt(2, MINUTE - 5, MINUTE + 5, b"b" * 16),
        Salt(9, MINUTE + 5, None, b"c" * 16),
    ]
    publish(queue.client, salts)
    publish(queue.client, ENDLESS, "others")
    keys: list[str | Mapping[str, str]] = ["", "/a", "é" * 200, {"page": "/", "country": "DE"}]
    counts: Counter[tuple[str, RowKey, int]] = Counter()
    hashes: dict[tuple[str, RowKey, int, int], set[bytes]] = {}
    with Producer(queue.url, flush_interval=0.01) as producer:
        for _ in range(20_000 if MANY else 4_000):
            counter = randomly.choice(["visitors", "others"])
            key = randomly.choice(keys)
            minute = MINUTE + randomly.randrange(-8, 8)
            member = str(randomly.randrange(300)) * randomly.choice([1, 1, 1, 200])
            producer.seen(counter, key, member, at=datetime.fromtimestamp(minute * 60, UTC))
            row_key = check_row_key(key)
            counts[counter, row_key, minute] += 1
            known = salts if counter == "visitors" else ENDLESS
            salt = next(one for one in reversed(known) if one.begins <= minute)
            hashes.setdefault((counter, row_key, minute, salt.number), set()).add(
                hashed(member, salt.salt)
            )
        assert producer.flush(60)
    assert found(queue.client) == (counts, hashes)


@pytest.mark.random
def test_random_sightings_of_now_come_to_what_an_oracle_says(queue: Queue) -> None:
    """From several threads, of small, large, binary and foreign members."""
    calls = 30_000 if MANY else 5_000
    counters, salts = ("visitors", "others", "third"), {}
    for number, counter in enumerate(counters):
        salts[counter] = Salt(number, FIRST, None, bytes([number]) * 16)
        publish(queue.client, [salts[counter]], counter)
    keys: list[str | Mapping[str, str]] = ["", "/a", "é" * 200, {"page": "/", "country": "DE"}]
    expected = []

    def work(seed: int, producer: Producer) -> None:
        randomly = random.Random(seed)
        counts: Counter[tuple[str, RowKey]] = Counter()
        hashes: set[tuple[str, RowKey, bytes]] = set()
        for _ in range(calls):
            counter, key = randomly.choice(counters), randomly.choice(keys)
            name = randomly.choice(["v", "v", "v", "é", "v" * 300]) + str(randomly.randrange(3_000))
            member: str | bytes = name if randomly.randrange(2) else name.encode()
            producer.seen(counter, key, member)
            counts[counter, check_row_key(key)] += 1
            hashes.add((counter, check_row_key(key), hashed(name, salts[counter].salt)))
        expected.append((counts, hashes))

    with Producer(queue.url, flush_interval=0.01) as producer:
        together(*(partial(work, seed, producer) for seed in range(3)))
        assert producer.flush(60)
        assert producer.stats().stored == 3 * calls
    told, seen = found(queue.client)
    counts: Counter[tuple[str, RowKey]] = Counter()
    for (counter, key, _), count in told.items():
        counts[counter, key] += count
    assert counts == sum([each for each, _ in expected], Counter())
    assert {
        (counter, key, one) for (counter, key, _, _), all_of in seen.items() for one in all_of
    } == set().union(*[each for _, each in expected])


def test_a_flush_stores_what_was_seen_before_however_much_comes_of_others(queue: Queue) -> None:
    publish(queue.client)
    publish(queue.client, ENDLESS, "others")
    over = Event()

    def go_on(producer: Producer) -> None:
        while not over.is_set():
            for number in range(1_000):
                producer.seen("others", "/", str(number))

    with Producer(queue.url, flush_interval=60) as producer:
        thread = Thread(target=go_on, args=(producer,))
        thread.start()
        try:
            for number in range(2):
                producer.seen("visitors", str(number), "ann")
                assert producer.flush(20)
                stored = [entry["rows"] for entry in distinct(entries(queue.client))]
                assert any(f'"visitors","{number}"' in rows for rows in stored)
        finally:
            over.set()
            thread.join()


def test_many_members_of_one_key_are_split_and_the_sightings_go_with_the_first(
    queue: Queue,
) -> None:
    publish(queue.client)
    members = [str(number) for number in range(3 * MAX_HASHES + 5)]
    with Producer(queue.url, flush_interval=60) as producer:
        producer.seen("visitors", "first", "")
        assert producer.flush(20)
        for member in members * 2:
            producer.seen("visitors", "/", member, at=AT)
        assert producer.flush(60)
    rows = [
        row for entry in distinct(entries(queue.client))[1:] for row in json.loads(entry["rows"])
    ]
    # On a busy machine the flush before them may take the first ones along.
    assert sum(row[3] for row in rows) == 2 * len(members)
    assert [row[3] for row in rows[-3:]] == [0, 0, 0]
    assert [len(b64decode(row[5])) // 8 for row in rows[-4:]] == [MAX_HASHES] * 3 + [5]
    counts, hashes = found(queue.client)
    assert counts["visitors", "/", MINUTE] == 2 * len(members)
    assert hashes["visitors", "/", MINUTE, 7] == set(map(hashed, members))


def test_members_wait_until_their_salt_is_known(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(queue.url, flush_interval=0.02) as producer:
        producer.seen("visitors", "/", "ann", at=AT)
        producer.increment("hits", "/", at=AT)
        eventually(lambda: total(queue.client) == 1)  # others do not wait for it
        eventually(lambda: "countersink counter set visitors --unique" in caplog.text)
        assert not producer.flush(0.1)
        assert producer.stats().pending_rows == 1
        publish(queue.client)
        assert producer.flush(20)
        producer.seen("visitors", "/", "bob")
    counts, hashes = found(queue.client)
    assert hashes["visitors", "/", MINUTE, 7] == {hashed("ann")}
    assert sum(counts.values()) == 3
    assert "ann" not in caplog.text


def test_an_event_that_waits_keeps_the_minute_in_which_it_happened(queue: Queue) -> None:
    now = int(queue.client.time()[0]) // 60
    with Producer(queue.url, flush_interval=0.02) as producer:
        producer.seen("visitors", "/", "ann")
        assert not producer.flush(0.1)
        publish(queue.client)
        assert producer.flush(20)
    ((_, _, minute, _),) = found(queue.client)[1]
    assert now <= minute <= int(queue.client.time()[0]) // 60


def test_a_flush_does_not_wait_where_redis_says_that_there_is_no_salt(queue: Queue) -> None:
    with Producer(queue.url, flush_interval=0.02) as producer:
        producer.seen("visitors", "/", "ann", at=AT)
        producer.increment("hits", "/", at=AT)
        # A flush that waits for the member would not return before the test is stopped.
        assert not producer.flush(3600)
        assert total(queue.client) == 1
        publish(queue.client)
        eventually(lambda: producer.flush(20))
        producer.seen("others", "/", "bob", at=AT)
        assert not producer.close(3600)
    counts, hashes = found(queue.client)
    assert counts["others", "/", MINUTE] == 1  # without its member
    assert hashes == {("visitors", "/", MINUTE, 7): {hashed("ann")}}


def test_a_burst_before_the_salt_is_known_waits_for_it(queue: Queue) -> None:
    burst = 2 * queues.MAX_WAITING
    publish(queue.client)
    with Producer(queue.url, flush_interval=60) as producer:
        for number in range(burst):
            producer.seen("visitors", "/", str(number), at=AT)
        assert producer.flush(60)
        assert producer.stats().dropped == 0
    counts, hashes = found(queue.client)
    assert counts == {("visitors", "/", MINUTE): burst}
    assert len(hashes["visitors", "/", MINUTE, 7]) == burst


def test_what_waits_is_bounded_and_the_counter_with_most_is_cut(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_WAITING", 100)
    with Producer(queue.url, flush_interval=0.02) as producer:
        for number in range(150):
            producer.seen("wrong", "/", f"secret{number}", at=AT)
        for number in range(20):
            producer.seen("visitors", "/", str(number), at=AT)
        assert not producer.flush(0.1)
        stats = producer.stats()
        assert (stats.accepted, stats.dropped) == (170, 0)
        assert found(queue.client)[0] == {("wrong", "/", MINUTE): 70}
        eventually(lambda: "sightings counted without their members" in caplog.text)
        assert "countersink counter set wrong --unique" in caplog.text
        publish(queue.client)
        eventually(lambda: len(found(queue.client)[1].get(("visitors", "/", MINUTE, 7), ())) == 20)
        assert not producer.close(4.0)
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.dropped) == (170, 170, 0)
    assert found(queue.client)[0] == {
        ("wrong", "/", MINUTE): 150,
        ("visitors", "/", MINUTE): 20,
    }
    assert "secret" not in caplog.text


def test_bytes_that_wait_are_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_WAITING_BYTES", 10_000)
    with Producer(AWAY, flush_interval=60) as producer:
        for _ in range(100):
            producer.seen("visitors", "/", "x" * 3_000)
        assert not producer.flush(0.1)
        assert producer._events.buffer.waiting_members.count <= 3
        assert producer.stats().accepted == 100
        producer.close(0.1)


BAD = [
    (("a b", "", "x"), ValueError),
    ((5, "", "x"), TypeError),
    (("visitors", 5, "x"), TypeError),
    (("visitors", "\ud800", "x"), ValueError),
    (("visitors", {"Page": "/"}, "x"), ValueError),
    (("visitors", "", None), TypeError),
    (("visitors", "", bytearray(b"x")), TypeError),
    (("visitors", "", "secret\ud800"), ValueError),
]


@pytest.mark.parametrize("warm", [False, True])
def test_what_is_not_valid_is_refused_and_counts_nothing(queue: Queue, warm: bool) -> None:
    publish(queue.client)
    with Producer(queue.url) as producer:
        if warm:
            producer.seen("visitors", "", "a", at=AT)
            assert producer.flush(20)
            producer.seen("visitors", "", "a")
        given: Any
        for given, error in BAD:
            with pytest.raises(error) as caught:
                producer.seen(*given)
            assert "secret" not in str(caught.value)
            assert producer.stats().accepted == (2 if warm else 0), given
        for wrong, error in ((5, TypeError), (datetime(2026, 1, 1), ValueError)):  # noqa: DTZ001
            with pytest.raises(error):
                producer.seen("visitors", "/", "x", at=wrong)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        producer.seen("visitors", "/", "x")


def test_salts_are_asked_for_again_and_before_it_hashes_by_a_producer_that_was_idle(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "ASK_EVERY_SECONDS", 0.0)
    publish(queue.client)
    with Producer(queue.url, flush_interval=0.01) as producer:

        def is_hashed_by(number: int) -> bool:
            producer.seen("visitors", "/", "ann", at=AT)
            assert producer.flush(20)
            return ("visitors", "/", MINUTE, number) in found(queue.client)[1]

        assert is_hashed_by(ENDLESS[0].number)
        publish(queue.client, [Salt(9, FIRST, None, b"m" * 16)])
        eventually(lambda: is_hashed_by(9))
        publish(queue.client, [Salt(8, FIRST, None, b"n" * 16)])
        monkeypatch.setattr(sightings, "STALE_SECONDS", -1.0)
        producer.seen("visitors", "/", "bob", at=AT)
        producer.seen("visitors", "/now", "eve")
        producer.stats()  # folded: they wait
        salts = producer._events.sightings.salts
        # An answer of before may be on its way.
        eventually(lambda: [salt.number for salt, _ in salts._known["visitors"].salts] == [8])
        monkeypatch.setattr(sightings, "STALE_SECONDS", 120.0)
        assert producer.flush(20)
    hashes = found(queue.client)[1]
    assert hashes["visitors", "/", MINUTE, 8] == {hashed("bob", b"n" * 16)}
    assert [all_of for place, all_of in hashes.items() if place[1] == "/now"] == [
        {hashed("eve", b"n" * 16)}
    ]


def test_a_member_of_the_time_of_a_forgotten_salt_is_dropped_and_said(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    publish(queue.client, [Salt(3, MINUTE, MINUTE + 10, SALT)])
    with Producer(queue.url, flush_interval=0.01) as producer:
        producer.seen("visitors", "/", "a", at=datetime.fromtimestamp((MINUTE - 1) * 60, UTC))
        producer.seen("visitors", "/", "b", at=AT)
        assert not producer.flush(20)  # a member was dropped
        eventually(lambda: "has no salt for this time" in caplog.text)
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.dropped) == (2, 2, 0)
    counts, hashes = found(queue.client)
    assert counts == {("visitors", "/", MINUTE - 1): 1, ("visitors", "/", MINUTE): 1}
    assert hashes == {("visitors", "/", MINUTE, 3): {hashed("b")}}


def test_no_flush_says_stored_while_a_member_waits_for_a_salt_to_come(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "ASK_EVERY_SECONDS", 0.0)
    now = now_minute()
    publish(queue.client, [Salt(1, FIRST, now + 60, SALT)])
    with Producer(queue.url, flush_interval=0.01) as producer:
        producer.seen("visitors", "/", "today")
        assert producer.flush(20)
        producer.seen("visitors", "/", "later", at=datetime.now(UTC) + timedelta(hours=20))
        for _ in range(3):
            assert not producer.flush(0.1)
            producer.increment("others")
        publish(queue.client)
        assert producer.flush(20)
    assert sum(found(queue.client)[0].values()) == 5


def test_a_member_of_days_ahead_is_dropped_and_said(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    now = now_minute()
    publish(queue.client, [Salt(1, FIRST, now + 1500, SALT)])
    publish(queue.client, ENDLESS, "endless")
    ahead = datetime.now(UTC) + timedelta(days=3)
    with Producer(queue.url, flush_interval=0.01) as producer:
        producer.seen("visitors", "/", "ann", at=ahead)
        producer.seen("endless", "/", "bob", at=ahead)
        assert not producer.flush(20)  # a member was dropped
        eventually(lambda: "is more than a day ahead" in caplog.text)
        stats = producer.stats()
        assert (stats.accepted, stats.stored, stats.dropped) == (2, 2, 0)
        batch = [Increment("visitors", "/", 1, ahead, member="ann")]
        with pytest.raises(InvalidBatch, match="more than a day ahead"):
            producer.increment_batch(batch)


def test_damaged_salts_are_as_missing(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.client.hset(salts_key(STREAM), "visitors", '[[1,2,3,"secret"]]')
    with Producer(queue.url, flush_interval=0.01) as producer:
        producer.seen("visitors", "/", "a")
        producer.increment("hits")
        eventually(lambda: total(queue.client) == 1)
        publish(queue.client)
        assert producer.flush(20)
    assert "secret" not in caplog.text


def test_with_redis_away_hashes_coalesce_and_are_sent_once_it_is_back(
    own_redis_server: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis_server()
    with connect(server.url) as client:
        publish(client)
    with Producer(server.url, flush_interval=0.02, socket_timeout=0.5) as producer:
        producer.seen("visitors", "/", "ann", at=AT)
        assert producer.flush(20)
        server.stop()
        monkeypatch.setattr(sightings, "ASK_EVERY_SECONDS", 0.0)
        monkeypatch.setattr(sightings, "STALE_SECONDS", -1.0)  # an outage that lasts
        for number in range(1_000):
            producer.seen("visitors", "/", str(number % 10), at=AT)
        assert not producer.flush(0.5)
        eventually(lambda: not producer.stats().connected)
        eventually(lambda: 0 < producer.stats().pending_rows <= 3)  # one, and what was in doubt
        monkeypatch.setattr(sightings, "STALE_SECONDS", 120.0)
        server.start()
        with connect(server.url) as client:
            publish(client)
            assert producer.flush(30)
            counts, hashes = found(client)
            assert counts["visitors", "/", MINUTE] >= 1_000
            assert hashes["visitors", "/", MINUTE, 7] >= {hashed(str(one)) for one in range(10)}


def test_hashes_go_to_the_spool_and_members_never_do(
    own_redis_server: RedisFactory, tmp_path: Path
) -> None:
    server = own_redis_server()
    with connect(server.url) as client:
        publish(client)
    url, spool = server.url, tmp_path / "spool"
    with Producer(url, flush_interval=0.02, spool=spool, socket_timeout=0.5) as producer:
        producer.seen("visitors", "/", "known-member", at=AT)
        assert producer.flush(20)
        server.stop()
        producer.seen("visitors", "/", "spooled-member", at=AT)
        producer.seen("later", "/", "waiting-member", at=AT)
        assert not producer.flush(0.5)  # one waits for its salt
        eventually(lambda: producer.stats().spooled == 1)
        held = b"".join(path.read_bytes() for path in spool.iterdir() if path.is_file())
        assert b64encode(hashed("spooled-member")) in held
        assert b"-member" not in held
        server.start()
        with connect(server.url) as client:
            publish(client, counter="later")
            eventually(lambda: len(found(client)[1]) == 2)
            assert hashed("spooled-member") in found(client)[1]["visitors", "/", MINUTE, 7]


def test_salts_are_asked_for_while_a_spool_is_replayed(queue: Queue, tmp_path: Path) -> None:
    """It may take longer than salts that were learnt before it may be used."""
    with Producer(AWAY, spool=tmp_path) as producer:
        for number in range(100):
            producer.increment("spooled", id=f"{number}")  # each is an entry
        assert producer.flush(20)
    publish(queue.client)
    with (
        RedisProxy.to(queue.url) as proxy,
        Producer(proxy.url(queue.url), spool=tmp_path) as producer,
    ):
        see = partial(producer.seen, "visitors", "/", "ann", at=AT)
        proxy.when("XADD", Phase.BEFORE, Deed.PASS, call=lambda _: see())
        producer.increment("begun")
        eventually(lambda: proxy.counts["XADD"] > 100, message=lambda: str(proxy.counts))
        kinds = [request.kind for request in proxy.seen]
        assert producer.flush(20)
    assert kinds[kinds.index("HGET") :].count("XADD") > 50
    assert hashed("ann") in found(queue.client)[1]["visitors", "/", MINUTE, 7]


def test_an_invalid_batch_is_refused_though_its_salt_is_not_known_yet(queue: Queue) -> None:
    sighting = Increment("visitors", "/", member="ann")
    with Producer(queue.url) as producer:
        assert not producer.increment_batch([sighting])
        with pytest.raises(InvalidBatch) as caught:
            producer.increment_batch([Increment("no name!"), sighting, Increment("hits", id="")])
    assert [position for position, _ in caught.value.errors] == [0, 2]


def test_a_batch_is_accepted_with_its_members_or_not_at_all(queue: Queue) -> None:
    publish(queue.client)
    batch = [
        Increment("visitors", "/", at=AT, member="ann"),
        Increment("visitors", "/", at=AT, member=b"bob"),
        Increment("visitors", "/", at=AT, member="ann", id="x"),
        Increment("visitors", "/", at=AT, member="ann", id="x"),
        Increment("hits", "/", 3, at=AT),
    ]
    with Producer(queue.url) as producer:
        eventually(lambda: producer.increment_batch(batch))
        assert producer.increment_batch(
            [Increment("visitors", "/", at=AT, member="eve"), ("hits", "/", 2, AT, None)], id="all"
        )
        with pytest.raises(InvalidBatch, match="--unique") as caught:
            eventually(lambda: producer.increment_batch([*batch, Increment("no", member="ann")]))
        assert [position for position, _ in caught.value.errors] == [5]
        with pytest.raises(InvalidBatch, match="member must be 1"):
            producer.increment_batch([Increment("visitors", "/", 2, member="ann")])
        with pytest.raises(InvalidBatch, match="str or bytes"):
            producer.increment_batch([Increment("visitors", "/", member=5)])  # type: ignore[arg-type]
        assert producer.flush(20)
        assert producer.stats().accepted == producer.stats().stored == 7
    counts, hashes = found(queue.client)
    assert counts == {("visitors", "/", MINUTE): 4, ("hits", "/", MINUTE): 5}
    assert hashes == {("visitors", "/", MINUTE, 7): set(map(hashed, ["ann", "bob", "eve"]))}


def test_the_recording_producer_shows_members() -> None:
    producer = recorder()
    producer.seen("visitors", "/", "ann")
    producer.seen("visitors", "/", b"ann")
    producer.seen("visitors", {"page": "/"}, "bob")
    producer.increment_batch([Increment("visitors", "/", member="eve")])
    assert producer.count("visitors") == 4
    assert producer.members("visitors") == {b"ann", b"bob", b"eve"}
    assert producer.members("visitors", "/") == {b"ann", b"eve"}
    assert producer.members("visitors", {"page": "/"}) == {b"bob"}
    assert producer.members("other") == set()


@pytest.mark.parametrize("at", [AT, None])
def test_hashes_count_for_the_bound_of_memory(queue: Queue, at: datetime | None) -> None:
    publish(queue.client)
    with Producer(queue.url, flush_interval=60, max_bytes_in_memory=200_000) as producer:
        producer.seen("visitors", "/", "ann", at=AT)
        assert producer.flush(20)
        queue.client.config_set("maxmemory", 1)  # it refuses what is sent
        try:
            producer.seen("visitors", "/", "eve", at=AT)
            producer.flush(0.2)
            # That is handed out, so all that comes now stays in the buffer.
            eventually(lambda: "maxmemory" in (producer.stats().last_error or ""))
            for number in range(5_000):
                producer.seen("visitors", "/", str(number), at=at)
            producer.flush(0.2)
            stats = producer.stats()
            assert 300 < stats.accepted < 1_500
            assert stats.accepted + stats.dropped == 5_002
        finally:
            queue.client.config_set("maxmemory", 0)
        assert producer.flush(20)
        assert producer.stats().stored == stats.accepted


def test_a_flush_waits_for_a_salt_that_is_due(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", 3600.0)
    with (
        RedisProxy.to(queue.url) as proxy,
        Producer(proxy.url(queue.url), flush_interval=60) as producer,
    ):
        for number in range(500):
            producer.seen("visitors", "/", str(number), at=AT)
        with beside(partial(_publish_late, proxy, queue.client)):
            assert producer.flush(3600)
    counts, hashes = found(queue.client)
    assert counts == {("visitors", "/", MINUTE): 500}
    assert len(hashes["visitors", "/", MINUTE, 7]) == 500


def _publish_late(proxy: RedisProxy, client: redis.Redis) -> None:
    """Publish a salt once Redis has said several times that there is none."""
    eventually(lambda: proxy.counts["HGET"] >= 3)
    publish(client)


@pytest.mark.parametrize("old", [[], [Salt(1, FIRST, MINUTE, bytes(16))]])
def test_a_close_waits_for_a_salt_that_is_due(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, old: list[Salt]
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", 3600.0)
    if old:  # the workers were away when the next one was to be made
        publish(queue.client, old)
    with RedisProxy.to(queue.url) as proxy:
        producer = Producer(proxy.url(queue.url))
        producer.seen("visitors", "/", "ann", at=AT)
        with beside(partial(_publish_late, proxy, queue.client)):
            assert producer.close(3600)
    assert found(queue.client)[1] == {("visitors", "/", MINUTE, 7): {hashed("ann")}}


def test_sightings_without_a_salt_are_counted_at_the_close(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", 3600.0)  # one is due, and never comes
    producer = Producer(queue.url)
    for number in range(500):
        producer.seen("visitors", "/", str(number), at=AT)
    assert not producer.close(4.0)  # members were dropped
    stats = producer.stats()
    assert (stats.accepted, stats.stored, stats.dropped) == (500, 500, 0)
    assert found(queue.client) == ({("visitors", "/", MINUTE): 500}, {})
    assert "500 sightings counted without their members" in caplog.text
    assert "countersink counter set visitors --unique" in caplog.text


def test_sightings_without_a_salt_go_to_the_spool_at_the_close(
    queue: Queue, tmp_path: Path
) -> None:
    with Producer(AWAY, spool=tmp_path, socket_timeout=0.5) as producer:
        producer.seen("visitors", "/", "secret", at=AT)
        assert not producer.close(4.0)
        assert producer.stats().spooled == 1
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    with Producer(queue.url, spool=tmp_path) as producer:
        producer.flush(20)
        eventually(lambda: found(queue.client) == ({("visitors", "/", MINUTE): 1}, {}))
