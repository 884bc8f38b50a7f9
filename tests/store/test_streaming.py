"""Rows one by one, in one snapshot: `Session.stream` and `Store.reading`."""

import gc
import sys
from contextlib import suppress

import pytest

from countersink.store import Refused, Store, StoreError, Unavailable
from tests.support.oracle import Oracle

pytestmark = pytest.mark.servers("mariadb", "mysql")

SERIES = "SELECT counter_key FROM counter_slot ORDER BY counter_key"


@pytest.fixture
def filled(mysql_url: str) -> str:
    with Oracle(mysql_url) as oracle:
        values = ", ".join(f"('views', '2026-10-18', 'k{n:04}', 1, 1)" for n in range(2_500))
        oracle.rows(
            f"INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount) VALUES {values}"
        )
    return mysql_url


def test_all_rows_come_in_order_and_the_session_goes_on(filled: str) -> None:
    with Store(filled) as store, store.reading() as session:
        keys = [bytes(key) for (key,) in session.stream(SERIES)]
        assert keys == [b"k%04d" % n for n in range(2_500)]
        assert session.query("SELECT 1") == [(1,)]
        assert list(session.stream(f"{SERIES} LIMIT %s", (1,))) == [(b"k0000",)]


def test_it_is_one_snapshot(filled: str) -> None:
    with Store(filled) as store, store.reading() as session, Oracle(filled) as oracle:
        oracle.rows("DELETE FROM counter_slot")
        assert len(list(session.stream(SERIES))) == 2_500


def test_whoever_stops_early_closes_the_session(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests have left behind
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with Store(filled) as store, suppress(StoreError), store.reading() as session:
        rows = session.stream(SERIES)
        assert next(rows) == (b"k0000",)
        del rows
        gc.collect()
        assert session.closed
        with pytest.raises(Unavailable):
            session.query("SELECT 1")
    gc.collect()
    assert complaints == []


def test_a_bad_query_leaves_the_session_as_it_was(filled: str) -> None:
    with Store(filled) as store, store.reading() as session:
        with pytest.raises(Refused):
            list(session.stream("SELECT nothing FROM counter_slot"))
        assert session.query("SELECT 1") == [(1,)]
