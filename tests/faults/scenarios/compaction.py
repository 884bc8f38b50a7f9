"""Compaction and retention that are killed at named points, or go on beside writers and readers."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import date
from functools import partial
from random import Random
from typing import Any, Literal

from countersink.schedules.jobs.compaction import Compacted, CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.store.apply.amounts import Incoming, Row
from countersink.store.apply.apply import Applier
from tests.faults.stage import Stage
from tests.support.ledger import checks
from tests.support.oracle import Oracle, connect
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase, Request
from tests.support.traffic import FIRST_MINUTE, MINUTES_PER_DAY, day_of, now_ms

What = Literal["compact", "retention"]

ROWS = 40
"""Slot rows per transaction: small, so that a pass has many."""
SLOTS = (3, 4, 5, 300)
"""The last one is of the app's own transactions."""
LOCKING = "FOR UPDATE NOWAIT"
TOTALS = """
    SELECT counter, counter_key, CAST(SUM(amount) AS CHAR) FROM (
        SELECT counter, counter_key, amount FROM counter_slot
        UNION ALL SELECT counter, counter_key, amount FROM counter_month) AS all_rows
    GROUP BY counter, counter_key
"""
LEDGER = """
    SELECT counter, CAST(SUM(amount) AS CHAR) FROM (
        SELECT counter, amount FROM counter_slot
        UNION ALL SELECT counter, amount FROM counter_month
        UNION ALL SELECT counter, -amount FROM counter_ledger
        UNION ALL SELECT counter, -amount FROM app_ledger) AS all_rows
    GROUP BY counter HAVING SUM(amount) <> 0
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the transaction that moves a range: before or after one statement of it.

    Attributes:
        name: what tests call it.
        starts: how the statement begins; :data:`LOCKING` ends the one that locks the range.
        phase: before or after it.
    """

    name: str
    starts: str
    phase: Phase

    def takes(self, request: Request, _reply: bytes) -> bool:
        """Whether a request is the statement."""
        if self.starts == LOCKING:
            return LOCKING in request.text
        return request.text.startswith(self.starts)


def points(what: What) -> tuple[Point, ...]:
    """Every named point of a move, in order."""
    target = "counter_slot" if what == "compact" else "counter_month"
    return (
        Point("begun", "START TRANSACTION", Phase.AFTER),
        Point("selected", LOCKING, Phase.AFTER),
        Point("upserted", f"INSERT INTO {target}", Phase.AFTER),
        Point("ledger", "INSERT INTO counter_ledger", Phase.AFTER),
        Point("deleted", "DELETE counter_slot", Phase.AFTER),
        Point("before commit", "COMMIT", Phase.BEFORE),
        Point("after commit", "COMMIT", Phase.AFTER),
    )


