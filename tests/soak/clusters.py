"""Faults at random on clusters: `python -m tests.soak.clusters ACT --seconds N --seed S`.

Rounds of a minute or two, until the time is up: while everything counts, one fault after the other,
drawn from the seed, befalls a cluster. Then all of it is compared with what was sent, and verify
has to find nothing. One line per round. The exit status is 1 at the first round that was not exact,
with the command that plays it again.
"""

import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from tests.faults.grounds import ClusterGround, GaleraGround, Ground, GroupGround, SentinelGround
from tests.soak.rounds import Outcome, arguments, played
from tests.support import failover_load, galera, group_replication
from tests.support.processes import Children

FAULTS_PER_ROUND: Final = 4
LASTS_S: Final = (1.0, 8.0)
NAMED: Final = 10
"""So many of the lost increments are named."""
ACTS: Final[dict[str, type[Ground]]] = {
    "redis_cluster": ClusterGround,
    "sentinel": SentinelGround,
    "galera": GaleraGround,
    "group_replication": GroupGround,
}


def why_missing(act: str) -> str | None:
    """Why an act cannot be played here; None if it can."""
    if act == "galera" and not galera.installed():
        return "Galera is not installed"
    if act == "group_replication" and not group_replication.installed():
        return "MySQL 9 is not there"
    return None


def play(ground: Ground, seed: int, directory: Path, faults: int = FAULTS_PER_ROUND) -> Outcome:
    """A round; what came of it."""
    draw, names = random.Random(seed), list[str]()

    def wait() -> None:
        threading.Event().wait(draw.uniform(*LASTS_S))

    with Children() as children, ground.load(children, ground.fresh(), directory) as load:
        known = ground.faults()
        for _ in range(faults):
            names.append(draw.choice(sorted(known)))
            print(names[-1], flush=True)
            known[names[-1]](draw, wait)
            load.wait_for_more()
        seen = load.finish()
    lost = f"lost {len(load.lost)}: {', '.join(load.lost[:NAMED])}" if load.lost else "difference 0"
    return Outcome(
        events=Counter(
            increments=seen.counted,
            backfilled=failover_load.LINES,
            transactions=seen.orders,
            numbers=len(seen.values),
        ),
        faults=Counter(names),
        said=(
            f"increments {seen.counted}, {lost}; {seen.idle_s:.1f} s without counting,"
            f" increment() at most {seen.slowest_s * 1000:.1f} ms; {', '.join(names)}"
        ),
        lost=len(load.lost),
        idle_s=seen.idle_s,
        slowest_s=seen.slowest_s,
    )


def main() -> int:
    """Play an act; 0 when every round was exact."""
    parser = arguments("tests.soak.clusters", __doc__)
    parser.add_argument("act", choices=ACTS)
    options = parser.parse_args()
    if why := why_missing(options.act):
        print(f"{options.act}: {why}")
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="csk-") as parent,
        ACTS[options.act](Path(parent)) as ground,
    ):
        rounds, exact = played(
            options,
            f"tests.soak.clusters {options.act}",
            lambda seed, directory: play(ground, seed, directory).said,
        )
    print(f"{options.act}: {rounds} rounds")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
