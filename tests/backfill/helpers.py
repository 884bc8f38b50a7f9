"""Logs, backfills and looks into the tables, for the tests of backfill."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill import history
from countersink.backfill.count import task
from countersink.backfill.history import RejectedLine
from countersink.backfill.options import BackfillOptions, BackfillReport, Recipe
from countersink.backfill.run import backfill
from countersink.backfill.undo import Undone, undo
from countersink.counting.apply.applier import Applier
from countersink.counting.counters.buckets import width_of
from countersink.counting.counters.settings import Counter
from countersink.database.sessions import open_tables
from countersink.database.sql import LABEL, label_time
from countersink.runtime.limits import key_text
from countersink.store import Store
from countersink.store.verify import open_session, verify
from tests.support.entries import entry
from tests.support.proxies import MySQLProxy

COUNTER = "views"
NOON = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
DAY = "2026-03-14"
TABLES = ("run", "source", "chunk", "sample", "correction", "journal")

Totals = dict[tuple[str, str], int]
"""(bucket as text, key) → total. Days are dates, others go as ``2026-03-14 12:00 hour``."""


def line(path: str = "/", *, minutes: int = 0, at: datetime = NOON, status: int = 200) -> bytes:
    """One line of a combined access log, with its newline."""
    when = at + timedelta(minutes=minutes)
    return (
        f"203.0.113.7 - - [{when:%d/%b/%Y:%H:%M:%S %z}]"
        f' "GET {path} HTTP/1.1" {status} 512 "-" "curl/8.0"\n'
    ).encode()


def log(*paths: str) -> bytes:
    """A line for each path, a second apart."""
    return b"".join(
        line(path, at=NOON + timedelta(seconds=number)) for number, path in enumerate(paths)
    )


def long_log(lines: int, *, keys: int = 7, first: int = 0) -> bytes:
    """Many lines, no two alike, over some keys: /0, /1, …"""
    return b"".join(
        line(f"/{number % keys}?n={number}", at=NOON + timedelta(seconds=number % 3600))
        for number in range(first, first + lines)
    )


def keys_of(lines: int, *, keys: int = 7) -> Totals:
    """The totals of :func:`long_log`."""
    found: Totals = {}
    for number in range(lines):
        cell = (DAY, f"/{number % keys}")
        found[cell] = found.get(cell, 0) + 1
    return found


def day(*keys: str, on: str = DAY) -> Totals:
    """The totals of one hit for each of these keys."""
    found: Totals = {}
    for key in keys:
        found[on, key] = found.get((on, key), 0) + 1
    return found


def write(path: Path, content: bytes) -> Path:
    """A file of this content."""
    path.write_bytes(content)
    return path


def write_old(path: Path, content: bytes) -> Path:
    """A file that was last written more than an hour ago."""
    write(path, content)
    long_ago = time.time() - 3700
    os.utime(path, (long_ago, long_ago))
    return path


def options(*sources: Path | str, **given: Any) -> BackfillOptions:
    """Options for a backfill; those of the recipe may be given as they are. A reconcile is one of
    all days that its sources have lines of, unless ``start`` or ``end`` are given."""
    own = {name: given.pop(name) for name in list(given) if name in Recipe.__dataclass_fields__}
    if given.get("mode") == "reconcile" and "recipe" not in given and not {"start", "end"} & {*own}:
        own |= days_of(*sources)
    given.setdefault("counter", COUNTER)
    given.setdefault("recipe", Recipe(**own))
    return BackfillOptions(sources=tuple(map(str, sources)), **given)


def days_of(*sources: Path | str) -> dict[str, date]:
    """The first and the last day of some logs, as options."""
    found = [
        datetime.strptime(day.decode(), "%d/%b/%Y").replace(tzinfo=UTC).date()
        for source in map(Path, sources)
        if source.is_file()
        for day in re.findall(rb"\[(\d\d/\w{3}/\d{4}):", source.read_bytes())
    ]
    return {"start": min(found), "end": max(found)} if found else {}


def add(mysql_url: str, *sources: Path | str, **given: Any) -> BackfillReport:
    """Add sources; rejected lines go beside the first, or where ``rejects`` says."""
    if sources and "rejects" not in given and not given.get("dry_run"):
        given["rejects"] = Path(str(sources[0]) + ".rejects")
    asides = {name: given.pop(name) for name in ("on_progress", "stop") if name in given}
    return backfill(mysql_url, options(*sources, **given), **asides)


def _text(label: int) -> str:
    width = width_of(label)
    return f"{label_time(label):{'%Y-%m-%d' if width == 'day' else f'%Y-%m-%d %H:%M {width}'}}"


def rejects_in(path: Path) -> list[tuple[str, int]]:
    """Source and number of each line in a file of rejected lines; [] without a file."""
    if not path.exists():
        return []
    return [(one["source"], one["line"]) for one in map(json.loads, path.open())]


def outcomes(report: BackfillReport) -> list[str]:
    """What became of each source."""
    return [source.outcome for source in report.sources]


def details(report: BackfillReport) -> str:
    """What is said of the sources."""
    return "\n".join(source.detail for source in report.sources)


def run_of(report: BackfillReport) -> int:
    """The number of a run, which is no dry one."""
    assert report.run is not None
    return report.run


@dataclass(frozen=True)
class Logs:
    """A directory for logs, and a new database that they are added to."""

    url: str
    redis_url: str
    directory: Path
    monkeypatch: pytest.MonkeyPatch

    def through(self, proxy: MySQLProxy) -> Logs:
        """The same, with the database behind a proxy."""
        return replace(self, url=proxy.url(self.url))

    def small_chunks(self, lines: int = 100) -> None:
        """Let chunks end after so many lines, so that a short file has several."""
        self.monkeypatch.setattr(task, "LINES", lines)

    def set_counter(self, counter: str = COUNTER, **settings: Any) -> Counter:
        """Change the settings of a counter."""
        with Store(self.url) as store:
            return store.counters.set(counter, **settings)

    def write(self, name: str, content: bytes) -> Path:
        """A file of this content."""
        return write(self.directory / name, content)

    def add(self, *sources: Path | str, **given: Any) -> BackfillReport:
        """See :func:`add`."""
        return add(self.url, *sources, **given)

    def run(self, *sources: Path | str, **given: Any) -> int:
        """Add sources; the number of the run."""
        return run_of(self.add(*sources, **given))

    def reconcile(self, *sources: Path | str, **given: Any) -> BackfillReport:
        """Set what the sources say."""
        asides = {name: given.pop(name) for name in ("on_progress", "stop") if name in given}
        asked = options(*sources, mode="reconcile", **given)
        return backfill(self.url, asked, redis_url=self.redis_url, **asides)

    def undo(self, *runs: BackfillReport | int, **given: Any) -> Undone:
        """Take back what runs did."""
        numbers = (run if isinstance(run, int) else run_of(run) for run in runs)
        return undo(self.url, *numbers, **given)

    def totals(self, counter: str = COUNTER) -> Totals:
        """Totals of a counter by the tables, without those of 0; verify finds nothing."""
        self.require_verified()
        found = self.query(
            f"SELECT {LABEL}, counter_key, SUM(amount) FROM counter_slot WHERE counter = %s"
            " GROUP BY bucket, width, counter_key",
            counter,
        )
        return {
            (_text(int(label)), key_text(key)): int(amount)
            for label, key, amount in found
            if amount
        }

    def query(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """The rows of a query, or nothing of another statement."""
        with open_tables(self.url) as session:
            return session.query(sql, args)

    def left(self) -> dict[str, int]:
        """How many rows each table of backfill has, of those that have some."""
        found = {table: self.rows(f"backfill_{table}") for table in TABLES}
        return {table: number for table, number in found.items() if number}

    def state(self, run: int) -> str:
        """The state of a run."""
        return str(self.query("SELECT state FROM backfill_run WHERE id = %s", run)[0][0])

    def live(self, *hits: tuple[datetime, str, int]) -> None:
        """Count what was sent live: time, key and amount."""
        rows = [
            (position, COUNTER, key, int(at.timestamp()) // 60, amount)
            for position, (at, key, amount) in enumerate(hits)
        ]
        with closing(Applier(self.url, 17)) as applier:
            applier.apply([entry(rows)])

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return int(self.query(f"SELECT COUNT(*) FROM {table}")[0][0])

    def rejected(self) -> list[RejectedLine]:
        """The rejected lines that the last run keeps."""
        with open_tables(self.url) as session:
            ((run,),) = session.query("SELECT MAX(id) FROM backfill_run")
            return history.rejects(session, run)

    def require_verified(self) -> None:
        """Verify finds nothing."""
        with open_session(self.url) as session:
            assert verify(session).differences == []
