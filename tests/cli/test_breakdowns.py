"""Breakdowns through the command line: declared, counted through the queue, asked for."""

import csv
import io
import json
from collections.abc import Mapping

import pytest

from countersink.producers import Producer
from countersink.store import Store
from tests.cli.command import Servers, answered, one_sentence

EVENTS: list[tuple[dict[str, str], int]] = [
    ({"page": "/home", "country": "DE", "device": "phone"}, 5),
    ({"page": "/home", "country": "AT"}, 3),
    ({"page": "/about", "country": "DE"}, 4),
    ({"country": "DE"}, 1),
]


def produce(servers: Servers, *events: tuple[Mapping[str, str], int]) -> None:
    """Send increments with dimensions."""
    with Producer(servers.redis_url) as producer:
        for dimensions, amount in events:
            producer.increment("views", dimensions, amount)


def declare(servers: Servers) -> Servers:
    """A counter with two breakdowns."""
    done = servers.call(
        *("counter", "set", "views", "--dimensions", "page,country,device"),
        *("--breakdowns", "country", "page,country", "--format", "json"),
    )
    assert done.status == 0, done.err
    assert done.json["dimensions"] == ["page", "country", "device"]
    assert done.json["breakdowns"] == [
        {"dimensions": ["country"], "since": None},
        {"dimensions": ["page", "country"], "since": None},
    ]
    return servers


@pytest.fixture
def declared(servers: Servers) -> Servers:
    return declare(servers)


@pytest.fixture
def counted(declared: Servers) -> Servers:
    """The same, with counts."""
    produce(declared, *EVENTS)
    declared.apply()
    return declared


@pytest.fixture(scope="module")
def asked(module_servers: Servers) -> Servers:
    """The same, for tests that only ask."""
    produce(declare(module_servers), *EVENTS)
    module_servers.apply()
    return module_servers


def test_an_undeclared_dimension_is_a_dead_letter_until_it_is_declared(declared: Servers) -> None:
    produce(declared, ({"page": "/home", "colour": "red"}, 100), ({"page": "/home"}, 1))
    declared.apply()
    (dead,) = declared.json("dead", "list")["rows"]
    assert dead["reason"] == "unknown_dimension"
    assert json.loads(dead["payload"])[1] == {"colour": "red", "page": "/home"}
    assert declared.call("dead", "retry", "--all").status != 0
    done = declared.call("counter", "set", "views", "--dimensions", "page,country,device,colour")
    assert done.status == 0, done.err
    assert declared.call("dead", "retry", "--all").status == 0
    assert declared.rows("views", "--by", "page") == [{"page": "/home", "total": 101}]
    assert declared.call("verify").status == 0


def test_a_question_that_no_breakdown_answers(asked: Servers) -> None:
    said = one_sentence(asked.call("totals", "views", "--by", "device"))
    assert "--breakdowns country page,country device" in said
    said = one_sentence(asked.call("totals", "views", "--by", "colour"))
    assert "no dimension 'colour'" in said


def test_a_key_that_was_never_counted_is_no_export(asked: Servers) -> None:
    said = one_sentence(asked.call("totals", "views", "--key", "/home"))
    assert "nothing was counted under the key '/home'" in said
    assert one_sentence(asked.call("export", "views", "--key", "/home")) == said
    assert asked.call("export", "--all", "--key", "/home").status == 0


def test_an_export_by_dimensions(asked: Servers) -> None:
    done = asked.call("export", "views", "--by", "page", "--where", "country=DE")
    assert done.status == 0, done.err
    assert list(csv.reader(io.StringIO(done.out))) == [
        ["counter", "page", "total"],
        ["views", "", "1"],
        ["views", "/about", "4"],
        ["views", "/home", "5"],
    ]
    done = asked.call("export", "views", "--by", "total", "--where", "country=DE")
    assert list(csv.reader(io.StringIO(done.out)))[1:] == [["views", "10"]]


def test_a_breakdown_that_is_added_later_says_since_when(counted: Servers) -> None:
    made = counted.call(
        *("counter", "set", "views", "--breakdowns", "country", "page,country", "device"),
        *("--format", "json"),
    )
    since = made.json["breakdowns"][-1]["since"]
    assert since is not None
    done = counted.call("totals", "views", "--by", "device", "--format", "json")
    assert done.json["since"].startswith(since[:-1])
    assert "are missing" in done.err
    shown = counted.call("counter", "show", "views")
    assert "device (from" in shown.out


def test_breakdowns_are_removed(counted: Servers) -> None:
    done = counted.call(
        *("counter", "set", "views", "--breakdowns", "none", "--dimensions", "none"),
        *("--yes", "--format", "json"),
    )
    assert (done.json["dimensions"], done.json["breakdowns"]) == ([], [])
    assert counted.rows("views", "--by", "total") == [{"total": 13}]
    with Store(counted.mysql_url) as store:
        ask = "SELECT name FROM counter WHERE created IS NOT NULL"
        assert store.snapshot(lambda session: session.query(ask)) == [("views",)]
    assert counted.call("verify").status == 0


def test_before_a_breakdown_is_deleted_a_terminal_is_asked(counted: Servers) -> None:
    arguments = ("counter", "set", "views", "--breakdowns", "country")
    for answer, left in ("n", ["country", "page,country"]), ("y", ["country"]):
        asking = answered(answer, *arguments, **counted.variables())
        assert "Delete the breakdowns page,country of views" in asking.err
        assert (asking.status == 0) is (answer == "y")
        with Store(counted.mysql_url) as store:
            assert [each.text for each in store.counters.show("views").breakdowns] == left
