"""`countersink export`: all totals, for other programs."""

import csv
import io
import json
import stat
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.store import Store
from tests.cli.command import Result, Servers, one_sentence
from tests.support.ledger import post_planted
from tests.support.oracle import Oracle
from tests.support.roll_up import roll_up

EVENTS = [
    ("views", "/a", 5, "2026-10-31"),
    ("views", "/a", 1, "2026-11-18"),
    ("views", "/b", 2, "2026-11-18"),
    ("views", "/c, =1", -7, "2026-11-20"),
    ("clicks", "", 3, "2026-11-19"),
]
BY_KEY_AND_DAY = [
    ["clicks", "2026-11-19", "", "3"],
    ["views", "2026-10-31", "/a", "5"],
    ["views", "2026-11-18", "/a", "1"],
    ["views", "2026-11-18", "/b", "2"],
    ["views", "2026-11-20", "/c, =1", "-7"],
]


def fill(servers: Servers) -> Servers:
    """Two counters with known totals."""
    with Producer(servers.redis_url) as producer:
        for counter, key, amount, day in EVENTS:
            producer.increment(counter, key, amount, at=datetime.fromisoformat(f"{day}T12:00Z"))
    servers.apply()
    return servers


@pytest.fixture(scope="module")
def filled(module_servers: Servers) -> Servers:
    """For tests that only ask."""
    return fill(module_servers)


def lines(result: Result) -> list[list[str]]:
    assert result.status == 0, result.err
    return list(csv.reader(io.StringIO(result.out)))


def test_everything_by_key_and_day(filled: Servers) -> None:
    done = filled.call("export", "--all")
    assert lines(done) == [["counter", "day", "key", "total"], *BY_KEY_AND_DAY]
    assert "5 rows of 2 counters, complete up to 2" in done.err


NOVEMBER = [["2026-11", "/a", "1"], ["2026-11", "/b", "2"], ["2026-11", "/c, =1", "-7"]]
ASKED = {
    "--by total": [["1"]],
    "--by month": [["2026-10", "5"], ["2026-11", "-4"]],
    "--by key": [["/a", "6"], ["/b", "2"], ["/c, =1", "-7"]],
    "--by key-month": [["2026-10", "/a", "5"], *NOVEMBER],
    "--by key-month --from 2026-11-18": NOVEMBER,
    "--from 2026-11-01 --to 2026-11-18": [row[1:] for row in BY_KEY_AND_DAY[2:4]],
    "--key /a --key /none --from 2026-11-02": [BY_KEY_AND_DAY[2][1:]],
    "--by day --from 2026-11-18 --to 2026-11-20": [
        ["2026-11-18", "3"],
        ["2026-11-19", "0"],
        ["2026-11-20", "-7"],
    ],
}
"""Rows by the question."""


@pytest.mark.parametrize("question", ASKED)
def test_each_layout_ranges_and_keys(filled: Servers, question: str) -> None:
    found = lines(filled.call("export", "views", *question.split()))
    assert found[1:] == [["views", *row] for row in ASKED[question]]


def test_days_of_another_time_zone_come_exactly(servers: Servers) -> None:
    servers.call("counter", "set", "views", "--resolution", "hour")
    for hour, amount in (("2026-11-18T22:30Z", 1), ("2026-11-18T23:30Z", 2)):
        servers.call("increment", "views", "/", "--amount", str(amount), "--at", hour)
    servers.apply()
    done = servers.call("export", "views", "--time-zone", "Europe/Berlin")
    assert [row[1:] for row in lines(done)[1:]] == [
        ["2026-11-18", "/", "1"],
        ["2026-11-19", "/", "2"],
    ]
    done = servers.call("export", "views", "--by", "hour", "--time-zone", "Europe/Berlin")
    assert [row[1] for row in lines(done)[1:]] == [
        "2026-11-18T23:00+01:00",
        "2026-11-19T00:00+01:00",
    ]
    done = servers.call("export", "views", "--time-zone", "Asia/Kolkata")
    assert [row[1:] for row in lines(done)[1:]] == [["2026-11-19", "/", "3"]]
    servers.call("increment", "views", "/", "--at", "2026-11-19T18:10Z")  # or on the next day
    servers.apply()
    refused = servers.call("export", "views", "--time-zone", "Asia/Kolkata")
    assert "Asia/Kolkata" in one_sentence(refused, 1)


