"""A database that there is something to see in."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta

import redis

from countersink.store.dead import DeadRow, insert
from countersink.store.tables import open_tables
from countersink.stream.connection import connect
from countersink.stream.entry import new_entry_id
from countersink.stream.names import stream_key
from tests.web.serving import Web

DAYS = 75
PAGES = ("/", "/pricing", "/docs", "/docs/quickstart", "/blog", "/about", "/blog/2026/émile")


def fill(web: Web, *, counters: int = 6, keys: int = 0) -> None:
    """Count something on each of the last days; the numbers are the same every time.

    Args:
        web: whose producer and worker do it.
        counters: how many counters more there are.
        keys: how many keys more ``downloads`` has.
    """
    producer = web.producer
    now = datetime.now(UTC)
    web.store.counters.set("page_views", resolution="hour", time_zone="Europe/Berlin")
    for back in range(DAYS):
        at = now - timedelta(days=back)
        wave = 1 + 0.35 * math.sin(back / 7 * 2 * math.pi) + 0.004 * (DAYS - back)
        for place, path in enumerate(PAGES):
            producer.increment(
                "page_views", path, int(wave * 900 / (place + 1)), at=at - timedelta(hours=place)
            )
        producer.increment("signups", "web", int(wave * 14) + back % 3, at=at)
        producer.increment("signups", "app", int(wave * 6) + back % 5, at=at)
    for number in range(counters):
        name = ("orders", "ad_clicks", "votes", "api:requests", "mail.sent", "refunds")[number % 6]
        suffix = "" if number < 6 else f"_{number}"
        for back in range(0, 30, 1 if number < 6 else 10):
            producer.increment(
                name + suffix,
                "a",
                (number * 37 + back * back) % 113 + 1,
                at=now - timedelta(days=back),
            )
    for number in range(keys):
        producer.increment("downloads", f"file-{number:05}.zip", number % 977 + 1)
    web.apply()


def send(client: redis.Redis, rows: list[list[object]], *, version: int = 1) -> None:
    """Put an entry of our own making into the queue."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    client.xadd(
        stream_key(0),
        {"v": version, "id": new_entry_id(now), "at": now, "rows": json.dumps(rows)},
    )


def spoil(web: Web) -> None:
    """Bring three dead letters about: two that stay, and one of a newer version."""
    minute = int(datetime.now(UTC).timestamp()) // 60
    with connect(web.options.redis_url) as client:
        send(client, [["orders", "k" * 300, minute, 1], ["orders", "a", -5, 1]])
        send(client, [["orders", "newer", minute, 7]], version=2)
    web.apply()


def set_aside(web: Web, key: str, amount: int, *, reason: str = "out_of_range") -> str:
    """A dead letter that nothing is wrong with any more; its ref."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    payload = json.dumps(["orders", key, now // 60_000, amount]).encode()
    entry_id = bytes.fromhex(new_entry_id(now))
    row = DeadRow(entry_id, 0, stream_key(0), now, reason, "it was so once", payload)
    with open_tables(web.options.mysql_url) as session, session.transaction():
        insert(session, [row])
    return row.ref
