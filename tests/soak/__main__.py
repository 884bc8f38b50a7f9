"""Faults at random: `python -m tests.soak --seconds N --server mariadb|mysql --seed S`.

Round k plays a few scenarios of the repertoire, drawn from seed S + k, on servers of its own that
lose nothing when killed, while all buckets are compacted again and again, and holds the tables
against what was sent. One line per round; the exit
status is 1 at the first difference, with the command that plays that round again.
"""

import argparse
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from countersink.store.migrate import migrate
from tests.faults.stage import Stage
from tests.soak.repertoire import REPERTOIRE, Act
from tests.support.oracle import Oracle
from tests.support.servers import MySQLServer, RedisServer
from tests.support.templates import SMALL, template

ACTS_PER_ROUND = 3


@dataclass
class Tally:
    """What the rounds so far amount to."""

    rounds: int = 0
    increments: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Soak; 0 when every round was exact."""
    options = _arguments()
    tally = Tally()
    logging.getLogger("countersink").addHandler(
        logging.NullHandler()
    )  # what is wrong is on purpose
    named = _named()
    begun = time.monotonic()
    print(f"seed {options.seed} on {options.server}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as parent,
        RedisServer(Path(parent) / "redis", appendfsync="always") as redis_server,
        MySQLServer(
            Path(parent) / "mysql",
            kind=options.server,
            template=template(options.server),
            extra=SMALL[options.server],
        ) as mysql_server,
    ):
        exact = True
        while exact and not _over(options, tally.rounds, time.monotonic() - begun):
            number = options.seed + tally.rounds
            acts = [named[options.act]] if options.act else draw(number)
            exact = _round(redis_server, mysql_server, Path(parent), number, acts, tally)
            if not exact:
                only = f" --act {options.act}" if options.act else ""
                print(
                    f"play it again: python -m tests.soak --server {options.server}"
                    f" --seed {number} --rounds 1{only}",
                    flush=True,
                )
    _summary(tally, options.server, time.monotonic() - begun, exact)
    return 0 if exact else 1


def draw(number: int) -> list[Act]:
    """The acts of the round with this seed."""
    draws = random.Random(number)
    weights = [act.weight for act in REPERTOIRE]
    first = draws.choices(REPERTOIRE, weights)[0]
    if first.alone:
        return [first]
    others = [act for act in REPERTOIRE if not act.alone and act is not first]
    return [first, *draws.sample(others, ACTS_PER_ROUND - 1)]


def _round(
    redis_server: RedisServer,
    mysql_server: MySQLServer,
    parent: Path,
    number: int,
    acts: Sequence[Act],
    tally: Tally,
) -> bool:
    begun = time.monotonic()
    database = f"soak_{number}"
    mysql_url = mysql_server.url_for(database)
    migrate(mysql_url)
    act_name = ""
    with (
        tempfile.TemporaryDirectory(prefix="round-", dir=parent) as directory,
        Stage(redis_server, mysql_server, mysql_url, number, Path(directory)) as stage,
    ):
        os.environ["XDG_STATE_HOME"] = str(stage.directory / "state")
        stage.redis.flushall()  # of the soak's own server
        try:
            with nullcontext() if acts[0].alone else stage.compacting():
                for act in acts:
                    act_name = act.name
                    act.play(stage)
                    left = [child.name for child in stage.children.running()]
                    assert not left, f"{act.name} left {left} running"
                    stage.redis_proxy.forget()
                    stage.mysql_proxy.forget()
            if acts[0].name != "state_machine":
                stage.finish("end of the round")
        except Exception:
            traceback.print_exc()
            for child in stage.children:
                print(f"--- {child.name}\n{child.output()[-3000:]}")
            print(f"round {tally.rounds} FAILED in {act_name}, seed {number}", flush=True)
            return False
        faults = stage.all_faults()
        increments = stage.traffic.increments
    with Oracle(mysql_server.url) as oracle:
        oracle.rows(f"DROP DATABASE {database}")
    tally.rounds += 1
    tally.increments += increments
    tally.faults += faults
    tally.acts.update(act.name for act in acts)
    print(
        f"round {tally.rounds} seed {number} {time.monotonic() - begun:.1f} s"
        f" increments {increments} faults {faults.total()} difference 0:"
        f" {', '.join(act.name for act in acts)}",
        flush=True,
    )
    return True


def _named() -> dict[str, Act]:
    return {act.name: act for act in REPERTOIRE}


def _over(options: argparse.Namespace, rounds: int, elapsed: float) -> bool:
    if options.rounds:
        return bool(rounds >= options.rounds)
    return bool(elapsed >= options.seconds)


def _summary(tally: Tally, server: str, elapsed: float, exact: bool) -> None:
    print(
        f"{server}: {tally.rounds} rounds in {elapsed:.0f} s, {tally.faults.total()} faults,"
        f" {tally.increments} increments, {'difference 0' if exact else 'then one round FAILED'}"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in tally.faults.most_common()))
    print("acts: " + ", ".join(f"{name} {count}" for name, count in tally.acts.most_common()))
    never = {act.name for act in REPERTOIRE} - tally.acts.keys()
    if never:
        print("not played: " + ", ".join(sorted(never)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin rounds for so long")
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--act", choices=sorted(_named()), help="play this one in every round")
    parser.add_argument("--rounds", type=int, default=0, help="play so many, whatever they take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
