"""Compaction and retention that are killed at named points."""

import signal
import threading
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from countersink.counting.apply.amounts import Row
from countersink.counting.apply.applier import Applier
from countersink.store import Store
from tests.faults.stage import Stage
from tests.support.entries import entry
from tests.support.examples import MANY
from tests.support.ledger import checksum
from tests.support.oracle import Oracle, connect
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase, Request
from tests.support.run_moves import move
from tests.support.traffic import (
    COUNTERS,
    DAYS,
    FIRST_MINUTE,
    MINUTES_PER_DAY,
    Cell,
    day_of,
    now_ms,
)
from tests.support.waiting import eventually

What = Literal["compact", "retention", "steps"]
"""``steps``: retention of minutes that become hours and days; it announces that by itself."""

ROWS = 40 if MANY else 20
"""Slot rows per transaction: small, so that a pass has many."""
SLOTS = (3, 4, 5, 300)
"""The last one is of the app's own transactions."""
LOCKING = "FOR UPDATE NOWAIT"
ANNOUNCING = "UPDATE counter SET rolled_"
TOTALS = """
    SELECT counter, counter_key, CAST(SUM(amount) AS CHAR) FROM counter_slot
    GROUP BY counter, counter_key
"""
LEDGER = """
    SELECT counter, bucket, width, CAST(SUM(amount) AS CHAR) FROM (
        SELECT counter, bucket, width, amount FROM counter_slot
        UNION ALL SELECT counter, bucket, width, -amount FROM counter_ledger) AS all_rows
    GROUP BY counter, bucket, width HAVING SUM(amount) <> 0
"""
TABLES = ("counter_slot", "counter_ledger", "counter")
FINE = """
    SELECT COUNT(*) FROM counter_slot JOIN counter ON name = counter
    WHERE (width < 3 AND bucket < rolled_hour) OR (width < 4 AND bucket < rolled_day)
"""
"""Rows that are not yet where they are said to be."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a transaction that moves a range, or announces it: before or after one statement.

    Attributes:
        name: what tests call it.
        starts: how the statement begins; :data:`LOCKING` ends the one that locks the range.
        phase: before or after it.
        after: how a statement begins that came before it in its transaction; '' for any.
    """

    name: str
    starts: str
    phase: Phase
    after: str = ""

    def takes(self, request: Request, _reply: bytes) -> bool:
        """Whether a request is the statement."""
        if self.starts == LOCKING:
            return LOCKING in request.text
        return request.text.startswith(self.starts)


def points(what: What) -> tuple[Point, ...]:
    """Every named point of a move, in order."""
    deleted = "DELETE counter_slot"
    moves = (
        Point("begun", "START TRANSACTION", Phase.AFTER),
        Point("selected", LOCKING, Phase.AFTER),
        Point("upserted", "INSERT INTO counter_slot", Phase.AFTER),
        Point("deleted", deleted, Phase.AFTER),
        Point("ledger", "INSERT INTO counter_ledger", Phase.AFTER),
        Point("before commit", "COMMIT", Phase.BEFORE, deleted),
        Point("after commit", "COMMIT", Phase.AFTER, deleted),
    )
    if what != "steps":
        return moves
    return (
        Point("announced", ANNOUNCING, Phase.AFTER),
        Point("before the announcement's commit", "COMMIT", Phase.BEFORE, ANNOUNCING),
        Point("after the announcement's commit", "COMMIT", Phase.AFTER, ANNOUNCING),
        *moves,
    )


def _recent(stage: Stage, count: int) -> list[Any]:
    """Rows of the last days, in minutes of which some are rolled up by now."""
    ahead = now_ms(stage.redis) // 60_000 - DAYS * MINUTES_PER_DAY - FIRST_MINUTE
    return [
        (counter, key, minute + ahead, amount)
        for counter, key, minute, amount in stage.traffic.rows(count)
    ]


class Books:
    """What (counter, key) must add up to, and rows for it: of workers, and of an app."""

    def __init__(self, stage: Stage, what: What) -> None:
        self.stage = stage
        self.what = what
        self.totals: dict[tuple[str, bytes], int] = {}
        self.days: dict[Cell, int] = {}

    def fill(self, rows: int = 300 if MANY else 120) -> None:
        """Rows of every slot, at random; late ones too, if there were some before."""
        for slot in SLOTS:
            recent = self.what == "steps"
            made: list[Any] = _recent(self.stage, rows) if recent else self.stage.traffic.rows(rows)
            for counter, key, minute, amount in made:
                cell = counter, key.encode()
                self.totals[cell] = self.totals.get(cell, 0) + amount
                on = counter, day_of(minute), key.encode()
                self.days[on] = self.days.get(on, 0) + amount
            if slot < 256:
                self._apply(slot, made)
            else:
                self._count_in_app(slot, made)

    def _apply(self, slot: int, rows: list[Any]) -> None:
        numbered: list[Row] = [(place, *row) for place, row in enumerate(rows)]
        with closing(Applier(self.stage.mysql_url, slot)) as applier:
            applier.apply([entry(numbered)])

    def _count_in_app(self, slot: int, rows: list[Any]) -> None:
        with connect(self.stage.mysql_url) as app, app.cursor() as cursor:
            app.begin()
            for counter, key, minute, amount in rows:
                count_in_app(cursor, (counter, self._bucket(minute), key), amount, slot)
            app.commit()

    def check(self, note: str) -> None:
        """Hold the rows against the books and the ledger."""
        note = f"{note} (seed {self.stage.seed})"
        with Oracle(self.stage.mysql_url) as oracle:
            assert totals(oracle.rows(TOTALS)) == self.totals, note
            assert oracle.rows(LEDGER) == [], note
            if self.what == "steps":
                assert oracle.totals() == self.days, note
        if self.what == "steps":
            self.stage.verify(note)

    def _bucket(self, minute: int) -> tuple[str, str]:
        if self.what == "steps":
            return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M:%S}", "1"
        return f"{day_of(minute)} 00:00:00", "4"