class Books:
    """What (counter, key) must add up to, and rows for it: of workers, and of an app."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.totals: dict[tuple[str, bytes], int] = {}

    def fill(self, rows: int = 300) -> None:
        """Rows of every slot, at random; late ones too, if there were some before."""
        for slot in SLOTS:
            made = self.stage.traffic.rows(rows)
            for counter, key, _, amount in made:
                cell = counter, key.encode()
                self.totals[cell] = self.totals.get(cell, 0) + amount
            if slot < 256:
                self._apply(slot, made)
            else:
                self._count_in_app(slot, made)

    def _apply(self, slot: int, rows: list[Any]) -> None:
        numbered: list[Row] = [(place, *row) for place, row in enumerate(rows)]
        applier = Applier(self.stage.mysql_url, slot)
        applier.apply(
            [
                Incoming(
                    self.stage.random.randbytes(16), now_ms(self.stage.redis), numbered, stream="s"
                )
            ]
        )
        applier.close()

    def _count_in_app(self, slot: int, rows: list[Any]) -> None:
        app = connect(self.stage.mysql_url)
        with app.cursor() as cursor:
            app.begin()
            cursor.executemany(
                "INSERT INTO counter_slot VALUES (%s, %s, %s, %s, %s)"
                " ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount)",
                [
                    (counter, day_of(minute), key.encode(), slot, amount)
                    for counter, key, minute, amount in rows
                ],
            )
            cursor.executemany(
                "INSERT INTO app_ledger VALUES (%s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE"
                " amount = amount + VALUES(amount), checksum = checksum + VALUES(checksum),"
                " moment = moment + VALUES(moment)",
                [
                    (counter, day, slot, amount, *checks(f"{day} 00:00:00", key.encode(), amount))
                    for counter, key, minute, amount in rows
                    for day in (day_of(minute),)
                ],
            )
            app.commit()
        app.close()

    def check(self, note: str) -> None:
        """Hold slots and months against the books and the ledger."""
        note = f"{note} (seed {self.stage.seed})"
        with Oracle(self.stage.mysql_url) as oracle:
            assert _totals(oracle.rows(TOTALS)) == self.totals, note
            assert oracle.rows(LEDGER) == [], note


def killed_at_each_point(
    stage: Stage, what: What = "compact", kills: int = 7, done: Callable[[str], None] = print
) -> None:
    """SIGKILL at every point in random order, in a range drawn at random; then a pass in peace.

    With more kills than points the points come again. After each of them rows come late.
    """
    books = Books(stage)
    names: list[str] = []
    if what == "retention":
        _keep(stage)
    for number in range(kills):
        books.fill()
        left = [point for point in points(what) if names.count(point.name) <= number // 7]
        point = stage.random.choice(left)
        names.append(point.name)
        # Not always the first range; the first pass over so many rows has more than these.
        child = _killed_at(stage, what, point, skip=stage.random.randrange(3))
        assert child.wait() == -signal.SIGKILL, child.output()
        stage.mysql_proxy.forget()
        books.check(f"after a death at {point.name}")
        done(f"killed {what} {number + 1}: {point.name}")
    child = _start(stage, what, stage.mysql_url)
    assert child.wait() == 0, child.output()
    books.check("after a pass in peace")
    with Oracle(stage.mysql_url) as oracle:
        left_rows = oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE slot > 0")[0][0]
        assert left_rows == 0, f"{left_rows} rows were left (seed {stage.seed})"
        if what == "retention":
            assert oracle.rows("SELECT COUNT(*) FROM counter_slot") == [(0,)]
        # For whoever plays another scenario on the same stage.
        for table in ("counter_slot", "counter_month", "counter_ledger", "app_ledger", "counter"):
            oracle.rows(f"DELETE FROM {table}")
    stage.faults["compaction killed"] += kills


def retention_killed_at_each_point(stage: Stage) -> None:
    """The same of retention."""
    killed_at_each_point(stage, "retention")


def _killed_at(stage: Stage, what: What, point: Point, skip: int) -> Child:
    victim: Future[Child] = Future()
    begun = threading.Event()

    def in_a_move(request: Request, reply: bytes) -> bool:
        # Other transactions than moves begin and end too: reading policies does.
        if request.text.startswith("START TRANSACTION"):
            snapshot = "SNAPSHOT" in request.text
            (begun.clear if snapshot else begun.set)()
        return begun.is_set() and point.takes(request, reply)

    stage.mysql_proxy.when(
        "*",
        point.phase,
        Deed.CUT,
        call=lambda _request: victim.result(30).kill(),
        where=in_a_move,
        skip=skip,
        label=f"{what} killed",
    )
    child = _start(stage, what, stage.mysql_proxy.url(stage.mysql_url))
    victim.set_result(child)
    return child


def _start(stage: Stage, what: What, mysql_url: str, passes: int = 1) -> Child:
    plan = {"what": what, "mysql_url": mysql_url, "rows": ROWS, "passes": passes}
    return stage.children.start(
        [sys.executable, "-m", "tests.support.run_moves", json.dumps(plan)], name=what
    )


def _keep(stage: Stage) -> None:
    with Oracle(stage.mysql_url) as oracle:
        # Its days are those of the traffic: all of them are gone, whatever today is.
        oracle.rows(
            "INSERT INTO counter (name, rolled_up_to, created) VALUES"
            " ('views', '2030-01-01', '2020-01-01'), ('clicks', '2030-01-01', '2020-01-01')"
        )


# -- beside writers and readers ----------------------------------------------------------------


def compacted_beside_writers_and_readers(
    stage: Stage, seconds: float = 5.0, done: Callable[[str], None] = print
) -> None:
    """Passes without pauses, beside two writers, an app and readers at both isolation levels.

    Amounts are above 0, so no total ever goes down for a reader. What the writers committed is
    there in the end, and the app, which reruns nothing, never sees an error.
    """
    stopping = threading.Event()
    failures: list[BaseException] = []
    committed: list[int] = []
    reads: list[int] = []
    passes: list[Compacted] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                stopping.set()

        return run

    works: list[Callable[[], None]] = [
        *(partial(_write, stage, slot, stopping, committed) for slot in (1, 2)),
        partial(_count_in_app, stage, stopping, committed),
        *(
            partial(_read, stage, level, stopping, reads)
            for level in ("READ COMMITTED", "REPEATABLE READ")
        ),
        partial(_compact, stage, stopping, passes),
    ]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    stopping.wait(seconds)
    stopping.set()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    moved = sum(one.rows_before - one.rows_after for one in passes)
    assert moved > 0
    assert reads
    _check_busy(stage, sum(committed))
    busy = sum(len(one.busy) for one in passes)
    done(
        f"{seconds:g} s: {sum(committed):,} events, {len(reads):,} reads, {len(passes)} passes,"
        f" {moved:,} rows fewer, {busy:,} keys busy, difference 0"
    )


BUSY_KEYS = 300


def _busy_rows(random: Random, count: int) -> list[tuple[int, str, str, int, int]]:
    return [
        (
            place,
            "busy",
            f"/page/{random.randrange(BUSY_KEYS)}",
            FIRST_MINUTE + random.randrange(2) * MINUTES_PER_DAY,
            1,
        )
        for place in range(count)
    ]


def _write(stage: Stage, slot: int, stopping: threading.Event, committed: list[int]) -> None:
    """A worker's transactions, rerun by the applier like a worker's."""
    random = _random(stage, slot)
    applier = Applier(stage.mysql_url, slot)
    at = int(time.time() * 1000)
    try:
        while not stopping.is_set():
            entries = [
                Incoming(random.randbytes(16), at, _busy_rows(random, 100), stream="s")
                for _ in range(3)
            ]
            applied = applier.apply(entries)
            assert applied.applied == 3
            committed.append(applied.rows)
    finally:
        applier.close()


def _count_in_app(stage: Stage, stopping: threading.Event, committed: list[int]) -> None:
    """An app's own transactions, at the server's own isolation level, which reruns nothing."""
    random = _random(stage, 3)
    app = connect(stage.mysql_url)
    try:
        while not stopping.is_set():
            with app.cursor() as cursor:
                app.begin()
                _, counter, key, minute, amount = _busy_rows(random, 1)[0]
                cursor.execute(
                    "INSERT INTO counter_slot VALUES (%s, %s, %s, %s, %s)"
                    " ON DUPLICATE KEY UPDATE amount = amount + 1",
                    (counter, day_of(minute), key.encode(), 256 + random.randrange(4), amount),
                )
                sums = (amount, *checks(f"{day_of(minute)} 00:00:00", key.encode(), amount))
                cursor.execute(
                    "INSERT INTO app_ledger VALUES (%s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE"
                    " amount = amount + %s, checksum = checksum + %s, moment = moment + %s",
                    (counter, day_of(minute), 5000, *sums * 2),
                )
                app.commit()
            committed.append(1)
    finally:
        app.close()


def _read(stage: Stage, level: str, stopping: threading.Event, reads: list[int]) -> None:
    """Totals by key, one statement each; at REPEATABLE READ in a transaction of three."""
    reader = connect(stage.mysql_url)
    highest: dict[tuple[str, bytes], int] = {}
    statement = "SELECT counter, counter_key, SUM(amount) FROM counter_slot GROUP BY 1, 2"
    try:
        with reader.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            while not stopping.is_set():
                reader.begin()
                found: list[Mapping[tuple[str, bytes], int]] = []
                for _ in range(3 if level == "REPEATABLE READ" else 1):
                    cursor.execute(statement)
                    found.append(_totals(cursor.fetchall()))
                    assert found[0] == found[-1], "a snapshot changed"
                reader.commit()
                fell = [cell for cell, total in highest.items() if found[0].get(cell, 0) < total]
                assert not fell, f"{level}: the totals of {fell[:3]} went down"
                highest.update(found[0])
                reads.append(1)
    finally:
        reader.close()


def _compact(stage: Stage, stopping: threading.Event, passes: list[Compacted]) -> None:
    while not stopping.is_set():
        done = compact(
            partial(open_tables, stage.mysql_url),
            CompactOptions(counter=None, before=date.max, rows=500),
            stop=stopping.is_set,
        )
        assert not done.overflowing
        assert not done.unknown
        passes.append(done)
        stopping.wait(0.005)


def _check_busy(stage: Stage, committed: int) -> None:
    compact(partial(open_tables, stage.mysql_url), CompactOptions(before=date.max))
    with Oracle(stage.mysql_url) as oracle:
        assert oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE slot > 0") == [(0,)]
        total = int(oracle.rows("SELECT COALESCE(SUM(amount), 0) FROM counter_slot")[0][0])
        assert total == committed, f"difference {total - committed} (seed {stage.seed})"
        assert oracle.rows(LEDGER) == [], f"seed {stage.seed}"
        for table in ("counter_slot", "counter_ledger", "app_ledger"):
            oracle.rows(f"DELETE FROM {table}")


def _totals(rows: Any) -> dict[tuple[str, bytes], int]:
    return {(counter, bytes(key)): int(total) for counter, key, total in rows}


def _random(stage: Stage, number: int) -> Random:
    return Random(stage.seed + number)
