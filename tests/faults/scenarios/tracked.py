"""Tables of an application that are tracked beside their writers: at every moment the counters are
what COUNT(*) is.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pymysql.err import OperationalError

from countersink.store import Store
from tests.faults.stage import Stage
from tests.support.app_tables import STATUSES, create
from tests.support.databases import dropped, new_name
from tests.support.entries import again_and_again, compacted
from tests.support.oracle import Oracle, connect
from tests.support.processes import COUNTERSINK, Child
from tests.support.table_oracle import Tracked, snapshot
from tests.support.waiting import eventually

LEFT_BEHIND = """
    SELECT 'slots', COUNT(*) FROM counter_slot WHERE counter IN {counters}
    UNION ALL SELECT 'ledger', COUNT(*) FROM counter_ledger WHERE counter IN {counters}
    UNION ALL SELECT 'tracked', COUNT(*) FROM tracked_table WHERE counter IN {counters}
    UNION ALL SELECT 'triggers', COUNT(*) FROM information_schema.triggers
        WHERE trigger_schema = '{schema}'
"""


class Application:
    """Tables of its own on the stage's server, written to by processes, and tracked.

    Several counters count the same table: by columns and day, and without either.
    """

    def __init__(self, stage: Stage, url: str) -> None:
        self.stage = stage
        self.url = url
        self.schema = url.rpartition("/")[2]
        self.store = Store(stage.mysql_url)
        self.orders = Tracked("orders", self.schema, "orders", ("status", "tenant"), "placed")
        self.visits = Tracked("visits", self.schema, "visits", ("country", "kind"), "seen")
        self.all_orders = Tracked("orders:all", self.schema, "orders")
        self.tracked = (self.orders, self.visits, self.all_orders)
        self.writers: list[Child] = []
        self._everyone: list[Child] = []

    # -- writers -------------------------------------------------------------------------------

    def start_writers(self, count: int, lock_wait: int = 10) -> None:
        """Start so many, which wait so many seconds for a lock, and wait until each has written."""
        for _ in range(count):
            number = len(self._everyone)
            plan = {
                "app_url": self.url,
                "seed": self.stage.seed,
                "number": number,
                "lock_wait": lock_wait,
            }
            name = f"writer {number}"
            writer = self.stage.children.module("run_table_writer", plan, name=name)
            self.writers.append(writer)
            self._everyone.append(writer)
        eventually(lambda: all("{" in writer.output() for writer in self.writers))
        self.check_writers()

    def kill_writers(self, count: int) -> None:
        """SIGKILL so many, whatever they are at."""
        self.check_writers()
        for _ in range(count):
            self.writers.pop(self.stage.random.randrange(len(self.writers))).kill()
            self.stage.faults["a writer was killed"] += 1

    def stop_writers(self) -> None:
        """SIGTERM. None of them may have met an error that was not its own."""
        for writer in self.writers:
            writer.terminate()
        for writer in self.writers:
            assert writer.wait() == 0, f"{writer.name}: {writer.output()[-3000:]}"
        self.writers.clear()

    def connections(self) -> list[int]:
        """The ids of the writers' connections."""
        return [int(writer.output().split("\n", 1)[0]) for writer in self.writers]

    def check_writers(self) -> None:
        """All of them are still at it."""
        for writer in self.writers:
            assert writer.running, f"{writer.name} ended: {writer.output()[-3000:]}"

    def wrote(self) -> Counter[str]:
        """What writers, killed ones too, have told of their transactions, statements and errors."""
        did: Counter[str] = Counter()
        for writer in self._everyone:
            for line in writer.output().splitlines():
                if line.endswith("}"):  # else torn off by SIGKILL
                    did.update(json.loads(line))
        return did

    # -- counters ------------------------------------------------------------------------------

    def track(self, tracked: Tracked) -> None:
        """Track the table, or go on where a killed `track` of it was."""
        self.store.tracked.track(
            self.name_of(tracked),
            counter=tracked.counter,
            by=tracked.by,
            day=tracked.day,
        )

    def track_arguments(self, tracked: Tracked) -> list[str]:
        """The same by the command line."""
        by = [argument for column in tracked.by for argument in ("--by", column)]
        day = ["--day", tracked.day] if tracked.day else []
        return ["track", self.name_of(tracked), "--counter", tracked.counter, *by, *day]

    def untrack(self) -> None:
        """Untrack all; nothing of it may be left."""
        for tracked in self.tracked:
            self.store.tracked.untrack(tracked.counter)
        counters = "(" + ", ".join(f"'{tracked.counter}'" for tracked in self.tracked) + ")"
        with Oracle(self.stage.mysql_url) as oracle:
            found = dict(oracle.rows(LEFT_BEHIND.format(counters=counters, schema=self.schema)))
        assert not any(found.values()), found

    @staticmethod
    def name_of(tracked: Tracked) -> str:
        """The table as given to `track` and `verify`."""
        return f"{tracked.schema}.{tracked.table}"

    def differences(self, *, raw: bool = False) -> list[str]:
        """Where counters differ from their tables, in one snapshot."""
        lines: list[str] = []
        with snapshot(self.stage.mysql_url) as seen:
            for tracked in self.tracked:
                if not seen.counted(tracked.counter):
                    lines.append(f"{tracked.counter} was not counted")
                lines += seen.differences(tracked, raw=raw)
        return lines

    def check(self, note: str, *, raw: bool = False) -> None:
        """There are none; with `raw` by the rows themselves, not by GROUP BY."""
        lines = self.differences(raw=raw)
        seed = self.stage.seed
        assert not lines, "\n".join([f"{len(lines)} differences {note} (seed {seed})", *lines[:20]])

    def execute(self, *statements: str) -> None:
        """Run statements on a connection of the application's own, each committed by itself."""
        with connect(self.url) as app, app.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    @contextmanager
    def compacting(self) -> Iterator[list[int]]:
        """Compact the counters again and again; yields the rows that each pass removed."""
        removed: list[int] = []

        def compact_all() -> None:
            time.sleep(0.05)
            done = compacted(self.stage.mysql_url, rows=200, share=0.5)
            assert not done.unknown
            removed.append(done.rows_before - done.rows_after)

        with again_and_again(compact_all):
            yield removed


