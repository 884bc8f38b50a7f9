"""Dimensions on the command line: `increment` and `tail` send them, a worker counts them."""

from pathlib import Path

import pytest
import redis

from countersink.runtime.dimensions import RowKey
from countersink.stream.decode import decode_rows
from countersink.stream.entry import pages
from countersink.stream.names import stream_key
from tests.cli.command import Servers, one_sentence
from tests.producers.tailing import append, line, write


def declare(servers: Servers) -> Servers:
    done = servers.call(
        *("counter", "set", "views", "--dimensions", "page,country,status"),
        *("--breakdowns", "page,country", "--breakdowns", "status,page"),
    )
    assert done.status == 0, done.err
    return servers


@pytest.fixture
def declared(servers: Servers) -> Servers:
    return declare(servers)


@pytest.fixture(scope="module")
def refusing(module_servers: Servers) -> Servers:
    """For what changes nothing."""
    return declare(module_servers)


def queued(client: redis.Redis) -> dict[RowKey, int]:
    sums: dict[RowKey, int] = {}
    for page in pages(client, stream_key(0)):
        for entry in page:
            found, _, bad = decode_rows(entry.first(b"rows") or b"[]")
            assert bad == []
            for _, _, key, _, amount in found:
                sums[key] = sums.get(key, 0) + amount
    return sums


def test_an_increment_with_dimensions_is_counted_in_its_breakdowns(declared: Servers) -> None:
    done = declared.call(
        *("increment", "views", "--dimension", "page=/a=b", "--dimension", "country=DE"),
        *("--amount", "3"),
    )
    assert (done.status, done.err) == (0, "")
    assert done.out == "views page=/a=b country=DE +3 is in the queue\n"
    assert declared.call("increment", "views", "--dimension", "country=").status == 0
    declared.apply()
    assert declared.rows("views", "--by", "page,country") == [
        {"page": "/a=b", "country": "DE", "total": 3},
        {"page": "", "country": "", "total": 1},
    ]
    assert declared.rows("views", "--by", "total") == [{"total": 4}]


def test_a_log_is_counted_by_its_fields_and_again_where_others_are_asked_for(
    servers: Servers, redis_client: redis.Redis, log: Path
) -> None:
    write(log, "/a", "/b?x=1", "/b?x=2")
    arguments = ("tail", str(log), "--counter", "views")
    by = ("--dimension", "page=path", "--dimension", "status=status")
    done = servers.call(*arguments, *by)
    assert (done.status, done.out) == (0, "views: counted 3, rejected 0\n"), done.err
    assert queued(redis_client) == {
        (("page", "/a"), ("status", "200")): 1,
        (("page", "/b"), ("status", "200")): 2,
    }
    # The order of the options does not matter, and the position is that of these fields.
    append(log, line("/a") + b"\n")
    again = servers.call(*arguments, *by[2:], *by[:2])
    assert again.out == "views: counted 1, rejected 0\n"
    other = servers.call(*arguments, "--dimension", "page=path")
    assert other.out == "views: counted 4, rejected 0\n"
    assert queued(redis_client)[("page", "/a"),] == 2
    assert "nothing" in one_sentence(servers.call(*arguments, "--dimension", "page=nothing"), 1)


def test_a_log_reaches_the_breakdowns(declared: Servers, log: Path) -> None:
    write(log, *["/a", "/b"] * 600)
    done = declared.call(
        *("tail", str(log), "--counter", "views", "--where", "path=/a"),
        COUNTERSINK_TAIL_DIMENSION="page=path status=status",
    )
    assert (done.status, done.out) == (0, "views: counted 600, rejected 0\n"), done.err
    declared.apply()
    assert declared.rows("views", "--by", "page", "--where", "status=200") == [
        {"page": "/a", "total": 600}
    ]


