"""Statements stay below what the server takes at once."""

from __future__ import annotations

import pytest

from countersink.store import dead
from countersink.store.apply import Applied, Applier
from countersink.store.connection import connect
from countersink.store.dead import DeadRow
from countersink.store.merge import Incoming
from countersink.store.migrate import migrate
from tests.store.helpers import entry, keys, minute, now_ms, rows
from tests.support.factories import MySQLFactory

PACKET = 65_536


@pytest.fixture
def small_url(own_mysql_server: MySQLFactory) -> str:
    """A database on a server that takes 64 KB."""
    server = own_mysql_server(fast=True, extra=(f"--max-allowed-packet={PACKET}",))
    url = server.url_for("counts")
    migrate(url)
    return url


def test_a_large_batch_with_long_keys_bad_rows_and_many_counters(small_url: str) -> None:
    content = rows(*((f"{number:04d}".ljust(255, "é"[0:1])[:127], 1) for number in range(3000)))
    counters = [(number, f"{number:c>64}", "k", minute(), 1) for number in range(1000)]
    giant = [(number, "views", "g" * 50_000 + str(number), minute(), 1) for number in range(3)]
    name = b"n" * 16
    bad = [DeadRow(name, number, "s", 0, "bad", "x" * 900, b"p" * 40_000) for number in range(20)]
    batch = [
        *(entry(content[start : start + 1000]) for start in range(0, 3000, 1000)),
        entry(counters),
        entry(giant),
        Incoming(name, now_ms(), (), bad),
        *(entry([]) for _ in range(3000)),
    ]
    applier = Applier(small_url, 3)
    assert applier.apply(batch) == Applied(applied=3006, rows=4000, cells=4000, dead=23)
    assert applier.apply(batch).duplicates == 3006
    applier.close()
    with connect(small_url) as session:
        assert session.max_allowed_packet == PACKET
        assert sum(keys(session).values()) == 3000
        assert dead.count(session) == {"bad": 20, "too_long": 3}
        assert all(row.truncated for row in dead.list_rows(session, reason="bad"))
