"""Two compactions, two roll-ups and two prunings at once, beside writers and readers."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, closing, suppress
from datetime import date, datetime, timedelta
from functools import partial
from random import Random

from pymysql.cursors import Cursor

from countersink.counting.apply.applier import Applier
from countersink.schedules.errors import RunStopped
from countersink.schedules.jobs import Context, retention
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import PassDone, open_tables
from countersink.schedules.options import JobOptions
from countersink.store import Store
from tests.faults.scenarios.compaction import LEDGER, TOTALS, count_in_app, totals
from tests.faults.stage import Stage
from tests.support.entries import beside, entry
from tests.support.oracle import Oracle, connect
from tests.support.roll_up import roll_up
from tests.support.traffic import FIRST_MINUTE, MINUTES_PER_DAY, day_of
from tests.support.waiting import eventually


def compacted_beside_writers(stage: Stage, seconds: float = 5.0) -> None:
    """Passes without pauses, two of each kind, beside two writers, an app and readers at both
    isolation levels.

    Amounts are above 0, so no total ever goes down for a reader. What the writers committed is
    there in the end, and the app, which reruns nothing, never sees an error.
    """
    stopping = threading.Event()
    committed: list[int] = []
    reads: list[int] = []
    passes: list[PassDone] = []
    with Store(stage.mysql_url) as store:
        since = int(time.time()) // 86_400 - FIRST_MINUTE // MINUTES_PER_DAY
        # The first days stay, whatever day it is.
        store.counters.set("busy", keep=f"day={since + 100}d")
    _plant_old(stage)
    opened, stop = partial(open_tables, stage.mysql_url), stopping.is_set
    everything = CompactOptions(counter=None, before=date.max, rows=500)
    jobs: list[Callable[[], PassDone]] = [
        partial(compact, opened, everything, stop=stop),
        partial(roll_up, opened, rows=500, stop=stop),
    ]
    works: list[Callable[[], None]] = [
        *(partial(_write, stage, slot, stopping, committed) for slot in (1, 2)),
        partial(_count_in_app, stage, stopping, committed),
        *(
            partial(_read, stage, level, stopping, reads)
            for level in ("READ COMMITTED", "REPEATABLE READ")
        ),
        *(partial(_move, job, stopping, passes) for job in jobs * 2),
        *[partial(_prune, stage, stopping)] * 2,
    ]
    with ExitStack() as threads:
        futures = [threads.enter_context(beside(work)) for work in works]
        try:
            wait(futures, seconds, FIRST_COMPLETED)
            # On a busy machine the first pass may take longer than that.
            eventually(
                lambda: (
                    any(each.done() for each in futures)
                    or any(one.rows_before > one.rows_after for one in passes)
                )
            )
        finally:
            stopping.set()
    for future in futures:
        future.result()
    assert sum(one.rows_before - one.rows_after for one in passes) > 0
    assert sum(one.rolled_up for one in passes) > 0
    assert reads
    _check_busy(stage, sum(committed))


BUSY_KEYS = 300
OLD_DAYS = -400
"""Of the events whose day is rolled up into its month; late ones arrive all the time."""
OLD_GUARDS = 3000


def _plant_old(stage: Stage) -> None:
    """Guards and runs that may go."""
    begun = datetime(2020, 1, 1)  # noqa: DTZ001 (naive, as in the tables)
    numbers = range(OLD_GUARDS)
    with connect(stage.mysql_url) as there, there.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO applied_entry (entry_id, keep_from) VALUES (%s, 1)",
            [(number.to_bytes(16),) for number in numbers],
        )
        cursor.executemany(
            "INSERT INTO job_run (job, planned_at, state) VALUES ('old', %s, 'done')",
            [(begun + timedelta(seconds=number),) for number in numbers],
        )


def _busy_rows(random: Random, count: int) -> list[tuple[int, str, str, int, int]]:
    return [
        (
            place,
            "busy",
            f"/page/{random.randrange(BUSY_KEYS)}",
            FIRST_MINUTE + random.choice((0, 1, OLD_DAYS)) * MINUTES_PER_DAY,
            1,
        )
        for place in range(count)
    ]


def _write(stage: Stage, slot: int, stopping: threading.Event, committed: list[int]) -> None:
    """A worker's transactions, rerun by the applier like a worker's."""
    random = Random(stage.seed + slot)
    with closing(Applier(stage.mysql_url, slot)) as applier:
        while not stopping.is_set():
            applied = applier.apply([entry(_busy_rows(random, 100)) for _ in range(3)])
            assert applied.applied == 3
            committed.append(applied.rows)


def _count_in_app(stage: Stage, stopping: threading.Event, committed: list[int]) -> None:
    """An app's own transactions, at the server's own isolation level, which reruns nothing."""
    random = Random(stage.seed + 3)
    with connect(stage.mysql_url) as app:
        while not stopping.is_set():
            with app.cursor() as cursor:
                app.begin()
                _, counter, key, minute, amount = _busy_rows(random, 1)[0]
                cell = counter, (f"{day_of(minute)} 00:00:00", "4"), key
                count_in_app(cursor, cell, amount, 256 + random.randrange(4))
                app.commit()
            committed.append(1)


def _read(stage: Stage, level: str, stopping: threading.Event, reads: list[int]) -> None:
    """Totals by key, one statement each; at REPEATABLE READ in a transaction of three."""
    highest: dict[tuple[str, bytes], int] = {}
    with connect(stage.mysql_url) as reader, reader.cursor() as cursor:
        cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        while not stopping.is_set():
            reader.begin()
            found: list[Mapping[tuple[str, bytes], int]] = []
            for _ in range(3 if level == "REPEATABLE READ" else 1):
                cursor.execute(TOTALS)
                found.append(totals(cursor.fetchall()))
                assert found[0] == found[-1], _changed(cursor, found[0], found[-1])
            reader.commit()
            fell = [cell for cell, total in highest.items() if found[0].get(cell, 0) < total]
            assert not fell, f"{level}: the totals of {fell[:3]} went down"
            highest.update(found[0])
            reads.append(1)


def _changed(
    cursor: Cursor,
    before: Mapping[tuple[str, bytes], int],
    after: Mapping[tuple[str, bytes], int],
) -> str:
    """Cells of a snapshot that changed, by each index. It did so once, with MySQL 9.7."""
    cells = [cell for cell in before.keys() | after.keys() if before.get(cell) != after.get(cell)]
    said = [f"a snapshot changed: {len(cells)} cells, first {cells[:3]}"]
    for index in "PRIMARY", "by_key":
        cursor.execute(TOTALS.replace("counter_slot", f"counter_slot FORCE INDEX ({index})"))
        by_index = totals(cursor.fetchall())
        said.append(f"by {index}: {[by_index.get(cell) for cell in cells[:3]]}")
    first, last = ([one.get(cell) for cell in cells[:3]] for one in (before, after))
    return "; ".join([*said, f"first {first}, then {last}"])


def _move(job: Callable[[], PassDone], stopping: threading.Event, passes: list[PassDone]) -> None:
    while not stopping.wait(0.005):
        done = job()
        assert not done.unknown
        passes.append(done)


def _prune(stage: Stage, stopping: threading.Event) -> None:
    context = Context(
        mysql_url=stage.mysql_url,
        redis_url=stage.redis_server.url,
        options=JobOptions(compact_share=1.0),
        stop=stopping.is_set,
    )
    while not stopping.wait(0.005):
        with suppress(RunStopped):
            retention.prune(context)


def _check_busy(stage: Stage, committed: int) -> None:
    compact(partial(open_tables, stage.mysql_url), CompactOptions(before=date.max))
    assert roll_up(partial(open_tables, stage.mysql_url)).counters == 1
    with Oracle(stage.mysql_url) as oracle:
        assert oracle.rows("SELECT COUNT(*) FROM counter_slot WHERE slot > 0") == [(0,)]
        found = oracle.rows(
            "SELECT width, COUNT(DISTINCT bucket) FROM counter_slot GROUP BY width ORDER BY width"
        )
        assert found == [(4, 2), (5, 1)]
        total = sum(int(amount) for _, _, amount in oracle.rows(TOTALS))
        assert total == committed, f"difference {total - committed} (seed {stage.seed})"
        assert oracle.rows(LEDGER) == [], f"seed {stage.seed}"
        assert oracle.rows("SELECT COUNT(*) FROM applied_entry WHERE keep_from = 1") == [(0,)]
        assert oracle.rows("SELECT COUNT(*) FROM job_run WHERE job = 'old'") == [(0,)]
    stage.verify()
    with Store(stage.mysql_url) as store:
        store.counters.delete("busy")
