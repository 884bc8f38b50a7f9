"""Slots: one for each worker, renewed in time, another one when the lease is lost."""

from functools import partial
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.database.errors import SchemaMismatch
from countersink.database.session import Session
from countersink.runtime.log import Log
from countersink.worker import Slot, WorkerOptions
from countersink.worker.report import LOGGER
from tests.support.oracle import Oracle
from tests.support.traffic import Traffic, now_ms, send
from tests.support.waiting import eventually
from tests.worker.running import Place, migrated_by_a_newer_version


def slot(mysql_url: str, holder: str) -> Slot:
    def opened() -> Session:
        return connect(mysql_url)

    return Slot(opened, holder, Log(LOGGER, consumer=holder), renew_every_s=0.0)


def expire(oracle: Oracle) -> None:
    oracle.rows("UPDATE lease SET expires_at = 0")


def test_a_renewed_lease_lasts_longer(mysql_url: str) -> None:
    held = slot(mysql_url, "one")
    held.take()
    with Oracle(mysql_url) as oracle:
        before = oracle.rows("SELECT expires_at FROM lease")[0][0]
        eventually(
            lambda: held.keep() and oracle.rows("SELECT expires_at FROM lease")[0][0] > before
        )
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


def test_a_worker_that_loses_its_slot_goes_on_in_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.worker.Slot", partial(Slot, renew_every_s=0.05))
    traffic = Traffic(70)
    with place.watched() as (records, worker, oracle):
        eventually(lambda: "ready" in records.actions())
        before = records.fields("ready")[0]["slot"]
        expire(oracle)
        eventually(lambda: "slot" in records.actions())
        send(place.client, *(traffic.entry(now_ms(place.client)) for _ in range(10)))
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


URLS: dict[str, Any] = {"redis_url": "redis://:geheim@r/0", "mysql_url": "mysql://u:geheim@m/d"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_entries": 0},
        {"batch_rows": 0},
        {"batch_wait_ms": 5_000},
        {"stop_within_s": 0},
    ],
)
def test_out_of_range_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerOptions(**URLS, **wrong)


def test_a_stop_is_forced_in_time_for_the_promised_ten_seconds() -> None:
    assert WorkerOptions(**URLS).stop_within_s <= 8.0


def test_repr_holds_no_url() -> None:
    assert "geheim" not in repr(WorkerOptions(**URLS))
