"""Which days a reconcile sets without being told: those that its sources have whole."""

import gzip
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill.options import BackfillReport
from countersink.backfill.run import backfill
from countersink.store import Store
from countersink.store.apply.apply import Applier
from tests.backfill.helpers import COUNTER, Logs, line, options, query, totals, write
from tests.store.helpers import entry

pytestmark = pytest.mark.usefixtures("store")

FIRST = datetime(2026, 3, 10, tzinfo=UTC)
ROTATED = timedelta(hours=6, minutes=25)
EACH = timedelta(minutes=30)
DAYS = 5


def lines(start: datetime, end: datetime, each: timedelta = EACH) -> bytes:
    """A hit each half an hour."""
    found = []
    while start < end:
        found.append(line("/", at=start))
        start += each
    return b"".join(found)


def rotated(directory: Path, days: Sequence[int] = range(DAYS)) -> list[Path]:
    """A log of each of these days, from 06:25 to 06:25; the first ones compressed."""
    found = []
    for number in days:
        begin = FIRST + timedelta(days=number) + ROTATED
        content = lines(begin, begin + timedelta(days=1))
        if number < 2:
            content = gzip.compress(content)
        found.append(write(directory / f"access.log.{DAYS - number}", content))
    return found


def counted_live(applier: Applier, *, lost: int = 0) -> None:
    """All hits of all days, but for the first ones of each."""
    rows = []
    for number in range(DAYS + 1):
        begin = FIRST + timedelta(days=number)
        rows.append((number, COUNTER, "/", int(begin.timestamp()) // 60, 48 - lost))
    applier.apply([entry(rows)])


def reconciled(logs: Logs, *sources: Path, **given: Any) -> BackfillReport:
    return logs.reconcile(*sources, **{"start": None, **given})


def by_day(mysql_url: str) -> list[int]:
    return [amount for _, amount in sorted(totals(mysql_url).items())]


@pytest.mark.parametrize("lost", [0, 5])
def test_days_that_rotated_logs_have_but_a_part_of_stay(
    logs: Logs, applier: Applier, lost: int
) -> None:
    counted_live(applier, lost=lost)
    files = rotated(logs.directory)
    would = reconciled(logs, *files, dry_run=True)
    done = reconciled(logs, *files)
    for report in would, done:
        assert report.corrections == (4 if lost else 0)
        said = " ".join(report.notices)
        assert "2026-03-10, 2026-03-15" in said
        assert "--from and --to" in said
    assert by_day(logs.url) == [48 - lost, 48, 48, 48, 48, 48 - lost]
    # Who says so is believed.
    asked = {"start": date(2026, 3, 10), "end": date(2026, 3, 15)}
    assert reconciled(logs, *files, **asked).corrections == 2
    assert by_day(logs.url) == [36, 48, 48, 48, 48, 12]


def test_days_that_are_left_out_are_told_before_anything_is_written(
    logs: Logs, applier: Applier
) -> None:
    counted_live(applier, lost=5)
    files = rotated(logs.directory)
    tables = "counter_slot", "reconciled_bucket", "backfill_drift"
    written = partial(
        query, logs.url, " UNION ALL ".join(f"SELECT COUNT(*) FROM {each}" for each in tables)
    )
    untouched = by_day(logs.url), written()
    told: list[tuple[str, object]] = []

    def tell(notice: str) -> None:
        told.append((notice, (by_day(logs.url), written())))

    for dry_run in True, False:
        told.clear()
        asked = options(*files, mode="reconcile", start=None, dry_run=dry_run)
        report = backfill(logs.url, asked, redis_url=logs.redis_url, on_notice=tell)
        ((notice, seen),) = told
        assert "2026-03-10, 2026-03-15" in notice
        assert report.notices.count(notice) == 1
        assert seen == untouched
    assert (by_day(logs.url), written()) != untouched


@pytest.mark.parametrize("missing", [[2], [1, 2]])
def test_days_beside_a_log_that_is_missing_stay(
    logs: Logs, applier: Applier, missing: list[int]
) -> None:
    counted_live(applier, lost=1)
    files = rotated(logs.directory, [number for number in range(DAYS) if number not in missing])
    reconciled(logs, *reversed(files))
    beside = {0, 5, *missing, *(each + 1 for each in missing)}
    assert by_day(logs.url) == [47 if number in beside else 48 for number in range(6)]


def test_one_end_that_is_told_is_believed(logs: Logs, applier: Applier) -> None:
    counted_live(applier, lost=1)
    reconciled(logs, *rotated(logs.directory), start=date(2026, 3, 10))
    assert by_day(logs.url) == [36, 48, 48, 48, 48, 47]


def test_hours_and_days_of_other_zones(logs: Logs, store: Store, applier: Applier) -> None:
    store.counters.set(COUNTER, time_zone="Asia/Tokyo")
    files = rotated(logs.directory)
    report = reconciled(logs, *files)
    # From 15:25 on the 10th in Tokyo to 15:25 on the 15th.
    assert by_day(logs.url) == [48] * 4
    assert "2026-03-10, 2026-03-15" in " ".join(report.notices)


def test_hours_are_left_out_day_by_day(logs: Logs, store: Store) -> None:
    store.counters.set(COUNTER, resolution="hour")
    log = logs.write("a.log", lines(FIRST + ROTATED, FIRST + timedelta(days=2) + ROTATED))
    report = reconciled(logs, log)
    hours = sorted(bucket for bucket, _ in logs.totals())
    assert len(hours) == 24
    assert {hour[:10] for hour in hours} == {"2026-03-11"}
    assert "2026-03-10, 2026-03-12" in " ".join(report.notices)


def test_lines_that_are_filtered_show_what_is_covered(logs: Logs) -> None:
    files = rotated(logs.directory)
    own = line("/own", at=FIRST + timedelta(days=2, hours=3))
    files.append(logs.write("own", lines(FIRST, FIRST + EACH) + own))
    content = lines(FIRST + ROTATED, FIRST + timedelta(days=1)) + own
    content += lines(FIRST + timedelta(days=2, hours=4), FIRST + timedelta(days=4))
    log = logs.write("all.log", content)
    reconciled(logs, log, key="{path}", exclude_keys=("/",))
    assert logs.totals() == {("2026-03-12", "/own"): 1}


@pytest.mark.parametrize(
    ("own", "of_times"),
    [
        ("UTC", "UTC"),
        ("UTC", ""),
        ("America/St_Johns", "Europe/Berlin"),
        ("Africa/Cairo", "Africa/Cairo"),  # without the first hour of 24 April
    ],
)
def test_daily_totals_cover_the_days_that_they_name(
    logs: Logs, store: Store, own: str, of_times: str
) -> None:
    store.counters.set(COUNTER, time_zone=own)
    rows = "".join(f"2026-04-{day},/,{day}\n" for day in (20, 21, 24))
    export = logs.write("export.csv", f"day,key,n\n{rows}".encode())
    columns = {
        "input_format": "csv",
        "time_column": "day",
        "key_column": "key",
        "amount_column": "n",
        "time_zone": of_times,
    }
    report = reconciled(logs, export, **columns)
    assert report.notices == ()
    assert by_day(logs.url) == [20, 21, 24]
    assert logs.query("SELECT COUNT(*) FROM reconciled_bucket") == [(3,)]


def test_lines_of_other_counters_show_what_is_covered(logs: Logs) -> None:
    hours = [FIRST + timedelta(hours=hour) for hour in range(24 * 4)]
    rows = "".join(
        f"{hour.isoformat()},/,{COUNTER if hour.day != 12 and hour.hour == 9 else 'other'}\n"
        for hour in hours
    )
    export = logs.write("export.csv", f"at,key,counter\n{rows}".encode())
    columns = {
        "input_format": "csv",
        "time_column": "at",
        "key_column": "key",
        "counter_column": "counter",
    }
    reconciled(logs, export, **columns)
    assert [day for day, _ in sorted(logs.totals())] == ["2026-03-11"]
