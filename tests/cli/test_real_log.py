"""Ten thousand real requests, by the commands a user would type."""

from pathlib import Path

import pytest

from tests.cli.command import Servers
from tests.support.processes import PROJECT

LOG = (PROJECT.parent / "shared" / "data" / "apache_access.log").resolve()
DAILY = [
    {"day": "2015-05-17", "total": 1632},
    {"day": "2015-05-18", "total": 2893},
    {"day": "2015-05-19", "total": 2896},
    {"day": "2015-05-20", "total": 2578},
]
TOP = {
    "/favicon.ico": 807,
    "/": 575,
    "/style2.css": 546,
    "/reset.css": 538,
    "/images/jordan-80.png": 533,
    "/images/web/2009/banner.png": 516,
    "/blog/tags/puppet": 489,
    "/projects/xdotool/": 224,
    "/robots.txt": 180,
    "/projects/xdotool/xdotool.xhtml": 154,
}


@pytest.fixture
def log() -> Path:
    if not LOG.exists():
        pytest.skip(f"the real log is not part of the project, and {LOG} does not exist")
    return LOG


def test_the_totals_of_a_real_log_are_the_known_ones(servers: Servers, log: Path) -> None:
    done = servers.call("tail", str(log), "--counter", "page_views")
    assert done.status == 3
    assert done.out == "page_views: counted 9,999, rejected 1\n"
    assert f"{log} line 8899: the line is cut off" in done.err
    again = servers.call("tail", str(log), "--counter", "page_views")
    assert (again.status, again.out) == (0, "page_views: counted 0, rejected 0\n")

    assert servers.rows("page_views", "--include-pending") == DAILY
    servers.apply()
    totals = servers.json("totals", "page_views", "--by", "day")
    assert (totals["counter"], totals["rows"]) == ("page_views", DAILY)
    keys = servers.rows("page_views", "--by", "key")
    assert len(keys) == 1368
    assert {row["key"]: row["total"] for row in keys[:10]} == TOP
    day = ("--from", "2015-05-19", "--to", "2015-05-19")
    assert servers.rows("page_views", "--top", "1", *day) == [{"key": "/favicon.ico", "total": 245}]
    pairs = sum(
        len(servers.rows("page_views", "--by", "key", "--from", day, "--to", day))
        for day in (str(each["day"]) for each in DAILY)
    )
    assert pairs == 2355
