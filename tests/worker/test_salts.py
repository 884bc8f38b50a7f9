"""Workers publish salts in Redis, for each partition, and take those of deleted counters away."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.producers.buffer import sightings
from countersink.runtime.log import Log
from countersink.runtime.members import Salt, decode_salts, encode_salts
from countersink.store import Store
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_KEY, salts_key, stream_key
from countersink.worker import report as module
from countersink.worker.report import LOGGER, SaltPublisher
from tests.counting.visitors.test_salts import days_ago
from tests.support.waiting import eventually
from tests.worker.running import Place

LOG = Log(LOGGER, consumer="test")


def published(client: redis.Redis, partition: int = 0) -> dict[str, list[Salt]]:
    found: Any = client.hgetall(salts_key(stream_key(partition)))
    return {name.decode(): decode_salts(raw) for name, raw in found.items()}


def stored(store: Store, counter: str) -> list[Salt]:
    rows = store.snapshot(
        lambda session: session.query(
            "SELECT number, begins, ends, salt FROM visitor_salt WHERE counter = %s"
            " AND salt IS NOT NULL ORDER BY begins",
            (counter,),
        )
    )
    return [Salt(number, begins, ends, bytes(salt)) for number, begins, ends, salt in rows]


def test_a_worker_publishes_what_counters_need(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY_S", 0.01)
    with Store(place.mysql_url) as store, place.watched(batch_wait_ms=10):
        store.counters.set("plain")
        store.counters.set("v", salt_days=0)
        eventually(lambda: published(place.client) == {"v": stored(store, "v")})
        store.counters.set("w", salt_days=1)
        assert len(stored(store, "w")) == 2
        eventually(
            lambda: published(place.client) == {name: stored(store, name) for name in ("v", "w")}
        )
        store.counters.delete("v")
        versions = iter(range(1, 10_000))

        def gone() -> bool:
            # At a second look: another worker may have published what this one had not seen.
            store.counters.set("plain", max_keys=next(versions))
            return set(published(place.client)) == {"w"}

        eventually(gone)


def test_salts_are_written_for_each_partition_again_where_redis_was_emptied(place: Place) -> None:
    place.client.set(PARTITIONS_KEY, 2)
    with Store(place.mysql_url) as store:
        store.counters.set("v", salt_days=0)
        publisher = SaltPublisher(lambda: open_tables(place.mysql_url), place.client, LOG)
        for _ in range(2):
            publisher.keep()
            publisher.publish()
            for partition in (0, 1):
                assert published(place.client, partition) == {"v": stored(store, "v")}
                place.client.delete(salts_key(stream_key(partition)))
            publisher._due_at = publisher._keep_at = 0.0
        publisher.close()


def test_a_server_that_is_away_is_no_matter_of_salts(place: Place) -> None:
    with Store(place.mysql_url) as store:
        store.counters.set("v", salt_days=0)
        away = connect("redis://127.0.0.1:1/0")
        publisher = SaltPublisher(lambda: open_tables(place.mysql_url), away, LOG)
        publisher.keep()
        publisher.publish()
        publisher._client = place.client
        publisher.publish()
        assert published(place.client) == {"v": stored(store, "v")}
        publisher.close()
        publisher = SaltPublisher(
            lambda: open_tables("mysql://nobody@127.0.0.1:1/none"), place.client, LOG
        )
        publisher.keep()
        publisher.publish()
        publisher.close()


def test_sightings_right_after_unique_are_counted_with_their_members(place: Place) -> None:
    with (
        Store(place.mysql_url) as store,
        place.watched(batch_wait_ms=10),
        Producer(place.redis_url) as producer,
    ):
        producer.seen("warm", "/", "ann")
        assert not producer.flush(0.1)
        store.counters.set("uv", salt_days=0)
        for number in range(500):
            producer.seen("uv", "/", str(number))
        store.counters.set("warm", salt_days=0)
        assert producer.flush(timeout=60, applied=True)
        assert store.totals.total("uv") == store.totals.unique("uv").total == 500
        assert store.totals.total("warm") == store.totals.unique("warm").total == 1


def test_sightings_while_all_workers_were_away_for_days_keep_their_members(
    place: Place, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sightings, "SALT_SECONDS", 3600.0)
    with Store(place.mysql_url) as store, Producer(place.redis_url) as producer:
        store.counters.set("v", salt_days=1)
        days_ago(session, 5)
        own = {"v": stored(store, "v")}
        place.client.hset(salts_key(stream_key(0)), "v", encode_salts(own["v"]).decode())
        for day in range(4):
            producer.seen("v", "/", "ann", at=datetime.now(UTC) - timedelta(days=day))
        assert not producer.flush(1.0)
        with place.watched(batch_wait_ms=10):
            assert producer.flush(timeout=60, applied=True)
        days = [(each.total, each.estimate) for _, each in store.totals.unique_by("v", "day")]
        assert days == [(1, False)] * 4
        assert store.totals.total("v") == 4
