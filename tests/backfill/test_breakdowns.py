"""Backfills and breakdowns: what is counted goes into them, and what is taken back comes out; what
is not logs is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from countersink.backfill.errors import BackfillError
from countersink.counting.errors import UnknownDimension
from countersink.runtime.dimensions import composite
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    Logs,
    details,
    line,
    log,
    write,
)


@pytest.fixture
def logs(logs: Logs) -> Logs:
    """With a counter that has two breakdowns."""
    logs.set_counter(dimensions=["page", "country"], breakdowns=["page", "page,country"])
    return logs


def of(logs: Logs, number: int) -> dict[tuple[str, str], int]:
    """What a breakdown holds."""
    return logs.totals(f"{COUNTER}#{number}")


def events(logs: Logs) -> Path:
    """A source of three events without a key."""
    rows = "".join(f"{DAY}T12:00:{second:02}Z,\n" for second in range(3))
    return logs.write("a.csv", f"at,key\n{rows}".encode())


COLUMNS = {"input_format": "csv", "time_column": "at", "key_column": "key"}


def test_lines_with_keys_are_added_to_the_counter_alone(logs: Logs) -> None:
    logs.add(logs.write("access.log", line("/a") + line("/b")))
    assert logs.totals() == {(DAY, "/a"): 1, (DAY, "/b"): 1}
    assert of(logs, 1) == {}


def test_a_breakdown_that_was_removed_since_is_left_out_of_what_is_taken_back(logs: Logs) -> None:
    source = events(logs)
    report = logs.add(source, **COLUMNS)
    assert details(report) == ""
    assert logs.add(source, **COLUMNS).counted == 0
    assert of(logs, 1) == logs.totals() == {(DAY, ""): 3}
    assert of(logs, 2) == {(DAY, "\0"): 3}
    logs.set_counter(breakdowns=["page,country"])
    logs.undo(report)
    assert logs.query("SELECT counter, SUM(amount) FROM counter_ledger GROUP BY counter") == [
        (COUNTER, 0),
        (f"{COUNTER}#2", 0),
    ]
    logs.require_verified()


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("resolution", ["day", "quarter"])
def test_lines_are_added_to_a_breakdown_from_the_midnight_on_at_which_it_begins(
    logs: Logs, resolution: str
) -> None:
    logs.set_counter(time_zone="Asia/Kathmandu", resolution=resolution)
    logs.add(events(logs), **COLUMNS)
    found = logs.set_counter(breakdowns=["page", "page,country", "country"])
    begins = datetime.fromtimestamp(found.breakdowns[-1].since * 60, UTC)
    assert (begins.hour, begins.minute) == (18, 15)
    times = [begins + timedelta(minutes=minutes) for minutes in (-15, -1, 0, 5, 14)]
    rows = "".join(f"{at:%Y-%m-%dT%H:%MZ},{at.minute}\n" for at in times)
    given = {**COLUMNS, "key_column": "", "dimensions": (("country", "minute"),)}
    before = logs.totals()
    report = logs.add(logs.write("b.csv", f"at,minute\n{rows}".encode()), **given)
    quarters = [f"{begins + timedelta(minutes=n):%Y-%m-%d %H:%M} quarter" for n in (-15, 0)]
    days = [f"{begins + timedelta(days=n):%Y-%m-%d}" for n in (0, 1)]
    first, second = days if resolution == "day" else quarters
    assert logs.totals() == before | {(first, ""): 2, (second, ""): 3}
    assert of(logs, 1) == logs.totals()
    assert of(logs, 3) == {
        (second, "15"): 1,
        (second, "20"): 1,
        (second, "29"): 1,
    }
    logs.undo(report)
    assert logs.totals() == of(logs, 1) == before
    assert of(logs, 3) == {}


def test_a_line_without_its_end_leaves_nothing_in_a_breakdown_that_was_declared_since(
    logs: Logs,
) -> None:
    """It was counted in the counter alone: so it is corrected there alone."""
    at = f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
    whole = f"at,country\n{at},DE\n{at},Austria\n".encode()
    given = {**COLUMNS, "key_column": "", "dimensions": (("country", "country"),)}
    source = logs.write("a.csv", whole[:-5])
    assert logs.add(source, **given).amount == 2
    logs.set_counter(breakdowns=["page", "page,country", "country"])
    write(source, whole)
    logs.add(source, **given)
    assert of(logs, 3) == {}
    assert sum(logs.totals().values()) == 2


def test_a_counter_with_breakdowns_is_not_reconciled(logs: Logs) -> None:
    source = logs.write("access.log", line("/a"))
    with pytest.raises(BackfillError, match="has breakdowns, which a reconcile cannot set"):
        logs.add(source, mode="reconcile")
    assert logs.totals() == {}
    # Refused for another reason without them: nobody says where the queue is.
    logs.set_counter(breakdowns=[])
    with pytest.raises(BackfillError, match="--redis-url"):
        logs.add(source, mode="reconcile")


BOTH = (("country", "status"), ("page", "path"))


@pytest.mark.servers("mariadb", "mysql")
def test_a_log_is_counted_once_in_the_breakdowns_and_taken_back(logs: Logs) -> None:
    source = logs.write("access.log", log("/a", "/b", "/a?x") + line("/a", status=404))
    report = logs.add(source, dimensions=BOTH)
    assert details(report) == ""
    assert logs.totals() == {(DAY, ""): 4}
    assert of(logs, 1) == {(DAY, "/a"): 3, (DAY, "/b"): 1}
    assert of(logs, 2) == {
        (DAY, composite(["/a", "200"])): 2,
        (DAY, composite(["/b", "200"])): 1,
        (DAY, composite(["/a", "404"])): 1,
    }
    assert logs.add(source, dimensions=BOTH).counted == 0
    assert logs.undo(report).amount == -4  # of the counter, not of its breakdowns
    for name in COUNTER, f"{COUNTER}#1", f"{COUNTER}#2":
        assert logs.totals(name) == {}


def test_a_dimension_that_is_not_declared_counts_nothing_and_says_so(logs: Logs) -> None:
    source = logs.write("access.log", log("/a"))
    with pytest.raises(UnknownDimension, match="no dimension 'client'"):
        logs.add(source, dimensions=(("client", "host"),))
    assert logs.totals() == {}
    # Declared, it is counted.
    logs.set_counter(dimensions=["page", "country", "client"])
    assert logs.add(source, dimensions=(("client", "host"),)).counted == 1
    assert of(logs, 1) == {(DAY, ""): 1}
