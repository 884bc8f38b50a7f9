"""Runs that reconcile, with their sources read, for tests of what comes then."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from countersink.backfill import reconcile
from countersink.backfill.count.targets import TruthTarget
from countersink.backfill.options import BackfillOptions, Progress
from countersink.backfill.reconcile.correction import Corrected, compare
from countersink.backfill.undo import Undone, undo
from countersink.counting.apply.amounts import Amounts, Row
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.guards import read_control
from countersink.counting.counters.buckets import MINUTES, NUMBER, Resolution
from countersink.counting.counters.catalog import load, load_scheme, marked_days
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.database.sql import LABEL
from countersink.runtime.limits import key_text
from countersink.store import Store
from countersink.stream.entry import new_entry_id
from tests.backfill import helpers
from tests.support.entries import entry, minute, now_ms
from tests.support.proxies import MySQLProxy

DAY = date(2026, 3, 14)
NEXT = date(2026, 3, 15)

Said = Mapping[tuple[date, str], int] | Mapping[tuple[int, str], int]
"""(day or Unix minute, key) → amount."""


def options(**asked: Any) -> BackfillOptions:
    """What is asked for, by default of two days."""
    days = {"start": DAY, "end": NEXT}
    return helpers.options("access.log", mode="reconcile", **{**days, **asked})


def new_run(session: Session, counter: str = "views") -> int:
    """A run that has begun."""
    session.execute(
        "INSERT INTO backfill_run (counter, mode, state, options, sources, holder, resolution,"
        " started, seen) VALUES (%s, 'reconcile', 'running', '{}', '[]', '', %s,"
        " UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))",
        (counter, load_scheme(session, counter).resolution),
    )
    return int(session.query("SELECT LAST_INSERT_ID()")[0][0])


def _resolution_of(session: Session, run: int) -> Resolution:
    ((found,),) = session.query("SELECT resolution FROM backfill_run WHERE id = %s", (run,))
    return cast(Resolution, found)


def on_days(said: Said) -> dict[tuple[int, str], int]:
    """The same as :func:`totals` gives it, of a counter that counts days in UTC."""
    return {(bucket("day", when), key): amount for (when, key), amount in _by_minute(said)}


def bucket(resolution: Resolution, at: int) -> int:
    """The label of the bucket of a Unix minute, with days of UTC."""
    minutes = MINUTES[resolution]
    return at // minutes * minutes * 60 + NUMBER[resolution]


def hour_ago() -> int:
    """A time at which a reconcile may have begun, Unix ms."""
    return now_ms() - 3_600_000


def _by_minute(said: Said) -> Iterator[tuple[tuple[int, str], int]]:
    for (when, key), amount in said.items():
        yield (minute(when) if isinstance(when, date) else when, key), amount


@dataclass
class Scene:
    """A database with a counter ``views``, its store, a session, and the applier of a worker."""

    url: str
    store: Store
    session: Session
    applier: Applier

    def execute(self, sql: str) -> None:
        """Do a statement in a session of its own."""
        with open_tables(self.url) as session:
            session.execute(sql)

    def set_counter(self, **settings: Any) -> None:
        """Change the settings of the counter."""
        self.store.counters.set("views", **settings)

    def count(self, had: Said, counter: str = "views", applier: Applier | None = None) -> None:
        """Count rows as they come in live."""
        rows = [
            (position, counter, key, when, amount)
            for position, ((when, key), amount) in enumerate(_by_minute(had))
        ]
        (applier or self.applier).apply([entry(rows)])

    def late(self, *rows: Row, sent: int) -> int:
        """Count rows that were sent at a time, Unix ms, and come now; how many are dead."""
        late = entry(rows, id=bytes.fromhex(new_entry_id(sent)), at=sent)
        return self.applier.apply([late]).dead

    def new_run(self, counter: str = "views") -> int:
        """See :func:`new_run`."""
        return new_run(self.session, counter)

    def say(self, run: int, said: Said, counter: str = "views") -> None:
        """Read a chunk of a source, as counting it does."""
        with self.session.transaction():
            read_control(self.session)
            target = TruthTarget(run, _resolution_of(self.session, run))
            scheme = target.scheme(load(self.session).scheme(counter))
            amounts = Amounts()
            for (when, key), amount in _by_minute(said):
                amounts.add(counter, scheme.label(when), key, amount)
            target.add(self.session, amounts, 1, 0)

    def said_by(self, said: Said) -> int:
        """A run whose sources say this."""
        run = self.new_run()
        self.say(run, said)
        return run

    def undo(self, run: int) -> Undone:
        """Take a run back, once all are done."""
        self.session.execute("UPDATE backfill_run SET state = 'done' WHERE state = 'running'")
        return undo(self.url, run)

    def correct(
        self,
        run: int,
        t0: int | None = None,
        *,
        proxy: MySQLProxy | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        **asked: Any,
    ) -> Corrected:
        """Set what a run's sources say, if it began at a time, by default an hour ago; by default
        on the days of which they say something.
        """
        began = hour_ago() if t0 is None else t0
        with open_tables(self.url) as session:  # of its own: a thread may correct beside others
            ((first, last),) = session.query(
                "SELECT MIN(bucket), MAX(bucket) FROM backfill_correction"
                " WHERE run = %s AND had IS NULL",
                (run,),
            )
            resolution = _resolution_of(session, run)
        if first is not None:
            asked = {"start": first.date(), "end": last.date(), **asked}
        return reconcile.correct(
            self.url if proxy is None else proxy.url(self.url),
            run,
            options(**asked),
            resolution,
            began,
            on_progress=on_progress,
            stop=stop,
        )

    def would(
        self, said: Said, stop: Callable[[], bool] = lambda: False, **asked: Any
    ) -> Corrected:
        """Corrections that setting what sources say would make."""
        scheme = load_scheme(self.session, "views")
        found: dict[int, dict[str, int]] = {}
        for (when, key), amount in _by_minute(said):
            keys = found.setdefault(scheme.label(when), {})
            keys[key] = keys.get(key, 0) + amount
        return compare(self.url, found, options(**asked), scheme.resolution, hour_ago(), stop=stop)

    def totals(self, counter: str = "views") -> dict[tuple[int, str], int]:
        """What the slots hold, by label and key."""
        return {
            (int(label), key_text(key)): int(amount)
            for label, key, amount in self.session.query(
                f"SELECT {LABEL}, counter_key, SUM(amount) FROM counter_slot WHERE counter = %s"
                " GROUP BY bucket, width, counter_key",
                (counter,),
            )
        }

    def amounts(self) -> dict[tuple[int, str], int]:
        """The same without what is 0."""
        return {place: amount for place, amount in self.totals().items() if amount}

    def by_key(self) -> dict[str, int]:
        """The totals of keys."""
        return dict(self.store.totals.by_key("views"))

    def drift(self, run: int) -> dict[tuple[int, str], tuple[int, int]]:
        """What is written down of a run: (had, should be) by label and key."""
        return {
            (int(label), key_text(key)): (int(had), int(should_be))
            for label, key, had, should_be in self.session.query(
                f"SELECT {LABEL}, counter_key, had, should_be FROM backfill_correction"
                " WHERE run = %s AND had IS NOT NULL",
                (run,),
            )
        }

    def marks(self, run: int) -> set[date]:
        """The days that a run has marked."""
        return marked_days(self.session, "views", run)