def test_ndjson_keeps_keys_as_they_are(servers: Servers) -> None:
    for key in ("=1+1", "\x1b[31m", "ü\n"):
        servers.call("increment", "views", key, "--at", "2026-11-18T12:00Z")
    servers.apply()
    with Oracle(servers.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES ('views', '2026-11-18', UNHEX('FF'), 1, 1)"
        )
        post_planted(oracle)
    done = servers.call("export", "views", "--format", "ndjson")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [row["key"] for row in found] == ["\x1b[31m", "=1+1", "ü\n", "\udcff"]
    assert found[0] == {"counter": "views", "day": "2026-11-18", "key": "\x1b[31m", "total": 1}
    assert "\r\nviews,2026-11-18,=1+1,1\r\n" in servers.call("export", "views").out
    shown = servers.call("export", "views", "--spreadsheet").out
    assert '\r\n"views","2026-11-18","\'=1+1",1\r\n' in shown


def test_parquet_can_be_read_by_others(filled: Servers, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    done = filled.call("export", "--all", "--format", "parquet", "--output", str(file))
    assert done.status == 0, done.err
    found = pq.read_table(file).to_pylist()
    assert [[str(value) for value in row.values()] for row in found] == BY_KEY_AND_DAY
    assert found[0]["day"] == date(2026, 11, 19)
    for by, first in (("month", date(2026, 10, 1)), ("week", date(2026, 10, 26))):
        filled.call("export", "views", "--by", by, "--format", "parquet", "--output", str(file))
        assert pq.read_table(file).column(by).to_pylist()[0] == first


def test_parquet_says_which_total_it_cannot_hold(servers: Servers, tmp_path: Path) -> None:
    with Oracle(servers.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES ('views', '2026-11-18', '/', 2, 9223372036854775807),"
            " ('views', '2026-11-18', '/', 3, 9223372036854775807)"
        )
        post_planted(oracle)
    file = tmp_path / "views.parquet"
    done = servers.call("export", "views", "--format", "parquet", "--output", str(file))
    assert "64 bits" in one_sentence(done, 2)
    assert list(tmp_path.iterdir()) == []
    assert lines(servers.call("export", "views"))[1][3] == str(2 * (2**63 - 1))


def test_a_file_is_there_as_a_whole_or_not_at_all(filled: Servers, tmp_path: Path) -> None:
    file = tmp_path / "views.csv"
    file.write_text("before")
    file.chmod(0o600)
    done = filled.call("export", "views", "nothing", "--output", str(file))
    assert "nothing was ever counted as 'nothing'" in one_sentence(done, 1)
    assert file.read_text() == "before"
    assert filled.call("export", "views", "--output", str(file)).status == 0
    assert file.read_text("utf-8").splitlines()[1] == "views,2026-10-31,/a,5"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["views.csv"]
    assert one_sentence(filled.call("export", "views", "--output", str(tmp_path / "no" / "x.csv")))


def test_days_in_months_are_told(servers: Servers) -> None:
    filled = fill(servers)
    with Oracle(filled.mysql_url) as oracle:
        oracle.rows(
            "INSERT INTO counter (name, keep_steps, rolled_month, created)"
            " VALUES ('views', 'day=2d', '2026-11-01', NOW())"
        )
        oracle.rows("DELETE FROM counter_slot WHERE counter = 'views' AND bucket < '2026-11-01'")
        oracle.rows(
            "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
            " VALUES ('views', '2026-10-01', '/a', 5, 0, 5)"
        )
        post_planted(oracle)
    done = filled.call("export", "views")
    assert lines(done)[1:] == BY_KEY_AND_DAY[2:]
    assert "days before 2026-11-01 are rolled up" in done.err
    assert lines(filled.call("export", "views", "--by", "key"))[1] == ["views", "/a", "6"]
    months = lines(filled.call("export", "views", "--by", "key-month"))[1:]
    assert months[0] == ["views", "2026-10", "/a", "5"]
    later = filled.call("export", "views", "--from", "2026-10-20")
    assert lines(later)[1:] == BY_KEY_AND_DAY[2:]
    assert "the days before 2026-11-01 are rolled up to months: --by key-month" in later.err


def test_minutes_that_are_rolled_up_are_told(servers: Servers) -> None:
    """Of all counters, too, whichever is asked last."""
    now = datetime.now(UTC)
    with Store(servers.mysql_url) as store:
        for name in ("a", "b"):
            keep = "minute=2d" if name == "a" else None
            store.counters.set(name, resolution="minute", keep=keep)
            for back in (0, 4):
                at = f"{now - timedelta(days=back):%Y-%m-%dT%H:%MZ}"
                servers.call("increment", name, "--at", at)
    servers.apply()
    roll_up(partial(open_tables, servers.mysql_url), rows=100)
    said = "the minutes before"
    done = servers.call("export", "a", "b", "--by", "minute")
    assert f"a: {said}" in done.err
    assert "b: " not in done.err
    for asked in (("a",), ("--all",)):
        found = servers.call("totals", *asked, "--by", "minute", "--format", "json")
        assert said in found.err
        assert found.json["told_from"]
