"""Faults at random: `python -m tests.soak --seconds N --server mariadb|mysql --seed S`.

Round k plays a few scenarios of the repertoire, drawn from seed S + k, on servers of its own that
lose nothing when killed, while all buckets are compacted again and again, and holds the tables
against what was sent. One line per round; the exit
status is 1 at the first difference, with the command that plays that round again.
"""

import random
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from countersink.database.migrate import migrate
from tests.faults.repertoire import Scenario
from tests.faults.stage import Stage
from tests.soak.repertoire import REPERTOIRE
from tests.soak.rounds import Outcome, arguments, durable_servers, played
from tests.support.databases import dropped
from tests.support.servers import MySQLServer, RedisServer

ACTS_PER_ROUND = 3


def main() -> int:
    """Soak; 0 when every round was exact."""
    named = {act.name: act for act in REPERTOIRE}
    parser = arguments("tests.soak", __doc__)
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    parser.add_argument("--act", choices=sorted(named), help="play this one in every round")
    options = parser.parse_args()
    faults, acts = Counter[str](), Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as parent,
        durable_servers(Path(parent), options.server) as servers,
    ):

        def play(seed: int, directory: Path) -> str:
            chosen = [named[options.act]] if options.act else draw(seed)
            found = play_round(*servers, seed, directory, chosen)
            faults.update(found.faults)
            acts.update(act.name for act in chosen)
            increments = found.events["increments"]
            return (
                f"increments {increments} faults {found.faults.total()} difference 0: {found.said}"
            )

        only = f" --act {options.act}" if options.act else ""
        rounds, exact = played(options, f"tests.soak --server {options.server}{only}", play)
    print(f"{rounds} rounds, {faults.total()} faults" + (", difference 0" if exact else ""))
    print("faults: " + ", ".join(f"{name} {count}" for name, count in faults.most_common()))
    print("not played: " + ", ".join(sorted(named.keys() - acts.keys())))
    return 0 if exact else 1


def play_round(
    redis_server: RedisServer,
    mysql_server: MySQLServer,
    seed: int,
    directory: Path,
    chosen: list[Scenario],
) -> Outcome:
    """Play the acts of a round, one after another, on servers of the soak's own."""
    with (
        dropped(mysql_server, f"soak_{seed}") as url,
        Stage(redis_server, mysql_server, url, seed, directory) as stage,
    ):
        migrate(url)
        stage.redis.flushall()
        with nullcontext() if chosen[0].alone else stage.compacting():
            for act in chosen:
                print(act.name, flush=True)
                act.soak(stage)
                left = [child.name for child in stage.children.running()]
                assert not left, f"{act.name} left {left} running"
                stage.forget()
        stage.finish("end of the round")
        return Outcome(
            events=Counter(increments=stage.traffic.increments),
            faults=stage.all_faults(),
            said=", ".join(act.name for act in chosen),
        )


def draw(number: int) -> list[Scenario]:
    """The acts of the round with this seed."""
    draws = random.Random(number)
    weights = [act.weight for act in REPERTOIRE]
    first = draws.choices(REPERTOIRE, weights)[0]
    if first.alone:
        return [first]
    others = [act for act in REPERTOIRE if not act.alone and act is not first]
    return [first, *draws.sample(others, ACTS_PER_ROUND - 1)]


if __name__ == "__main__":
    sys.exit(main())
