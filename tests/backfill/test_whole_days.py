"""A reconcile without days is refused, with the days that its sources have whole."""

import gzip
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from countersink.backfill.errors import BackfillError
from countersink.store import Store
from tests.backfill.helpers import COUNTER, Logs, line

pytestmark = pytest.mark.usefixtures("store")

FIRST = datetime(2026, 3, 10, tzinfo=UTC)
ROTATED = timedelta(hours=6, minutes=25)
CSV = {"input_format": "csv", "time_column": "at", "key_column": "key"}


def lines(start: datetime, end: datetime, path: str = "/") -> bytes:
    """A hit each half an hour."""
    found = []
    while start < end:
        found.append(line(path, at=start))
        start += timedelta(minutes=30)
    return b"".join(found)


def rotated(logs: Logs, *days: int) -> list[str]:
    """A log from 06:25 to 06:25 for each of these days; the first ones compressed."""
    found = []
    for number in days:
        begin = FIRST + timedelta(days=number) + ROTATED
        content = lines(begin, begin + timedelta(days=1))
        name = f"access.log.{5 - number}" + (".gz" if number < 2 else "")
        logs.write(name, gzip.compress(content) if number < 2 else content)
        found.append(str(logs.directory / name))
    return found


def refused(logs: Logs, *sources: Any, **given: Any) -> str:
    """The refusal of a reconcile of sources."""
    with pytest.raises(BackfillError, match="--from and --to") as caught:
        logs.reconcile(*sources, **{"start": None, **given})
    assert logs.query("SELECT (SELECT COUNT(*) FROM backfill_run), COUNT(*) FROM counter") == [
        (0, 0)
    ]
    return str(caught.value)


@pytest.mark.parametrize("dry_run", [True, False])
def test_of_rotated_logs_the_days_between_the_first_and_the_last_are_named(
    logs: Logs, dry_run: bool
) -> None:
    said = refused(logs, *rotated(logs, 4, 0, 2, 1, 3), dry_run=dry_run)
    assert "from 2026-03-10 06:25 to 2026-03-15 05:55 UTC" in said
    assert "and the whole days between are 2026-03-11 to 2026-03-14 (UTC)" in said


def test_one_of_the_two_days_is_not_enough(logs: Logs) -> None:
    files = rotated(logs, 0, 1)
    for given in {"start": date(2026, 3, 11)}, {"end": date(2026, 3, 11)}:
        assert "the whole days between are 2026-03-11 (UTC)" in refused(logs, *files, **given)


def test_of_one_log_that_begins_in_the_midst_of_a_day_no_day_is_whole(logs: Logs) -> None:
    assert "the whole days between are none (UTC)" in refused(logs, *rotated(logs, 0))


def test_days_are_those_of_the_counters_zone_and_filtered_lines_count(
    logs: Logs, store: Store
) -> None:
    """A day in Tokyo begins at 15:00 UTC; a line tells that the one before is over."""
    store.counters.set(COUNTER, time_zone="Asia/Tokyo")
    tokyo = FIRST + timedelta(hours=15)
    whole = logs.write("whole.log", lines(tokyo, tokyo + timedelta(hours=24.5)))
    with pytest.raises(BackfillError) as caught:
        logs.reconcile(whole, start=None, exclude_keys=("/",))
    assert "the whole days between are 2026-03-11 (Asia/Tokyo)" in str(caught.value)


def test_what_cannot_be_read_or_has_no_line_is_passed_over(logs: Logs) -> None:
    for name, content in {"a": b"", "b": b"nonsense\n", "c.gz": b"\x1f\x8bbroken"}.items():
        assert "these sources have lines" not in refused(logs, logs.write(name, content))
    files = *rotated(logs, 0, 1), logs.directory / "b", logs.directory / "c.gz"
    assert "the whole days between are 2026-03-11 (UTC)" in refused(logs, *files)


def test_lines_of_other_counters_count_as_lines(logs: Logs) -> None:
    hours = [FIRST + timedelta(hours=hour) for hour in range(24 * 2)]
    rows = "".join(f"{at.isoformat()},/,{COUNTER if at.hour == 9 else 'other'}\n" for at in hours)
    export = logs.write("export.csv", f"at,key,counter\n{rows}".encode())
    said = refused(logs, export, counter_column="counter", **CSV)
    assert "the whole days between are 2026-03-10 (UTC)" in said


def test_a_directive_before_the_last_lines_says_their_day(logs: Logs) -> None:
    blocks = [
        f"#Fields: time cs-uri-stem sc-status\n#Date: 2026-05-1{day} 00:00:00\n"
        + "".join(
            f"{hour:02}:{minute:02}:00 /a/{'x' * 60} 200\n"
            for hour in range(24)
            for minute in range(60)
        )
        for day in range(4)
    ]
    said = refused(logs, logs.write("w3c.log", "".join(blocks).encode()), input_format="w3c")
    assert "from 2026-05-10 00:00 to 2026-05-13 23:59 UTC" in said
