"""What a round of the soak may play, and how often."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from countersink.database.migrate import migrate
from tests.browser import axe
from tests.browser.chromium import program, running
from tests.browser.filled import fill
from tests.browser.visits import counted_once
from tests.faults.repertoire import KILLS, SCENARIOS, Scenario
from tests.faults.stage import Stage
from tests.support.databases import dropped, new_name
from tests.support.servers import RedisServer
from tests.web.attacks import floods
from tests.web.attacks.target import Target
from tests.web.exploring import explored
from tests.web.serving import serving

EXAMPLES = 50
"""Requests of each kind for each operation of the HTTP interface, about."""
FLOOD_KEYS = 1_000_000
VISITS = 1_000


@contextmanager
def _of_its_own(stage: Stage) -> Iterator[tuple[str, str]]:
    """URLs of an empty Redis and an empty, migrated database, which are gone afterwards."""
    with (
        dropped(stage.mysql_server, new_name()) as url,
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
        RedisServer(Path(directory) / "redis") as own,
    ):
        migrate(url)
        yield own.url, url


def web_flooded(stage: Stage) -> None:
    """A million new keys by HTTP, then slow clients again and again, beside live traffic."""
    with _of_its_own(stage) as (redis_url, mysql_url):
        target = Target.start(stage.children, redis_url, mysql_url)
        worker = stage.children.worker(redis_url=redis_url, mysql_url=mysql_url)
        with target.unharmed():
            floods.flood(target, "flood", FLOOD_KEYS)
        worker.terminate()
        assert worker.wait() == 0
        floods.flooded(target, "flood", FLOOD_KEYS)
        for _ in range(KILLS):
            with target.unharmed():
                floods.slow_and_deaf_clients(target)
        target.end()


def document_explored(stage: Stage) -> None:
    """schemathesis, with all that it has: it makes keys and counts junk."""
    with (
        _of_its_own(stage) as (redis_url, mysql_url),
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
    ):
        found = explored(
            redis_url,
            mysql_url,
            Path(directory),
            examples=EXAMPLES,
            seed=stage.seed,
            phases="examples,coverage,fuzzing,stateful",
            keys=stage.seed % 2 == 0,
        )
    assert not found, found


def visited_by_a_thousand(stage: Stage) -> None:
    """A page of another origin, in Chromium where there is one."""
    path = program()
    if path is not None:
        with _of_its_own(stage) as (redis_url, mysql_url), running(path) as browser:
            counted_once(browser, redis_url, mysql_url, VISITS)


def dashboard_in_the_dark(stage: Stage) -> None:
    """axe-core looks at it in dark colours, in Chromium where there is one."""
    path = program()
    if path is not None:
        with (
            _of_its_own(stage) as (redis_url, mysql_url),
            serving(redis_url, mysql_url) as web,
            running(path) as browser,
        ):
            axe.nothing_yet_and_dead_letters(browser, web, "dark")
            fill(web)
            axe.every_view(browser, web, "dark")


REPERTOIRE = (
    *(each for each in SCENARIOS if each.weight),
    *(
        Scenario(play, "soak", weight=3, alone=True)
        for play in (document_explored, web_flooded, visited_by_a_thousand, dashboard_in_the_dark)
    ),
)
