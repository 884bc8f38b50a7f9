"""Backfills and breakdowns: what is counted goes into them, and what is taken back comes out; what
is not declared is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from countersink.backfill.errors import BackfillError
from countersink.backfill.undo import undo
from countersink.runtime.dimensions import composite
from countersink.store import Store
from countersink.store.errors import UnknownDimension
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    add,
    details,
    line,
    log,
    query,
    run_of,
    set_counter,
    totals,
    write,
)
from tests.store.helpers import MAX


@pytest.fixture
def declared(mysql_url: str) -> str:
    """A counter with two breakdowns; its database."""
    with Store(mysql_url) as store:
        store.counters.set(
            COUNTER, dimensions=["page", "country"], breakdowns=["page", "page,country"]
        )
    return mysql_url


def of(mysql_url: str, number: int) -> dict[tuple[str, str], int]:
    """What a breakdown holds."""
    return totals(mysql_url, f"{COUNTER}#{number}")


def events(path: Path, number: int = 3, hour: int = 12) -> Path:
    """A source of so many events without a key."""
    rows = "".join(f"{DAY}T{hour}:00:{second:02}Z,\n" for second in range(number))
    return write(path, f"at,key\n{rows}".encode())


COLUMNS = {"input_format": "csv", "time_column": "at", "key_column": "key"}


def test_lines_with_keys_are_added_to_the_counter_alone(declared: str, tmp_path: Path) -> None:
    add(declared, write(tmp_path / "access.log", line("/a") + line("/b")))
    assert totals(declared) == {(DAY, "/a"): 1, (DAY, "/b"): 1}
    assert of(declared, 1) == {}


def test_a_breakdown_that_was_removed_since_is_left_out_of_what_is_taken_back(
    declared: str, tmp_path: Path
) -> None:
    report = add(declared, events(tmp_path / "a.csv"), **COLUMNS)
    set_counter(declared, breakdowns=["page,country"])
    undo(declared, run_of(report))
    assert query(declared, "SELECT counter, SUM(amount) FROM counter_ledger GROUP BY counter") == [
        (COUNTER, 0),
        (f"{COUNTER}#2", 0),
    ]
    with open_session(declared) as session:
        assert verify(session).differences == []


@pytest.mark.servers("mariadb", "mysql")
def test_events_are_added_to_breakdowns_that_have_begun_and_taken_back(
    declared: str, tmp_path: Path
) -> None:
    report = add(declared, events(tmp_path / "a.csv"), **COLUMNS)
    assert details(report) == ""
    assert add(declared, events(tmp_path / "a.csv"), **COLUMNS).counted == 0
    set_counter(declared, breakdowns=["page", "page,country", "country"])
    report = add(declared, events(tmp_path / "b.csv", 5, hour=15), **COLUMNS)
    assert totals(declared) == {(DAY, ""): 8}
    assert of(declared, 1) == {(DAY, ""): 8}
    assert of(declared, 2) == {(DAY, "\0"): 8}
    assert of(declared, 3) == {}
    undo(declared, run_of(report))
    assert totals(declared) == of(declared, 1) == {(DAY, ""): 3}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("resolution", ["day", "quarter"])
def test_lines_are_added_to_a_breakdown_from_the_midnight_on_at_which_it_begins(
    declared: str, tmp_path: Path, resolution: str
) -> None:
    set_counter(declared, time_zone="Asia/Kathmandu", resolution=resolution)
    add(declared, events(tmp_path / "a.csv"), **COLUMNS)
    with Store(declared) as store:
        found = store.counters.set(COUNTER, breakdowns=["page", "page,country", "country"])
    begins = datetime.fromtimestamp(found.breakdowns[-1].since * 60, UTC)
    assert (begins.hour, begins.minute) == (18, 15)
    times = [begins + timedelta(minutes=minutes) for minutes in (-15, -1, 0, 5, 14)]
    rows = "".join(f"{at:%Y-%m-%dT%H:%MZ},{at.minute}\n" for at in times)
    given = {**COLUMNS, "key_column": "", "dimensions": (("country", "minute"),)}
    before = totals(declared)
    report = add(declared, write(tmp_path / "b.csv", f"at,minute\n{rows}".encode()), **given)
    quarters = [f"{begins + timedelta(minutes=n):%Y-%m-%d %H:%M} quarter" for n in (-15, 0)]
    days = [f"{begins + timedelta(days=n):%Y-%m-%d}" for n in (0, 1)]
    first, second = days if resolution == "day" else quarters
    assert totals(declared) == before | {(first, ""): 2, (second, ""): 3}
    assert of(declared, 1) == totals(declared)
    assert of(declared, 3) == {
        (second, "15"): 1,
        (second, "20"): 1,
        (second, "29"): 1,
    }
    undo(declared, run_of(report))
    assert totals(declared) == of(declared, 1) == before
    assert of(declared, 3) == {}


def test_a_line_without_its_end_leaves_nothing_in_a_breakdown_that_was_declared_since(
    declared: str, tmp_path: Path
) -> None:
    """It was counted in the counter alone: so it is corrected there alone."""
    at = f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
    whole = f"at,country\n{at},DE\n{at},Austria\n".encode()
    given = {**COLUMNS, "key_column": "", "dimensions": (("country", "country"),)}
    source = write(tmp_path / "a.csv", whole[:-5])
    assert add(declared, source, **given).amount == 2
    set_counter(declared, breakdowns=["page", "page,country", "country"])
    write(source, whole)
    add(declared, source, **given)
    assert of(declared, 3) == {}
    assert sum(totals(declared).values()) == 2


def test_a_counter_with_breakdowns_is_not_reconciled(declared: str, tmp_path: Path) -> None:
    source = write(tmp_path / "access.log", line("/a"))
    with pytest.raises(BackfillError, match="has breakdowns, which a reconcile cannot set"):
        add(declared, source, mode="reconcile")
    assert totals(declared) == {}
    # Refused for another reason without them: nobody says where the queue is.
    set_counter(declared, breakdowns=[])
    with pytest.raises(BackfillError, match="--redis-url"):
        add(declared, source, mode="reconcile")


def test_sums_of_a_breakdown_pass_64_bits(declared: str, tmp_path: Path) -> None:
    lines = [f"{DAY}T12:00:01Z,/a,DE,{MAX}", f"{DAY}T12:00:02Z,/b,DE,{-MAX}"] * 2
    source = write(tmp_path / "a.csv", "\n".join(["at,page,country,n", *lines, ""]).encode())
    given = {
        "input_format": "csv",
        "time_column": "at",
        "amount_column": "n",
        "dimensions": (("page", "page"), ("country", "country")),
    }
    add(declared, source, **given)
    assert of(declared, 1) == {(DAY, "/a"): 2 * MAX, (DAY, "/b"): -2 * MAX}
    assert totals(declared) == {}  # 0: they add up to nothing


BOTH = (("country", "status"), ("page", "path"))


@pytest.mark.servers("mariadb", "mysql")
def test_a_log_is_counted_once_in_the_breakdowns_and_taken_back(
    declared: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "access.log", log("/a", "/b", "/a?x") + line("/a", status=404))
    report = add(declared, source, dimensions=BOTH)
    assert details(report) == ""
    assert totals(declared) == {(DAY, ""): 4}
    assert of(declared, 1) == {(DAY, "/a"): 3, (DAY, "/b"): 1}
    assert of(declared, 2) == {
        (DAY, composite(["/a", "200"])): 2,
        (DAY, composite(["/b", "200"])): 1,
        (DAY, composite(["/a", "404"])): 1,
    }
    assert add(declared, source, dimensions=BOTH).counted == 0
    undo(declared, run_of(report))
    for name in COUNTER, f"{COUNTER}#1", f"{COUNTER}#2":
        assert totals(declared, name) == {}


def test_a_dimension_that_is_not_declared_counts_nothing_and_says_so(
    declared: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "access.log", log("/a"))
    with pytest.raises(UnknownDimension, match="no dimension 'client'"):
        add(declared, source, dimensions=(("client", "host"),))
    assert totals(declared) == {}
    # Declared, it is counted.
    set_counter(declared, dimensions=["page", "country", "client"])
    assert add(declared, source, dimensions=(("client", "host"),)).counted == 1
    assert of(declared, 1) == {(DAY, ""): 1}
