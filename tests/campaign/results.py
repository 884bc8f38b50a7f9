"""Results of the campaign: one line of JSON for each round, and what they have least of."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Place:
    """An act and the kinds of servers on which it is played."""

    act: str
    server: str
    redis: str


PLACES: Final = (
    *(
        Place(act, server, redis)
        for act in ("everything", "storm", "soak", "bulk")
        for server in ("mariadb", "mysql")
        for redis in ("redis", "valkey")
    ),
    Place("redis_cluster", "mariadb", "redis"),
    Place("sentinel", "mariadb", "redis"),
    Place("galera", "mariadb", "redis"),
    Place("group_replication", "mysql", "redis"),
)


@dataclass(kw_only=True)
class Round:
    """A round that was played.

    Attributes:
        act, server, redis: where; ``versions`` are those of the two servers.
        seed: of its faults.
        faults, events: how many, by kind of fault and of source.
        difference: 0, or what was not as it must be.
        lost: increments that the queue lost when a replica was promoted, which it may.
        idle_s: the longest time without progress of counting while somebody sent.
        slowest_ms: the longest call of ``increment()``.
        seconds: that it took.
        date: of its end, UTC.
    """

    act: str
    server: str
    redis: str
    seed: int
    versions: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    difference: int | str = 0
    lost: int = 0
    idle_s: float | None = None
    slowest_ms: float | None = None
    seconds: float = 0.0
    date: str = ""

    @property
    def place(self) -> Place:
        """Where it was played."""
        return Place(self.act, self.server, self.redis)


def read(path: Path = PATH) -> list[Round]:
    """All rounds, in the order in which they were played."""
    return [Round(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def append(played: Round, path: Path = PATH) -> None:
    """Add the line of a round."""
    line: dict[str, Any] = {
        name: value for name, value in asdict(played).items() if value or name == "difference"
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")


def next_place(rounds: Sequence[Round], places: Sequence[Place]) -> Place:
    """The act that has the fewest rounds, on the servers on which it has the fewest."""
    acts = Counter(each.act for each in rounds)
    played = Counter(each.place for each in rounds)
    return min(places, key=lambda place: (acts[place.act], played[place]))


def next_seed(rounds: Sequence[Round], act: str) -> int:
    """The seed after the last one of an act."""
    return max((each.seed for each in rounds if each.act == act), default=0) + 1
