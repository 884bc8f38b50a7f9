"""`countersink totals`: what was counted, laid out."""

import csv
import io
from datetime import UTC, datetime

import pytest
import redis

from countersink.producers import Producer
from countersink.stream.connection import command
from countersink.stream.names import stream_key
from tests.cli.command import Servers, one_sentence

AWAY = "redis://127.0.0.1:1/0"

DAYS = [
    ("2026-11-18", "/a", 5),
    ("2026-11-18", "/b", 2),
    ("2026-11-20", "/a", 1),
    ("2026-11-21", "/c", 5),
]


def fill(servers: Servers) -> Servers:
    """Two counters with known totals."""
    with Producer(servers.redis_url) as producer:
        for day, key, amount in DAYS:
            producer.increment("views", key, amount, at=noon(day))
        producer.increment("clicks", "", -4, at=noon("2026-11-19"))
    servers.apply()
    return servers


def noon(day: str) -> datetime:
    return datetime.fromisoformat(f"{day}T12:00Z")


@pytest.fixture(scope="module")
def filled(module_servers: Servers) -> Servers:
    """For tests that only ask."""
    return fill(module_servers)


DAYS_OF_VIEWS = [("2026-11-18", 7), ("2026-11-19", 0), ("2026-11-20", 1), ("2026-11-21", 5)]
DAILY = [{"day": day, "total": total} for day, total in DAYS_OF_VIEWS]


def test_what_random_questions_do_not_ask(filled: Servers) -> None:
    """Others are asked by tests/reads/test_doors.py."""
    assert filled.rows("views", "--by", "counter") == [{"counter": "views", "total": 13}]
    assert filled.rows("views", "--from", "2030-01-01", "--by", "key") == []
    both = ("--prefix", "/c", "--key", "/b", "--by", "total")
    assert filled.rows("views", *both) == [{"total": 7}]
    too_long = filled.call("totals", "views", "--from", "0001-01-01", "--to", "9999-12-31")
    assert "at most 100,000" in one_sentence(too_long, 2)


LIMITS = ("complete_up_to", "rolled_up_to", "truncated")
"""What is said of every answer."""


def test_complete_up_to_is_redis_time_or_the_oldest_entrys(
    filled: Servers, redis_client: redis.Redis
) -> None:
    def complete() -> datetime:
        document = filled.json("totals", "views")
        text = str(document["complete_up_to"])
        assert text.endswith("Z")
        return datetime.fromisoformat(text)

    before = redis_client.time()[0]
    assert complete().timestamp() >= before
    filled.call("increment", "views")
    filled.call("increment", "views")
    [(first, _)] = command(redis_client, "XRANGE", stream_key(0), "-", "+", "COUNT", 1)
    arrived = datetime.fromtimestamp(int(first.split(b"-")[0]) / 1000, UTC)
    assert complete() == arrived


def test_without_redis_it_is_null_and_while_redis_is_away_that_is_said(filled: Servers) -> None:
    for redis_url, said in (("", ""), (AWAY, "freshness unknown: ")):
        alone = filled.call("totals", "views", "--format", "json", COUNTERSINK_REDIS_URL=redis_url)
        assert (alone.status, alone.json["rows"]) == (0, DAILY)
        assert alone.json["complete_up_to"] is None
        assert (said in alone.err, bool(alone.err)) == (True, bool(said))


def test_pending_needs_redis(filled: Servers) -> None:
    pending = ("totals", "views", "--include-pending")
    assert filled.call(*pending, COUNTERSINK_REDIS_URL="").status == 2
    failed = filled.call(*pending, COUNTERSINK_REDIS_URL=AWAY)
    assert "cannot be reached" in one_sentence(failed, 1)


def test_an_unknown_counter_fails(filled: Servers) -> None:
    for more in ([], ["--include-pending"], ["--format", "json"], ["--by", "total"]):
        failed = filled.call("totals", "nothing", *more)
        assert "nothing was ever counted as 'nothing'" in one_sentence(failed, 1)


def test_the_table_has_bars_a_sum_and_a_time_and_the_document_five_members(filled: Servers) -> None:
    shown = filled.call("totals", "views").out.splitlines()
    assert shown[0].split() == ["day", "total"]
    assert shown[1].split() == ["2026-11-18", "7", "█" * 40]
    assert shown[2].split() == ["2026-11-19", "0"]
    assert shown[5].split() == ["all", "13"]
    assert shown[6].startswith("Complete up to 20")
    assert list(filled.json("totals", "views")) == ["counter", "rows", *LIMITS]


def test_a_table_of_hostile_keys_is_harmless(servers: Servers) -> None:
    hostile = "\x1b[2J\u202e[bold]x"
    for key in (hostile, "/😀"):
        servers.call("increment", "c", key)
    servers.apply()
    shown = servers.call("totals", "c", "--by", "key").out
    assert "\\x1b[2J\\u202e[bold]x" in shown
    assert "\x1b" not in shown
    assert servers.rows("c", "--key", hostile, "--by", "key") == [{"key": hostile, "total": 1}]
    old_terminal = servers.call("totals", "c", "--by", "key", PYTHONIOENCODING="latin-1")
    assert old_terminal.status == 0, old_terminal.err
    assert "/\\U0001f600" in old_terminal.out


def test_csv_is_quoted_and_with_spreadsheet_no_formula(servers: Servers) -> None:
    for key in ("=1+1", 'say "hi", twice', "line\nbreak", "/a", "x;=1+1", "＝1"):
        servers.call("increment", "c", "--", key)
    servers.apply()
    ask = ("totals", "c", "--by", "key", "--format", "csv")
    shown = servers.call(*ask, "--spreadsheet")
    assert list(csv.reader(io.StringIO(shown.out, newline=""))) == [
        ["key", "total"],
        ["/a", "1"],
        ["'=1+1", "1"],
        ["line\nbreak", "1"],
        ['say "hi", twice', "1"],
        ["x;=1+1", "1"],
        ["'＝1", "1"],
    ]
    # In quotes it is one cell also where semicolons divide them.
    assert '\r\n"x;=1+1",1\r\n' in shown.out
    assert "\r\nx;=1+1,1\r\n" in servers.call(*ask).out