def killed_in_a_move(stage: Stage, what: What = "compact", kills: int | None = None) -> None:
    """SIGKILL at every point in random order, in a range drawn at random; then a pass in peace.

    With more kills than points the points come again. After each of them rows come late.
    """
    books = Books(stage, what)
    names: list[str] = []
    every = points(what)
    kills = len(every) if kills is None else kills
    if what == "retention":
        _keep(stage)
    for number in range(kills):
        if what == "steps":
            # An hour less each time: so there is something to announce in each pass; and the last
            # time there are days, whatever time of day it is.
            _keep_steps(stage, f"minute={30 - number}h,hour={46 - number}h")
        books.fill()
        left = [point for point in every if names.count(point.name) <= number // len(every)]
        point = stage.random.choice(left)
        names.append(point.name)
        # Not always the first range; the first pass over so many rows has more than these. It is
        # announced once for each of two counters, and merges rows of applications once.
        most = 2 if ANNOUNCING in (point.starts, point.after) else 3
        if what == "compact" and point.name == "ledger":
            most = 1
        child = _killed_at(stage, what, point, skip=stage.random.randrange(most))
        assert child.wait() == -signal.SIGKILL, child.output()
        stage.mysql_proxy.forget()
        books.check(f"after a death at {point.name}")
    # The server may take a while to let go of what the dead have locked.
    eventually(lambda: not move(what, stage.mysql_url, ROWS).busy, 60)
    books.check("after a pass in peace")
    with Oracle(stage.mysql_url) as oracle:
        if what == "steps":
            _check_widths(stage, oracle)
        else:
            left_rows = oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE slot > 0")[0][0]
            assert left_rows == 0, f"{left_rows} rows were left (seed {stage.seed})"
        if what == "retention":
            assert oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE width < 5") == [(0,)]
        # For whoever plays another scenario on the same stage.
        for table in TABLES:
            oracle.rows(f"DELETE FROM {table}")
    stage.faults["compaction killed"] += kills


def _check_widths(stage: Stage, oracle: Oracle) -> None:
    assert oracle.rows(FINE) == [(0,)], f"rows were left (seed {stage.seed})"
    assert oracle.rows("SELECT DISTINCT width FROM counter_slot ORDER BY 1") == [(1,), (3,), (4,)]


def _keep_steps(stage: Stage, steps: str) -> None:
    with Store(stage.mysql_url) as store:
        for counter in COUNTERS:
            store.counters.set(counter, resolution="minute", keep=steps)


def _killed_at(stage: Stage, what: What, point: Point, skip: int) -> Child:
    begun = threading.Event()
    passed = threading.Event()

    def in_a_move(request: Request, reply: bytes) -> bool:
        # Other transactions than moves begin and end too: reading the catalog does.
        if request.text.startswith("START TRANSACTION"):
            snapshot = "SNAPSHOT" in request.text
            (begun.clear if snapshot else begun.set)()
            passed.clear()
        if request.text.startswith(point.after):
            passed.set()
        return begun.is_set() and passed.is_set() and point.takes(request, reply)

    start = partial(stage.children.mover, what, stage.url(proxied=True), ROWS)
    label = f"{what} killed"
    return stage.struck(
        start, "*", point.phase, Deed.CUT, "kill", where=in_a_move, skip=skip, label=label
    )[0]


def _keep(stage: Stage) -> None:
    with Oracle(stage.mysql_url) as oracle:
        # Its days are those of the traffic: all of them are gone, whatever today is.
        oracle.rows(
            "INSERT INTO counter (name, rolled_month, created) VALUES"
            " ('views', '2030-01-01', '2020-01-01'), ('clicks', '2030-01-01', '2020-01-01')"
        )


def count_in_app(
    cursor: Any, cell: tuple[str, tuple[str, str], str], amount: int, slot: int
) -> None:
    """Count as an application's transaction does, of two hours ago."""
    counter, bucket, key = cell
    cursor.execute(
        "INSERT INTO counter_slot (counter, bucket, width, counter_key, slot, amount)"
        " VALUES (%s, %s, %s, %s, %s, %s)"
        " ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount)",
        (counter, *bucket, key.encode(), slot, amount),
    )
    cursor.execute(
        "INSERT INTO counter_ledger (counter, bucket, width, slot, amount, checksum, posted_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3) - INTERVAL 2 HOUR)"
        " ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount),"
        " checksum = checksum + VALUES(checksum)",
        (counter, *bucket, 1024 + slot, amount, checksum(key.encode(), amount)),
    )


def totals(rows: Any) -> dict[tuple[str, bytes], int]:
    """Rows of (counter, key, total) by counter and key."""
    return {(counter, bytes(key)): int(total) for counter, key, total in rows}
