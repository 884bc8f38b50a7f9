"""The loop on real servers: everything once, nothing left, whatever is redelivered."""

from __future__ import annotations

import redis

from countersink.stream.group import Group
from countersink.stream.names import GROUP, PARTITIONS_KEY, stream_key
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, backlog, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Records, Running, drain


def test_drain_counts_everything_and_leaves_nothing(
    redis_url: str, redis_client: redis.Redis, mysql_url: str
) -> None:
    traffic = Traffic(1)
    send(redis_client, *(traffic.entry(now_ms(redis_client)) for _ in range(300)))

    assert drain(redis_url, mysql_url) == 0

    with Oracle(mysql_url) as oracle:
        assert oracle.totals() == dict(traffic.expected)
    assert backlog(redis_client) == 0
    assert redis_client.xinfo_consumers(stream_key(0), GROUP) == []
    assert redis_client.keys("countersink:worker:*") == []
