"""A real web server's log through `tail`, the queue, a worker and `totals`.

The figures are those published with the log, counted there line by line without countersink.
"""

from typing import Any

import pytest

from tests.cli.command import Servers
from tests.support.oracle import Oracle
from tests.support.processes import PROJECT

LOG = PROJECT.parent / "shared" / "data" / "apache_access.log"
DAYS = [
    {"day": "2015-05-17", "total": 1632},
    {"day": "2015-05-18", "total": 2893},
    {"day": "2015-05-19", "total": 2896},
    {"day": "2015-05-20", "total": 2578},
]
TOP = [
    ("/favicon.ico", 807),
    ("/", 575),
    ("/style2.css", 546),
    ("/reset.css", 538),
    ("/images/jordan-80.png", 533),
    ("/images/web/2009/banner.png", 516),
    ("/blog/tags/puppet", 489),
    ("/projects/xdotool/", 224),
    ("/robots.txt", 180),
    ("/projects/xdotool/xdotool.xhtml", 154),
]
TAIL = ("tail", str(LOG), "--counter", "page_views")
COUNTED = 9999
KEYS = 1368
DAYS_AND_KEYS = 2355
REJECTED_LINE = 8899

pytestmark = pytest.mark.skipif(not LOG.exists(), reason=f"the real log is not at {LOG}")


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    return Servers(redis_url, mysql_url)


def test_a_real_log_gives_its_published_figures_and_a_second_run_adds_nothing(
    servers: Servers,
) -> None:
    first = servers.run(*TAIL)
    assert first.status == 3, first.err  # done, but a line was rejected
    assert f"{LOG} line {REJECTED_LINE}: the line is cut off" in first.err, first.err
    assert _totals(servers, "--include-pending") == DAYS
    servers.apply()
    _has_the_published_figures(servers)
    second = servers.call(*TAIL)
    assert second.status == 0, second.err
    servers.apply()
    assert _totals(servers, "--by", "day") == DAYS
    _has_what_was_counted_once(servers)


def _has_the_published_figures(servers: Servers) -> None:
    assert _totals(servers, "--by", "day") == DAYS
    assert [(row["key"], row["total"]) for row in _totals(servers, "--top", "10")] == TOP
    by_key = _totals(servers, "--by", "key")
    assert len(by_key) == KEYS
    assert sum(row["total"] for row in by_key) == COUNTED
    busiest = _totals(
        servers, "--by", "key", "--from", "2015-05-19", "--to", "2015-05-19", "--top", "1"
    )
    assert busiest == [{"key": "/favicon.ico", "total": 245}]
    _has_what_was_counted_once(servers)


def _has_what_was_counted_once(servers: Servers) -> None:
    with Oracle(servers.mysql_url) as oracle:
        assert len(oracle.totals()) == DAYS_AND_KEYS
        assert oracle.ledger() == {"page_views": COUNTED}
        assert oracle.rows("SELECT COUNT(*) FROM dead_row") == [(0,)]


def _totals(servers: Servers, *arguments: str) -> list[dict[str, Any]]:
    shown = servers.call("totals", "page_views", *arguments, "--format", "json")
    assert shown.status == 0, shown.err
    rows: list[dict[str, Any]] = shown.json["rows"]
    return rows
