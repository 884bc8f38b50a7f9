"""Runs that reconcile, with their sources read, for tests of what comes then."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from countersink.backfill import reconcile
from countersink.backfill.count.targets import TruthTarget
from countersink.backfill.options import BackfillOptions, Recipe
from countersink.backfill.reconcile.correction import Corrected, compare
from countersink.store import Store
from countersink.store.apply.amounts import Amounts
from countersink.store.apply.apply import Applier
from countersink.store.apply.control import read_control
from countersink.store.connection import Session
from countersink.store.counters.buckets import MINUTES, NUMBER, Resolution
from countersink.store.counters.catalog import load, load_scheme, marked_days
from countersink.store.sessions import open_tables
from countersink.store.sql import LABEL
from tests.store.helpers import entry, minute, now_ms

DAY = date(2026, 3, 14)
NEXT = date(2026, 3, 15)

Said = Mapping[tuple[date, str], int] | Mapping[tuple[int, str], int]
"""(day or Unix minute, key) → amount."""


def options(start: date = DAY, end: date = NEXT, **others: Any) -> BackfillOptions:
    """What is asked for."""
    return BackfillOptions(
        counter=others.pop("counter", "views"),
        sources=("access.log",),
        mode="reconcile",
        recipe=Recipe(start=start, end=end),
        **others,
    )


def new_run(session: Session, counter: str = "views") -> int:
    """A run that has begun."""
    session.execute(
        "INSERT INTO backfill_run (counter, mode, state, options, sources, holder, resolution,"
        " started, seen) VALUES (%s, 'reconcile', 'running', '{}', '[]', '', %s,"
        " UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))",
        (counter, load_scheme(session, counter).resolution),
    )
    return int(session.query("SELECT LAST_INSERT_ID()")[0][0])


def resolution_of(session: Session, run: int) -> Resolution:
    """In which the sources of a run are read."""
    ((found,),) = session.query("SELECT resolution FROM backfill_run WHERE id = %s", (run,))
    return cast(Resolution, found)


def say(session: Session, run: int, said: Said, counter: str = "views") -> None:
    """Read a chunk of a source, as counting it does."""
    with session.transaction():
        read_control(session)
        target = TruthTarget(run, resolution_of(session, run))
        scheme = target.scheme(load(session).of(counter))
        amounts = Amounts()
        for (when, key), amount in _by_minute(said):
            amounts.add(counter, scheme.label(when), key, amount)
        target.add(session, amounts, 1, 0)


def said_by(session: Session, said: Said, counter: str = "views") -> int:
    """A run whose sources say this."""
    run = new_run(session, counter)
    say(session, run, said, counter)
    return run


def count(applier: Applier, had: Said, counter: str = "views") -> None:
    """Count rows as they come in live."""
    rows = [
        (position, counter, key, when, amount)
        for position, ((when, key), amount) in enumerate(_by_minute(had))
    ]
    applier.apply([entry(rows)])


def correct(url: str, run: int, asked: BackfillOptions, t0: int, **aside: Any) -> Corrected:
    """Set what a run's sources say."""
    with open_tables(url) as session:
        resolution = resolution_of(session, run)
    return reconcile.correct(url, run, asked, resolution, t0, **aside)


def would(url: str, said: Said, asked: BackfillOptions) -> Corrected:
    """Corrections that setting what sources say would make."""
    with open_tables(url) as session:
        scheme = load_scheme(session, asked.counter)
    found: dict[int, dict[str, int]] = {}
    for (when, key), amount in _by_minute(said):
        keys = found.setdefault(scheme.label(when), {})
        keys[key] = keys.get(key, 0) + amount
    return compare(url, found, asked, scheme.resolution, hour_ago())


def totals(session: Session, counter: str = "views") -> dict[tuple[int, str], int]:
    """What the slots hold, by label and key."""
    return {
        (int(label), bytes(key).decode()): int(amount)
        for label, key, amount in session.query(
            f"SELECT {LABEL}, counter_key, SUM(amount) FROM counter_slot WHERE counter = %s"
            " GROUP BY bucket, width, counter_key",
            (counter,),
        )
    }


def on_days(said: Said) -> dict[tuple[int, str], int]:
    """The same as :func:`totals` gives it, of a counter that counts days in UTC."""
    return {(bucket("day", when), key): amount for (when, key), amount in _by_minute(said)}


def bucket(resolution: Resolution, at: int) -> int:
    """The label of the bucket of a Unix minute, with days of UTC."""
    minutes = MINUTES[resolution]
    return at // minutes * minutes * 60 + NUMBER[resolution]


def drift(session: Session, run: int) -> dict[tuple[int, str], tuple[int, int]]:
    """What is written down of a run: (had, should be) by label and key."""
    return {
        (int(label), bytes(key).decode()): (int(had), int(should_be))
        for label, key, had, should_be in session.query(
            f"SELECT {LABEL}, counter_key, had, should_be FROM backfill_correction"
            " WHERE run = %s AND had IS NOT NULL",
            (run,),
        )
    }


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

    def count(self, had: Said) -> None:
        """See :func:`count`."""
        count(self.applier, had)

    def new_run(self) -> int:
        """See :func:`new_run`."""
        return new_run(self.session)

    def say(self, run: int, said: Said) -> None:
        """See :func:`say`."""
        say(self.session, run, said)

    def said_by(self, said: Said) -> int:
        """See :func:`said_by`."""
        return said_by(self.session, said)

    def correct(self, run: int, t0: int | None = None, *, url: str = "", **asked: Any) -> Corrected:
        """Set what a run's sources say, if it began at a time, by default an hour ago; by default
        on the days of which they say something.
        """
        began = hour_ago() if t0 is None else t0
        ((first, last),) = self.session.query(
            "SELECT MIN(bucket), MAX(bucket) FROM backfill_correction"
            " WHERE run = %s AND had IS NULL",
            (run,),
        )
        if first is not None:
            asked = {"start": first.date(), "end": last.date(), **asked}
        return correct(url or self.url, run, options(**asked), began)

    def totals(self) -> dict[tuple[int, str], int]:
        """See :func:`totals`."""
        return totals(self.session)

    def drift(self, run: int) -> dict[tuple[int, str], tuple[int, int]]:
        """See :func:`drift`."""
        return drift(self.session, run)

    def marks(self, run: int) -> set[date]:
        """The days that a run has marked."""
        return marked_days(self.session, "views", run)
