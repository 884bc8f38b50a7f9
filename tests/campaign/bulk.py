"""A round of `bulk`: producers count as fast as they can, and workers are killed meanwhile."""

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from countersink.database.migrate import migrate
from countersink.store.verify import open_session, verify
from countersink.stream.connection import connect
from tests.campaign.app import BULK_KEYS
from tests.soak.rounds import Outcome
from tests.support.forked import ForkedChildren
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.servers import MySQLServer, RedisServer
from tests.support.traffic import backlog
from tests.support.waiting import eventually

PRODUCERS: Final = 2
WORKERS: Final = 2
PASSES: Final = 20_000
"""Of each producer, through all keys."""
KILL_EVERY_S: Final = 5.0
DONE_S: Final = 900.0


def play(
    redis_server: RedisServer,
    mysql_server: MySQLServer,
    seed: int,
    directory: Path,
    passes: int = PASSES,
) -> Outcome:
    """All producers count the same keys, so that workers add to the same rows."""
    draw, faults = random.Random(seed), Counter[str]()
    url = mysql_server.url_for("bulk")
    migrate(url)
    with ForkedChildren() as children, connect(redis_server.url) as client:

        def worker() -> Child:
            options = {"claim_idle_ms": 2000, "claim_every_s": 0.5}
            return children.worker(redis_server.url, url, **options)

        workers = [worker() for _ in range(WORKERS)]
        producers = []
        for number in range(PRODUCERS):
            spool = str(directory / f"spool {number}")
            plan = {"redis_url": redis_server.url, "passes": passes, "spool": spool}
            command = [sys.executable, "-m", "tests.campaign.app", json.dumps(plan)]
            producers.append(children.start(command))
        next_kill = time.monotonic() + draw.uniform(0, KILL_EVERY_S)

        def over() -> bool:
            nonlocal next_kill
            if time.monotonic() >= next_kill:
                workers.pop(draw.randrange(WORKERS)).kill()
                workers.append(worker())
                faults["worker killed"] += 1
                next_kill = time.monotonic() + draw.uniform(0, 2 * KILL_EVERY_S)
            return not any(producer.running for producer in producers)

        eventually(over, DONE_S)
        for each in producers:
            assert each.wait() == 0, each.output()[-3000:]
        eventually(lambda: backlog(client) == 0, DONE_S)
        for each in workers:
            each.terminate()
            assert each.wait() == 0, each.output()[-3000:]
    with Oracle(url) as oracle, open_session(url) as session:
        rows = oracle.rows("SELECT counter_key, SUM(amount) FROM counter_slot GROUP BY 1")
        wrong = [(key, amount) for key, amount in rows if amount != PRODUCERS * passes]
        assert (len(rows), wrong[:5]) == (BULK_KEYS, [])
        assert verify(session).differences == []
    return Outcome(events=Counter(producers=PRODUCERS * passes * BULK_KEYS), faults=faults)
