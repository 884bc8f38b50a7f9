"""A real web server's log through `tail`, the queue, a worker and `totals`.

The figures are those published with the log, counted there line by line without countersink.
"""

import json
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.oracle import Oracle
from tests.support.processes import PROJECT, countersink

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
COUNTED = 9999
KEYS = 1368
DAYS_AND_KEYS = 2355
REJECTED_LINE = 8899

pytestmark = pytest.mark.skipif(not LOG.exists(), reason=f"the real log is not at {LOG}")


@pytest.fixture
def environment(redis_url: str, mysql_url: str) -> dict[str, str]:
    """The settings of a deployment."""
    return {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": mysql_url}


def test_a_real_log_gives_its_published_figures_and_a_second_run_adds_nothing(
    environment: dict[str, str],
) -> None:
    first = _tail(environment)
    assert first.returncode == 3, first.stderr  # done, but a line was rejected
    assert str(REJECTED_LINE) in first.stderr, first.stderr
    _drain(environment)
    _has_the_published_figures(environment)
    second = _tail(environment)
    assert second.returncode == 0, second.stderr
    _drain(environment)
    _has_the_published_figures(environment)


def _has_the_published_figures(environment: dict[str, str]) -> None:
    assert _totals(environment, "--by", "day") == DAYS
    assert [(row["key"], row["total"]) for row in _totals(environment, "--top", "10")] == TOP
    by_key = _totals(environment, "--by", "key")
    assert len(by_key) == KEYS
    assert sum(row["total"] for row in by_key) == COUNTED
    busiest = _totals(
        environment, "--by", "key", "--from", "2015-05-19", "--to", "2015-05-19", "--top", "1"
    )
    assert busiest == [{"key": "/favicon.ico", "total": 245}]
    with Oracle(environment["COUNTERSINK_MYSQL_URL"]) as oracle:
        assert len(oracle.totals()) == DAYS_AND_KEYS
        assert oracle.ledger() == {"page_views": COUNTED}
        assert oracle.rows("SELECT COUNT(*) FROM dead_row") == [(0,)]


def _tail(environment: dict[str, str]) -> CompletedProcess[str]:
    return countersink("tail", str(LOG), "--counter", "page_views", environment=environment)


def _drain(environment: dict[str, str]) -> None:
    drained = countersink("worker", "--drain", environment=environment)
    assert drained.returncode == 0, drained.stderr


def _totals(environment: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    shown = countersink(
        "totals", "page_views", *arguments, "--format", "json", environment=environment
    )
    assert shown.returncode == 0, shown.stderr
    rows: list[dict[str, Any]] = json.loads(shown.stdout)["rows"]
    return rows
