"""The book of a round of `everything`: its own arithmetic of what was sent, beside the tables.

What was promised counts exactly once. What a killed process had accepted and not stored yet counts
once or not at all: of such a cell the book knows the least and the most.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from countersink.producers import Increment
from tests.support.oracle import Oracle
from tests.support.processes import countersink

GRAINS: Final = {"plain": 0, "capped": 0, "visitors": 0, "packets": 0, "views": 13, "lines": 10}
"""By counter: how many characters of a bucket's time the book knows (hour, day). Increments without
a time of their own are counted now, by Redis's clock, and the book knows no time of them."""
TIMED: Final = ("filed", "undone")
"""Counters of backfills, by day as ``lines``."""
CAP: Final = 20
"""Keys that a day of ``capped`` may have."""
BREAKDOWNS: Final = (("page",), ("country", "page"))
COUNTRIES: Final = ("DE", "FR", "")
MINUTES_BACK: Final = 3 * 24 * 60
CHUNK: Final = 50
"""Increments with a key of their own in common: what was lost of one key is hidden by no other."""
MEMBERS: Final = 200
"""Different visitors: so few that their number is exact."""


def event(seed: int, source: str, number: int, base: int) -> Increment:
    """The increment of a source with this number.

    Args:
        seed: of the round.
        source: who sends it.
        number: from 0.
        base: Unix minute of the round's beginning.
    """
    draw = random.Random(f"{seed} {source} {number}")
    kind, page = draw.random(), f"/{min(int(draw.expovariate(0.3)), 40)}"
    if kind < 0.35:
        return Increment("plain", page, draw.choice((1, 1, 1, 2, 7, -1)))
    if kind < 0.5:
        return Increment("plain", f"{source} {number // CHUNK}")
    if kind < 0.75:
        at = datetime.fromtimestamp((base - draw.randrange(MINUTES_BACK)) * 60, UTC)
        return Increment("views", {"page": page, "country": draw.choice(COUNTRIES)}, at=at)
    if kind < 0.85:
        return Increment("capped", f"{draw.randrange(10 * CAP)}")
    return Increment("visitors", page[:2], member=f"visitor {draw.randrange(MEMBERS)}")


Cell = tuple[str, str, Any]
"""(counter, beginning of its time, key)."""


@dataclass
class Book:
    """The totals that a round must have.

    Attributes:
        least, most: of each cell.
        seen: visitors of each key that must be counted.
        possible: those that may be.
        events: how many were sent, by kind of source.
    """

    least: Counter[Cell] = field(default_factory=Counter)
    most: Counter[Cell] = field(default_factory=Counter)
    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    possible: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: Counter[str] = field(default_factory=Counter)

    def add(self, increments: Iterable[Increment], *, counted: bool, told: bool) -> None:
        """Enter increments.

        Args:
            increments: what was sent.
            counted: whether it was promised that they count.
            told: whether it was promised that their members do.
        """
        for each in increments:
            time = f"{each.at:%Y-%m-%d %H}" if each.at else ""
            for cell in self._cells(each, time):
                if counted or each.amount < 0:
                    self.least[cell] += each.amount
                if counted or each.amount > 0:
                    self.most[cell] += each.amount
            if each.member is not None:
                (self.seen if counted and told else self.possible)[str(each.key)].add(
                    str(each.member)
                )

    def enter(self, counter: str, time: str, key: str, amount: int, *, counted: bool) -> None:
        """Enter an amount that came by another way than an increment."""
        cell = counter, time, key
        self.least[cell] += amount * counted
        self.most[cell] += amount

    def _cells(self, each: Increment, time: str) -> list[Cell]:
        if isinstance(each.key, dict):
            parts = [
                (f"views by {','.join(names)}", "", tuple(each.key[name] for name in names))
                for names in BREAKDOWNS
            ]
            return [(each.counter, time, ""), *parts]
        return [(each.counter, time, "" if each.counter == "capped" else each.key)]

    # -- beside the tables ---------------------------------------------------------------------

    def differences(self, mysql_url: str) -> list[str]:
        """Where the tables and the answers of the command line are not what must come out."""
        found = self._counted(mysql_url)
        lines = [
            f"{cell}: sent {self.least[cell]} to {self.most[cell]}, counted {found[cell]}"
            for cell in sorted(self.most.keys() | self.least.keys() | found.keys(), key=repr)
            if not self.least[cell] <= found[cell] <= self.most[cell]
        ]
        unique = _totals(mysql_url, "visitors", "--by", "key", "--unique")
        counts = {row["key"]: row for row in unique}
        for key in self.seen.keys() | self.possible.keys():
            row, least = counts.get(key, {"total": 0, "estimate": False}), len(self.seen[key])
            most = len(self.seen[key] | self.possible[key])
            if row["estimate"] or not least <= row["total"] <= most:
                lines.append(f"visitors {key}: {least} to {most} different ones, {row}")
        return lines

    def _counted(self, mysql_url: str) -> Counter[Cell]:
        found, grains = Counter[Cell](), GRAINS | dict.fromkeys(TIMED, GRAINS["lines"])
        with Oracle(mysql_url) as oracle:
            rows = oracle.rows(
                "SELECT counter, DATE_FORMAT(bucket, '%Y-%m-%d %H'), counter_key, SUM(amount)"
                " FROM counter_slot GROUP BY 1, 2, 3"
            )
        kept = most_keys(rows)
        assert kept <= CAP + 1, f"{kept} keys of a day of a counter with at most {CAP}"
        for counter, time, key, amount in rows:
            name = counter.decode() if isinstance(counter, bytes) else counter
            if name in grains and amount:
                shown = "" if name == "capped" else bytes(key).decode()
                found[name, time[: grains[name]], shown] += int(amount)
        for names in BREAKDOWNS:
            for row in _totals(mysql_url, "views", "--by", ",".join(names)):
                cell = f"views by {','.join(names)}", "", tuple(row[name] for name in names)
                found[cell] += row["total"]
        return found


def most_keys(rows: Iterable[Sequence[Any]]) -> int:
    """How many keys the fullest day of ``capped`` has. There may be others beside today: until
    Redis has answered an application for the first time, its own clock says what is now.
    """
    capped = [row for row in rows if row[0] in ("capped", b"capped")]
    days = Counter(day for day, _ in {(time[:10], bytes(key)) for _, time, key, _ in capped})
    return max(days.values(), default=0)


def _totals(mysql_url: str, *words: str) -> list[dict[str, Any]]:
    """The rows of an answer of the command line."""
    done = countersink(
        "totals", *words, "--format", "json", environment={"COUNTERSINK_MYSQL_URL": mysql_url}
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows
