"""The page of the interfaces: every command as it stands there, with its output."""

import re
from pathlib import Path

from tests.cli.command import Servers
from tests.clients.programs import program
from tests.clients.test_page import run
from tests.docs.console import Step, comparable, parts
from tests.support.processes import Children
from tests.support.waiting import eventually
from tests.web.serving import Web, serving

PAGE = Path("docs/interfaces.md")
HTTP, STATSD = "http://127.0.0.1:8321", "/dev/udp/127.0.0.1/8125"
COUNTED = [0, 1, 1, 2, 4, 5]
"""Page views after the first lines; later ones read."""


def test_the_tour_goes_as_it_says(servers: Servers, tmp_path: Path) -> None:
    for name in ("bash", "curl", "redis-cli"):
        program(name)
    urls = servers.variables()
    tour = [part for part in parts(PAGE) if isinstance(part, Step)]
    assert len(tour) > 10
    at = (servers.redis_url, servers.mysql_url)
    with serving(*at, public_counters=("page_views",)) as web, Children() as children:
        worker = children.worker(*at)
        statsd = children.countersink("statsd", "--port", "0", environment=urls)
        (port,) = eventually(lambda: re.findall(r"udp://127\.0\.0\.1:(\d+)", statsd.output()))
        for number, step in enumerate(tour):
            wait_for(web, COUNTED[min(number, len(COUNTED) - 1)])
            command = step.command.replace(HTTP, web.url)
            command = command.replace(STATSD, f"/dev/udp/127.0.0.1/{port}")
            status, printed = run(command, tmp_path, urls)
            where = f"{step.command}\n{printed}\n{worker.output()}"
            assert comparable(printed) == comparable(step.shown), where
            assert status == step.status, where


def wait_for(web: Web, page_views: int) -> None:
    """Until the tables have them: a line that reads finds what the lines before it have sent."""
    counters = web.services.store.totals.counters
    eventually(lambda: counters().get("page_views", 0) == page_views)
