"""An application on a stage: its database, its writers, and the counters of its tables."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from countersink.store import Store
from tests.faults.stage import Stage
from tests.store.helpers import again_and_again, compacted
from tests.support.app_tables import create
from tests.support.databases import dropped, new_name
from tests.support.oracle import Oracle, connect
from tests.support.processes import Child
from tests.support.table_oracle import Tracked, snapshot
from tests.support.waiting import eventually

LEFT_BEHIND = """
    SELECT 'slots', COUNT(*) FROM counter_slot WHERE counter IN {counters}
    UNION ALL SELECT 'ledger', COUNT(*) FROM counter_ledger WHERE counter IN {counters}
    UNION ALL SELECT 'tracked', COUNT(*) FROM tracked_table WHERE counter IN {counters}
    UNION ALL SELECT 'triggers', COUNT(*) FROM information_schema.triggers
        WHERE trigger_schema = '{schema}'
"""


@dataclass(frozen=True, slots=True)
class Span:
    """What the writers did in a stretch of time: transactions, statements, retries and the
    application's own errors, and the longest that a statement took, in seconds."""

    did: Counter[str] = field(default_factory=Counter)
    worst_s: float = 0.0

    @property
    def retried(self) -> int:
        """Deadlocks and lock waits."""
        return sum(count for name, count in self.did.items() if name.startswith("retried"))

    def __str__(self) -> str:
        share = self.retried / max(1, self.did["transactions"] + self.retried)
        waits = self.did["retried 1205"]
        return (
            f"{self.did['transactions']:,} transactions, {self.retried:,} retried ({share:.2%},"
            f" {waits} of them lock waits), worst statement {self.worst_s * 1000:.0f} ms"
        )


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

    def wrote(self, since: float = 0.0, until: float = float("inf")) -> Span:
        """What writers, killed ones too, said of a stretch of the monotonic clock."""
        did: Counter[str] = Counter()
        worst_s = 0.0
        for writer in self._everyone:
            for line in writer.output().splitlines():
                if not line.endswith("}}"):
                    continue  # torn off by SIGKILL
                said: dict[str, Any] = json.loads(line)
                if since <= said["at"] and said["since"] <= until:
                    did.update(said["did"])
                    worst_s = max(worst_s, said["worst_s"])
        return Span(did, worst_s)

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
