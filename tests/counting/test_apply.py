"""Whatever is delivered however often, each entry counts once."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from countersink.counting.apply import dead, guards
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import POINTS, Applied, Applier
from countersink.counting.apply.dead import MAX_PAYLOAD, DeadRow
from countersink.counting.apply.dead_retry import retry
from countersink.database.connection import MIN_PACKET, connect
from countersink.database.errors import Refused, Unavailable
from countersink.database.session import Session
from countersink.stream.decode import decode_payload
from tests.support.databases import KeptDatabase
from tests.support.entries import (
    Database,
    entry,
    guard_count,
    keys,
    ledger,
    minute,
    now_ms,
    rows,
    together,
)
from tests.support.entries import applier as new_applier
from tests.support.factories import MySQLFactory
from tests.support.servers import Kind

pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_rows_of_several_entries_become_one_row_per_cell(db: Database) -> None:
    first = entry(rows(("/a", 2), ("/b", -5)))
    second = entry(rows(("/a", 3)))
    assert db.applier.apply([first, second]) == Applied(applied=2, rows=3, cells=2)
    assert db.keys() == {b"/a": 5, b"/b": -5}
    assert db.session.query("SELECT slot, amount FROM counter_ledger") == [(17, 0)]


def test_a_redelivery_is_dropped_and_the_rest_of_its_batch_counted(db: Database) -> None:
    old, new = entry(rows(("/a", 1))), entry(rows(("/a", 10)))
    # Also within one batch.
    assert db.applier.apply([old, old]) == Applied(applied=1, duplicates=1, rows=1, cells=1)
    assert db.applier.apply([old, new]) == Applied(applied=1, duplicates=1, rows=1, cells=1)
    assert db.applier.apply([old, new]) == Applied(duplicates=2)
    assert db.keys() == {b"/a": 11}
    assert ledger(db.session) == {"views": 11}


def test_no_entry_no_row_and_an_amount_of_0_that_declares_the_key(
    session: Session, applier: Applier
) -> None:
    assert applier.apply([]) == Applied()
    assert applier.apply([entry([])]) == Applied(applied=1)
    assert guard_count(session) == 1
    applier.apply([entry(rows(("/a", 0)))])
    assert keys(session) == {b"/a": 0}
    assert ledger(session) == {"views": 0}


@pytest.mark.parametrize("slots", [(1, 2), (9, 9)], ids=["own slots", "a shared slot"])
def test_two_workers_given_the_same_entries_at_the_same_moment(
    db: Database, slots: tuple[int, int]
) -> None:
    pauses: list[float] = []
    one = db.worker(slots[0], pause=pauses.append)
    two = db.worker(slots[1], pause=pauses.append)
    expected = 0
    for round_ in range(15):
        shared = [entry(rows((f"/{index % 7}", 1), ("/x", 2))) for index in range(20)]
        backwards = list(reversed(shared))
        results = together(
            lambda batch=shared: one.apply(batch),  # type: ignore[misc]
            lambda batch=backwards: two.apply(batch),  # type: ignore[misc]
        )
        expected += 20 * 3
        assert sum(result.applied for result in results) == 20
        assert sum(result.duplicates for result in results) == 20
        assert sum(db.keys().values()) == expected, f"round {round_}"
        assert ledger(db.session) == {"views": expected}
    assert pauses == []  # in the order of their ids they never wait for each other in a circle


@pytest.mark.parametrize("point", POINTS)
def test_a_connection_killed_at_any_point_and_running_again_counts_once(
    db: Database, point: str
) -> None:
    def reached(here: str) -> None:
        if here == point and not killed:
            killed.append(True)
            applier._session.abort()

    killed: list[bool] = []
    applier = db.worker(3, reached=reached)
    batch = [entry(rows(("/a", 1)))]
    if point == "committed":
        assert applier.apply(batch).applied == 1
    else:
        with pytest.raises(Unavailable):
            applier.apply(batch)
        assert db.keys() == {}
        assert applier.apply(batch).applied == 1
    assert db.keys() == {b"/a": 1}


def test_the_guards_are_kept_from_their_entrys_time_or_now_whichever_is_later(db: Database) -> None:
    now = now_ms()
    future, past = entry([], at=now + 10**9), entry([], at=1)
    beyond = entry([], at=10**30)
    db.applier.apply([future, past, beyond])
    kept = dict(db.session.query("SELECT entry_id, keep_from FROM applied_entry"))
    assert kept[future.id] == now + 10**9
    assert abs(kept[past.id] - now) < 60_000
    assert kept[beyond.id] == 2**63 - 1


def test_an_entry_older_than_the_watermark_is_a_dead_letter_with_its_payload(db: Database) -> None:
    guards.prune(db.session, now_ms=now_ms(), keep_ms=0)
    late = Incoming(
        os.urandom(16), 5, rows(("/a", 1)), stream="st", payload=b'[["views","/a",9,1]]'
    )
    young = entry(rows(("/a", 10)), at=now_ms() + 60_000)
    assert db.applier.apply([late, young]) == Applied(applied=1, rows=1, cells=1, dead=1, too_old=1)
    (buried,) = dead.list_rows(db.session)
    assert (buried.reason, buried.position, buried.payload) == ("too_old", -1, late.payload)
    assert (buried.stream, buried.at, buried.entry_id) == ("st", 5, late.id)
    assert db.keys() == {b"/a": 10}
    assert db.applier.apply([late]) == Applied(duplicates=1)


def test_too_old_an_entry_without_payload_loses_no_row(session: Session, applier: Applier) -> None:
    guards.prune(session, now_ms=now_ms(), keep_ms=0)
    applier.apply([entry(rows(("/a", 1), ("/b", 2)), at=5)])
    buried = sorted(dead.list_rows(session), key=lambda found: found.position)
    assert [(found.position, found.reason) for found in buried] == [(0, "too_old"), (1, "too_old")]
    assert json.loads(buried[1].payload) == ["views", "/b", minute(), 2]


def test_an_old_entry_that_was_counted_and_still_has_its_guard_is_just_a_duplicate(
    db: Database,
) -> None:
    spooled = entry(rows(("/a", 1)), at=now_ms() - 10**9)
    db.applier.apply([spooled])  # its guard is kept from now on
    guards.prune(db.session, now_ms=now_ms(), keep_ms=10**8)
    assert db.applier.apply([spooled]) == Applied(duplicates=1)
    assert dead.count(db.session) == {}


def test_dead_rows_of_an_entry_are_written_with_its_guard(db: Database) -> None:
    name = os.urandom(16)
    bad = DeadRow(name, 1, "st", now_ms(), "bad_key", "too long", b'["views",1]')
    batch = [Incoming(name, now_ms(), rows(("/a", 1)), [bad], "st")]
    assert db.applier.apply(batch).dead == 1
    assert dead.count(db.session) == {"bad_key": 1}
    assert db.applier.apply(batch) == Applied(duplicates=1)
    assert dead.drop(db.session) == 1
    assert db.applier.apply(batch) == Applied(duplicates=1)
    assert dead.count(db.session) == {}


def test_without_the_control_row_nothing_is_applied(session: Session, applier: Applier) -> None:
    session.execute("DELETE FROM control")
    with pytest.raises(Refused, match="control"):
        applier.apply([entry(rows(("/a", 1)))])
    assert guard_count(session) == 0


def test_the_victim_of_a_deadlock_runs_again(mysql_url: str, session: Session) -> None:
    filling = new_applier(mysql_url, 5)
    filling.apply([entry(rows(("k", 1)))])
    filling.close()
    upserted = threading.Event()
    pauses: list[float] = []

    def reached(point: str) -> None:
        if point == "upserted":
            upserted.set()

    applier = Applier(mysql_url, 5, reached=reached, pause=pauses.append)
    with connect(mysql_url, lock_wait=20) as rival:
        rival.begin()
        for number in range(200):  # more work to undo than the applier's: so that one is the victim
            rival.execute("INSERT INTO lease VALUES (%s, '', 0)", (f"x{number}",))
        rival.query("SELECT amount FROM counter_ledger WHERE slot = 5 FOR UPDATE")

        def take_the_slot_row() -> int:
            assert upserted.wait(30)
            changed = rival.execute("UPDATE counter_slot SET amount = amount + 100")
            rival.rollback()
            return changed

        batch = [entry(rows(("k", 10)))]
        assert together(lambda: applier.apply(batch).applied, take_the_slot_row) == [1, 1]
    assert len(pauses) >= 1
    assert keys(session) == {b"k": 11}
    assert ledger(session) == {"views": 11}
    assert guard_count(session) == 2
    applier.close()


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
