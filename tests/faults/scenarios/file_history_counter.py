"""The counter of a history of files: its days and widths, what is sent to it live, backfills of it
that are killed, and its totals, which are held against what they should be.
"""

import json
import random
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import date
from typing import Any, Final

from countersink.store import Store
from tests.faults.backfilling import FAILED, Backfills
from tests.faults.scenarios.history_books import DAY, day_of, minutes_of
from tests.faults.stage import Stage
from tests.support.oracle import Oracle
from tests.support.run_moves import move
from tests.support.traffic import now_ms, sealed, send
from tests.support.virtual_logs import KEYS

ZONES: Final = (
    *("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"),
    *("Pacific/Apia", "Asia/Kathmandu", "Australia/Lord_Howe"),
)
ODD: Final = {*ZONES[2:4], *ZONES[5:]}
"""Not whole hours from UTC."""
WINDOWS: Final = (
    *(date(2026, 3, 26), date(2025, 10, 23), date(2025, 4, 3), date(2026, 3, 5)),
    date(2011, 12, 28),  # Apia has no 30th
)
"""First days; clocks are changed on a later one."""
DAYS: Final = 5
LIVE: Final = 20
"""Increments of an entry."""
REQUESTS: Final = 200
"""Of a backfill that is killed, at most: it has many chunks."""
KEEPS: Final = {
    "minute": ("minute=2d,quarter=9000d", "minute=2d", "minute=2d,day=30d"),
    "quarter": ("quarter=2d", "quarter=2d,day=30d"),
    "hour": ("hour=2d", "hour=2d,day=30d"),
    "day": ("forever", "day=30d"),
}
"""By resolution steps that make wider buckets of all days; the first ones make no months."""

Cell = tuple[date, str]
"""Local day and key."""


class FileCounter:
    """A counter, made as drawn; ``dimensioned``: with a breakdown by page. Its events are of some
    ``days``, which may have been rolled up if it is ``in_months``.
    """

    def __init__(
        self, stage: Stage, name: str, draw: random.Random, stack: ExitStack, dimensioned: bool
    ) -> None:
        self.stage, self.name, self.dimensioned = stage, name, dimensioned
        self.store = stack.enter_context(Store(stage.mysql_url))
        self.oracle = stack.enter_context(Oracle(stage.mysql_url))
        self.backfills = Backfills(stage, name)
        self.backfills.good += (FAILED,)
        self.backfills.requests = REQUESTS
        self.zone = draw.choice(ZONES)
        self.widths = [width for width in KEEPS if width != "hour" or self.zone not in ODD]
        self.resolution, self.in_months = draw.choice(self.widths), False
        self.keep = draw.choice(KEEPS[self.resolution]) if draw.random() < 0.3 else "forever"
        first = draw.choice(WINDOWS)
        days = [first + number * DAY for number in range(DAYS)]
        self.days = [day for day in days if minutes_of(self.zone, day)]
        self.minutes = [minute for day in days for minute in minutes_of(self.zone, day)]
        self.make()

    def make(self) -> None:
        """Make the counter."""
        settings: dict[str, Any] = {"resolution": self.resolution, "keep": self.keep}
        if self.dimensioned:
            settings |= {"dimensions": ["page"], "breakdowns": ["page"]}
        self.store.counters.set(self.name, time_zone=self.zone, **settings)

    def delete(self) -> None:
        """Delete it; its time zone and resolution stay."""
        self.store.counters.delete(self.name)
        self.keep, self.in_months = "forever", False

    def change(self, draw: random.Random) -> None:
        """Compact slots, make wider buckets, or count in other ones from now on, if that may be."""
        what = draw.choice(("compact", "retention", "retention", "resolution", "keep"))
        if what in ("compact", "retention"):
            move(what, self.stage.mysql_url)
            self.in_months |= what == "retention" and "day=" in self.keep
            return
        width = draw.choice(self.widths)
        setting: dict[str, Any] = {what: width if what == "resolution" else KEEPS[width][0]}
        with suppress(ValueError):  # finer buckets than it may have
            self.store.counters.set(self.name, **setting)
            setattr(self, what, setting[what])

    def live(self, draw: random.Random, at: int = 0) -> Counter[Cell]:
        """Send increments that were accepted at a time, or now; what they add up to."""
        accepted, cells, made = at or now_ms(self.stage.redis), Counter[Cell](), list[Any]()
        for _ in range(LIVE):
            minute, key, amount = (
                draw.choice(self.minutes),
                draw.choice(KEYS),
                draw.choice((1, 2, 500)),
            )
            cells[day_of(self.zone, minute), key] += amount
            made.append((self.name, (("page", key),) if self.dimensioned else key, minute, amount))
        send(self.stage.redis, sealed(accepted, made))
        self.stage.traffic.increments += LIVE
        return cells

    def dropped(self) -> Counter[Cell]:
        """Increments that were not counted, as their days were set."""
        found = Counter[Cell]()
        ask = "SELECT payload FROM dead_row WHERE reason = 'reconciled' AND counter = "
        for (payload,) in self.oracle.rows(f"{ask}'{self.name}'"):
            _, key, minute, amount = json.loads(payload)
            found[day_of(self.zone, minute), key] += amount
        return found

    def marks(self, run: int = 0) -> dict[date, int]:
        """The days that reconciles, or one, have set; what was accepted before does not count."""
        ask = "SELECT day, MAX(sent_before) FROM reconciled_day WHERE counter = "
        own = f"{ask}'{self.name}' AND run {'=' if run else '>'} {run:d} GROUP BY day"
        return dict(self.oracle.rows(own))

    def check(self, cells: Counter[Cell], note: str) -> None:
        """Hold totals, ledger and tables against what should be."""
        found, expected = Counter[Cell](), Counter[Cell]()
        for day in [date.min] if self.in_months else self.days:
            asked = {} if self.in_months else {"start": day, "end": day}
            found.update({(day, key): amount for key, amount in self._by_key(**asked)})
        for (day, key), amount in cells.items():
            expected[date.min if self.in_months else day, key] += amount
        wrong = {one for one in {*found, *expected} if found[one] != expected[one]}
        assert not wrong, f"{note}: {[(one, found[one], expected[one]) for one in wrong]}"
        total = sum(cells.values())
        said = self.store.totals.total(self.name), self.oracle.ledger().get(self.name, 0)
        assert said == (total, total), f"{note}: {said}, should be {total}"
        self.stage.verify(note)

    def _by_key(self, **days: Any) -> list[tuple[str, int]]:
        if not self.dimensioned:
            return self.store.totals.by_key(self.name, **days)
        found = self.store.totals.by(self.name, ["page"], **days)
        return [(values[0], amount) for values, amount in found]
