"""Dimensions on the command line: `increment` and `tail` send them, a worker counts them."""

from pathlib import Path

import pytest
import redis

from countersink.runtime.dimensions import RowKey
from countersink.stream.decode import decode_rows
from countersink.stream.entry import pages
from countersink.stream.names import stream_key
from tests.cli.command import Servers, one_sentence
from tests.logs.tailing import append, line, write


@pytest.fixture
def declared(servers: Servers) -> Servers:
    done = servers.call(
        *("counter", "set", "views", "--dimensions", "page,country,status"),
        *("--breakdowns", "page,country", "--breakdowns", "status,page"),
    )
    assert done.status == 0, done.err
    return servers


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


def test_a_misspelt_word_is_asked_back_and_not_declared(declared: Servers) -> None:
    for by, meant in (("dya", "day"), ("mnth", "month"), ("contry", "country"), ("pages", "page")):
        said = one_sentence(declared.call("totals", "views", "--by", by), 1)
        assert (f"did you mean {meant}?" in said, "--dimensions" in said) == (True, False)
    for by in ("source", "user"):
        said = one_sentence(declared.call("totals", "views", "--by", by), 1)
        assert f"--dimensions page,country,status,{by}`" in said
    said = one_sentence(declared.call("totals", "views", "--where", "contry=DE"), 1)
    assert "did you mean country?" in said
    declared.call("increment", "views", "--dimension", "contry=DE")
    declared.apply()
    [dead] = declared.call("dead", "list", "--format", "json").json["rows"]
    assert "did you mean country? Otherwise declare it with" in dead["detail"]


def test_an_event_with_dimensions_has_no_key(declared: Servers) -> None:
    declared.call("increment", "views", "--dimension", "page=/home")
    declared.apply()
    assert "\n(no key)      1\n" in declared.call("totals", "views", "--by", "key").out
    said = one_sentence(declared.call("totals", "views", "--key", "/home"), 1)
    assert "with where, such as page=/home" in said


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


def test_a_backfill_counts_the_breakdowns_from_fields_and_columns(
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
