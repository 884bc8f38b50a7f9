"""An installation of the version before, in the midst of everything, goes on with this one.

What :mod:`tests.upgrade.record` wrote is put into empty servers and a directory: entries that wait,
one of them read by a worker that died, a spool, a log counted for a part, a backfill that was
killed while chunks of it waited in RQ's queue, a planned run of a job, settings.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.errors import UnknownCounter
from tests.cli.command import call
from tests.support.processes import Children
from tests.support.waiting import eventually
from tests.upgrade.contents import BIG_LINES, LOG_LINES, access_log, directory, write_big

RECORDED: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("installation.json").read_text()
)


@dataclass(frozen=True)
class Installation:
    """Where it all lies.

    Attributes:
        directory: of its files.
        environment: the settings of its processes.
        redis, store: its servers.
    """

    directory: Path
    environment: dict[str, str]
    redis: redis.Redis
    store: Store

    def run(self, *arguments: str) -> str:
        """What a command of this version prints."""
        done = call(*arguments, **self.environment)
        assert done.status == 0, done.out + done.err
        return done.out

    def state(self, job: str) -> str:
        """Of the job's run."""
        # A session of its own: on a loaded machine one may lie idle for longer than it lives.
        with connect(self.environment["COUNTERSINK_MYSQL_URL"]) as session:
            ((state,),) = session.query("SELECT state FROM job_run WHERE job = %s", (job,))
        return str(state)

    def totals(self, counter: str) -> dict[str, int]:
        """By key, of all days; none of a counter that is to come."""
        with suppress(UnknownCounter):
            return dict(self.store.totals.by_key(counter))
        return {}


@pytest.fixture
def installation(redis_url: str, mysql_url: str) -> Iterator[Installation]:
    """It, as it was left."""
    with (
        directory() as place,
        redis.Redis.from_url(redis_url) as client,
        Store(mysql_url) as store,
    ):
        for name, data in RECORDED["files"].items():
            path = place / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode(data))
        for key, data in RECORDED["redis"].items():
            client.restore(base64.b64decode(key), 0, base64.b64decode(data))
        with connect(mysql_url) as session, session.transaction():
            for name, table in RECORDED["mysql"].items():
                fill(session, name, **table)
        environment = {
            "COUNTERSINK_REDIS_URL": redis_url,
            "COUNTERSINK_MYSQL_URL": mysql_url,
            "COUNTERSINK_CONFIG": str(place / "countersink.toml"),
        }
        yield Installation(place, environment, client, store)


def fill(session: Session, name: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table, with what was in it."""
    session.execute(f"DELETE FROM `{name}`")
    listed = ", ".join(f"`{column}`" for column in columns)
    insert = f"INSERT INTO `{name}` ({listed}) VALUES ({', '.join(['%s'] * len(columns))})"
    for row in rows:
        values = [base64.b64decode(one["base64"]) if isinstance(one, dict) else one for one in row]
        session.execute(insert, values)


def test_it_goes_on(installation: Installation) -> None:
    here = installation
    here.run("migrate")
    assert here.totals("views") == {"a": 1, "b": 20, "c": 300}
    assert here.run("sequence", "next", "invoice") == "2\n"

    # The log has grown, and the spool is sent.
    log = here.directory / "access.log"
    log.write_text(access_log(LOG_LINES))
    position = str(here.directory / "tail.position")
    here.run("tail", str(log), "--counter", "tailed", "--position-file", position)
    here.run("spool", "replay", str(here.directory / "spool"))

    # What lies in RQ's queue calls functions by the names of before; pieces of a backfill, which
    # job processes counted then, are refused.
    with Children() as children:
        # An entry of a worker that has died is another's after a while.
        children.countersink("worker", "--claim-idle-ms", "1000", environment=here.environment)
        children.countersink("jobs", environment=here.environment)
        eventually(lambda: here.totals("views") == {"a": 4_001, "b": 50_020, "c": 600_300})
        eventually(lambda: here.totals("tailed").get("/") == -(-LOG_LINES // 3))
        eventually(lambda: here.state("compact") == "done")
        eventually(lambda: here.redis.llen("rq:queue:countersink") == 0)
        for child in children:
            child.terminate()
            assert child.wait() == 0
    assert here.totals("hourly") == {"a": 1, "b": 50_020, "c": 300}

    # What was counted of the logs is known, and the backfill that was killed comes to its end.
    small = here.directory / "small.log"
    small.write_text(access_log(LOG_LINES))
    here.run("backfill", str(small), "--counter", "filled")
    big = here.directory / "big.log"
    write_big(big)
    here.run("backfill", str(big), "--counter", "big", "--jobs", "2")
    assert sum(here.totals("filled").values()) == LOG_LINES
    assert sum(here.totals("big").values()) == BIG_LINES
    here.run("verify")
