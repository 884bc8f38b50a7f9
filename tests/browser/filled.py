"""A database that there is something to see in."""

import json
import math
import random
from datetime import UTC, datetime, timedelta

import redis

from countersink.counting.apply.dead import DeadRow, insert
from countersink.database.sessions import open_tables
from countersink.stream.connection import connect
from countersink.stream.entry import VERSION, new_entry_id
from countersink.stream.names import stream_key
from tests.support.traffic import now_minute
from tests.web.serving import Web

DAYS = 75
PAGES = ("/", "", "/pricing", "/docs", "/docs/quickstart", "/blog", "/about", "/blog/2026/émile")
OTHERS = {
    "ad_clicks": 420,
    "api:requests": 96_000,
    "mail.sent": 1_900,
    "orders": 130,
    "refunds": 4,
    "votes": 700,
}
"""Counters, and how much a day has of each, about."""


def fill(web: Web) -> None:
    """Count something on each of the last days; the numbers are the same every time."""
    producer = web.producer
    now = datetime.now(UTC)
    web.store.counters.set("page_views", resolution="hour", time_zone="Europe/Berlin")
    for back in range(DAYS):
        at = now - timedelta(days=back)
        for place, path in enumerate(PAGES):
            for hour in range(0, 24, 3):
                amount = int(_wave(back, 40 + 9 * hour) / (place + 1))
                producer.increment("page_views", path, amount, at=at - timedelta(hours=hour))
        producer.increment("signups", "web", int(_wave(back, 14)) + back % 3, at=at)
        producer.increment("signups", "app", int(_wave(back, 6)) + back % 5, at=at)
        for phase, (name, size) in enumerate(OTHERS.items()):
            producer.increment(name, "a", int(_wave(back + phase, size)) + 1, at=at)
    web.apply()


def fill_keys(web: Web, keys: int) -> None:
    """Count ``downloads``, with so many keys."""
    for number in range(keys):
        web.producer.increment("downloads", f"file-{number:05}.zip", number % 977 + 1)
    web.apply()


def fill_minutes(web: Web) -> None:
    """Count something by the minute, over a bit more than two days; one key is new."""
    web.store.counters.set(
        "checkouts", resolution="minute", time_zone="Europe/Berlin", keep="minute=3d,hour=90d"
    )
    now = datetime.now(UTC)
    chance = random.Random(17)
    for back in range(50 * 60):
        for place, key in enumerate(("/basket", "/gift-card", "/subscription", "")):
            if back < 20 * 60 or key != "/subscription":
                amount = chance.randrange(int(_wave(back // 240, 16 - 3 * place)))
                amount += 4 if key == "/gift-card" and back < 9 * 60 else 1
                at = now - timedelta(minutes=back)
                web.producer.increment("checkouts", key, amount, at=at)
    web.apply()


def _wave(back: int, size: int) -> float:
    """The amount of a day: more on workdays, more of late, and a little as it comes."""
    week = 1 + 0.3 * math.sin(back / 7 * 2 * math.pi)
    return size * (week + 0.004 * (DAYS - back) + 0.15 * (back * 7919 % 13) / 13)


def send(client: redis.Redis, rows: list[list[object]], *, version: int = 1) -> None:
    """Put an entry of our own making into the queue."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    client.xadd(
        stream_key(0),
        {"v": version, "id": new_entry_id(now), "at": now, "rows": json.dumps(rows)},
    )


def spoil(web: Web) -> None:
    """Bring three dead letters about: two that stay, and one of a newer version."""
    minute = now_minute()
    with connect(web.options.redis_url) as client:
        send(client, [["orders", "\ud800", minute, 1], ["orders", "a", -5, 1]])
        send(client, [["orders", "newer", minute, 7]], version=VERSION + 1)
    web.apply()


def set_aside(web: Web, key: str, amount: int, *, reason: str = "bad_sketch") -> str:
    """A dead letter that nothing is wrong with any more; its ref."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    payload = json.dumps(["orders", key, now // 60_000, amount]).encode()
    entry_id = bytes.fromhex(new_entry_id(now))
    row = DeadRow(entry_id, 0, stream_key(0), now, reason, "it was so once", payload)
    with open_tables(web.options.mysql_url) as session, session.transaction():
        insert(session, [row])
    return row.ref
