"""Totals beyond 64 bits, in both directions: counted by everybody, moved, read by every door,
verified and deleted, exactly.
"""

import csv
import json
from collections import Counter
from datetime import UTC, date, datetime
from io import StringIO
from pathlib import Path

import pytest
import requests

from countersink.producers import Producer
from countersink.store import Store
from tests.cli.command import Servers
from tests.support.app_connection import open_app
from tests.support.entries import MAX, MIN, rolled_up
from tests.support.oracle import Oracle
from tests.web.serving import serving

OLD = datetime(2020, 3, 5, 12, tzinfo=UTC)
NEW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SUMS = {"up": 24 * MAX, "down": 24 * MIN, "beside": 24}
ONE = {"up": MAX, "down": MIN, "beside": 1}

pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_sums_beyond_64_bits_are_the_same_by_every_way_and_door(
    redis_url: str, mysql_url: str, tmp_path: Path
) -> None:
    servers = Servers(redis_url, mysql_url)
    store = Store(mysql_url)
    store.counters.set("sold", keep="day=400d", app_slots=2)
    _count(servers, store, tmp_path)
    _read(servers, store)
    compacted = servers.json("compact", "--before", "2027-01-01")
    assert compacted["busy"] == compacted["unreadable"] == []
    assert compacted["rows_after"] == 2 * len(SUMS)
    _read(servers, store)
    assert rolled_up(mysql_url).rolled_up == len(SUMS)
    with Oracle(mysql_url) as oracle:
        months = oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE width = 5")
        assert months == [(len(SUMS),)]
        types = "SELECT data_type, numeric_precision FROM information_schema.columns"
        where = "WHERE table_schema = DATABASE() AND column_name = 'amount'"
        table = "AND table_name = 'counter_slot'"
        assert oracle.rows(f"{types} {where} {table}") == [("decimal", 27)]
    _read(servers, store)
    assert servers.json("verify")["differences"] == []
    for key in SUMS:
        deleted = servers.json("counter", "delete", "sold", "--key", key, "--yes")
        assert deleted["amount"] == SUMS[key]
    assert servers.json("totals", "sold", "--by", "key")["rows"] == []
    assert servers.json("verify")["differences"] == []
    store.close()


def _count(servers: Servers, store: Store, directory: Path) -> None:
    """Count four times of each day in each of three ways."""
    with Producer(servers.redis_url) as producer:
        for _ in range(4):
            for at in (OLD, NEW):
                for key, amount in ONE.items():
                    producer.increment("sold", key, amount, at=at)
            assert producer.flush(20)
    pending = servers.json("totals", "sold", "--by", "key", "--include-pending")["rows"]
    assert {row["key"]: row["total"] for row in pending} == {k: 8 * n for k, n in ONE.items()}
    assert servers.call("worker", "--drain").status == 0
    app = open_app(servers.mysql_url)
    for _ in range(2):
        for at in (OLD, NEW):
            for key, amount in ONE.items():
                store.increment(app, "sold", key, amount, at=at)
            store.increment_many(app, "sold", ONE, at=at)
        app.commit()
    app.close()
    lines = [f"{at:%Y-%m-%dT%H:%MZ},{key},{n}\n" for at in (OLD, NEW) for key, n in ONE.items()]
    source = directory / "sold.csv"
    source.write_text("at,key,n\n" + "".join(4 * lines))
    recipe = ("--input-format", "csv", "--time-column", "at", "--key-column", "key")
    counted = servers.json(
        "backfill", str(source), "--counter", "sold", *recipe, "--amount-column", "n"
    )
    assert (counted["counted"], counted["rejected"]) == (8 * len(ONE), 0)
    assert counted["amount"] == 8 * sum(ONE.values())


def _read(servers: Servers, store: Store) -> None:
    """Ask by every door."""
    whole = sum(SUMS.values())
    assert store.totals.total("sold") == whole
    for key, amount in SUMS.items():
        found = store.totals.total("sold", key=key)
        assert (type(found), found) == (int, amount)
    assert store.totals.many("sold", [*SUMS]) == SUMS
    ranked = store.totals.by_key("sold")
    assert ranked == sorted(SUMS.items(), key=lambda one: -one[1])
    assert {type(amount) for _, amount in ranked} == {int}
    months = dict(store.totals.monthly("sold", key="up"))
    assert [months[date(2020, 3, 1)], months[date(2026, 11, 1)]] == [12 * MAX] * 2
    rows = servers.json("totals", "sold", "--by", "key")["rows"]
    assert {row["key"]: row["total"] for row in rows} == SUMS
    assert servers.json("totals", "--all")["rows"] == [{"counter": "sold", "total": whole}]
    said = servers.call("totals", "sold", "--by", "key")
    assert f"{SUMS['down']}" in said.out.replace(",", "")
    exported = Counter[str]()
    out = servers.call("export", "sold", "--by", "key-month").out
    for row in csv.DictReader(StringIO(out)):
        exported[row["key"]] += int(row["total"])
    assert dict(exported) == SUMS
    lines = servers.call("export", "sold", "--by", "key-month", "--format", "ndjson").out
    assert {json.loads(line)["total"] for line in lines.splitlines()} == {
        amount // 2 for amount in SUMS.values()
    }
    with serving(servers.redis_url, servers.mysql_url) as web:
        answer = requests.get(
            f"{web.url}/v1/counters/sold/totals", params={"by": "key"}, timeout=20
        )
        assert f'"total":{SUMS["up"]}' in answer.text.replace(" ", "")
        assert {row["key"]: row["total"] for row in answer.json()["rows"]} == SUMS
        text = requests.get(
            f"{web.url}/v1/export/openmetrics", params={"counter": "sold"}, timeout=20
        ).text
        assert f'countersink_events_total{{counter="sold"}} {whole}' in text