@contextmanager
def application(stage: Stage, rows: int) -> Iterator[Application]:
    """An application whose tables have so many rows or more; its database is dropped at the end."""
    with dropped(stage.mysql_server, new_name()) as url:
        with connect(stage.mysql_url) as made, made.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {url.rpartition('/')[2]} CHARACTER SET utf8mb4")
        create(url, rows)
        app = Application(stage, url)
        try:
            yield app
        finally:
            for writer in app.writers:
                writer.kill()
            app.store.close()


WRITERS = 8
FEW = 4


def tracked_beside_writers(
    stage: Stage,
    seconds: float = 1.5,
    *,
    writers: int = FEW,
    rows: int = 500,
    snapshots: int = 12,
    kills_of_track: int = 0,
) -> None:
    """`track` in the midst of writers, some of which are killed later; snapshots all the while.

    Args:
        stage: where to play.
        seconds: that the writers write after all is tracked, at least.
        writers: how many.
        rows: of the tables before that.
        snapshots: in which both sides are compared, evenly spread.
        kills_of_track: how often `countersink track` is killed before it may finish.
    """
    never = threading.Event()
    with application(stage, rows) as app:
        app.start_writers(writers)
        never.wait(seconds / 10)
        for _ in range(kills_of_track):
            _kill_track(app)
        for tracked in app.tracked:
            app.track(tracked)
        with app.compacting() as removed:
            for number in range(snapshots):
                app.check(f"in snapshot {number}")
                app.check_writers()
                if number == snapshots // 2:
                    app.kill_writers(writers // 2)
                    app.start_writers(writers // 2)
                    _nothing_to_repair(app)
                never.wait(seconds / snapshots)
            app.stop_writers()
        assert sum(removed) > 0, "nothing was compacted"
        app.check("at the end", raw=True)
        _agrees(app)
        app.untrack()


def tracked_among_kills_and_lock_waits(stage: Stage, seconds: float = 20.0) -> None:
    """Statements are undone by KILL QUERY and lock waits, in the midst of their triggers too, and
    transactions go on without them."""
    with application(stage, 500) as app:
        app.start_writers(WRITERS, lock_wait=1)
        for tracked in app.tracked:
            app.track(tracked)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if stage.random.random() < 0.9:
                _kill_queries(app)
            else:
                _hold_rows(app)
            app.check("among kills")
            app.check_writers()
        app.stop_writers()
        app.check("at the end", raw=True)
        did = app.wrote()
        gone_on = did["own 1205"] + did["own 1317"]
        assert gone_on > 0, "no transaction went on after a statement that was undone"
        app.untrack()


# -- disturbances ------------------------------------------------------------------------------


def _kill_queries(app: Application) -> None:
    """KILL QUERY for every writer, whatever it is at."""
    with connect(app.url) as killer, killer.cursor() as cursor:
        for number in app.connections():
            cursor.execute(f"KILL QUERY {number:d}")
            app.stage.faults["KILL QUERY"] += 1


def _hold_rows(app: Application) -> None:
    """Lock orders, or cells of a counter, for longer than the writers wait."""
    slots = f"{app.stage.mysql_url.rpartition('/')[2]}.counter_slot"
    held = app.stage.random.choice(
        (
            "SELECT 1 FROM orders WHERE id < 100 FOR UPDATE",
            f"SELECT 1 FROM {slots} WHERE counter = 'orders:all' FOR UPDATE",
            f"SELECT 1 FROM {slots} WHERE counter = 'orders' LIMIT 200 FOR UPDATE",
        )
    )
    with connect(app.url) as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(held)
            threading.Event().wait(1.3)
        except OperationalError as error:
            if error.args[0] not in (1213, 1205):  # the victim of a deadlock
                raise
        cursor.execute("ROLLBACK")
        app.stage.faults["rows were held"] += 1


# -- what the product says -----------------------------------------------------------------------


def _kill_track(app: Application) -> None:
    """Kill `countersink track` of one of the tables at a random moment after it has begun."""
    tracked = app.stage.random.choice(app.tracked)
    child = app.stage.children.start(
        [*COUNTERSINK, *app.track_arguments(tracked)],
        environment={"COUNTERSINK_MYSQL_URL": app.stage.mysql_url},
        name="track",
    )
    threading.Event().wait(app.stage.random.uniform(0.3, 2.5))
    child.kill()
    app.stage.faults["track was killed"] += 1


def _nothing_to_repair(app: Application) -> None:
    """A repair beside writers finds nothing to mend, and mends nothing."""
    for tracked in app.tracked:
        repaired = app.store.tracked.repair(tracked.counter)
        found = (repaired.triggers, repaired.cells, repaired.difference)
        assert found == (0, 0, 0), f"{tracked.counter}: {repaired} (seed {app.stage.seed})"


def _agrees(app: Application) -> None:
    """Verification finds nothing, and row counts are what COUNT(*) says, collation and all."""
    app.stage.verify()
    with connect(app.url) as reader, reader.cursor() as cursor:
        for status in STATUSES:
            cursor.execute("SELECT COUNT(*) FROM orders WHERE status <=> %s", (status,))
            assert cursor.fetchone() == (app.store.row_count(app.orders.counter, status=status),), (
                f"{status!r} (seed {app.stage.seed})"
            )