def test_a_backfill_fills_the_breakdowns_from_fields_and_columns(
    declared: Servers, log: Path, tmp_path: Path
) -> None:
    write(log, "/a", "/a", "/b")
    other = declared.call("backfill", str(log), "--counter", "views", "--dimension", "agent=agent")
    assert "no dimension 'agent'" in one_sentence(other)
    arguments = ("--counter", "views", "--dimension", "page=path", "--dimension", "status=status")
    dry = declared.call("backfill", str(log), *arguments, "--dry-run", "--format", "json")
    assert (dry.status, dry.json["counted"]) == (0, 3), dry.err
    done = declared.call("backfill", str(log), *arguments)
    assert (done.status, done.err) == (0, "")
    table = tmp_path / "export.csv"
    table.write_text("day,url,total\n2026-11-20,/a,40\n")
    done = declared.call(
        *("backfill", str(table), "--counter", "views", "--input-format", "csv"),
        *("--time-column", "day", "--amount-column", "total", "--dimension", "page=url"),
        *("--time-zone", "UTC"),
    )
    assert (done.status, done.err) == (0, "")
    assert declared.rows("views", "--by", "page") == [
        {"page": "/a", "total": 42},
        {"page": "/b", "total": 1},
    ]
    assert declared.call("verify").status == 0


def test_a_breakdown_that_was_declared_later_is_filled_and_begins_earlier(
    declared: Servers, log: Path
) -> None:
    write(log, "/a", "/a", "/b")
    counting = (str(log), "--counter", "views", "--dimension", "page=path")
    assert declared.call("backfill", *counting).status == 0
    breakdowns = ("--breakdowns", "page,country", "status,page", "page")
    assert declared.call("counter", "set", "views", *breakdowns).status == 0
    filling = ("backfill", *counting, "--breakdown", "page")
    dry = declared.call(*filling, "--dry-run")
    assert dry.out.endswith("views by page: would add 3.\n")
    done = declared.call(*filling, "--format", "json")
    assert done.status == 0, done.err
    assert (done.json["counter"], done.json["breakdown"]) == ("views", "page")
    assert (done.json["counted"], done.json["amount"]) == (3, 3)
    assert "the breakdown page holds the events from" in done.err
    run = str(done.json["run"])
    listed = declared.json("backfills", "list", "--counter", "views")
    first, before = listed["runs"]
    assert (str(first["run"]), first["counter"], first["amount"]) == (run, "views", 3)
    assert (first["options"]["breakdown"], before["counter"]) == ("page", "views")
    assert "views by page" in declared.call("backfills", "list").out
    assert "--breakdown page" in declared.call("backfills", "show", run).out
    said = one_sentence(declared.call("counter", "set", "views", "--breakdown-since", "page=day"))
    assert "not NAME,…=DAY, such as page,country=2026-01-01" in said
    undone = declared.call("backfills", "undo", run)
    assert "views by page changed by -3" in undone.out
    begins = ("counter", "set", "views", "--breakdown-since", "page=2015-01-01")
    assert "it holds 0, and views 3 under the key ''" in one_sentence(declared.call(*begins))
    assert declared.call(*filling).status == 0
    done = declared.call(*begins, "--format", "json")
    assert done.status == 0, done.err
    assert {"dimensions": ["page"], "since": "2015-01-01T00:00Z"} in done.json["breakdowns"]
    assert declared.rows("views", "--by", "page") == [
        {"page": "/a", "total": 2},
        {"page": "/b", "total": 1},
    ]
    assert declared.rows("views", "--by", "total") == [{"total": 3}]
    assert declared.call("verify").status == 0
    said = one_sentence(declared.call("backfills", "undo", run))
    assert "undone already" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("page,country",), "needs the values of country"),
        (("page,country", "--dimension", "country=host"), "holds all events of views"),
        (("page",), "has no breakdown page"),
    ],
)
def test_what_cannot_be_filled_is_refused(
    refusing: Servers, log: Path, arguments: tuple[str, ...], said: str
) -> None:
    write(log, "/a")
    page = ("--dimension", "page=path", "--breakdown")
    done = refusing.call("backfill", str(log), "--counter", "views", *page, *arguments)
    assert said in one_sentence(done)
    assert done.status in (1, 2)
    assert refusing.call("backfills", "list").out == "There was no backfill so far.\n"
