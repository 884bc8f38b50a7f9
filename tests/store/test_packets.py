"""Statements stay below what the server takes at once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.store.apply import dead, guards
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applied, Applier
from countersink.store.apply.dead import MAX_PAYLOAD, DeadRow
from countersink.store.apply.dead_retry import retry
from countersink.store.connection import MIN_PACKET, connect
from countersink.store.errors import Refused
from countersink.stream.decode import decode_payload
from tests.store.helpers import entry, keys, minute, now_ms, rows
from tests.support.databases import KeptDatabase
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind

PACKET = MIN_PACKET


@pytest.fixture(scope="module")
def database(servers_directory: Path, server_kind: Kind) -> Iterator[KeptDatabase]:
    """A database on a server that takes no more than it must."""
    with MySQLFactory(servers_directory, server_kind) as make:
        yield KeptDatabase(make(fast=True, extra=(f"--max-allowed-packet={PACKET}",)))


@pytest.fixture
def small_url(database: KeptDatabase) -> Iterator[str]:
    """Its URL; it is empty."""
    yield database.url()
    database.clean()


@pytest.mark.servers("mariadb", "mysql")
def test_a_large_batch_with_long_keys_bad_rows_and_many_counters(small_url: str) -> None:
    content = rows(*((f"{number:04d}".ljust(255, "é"[0:1])[:127], 1) for number in range(3000)))
    counters = [(number, f"{number:c>64}", "k", minute(), 1) for number in range(1000)]
    giant = [(number, "views", "g" * 50_000 + str(number), minute(), 1) for number in range(3)]
    name = b"n" * 16
    bad = [
        DeadRow(name, number, "s", 0, "bad", "x" * 900, b"\\" * (MAX_PAYLOAD + number))
        for number in range(3)
    ]
    batch = [
        *(entry(content[start : start + 1000]) for start in range(0, 3000, 1000)),
        entry(counters),
        entry(giant),
        Incoming(name, now_ms(), (), bad),
        *(entry([]) for _ in range(3000)),
    ]
    applier = Applier(small_url, 3)
    assert applier.apply(batch) == Applied(applied=3006, rows=4000, cells=4000, dead=6)
    assert applier.apply(batch).duplicates == 3006
    applier.close()
    with connect(small_url) as session:
        ((packet,),) = session.query("SELECT @@max_allowed_packet")
        assert packet == PACKET
        assert sum(keys(session).values()) == 3000
        assert dead.count(session) == {"bad": 3, "bad_key": 3}
        cut = [row.truncated for row in dead.list_rows(session, reason="bad")]
        assert sorted(cut) == [False, True, True]


def test_a_server_that_takes_less_is_refused(small_url: str) -> None:
    with connect(small_url) as session:
        try:
            session.execute(f"SET GLOBAL max_allowed_packet = {PACKET // 2}")
            with pytest.raises(Refused, match="SET GLOBAL max_allowed_packet = 16777216"):
                connect(small_url)
        finally:
            session.execute(f"SET GLOBAL max_allowed_packet = {PACKET}")


def test_an_entry_that_is_too_old_and_too_large_is_set_apart_row_by_row(small_url: str) -> None:
    content = rows(*((f"/{number}".ljust(100, "x"), 1) for number in range(1000)))
    payload = json.dumps([list(one[1:]) for one in content]).encode().ljust(MAX_PAYLOAD + 1)
    applier = Applier(small_url, 3)
    with connect(small_url) as session:
        guards.prune(session, now_ms=now_ms(), keep_ms=0)
        old = Incoming(b"o" * 16, 5, content, payload=payload)
        assert applier.apply([old]) == Applied(too_old=1, dead=1000)
        done = retry(session, slot=9, decode=decode_payload, reason="too_old")
        assert (done.retried, done.failed, done.rows) == (1000, 0, 1000)
        assert sum(keys(session).values()) == 1000
    applier.close()
