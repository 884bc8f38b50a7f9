"""The published fault campaign: `python -m tests.campaign --seconds N`.

Rounds of all acts, on all servers that are there, until the time is up, evenly by what
`results.jsonl` has least of; after each round a line is added to that file. A difference ends the
campaign with status 1 and the command that plays that round again. A round that is named by --seed
is played again, and adds nothing. --report writes docs/reliability.md from the results.
"""

import argparse
import datetime
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from countersink.database.connection import connect
from countersink.stream.connection import connect as connect_redis
from tests.campaign import bulk, report, results
from tests.campaign.everything import Everything
from tests.campaign.results import PLACES, Place, Round
from tests.campaign.strikes import plan, storm
from tests.soak import __main__ as soak
from tests.soak import clusters
from tests.soak.rounds import Outcome, durable_servers
from tests.support.servers import Kind
from tests.support.trees import why_missing
from tests.support.valkey import valkey_server

KINDS: Final[dict[str, Kind]] = {"mariadb": "mariadb", "mysql": "mysql"}
CLUSTER_FAULTS: Final = 10
"""Of a round of an act on a cluster, whose servers take long to start."""
SAID: Final = 300
"""Characters of a difference in the results."""


def main() -> int:
    """Play; 0 when every round was exact."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin rounds for so long")
    parser.add_argument("--act", choices=sorted({place.act for place in PLACES}))
    parser.add_argument("--server", choices=("mariadb", "mysql"))
    parser.add_argument("--redis", choices=("redis", "valkey"))
    parser.add_argument("--seed", type=int, help="play this round again; adds nothing")
    parser.add_argument("--report", action="store_true", help="write docs/reliability.md")
    options = parser.parse_args()
    if options.report:
        report.PATH.write_text(report.text(results.read()), "utf-8")
        return 0
    places = [
        place
        for place in PLACES
        if all(
            getattr(options, name) in (None, getattr(place, name))
            for name in ("act", "server", "redis")
        )
    ]
    if not places:
        own = ", ".join(f"{p.server} and {p.redis}" for p in PLACES if p.act == options.act)
        parser.error(f"{options.act} is played on {own} alone")
    places = [place for place in places if is_there(place)]
    if not places:
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and disks are cleaned up
    # what is wrong is on purpose
    logging.getLogger("countersink").addHandler(logging.NullHandler())
    begun = time.monotonic()
    while True:
        rounds = results.read()
        place = results.next_place(rounds, places)
        seed = options.seed or results.next_seed(rounds, place.act)
        print(f"--- {place.act} on {place.server} and {place.redis}, seed {seed}", flush=True)
        played = play(place, seed)
        if options.seed is None:
            results.append(played)
        print(
            f"{played.seconds:.0f} s, {sum(played.events.values())} increments and other events,"
            f" {sum(played.faults.values())} faults, difference {played.difference}",
            flush=True,
        )
        if played.difference:
            print(
                f"again: make campaign ACT={place.act} SERVER={place.server} REDIS={place.redis}"
                f" SEED={seed}"
            )
            return 1
        if options.seed is not None or time.monotonic() - begun >= options.seconds:
            return 0


def is_there(place: Place) -> bool:
    """Whether its servers can be had; says so if not."""
    why = clusters.why_missing(place.act)
    if why is None and place.server == "mysql":
        why = why_missing("mysql-tree.sh")
    if why is None and place.redis == "valkey":
        why = why_missing("valkey-tree.sh")
    if why is not None:
        print(f"{place.act} on {place.server} and {place.redis}: {why}")
    return why is None


def play(place: Place, seed: int) -> Round:
    """A round, on servers of its own; a difference is in what it returns."""
    began, versions, outcome, difference = time.monotonic(), list[str](), Outcome(), ""
    with tempfile.TemporaryDirectory(prefix="csk-") as parent:
        directory = Path(parent)
        os.environ["XDG_STATE_HOME"] = f"{parent}/state"
        os.environ.pop("COUNTERSINK_REDIS_SERVER", None)
        if place.redis == "valkey":
            os.environ["COUNTERSINK_REDIS_SERVER"] = str(valkey_server(directory))
        try:
            outcome = _outcome(place, seed, directory, versions)
        except Exception as error:
            traceback.print_exc()
            difference = f"{type(error).__name__}: {error}"[:SAID]
    slowest = outcome.slowest_s
    return Round(
        act=place.act,
        server=place.server,
        redis=place.redis,
        versions=versions,
        seed=seed,
        faults=dict(sorted(outcome.faults.items())),
        events=dict(sorted(outcome.events.items())),
        difference=difference or 0,
        lost=outcome.lost,
        idle_s=None if outcome.idle_s is None else round(outcome.idle_s, 1),
        slowest_ms=None if slowest is None else round(slowest * 1000, 1),
        seconds=round(time.monotonic() - began, 1),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _outcome(place: Place, seed: int, directory: Path, versions: list[str]) -> Outcome:
    if place.act in clusters.ACTS:
        with clusters.ACTS[place.act](directory) as ground:
            url = ground.fresh()
            versions += _versions(url, ground.redis_url)
            played = directory / "round"
            played.mkdir()
            return clusters.play(ground, seed, played, CLUSTER_FAULTS)
    with durable_servers(directory, KINDS[place.server]) as (redis_server, mysql_server):
        versions += _versions(mysql_server.url, redis_server.url)
        played = directory / "round"
        played.mkdir()
        if place.act == "soak":
            return soak.play_round(redis_server, mysql_server, seed, played, soak.draw(seed))
        if place.act == "bulk":
            return bulk.play(redis_server, mysql_server, seed, played)
        with Everything(redis_server, mysql_server, seed, played) as everything:
            return everything.play(storm(seed) if place.act == "storm" else plan(seed))


def _versions(mysql_url: str, redis_url: str) -> Sequence[str]:
    with connect(mysql_url, database=False) as session, connect_redis(redis_url) as client:
        ((version,),) = session.query("SELECT VERSION()")
        name = "MariaDB" if "MariaDB" in version else "MySQL"
        found = client.info("server")
    queue = "Valkey" if "valkey_version" in found else "Redis"
    number = found.get("valkey_version", found["redis_version"])
    return f"{name} {version.partition('-')[0]}", f"{queue} {number}"


if __name__ == "__main__":
    sys.exit(main())
