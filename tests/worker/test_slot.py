"""Slots: one for each worker, renewed in time, another one when the lease is lost."""

from functools import partial

import pytest
import redis

from countersink.runtime.log import Log
from countersink.store.connection import Session, connect
from countersink.store.errors import SchemaMismatch
from countersink.store.lease import take
from countersink.worker import loop
from countersink.worker.loop import Slot
from countersink.worker.report import LOGGER
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Records, migrated_by_a_newer_version, watched


def slot(mysql_url: str, holder: str) -> Slot:
    def opened() -> Session:
        return connect(mysql_url)

    return Slot(opened, holder, Log(LOGGER, consumer=holder), renew_every_s=0.0)


def expire(oracle: Oracle) -> None:
    oracle.rows("UPDATE lease SET expires_at = 0")


def test_two_workers_have_two_slots_and_keep_them(mysql_url: str) -> None:
    one, two = slot(mysql_url, "one"), slot(mysql_url, "two")
    first, second = one.take(), two.take()
    assert first != second
    assert {first, second} <= set(range(1, 256))
    assert (one.keep(), two.keep()) == (first, second)
    one.release()
    two.release()


def test_a_renewed_lease_lasts_longer(mysql_url: str) -> None:
    held = slot(mysql_url, "one")
    held.take()
    with Oracle(mysql_url) as oracle:
        before = oracle.rows("SELECT expires_at FROM lease")[0][0]
        eventually(
            lambda: held.keep() and oracle.rows("SELECT expires_at FROM lease")[0][0] > before
        )
    held.release()


def test_a_lost_lease_is_replaced(mysql_url: str) -> None:
    held = slot(mysql_url, "one")
    before = held.take()
    with Oracle(mysql_url) as oracle, connect(mysql_url) as session, Records() as records:
        expire(oracle)
        assert take(session, before, "two", 60.0)
        after = held.keep()
    assert after != before
    assert records.fields("slot") == [{"consumer": "one", "slot": after, "before": before}]
    held.release()


def test_a_lease_that_cannot_be_renewed_costs_nothing_but_the_lease(mysql_url: str) -> None:
    held = slot(mysql_url, "one")
    number = held.take()
    with Oracle(mysql_url) as oracle:
        oracle.rows("RENAME TABLE lease TO lease_away")
        assert held.keep() == number
        oracle.rows("RENAME TABLE lease_away TO lease")
        assert held.keep() == number
    held.release()


def test_a_released_slot_is_free(mysql_url: str) -> None:
    held = slot(mysql_url, "one")
    number = held.take()
    held.release()
    with connect(mysql_url) as session:
        assert take(session, number, "two", 60.0)


def test_a_worker_that_loses_its_slot_goes_on_in_another(
    redis_url: str, redis_client: redis.Redis, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Slot", partial(Slot, renew_every_s=0.05))
    traffic = Traffic(70)
    with watched(redis_url, mysql_url) as (records, worker, oracle):
        eventually(lambda: "ready" in records.actions())
        before = records.fields("ready")[0]["slot"]
        expire(oracle)
        eventually(lambda: "slot" in records.actions())
        send(redis_client, *(traffic.entry(now_ms(redis_client)) for _ in range(10)))
        eventually(lambda: not oracle.differences(traffic.expected))
        used = {number for (number,) in oracle.rows("SELECT DISTINCT slot FROM counter_slot")}
        assert worker.end() == 0
    after = records.fields("slot")[0]["slot"]
    assert records.fields("slot")[0]["before"] == before
    assert used == {after}


def test_tables_migrated_by_a_newer_version_are_noticed_without_a_new_connection(
    mysql_url: str,
) -> None:
    held = slot(mysql_url, "one")
    held.take()
    with (
        Oracle(mysql_url) as oracle,
        migrated_by_a_newer_version(oracle),
        pytest.raises(SchemaMismatch),
    ):
        held.keep()
    held.release()
