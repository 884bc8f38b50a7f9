"""`countersink compact`."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Servers, one_sentence
from tests.schedules.tables import DAY, Tables, spread

KEYS = [b"/%d" % number for number in range(20)]


@pytest.fixture
def tables(servers: Servers) -> Iterator[Tables]:
    made = Tables(servers.mysql_url)
    yield made
    made.close()


def test_it_says_rows_before_rows_after_and_how_long(servers: Servers, tables: Tables) -> None:
    tables.plant(spread(KEYS, (1, 2, 3)))
    before = servers.rows("v", "--by", "key")
    done = servers.call("compact")
    assert (done.status, done.err) == (0, "")
    header, figures = done.out.splitlines()
    assert header.split() == ["rows", "before", "rows", "after", "time"]
    assert figures.split()[:2] == ["60", "20"]
    assert figures.split()[-1] in ("ms", "s")
    after = servers.rows("v", "--by", "key")
    assert after == before
    assert len(after) == 20
    again = servers.call("compact")
    assert again.status == 0
    assert again.out.startswith("There was nothing to compact (")


def test_json_is_one_document_that_names_what_stays(servers: Servers, tables: Tables) -> None:
    tables.plant(spread([*KEYS, b"\xff"], (1, 2, 3)))
    tables.plant(spread([b"a"], (1, 2), "2020-03-05 00:00:00 7"))
    with tables.held(b"\xff"):
        done = servers.call("compact", "--format", "json")
    assert done.status == 3
    document = done.json
    assert document.pop("seconds") >= 0
    assert document.pop("ranges") >= 1
    at = "2020-03-05 00:00:00"
    assert document == {
        "rows_before": 60,
        "rows_after": 20,
        "busy": [{"counter": "v", "bucket": at, "width": "day", "key": "\udcff"}],
        "unreadable": [],
        "unknown": [{"counter": "v", "bucket": at, "width": "7", "key": None}],
    }
    servers.call("compact")  # what was held
    done = servers.call("compact")
    assert "as their width is unknown: 1" in done.out
    assert "nothing to compact" not in done.out


def test_busy_rows_are_left_for_the_next_run_which_is_no_failure(
    servers: Servers, tables: Tables
) -> None:
    tables.plant(spread(KEYS, (1, 2, 3)))
    with tables.held(KEYS[3]):
        done = servers.call("compact")
    assert done.status == 0
    assert "Keys left for the next run, as other transactions held them: 1" in done.out


def test_counter_and_before_choose(servers: Servers, tables: Tables) -> None:
    tables.plant(spread([b"a"], range(1, 4), DAY))
    tables.plant(spread([b"a"], range(1, 4), "9000-01-01 00:00:00 4"))
    tables.plant([("w", DAY, b"a", slot, 5) for slot in (1, 2)])

    def compact(*arguments: str) -> tuple[int, int]:
        document = servers.json("compact", *arguments)
        return document["rows_before"], document["rows_after"]

    assert compact("--counter", "v", "--before", "2020-03-05") == (0, 0)
    assert compact("--counter", "v", "--before", "2020-03-06") == (3, 1)
    assert compact("--counter", "v") == (0, 0)
    assert compact("--before", "9000-01-02") == (5, 2)
    unknown = servers.call("compact", "--counter", "nothing")
    assert "there is no counter 'nothing'" in one_sentence(unknown, 1)
