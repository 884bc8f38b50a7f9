"""Breakdowns that were declared later, filled by backfills of what their counter has counted
before: into the breakdown alone, each event once, until it begins earlier.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill import history
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillReport
from countersink.backfill.undo import undo
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.apply.control import bump, exclusive
from countersink.store.counters import breakdowns
from countersink.store.sessions import open_tables
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    add,
    details,
    outcomes,
    query,
    require_verified,
    run_of,
    set_counter,
    small_chunks,
    totals,
    write,
)
from tests.store.helpers import entry
from tests.support.examples import MANY

Event = tuple[datetime, str, str]
"""Time, page, country."""
CSV: dict[str, Any] = {"input_format": "csv", "time_column": "at"}
BOTH = (("page", "page"), ("country", "cc"))
BY_PAGE, BY_COUNTRY, BY_BOTH = (f"{COUNTER}#{number}" for number in (1, 2, 3))
NOON = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)


def csv(path: Path, events: Iterable[Event]) -> Path:
    """A source of some events."""
    rows = "".join(f"{at:%Y-%m-%dT%H:%M:%SZ},{page},{country}\n" for at, page, country in events)
    return write(path, f"at,page,cc\n{rows}".encode())


def event(country: str = "DE", page: str = "/a", at: datetime = NOON) -> Event:
    return at, page, country


def fill(
    mysql_url: str, *sources: Path, breakdown: str = "country", **given: Any
) -> BackfillReport:
    """Fill a breakdown."""
    own = {"dimensions": BOTH, **CSV, **given}
    return add(mysql_url, *sources, breakdown=breakdown, **own)


def count(mysql_url: str, *sources: Path, **given: Any) -> BackfillReport:
    """Count sources as what never arrived."""
    return add(mysql_url, *sources, **CSV, dimensions=BOTH, **given)


def begins(mysql_url: str, name: str, at: datetime) -> None:
    """Let a breakdown begin at a time, as if it had been declared then."""

    def work(_: object) -> None:
        breakdowns.begin_at(session, name, int(at.timestamp()) // 60)
        bump(session)

    with open_tables(mysql_url) as session:
        exclusive(session, work)


def complete(mysql_url: str, first: str = DAY, breakdown: str = "country") -> None:
    """Let a filled breakdown begin on a day."""
    set_counter(mysql_url, breakdown_since={breakdown: date.fromisoformat(first)})


@pytest.fixture
def declared(mysql_url: str) -> str:
    """A counter that is broken down by page; its database."""
    set_counter(mysql_url, dimensions=["page", "country"], breakdowns=["page"])
    return mysql_url


@pytest.fixture
def later(declared: str, tmp_path: Path) -> Iterator[str]:
    """Three events were counted; then two more breakdowns were declared."""
    events = [event("DE"), event("AT", "/b"), event("DE", "/b")]
    count(declared, csv(tmp_path / "history.csv", events))
    set_counter(declared, breakdowns=["page", "country", "page,country"])
    yield declared
    require_verified(declared)


def test_events_of_before_a_breakdown_are_counted_in_it_alone_and_once(
    later: str, tmp_path: Path
) -> None:
    history_file = tmp_path / "history.csv"
    assert totals(later, BY_COUNTRY) == {}
    filled = fill(later, history_file)
    assert (filled.state, filled.counted, filled.amount) == ("done", 3, 3)
    assert (filled.counter, filled.breakdown) == (COUNTER, "country")
    assert totals(later, BY_COUNTRY) == {(DAY, "DE"): 2, (DAY, "AT"): 1}
    assert totals(later) == {(DAY, ""): 3}
    assert totals(later, BY_PAGE) == {(DAY, "/a"): 1, (DAY, "/b"): 2}
    assert totals(later, BY_BOTH) == {}
    again = fill(later, history_file)
    assert (again.amount, outcomes(again)) == (0, ["known"])
    # Neither is it known as another breakdown's, nor as the counter's.
    assert fill(later, history_file, breakdown="page,country").amount == 3
    assert outcomes(count(later, history_file)) == ["known"]
    assert totals(later, BY_BOTH) == {
        (DAY, "/a\0DE"): 1,
        (DAY, "/b\0AT"): 1,
        (DAY, "/b\0DE"): 1,
    }
    assert totals(later) == {(DAY, ""): 3}


def test_a_breakdown_answers_from_the_day_on_from_which_it_was_filled(
    later: str, tmp_path: Path
) -> None:
    fill(later, tmp_path / "history.csv")
    with Store(later) as store:
        before = store.counters.show(COUNTER).breakdowns[1].since
        assert before
        complete(later)
        since = store.counters.show(COUNTER).breakdowns[1].since
        assert since == int(datetime(2026, 3, 14, tzinfo=UTC).timestamp()) // 60
        assert dict(store.totals.by(COUNTER, ["country"])) == {("DE",): 2, ("AT",): 1}
        # What is counted of these days from now on is in both.
        count(later, csv(tmp_path / "late.csv", [event("CH")]))
        assert totals(later, BY_COUNTRY)[DAY, "CH"] == 1
        assert totals(later)[DAY, ""] == 4
        complete(later)
        with pytest.raises(ValueError, match=r"2026-03-15 is too late: .* from 2026-03-14T00:00Z"):
            complete(later, "2026-03-15")
        with pytest.raises(ValueError, match="no breakdown cc"):
            complete(later, breakdown="cc")


def test_a_breakdown_that_lacks_events_does_not_begin_earlier(later: str, tmp_path: Path) -> None:
    next_day = NOON + timedelta(days=1)
    more = [event("DE", at=next_day), event("AT", at=next_day)]
    count(later, csv(tmp_path / "more.csv", more))
    fill(later, tmp_path / "history.csv", csv(tmp_path / "half.csv", more[:1]))
    said = "on 2026-03-15 it holds 1, and views 2 under the key ''"
    with pytest.raises(ValueError, match=said):
        complete(later)
    fill(later, csv(tmp_path / "rest.csv", more[1:]))
    complete(later)
    assert totals(later, BY_COUNTRY)["2026-03-15", "AT"] == 1


def test_months_that_were_rolled_up_are_compared_as_months(later: str, tmp_path: Path) -> None:
    fill(later, tmp_path / "history.csv")
    set_counter(later, keep_days=31)
    roll_up(partial(open_mover, later))
    assert totals(later) == totals(later, BY_COUNTRY) == {}
    with pytest.raises(ValueError, match="name the first day of a month"):
        complete(later)
    more = csv(tmp_path / "more.csv", [event("CH", at=NOON + timedelta(days=1))])
    filled = fill(later, more)
    with pytest.raises(ValueError, match="in 2026-03 it holds 4, and views 3"):
        complete(later, "2026-03-01")
    undo(later, run_of(filled))
    complete(later, "2026-03-01")


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.parametrize("seed", range(4 if MANY else 1))
@pytest.mark.parametrize("resolution", ["day", "quarter"])
def test_what_random_logs_fill_is_what_is_in_them(
    declared: str,
    applier: Applier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    resolution: Any,
) -> None:
    """Live events and backfills before and after a breakdown begins, in the midst of a bucket."""
    rng = random.Random(seed)
    small_chunks(monkeypatch, 40)
    set_counter(declared, time_zone="Europe/Berlin", resolution=resolution)
    events = [
        event(
            rng.choice(["DE", "AT", "CH"]),
            rng.choice(["/a", "/b", "/c"]),
            NOON + timedelta(minutes=rng.randrange(-4 * 1440, 4 * 1440)),
        )
        for _ in range(300)
    ]
    live, logged, late = (events[part::3] for part in range(3))
    starts = {
        "country": NOON + timedelta(minutes=rng.randrange(-600, 600)),
        "page,country": NOON + timedelta(minutes=rng.randrange(-600, 600)),
    }
    set_counter(declared, breakdowns=["page", *starts])
    for name, at in (BY_COUNTRY, starts["country"]), (BY_BOTH, starts["page,country"]):
        begins(declared, name, at)
    apply(applier, live)
    count(declared, csv(tmp_path / "logged.csv", logged))
    everything = csv(tmp_path / "all.csv", events)
    for breakdown in starts:
        report = fill(declared, everything, breakdown=breakdown)
        early = sum(at < starts[breakdown] for at, _, _ in events)
        assert (report.counted, report.filtered) == (early, len(events) - early)
    # Those that are later than both beginnings are in all of them; the others were filled already.
    count(declared, csv(tmp_path / "late.csv", late))
    for breakdown in starts:
        complete(declared, "2026-03-10", breakdown)
        assert fill(declared, everything, breakdown=breakdown).amount == 0
    expected = Counter(country for _, _, country in events)
    by_both = Counter((page, country) for _, page, country in events)
    with Store(declared) as store:
        found = {values[0]: total for values, total in store.totals.by(COUNTER, ["country"])}
        assert found == dict(expected)
        both = dict(store.totals.by(COUNTER, ["page", "country"]))
        assert both == dict(by_both)
        assert store.totals.total(COUNTER) == len(events)
    require_verified(declared)


def apply(applier: Applier, events: Iterable[Event]) -> None:
    """Count events as a worker does."""
    rows: list[Any] = [
        (number, COUNTER, (("country", country), ("page", page)), int(at.timestamp()) // 60, 1)
        for number, (at, page, country) in enumerate(events)
    ]
    applier.apply([entry(rows)])


@pytest.mark.servers("mariadb", "mysql")
def test_what_was_filled_is_taken_back_and_filled_again(later: str, tmp_path: Path) -> None:
    filled = fill(later, tmp_path / "history.csv")
    done = undo(later, run_of(filled))
    assert (done.counter, done.breakdown, done.amount) == (COUNTER, "country", -3)
    assert totals(later, BY_COUNTRY) == {}
    assert totals(later) == {(DAY, ""): 3}
    assert fill(later, tmp_path / "history.csv").amount == 3
    with open_tables(later) as session:
        assert [run.state for run in history.runs(session, COUNTER)] == ["done", "undone", "done"]
        assert history.runs(session, "view_") == []


def test_what_is_in_a_breakdown_by_filling_it_is_not_taken_back(later: str, tmp_path: Path) -> None:
    """Neither from the breakdown, which says that it holds everything; nor from the counter."""
    filled = fill(later, tmp_path / "history.csv")
    complete(later)
    with open_tables(later) as session:
        runs = [run.id for run in history.runs(session)]
    assert filled.run in runs
    for run in runs:
        with pytest.raises(BackfillError, match="the breakdown country was filled"):
            undo(later, run)
    assert totals(later) == {(DAY, ""): 3}
    # What was counted into both is.
    late = count(later, csv(tmp_path / "late.csv", [event("CH")]))
    undo(later, run_of(late))
    assert totals(later, BY_COUNTRY) == {(DAY, "DE"): 2, (DAY, "AT"): 1}
    # Without the breakdown nothing is in the way.
    set_counter(later, breakdowns=["page"])
    undo(later, runs[-1])
    assert totals(later) == {}


def test_a_run_that_is_undone_in_part_keeps_a_breakdown_from_beginning_earlier(
    later: str, tmp_path: Path
) -> None:
    filled = fill(later, tmp_path / "history.csv")
    assert undo(later, run_of(filled), stop=lambda: True).state == "undoing"
    with pytest.raises(ValueError, match=f"backfill {filled.run} is undone in part"):
        complete(later)
    undo(later, run_of(filled))
    with pytest.raises(ValueError, match="it holds 0"):
        complete(later)


@pytest.mark.servers("mariadb", "mysql")
def test_a_breakdown_that_begins_earlier_while_sources_are_read_is_filled_no_further(
    later: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 1)
    moved: list[bool] = []

    def move(_: object) -> None:
        if not moved and query(later, "SELECT 1 FROM counter_slot WHERE counter = %s", BY_COUNTRY):
            moved.append(True)
            begins(later, BY_COUNTRY, datetime(2026, 3, 14, tzinfo=UTC))

    report = fill(later, tmp_path / "history.csv", on_progress=move)
    assert report.state == "failed"
    assert "begin earlier while the sources were read" in details(report)
    assert moved
    assert sum(totals_of_breakdown(later).values()) < 3
    begins(later, BY_COUNTRY, datetime(2026, 3, 15, tzinfo=UTC))
    fill(later, tmp_path / "history.csv")
    assert totals_of_breakdown(later) == {"DE": 2, "AT": 1}


def totals_of_breakdown(mysql_url: str) -> dict[str, int]:
    """What the breakdown by country holds; while it is not whole, verify would say so."""
    found = query(
        mysql_url,
        "SELECT counter_key, SUM(amount) FROM counter_slot WHERE counter = %s GROUP BY counter_key",
        BY_COUNTRY,
    )
    return {bytes(key).decode(): int(amount) for key, amount in found}


def test_a_dry_run_says_what_would_be_filled(later: str, tmp_path: Path) -> None:
    report = fill(later, tmp_path / "history.csv", dry_run=True)
    assert (report.amount, report.by_day) == (3, ((DAY, 3),))
    assert totals(later, BY_COUNTRY) == {}
    assert fill(later, tmp_path / "history.csv").amount == 3


def test_bad_lines_are_rejected_and_the_others_filled(later: str, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.csv", b"at,page,cc\nyesterday,/a,DE\n2026-03-14T12:00Z,/a,DE\n")
    report = fill(later, bad)
    assert (report.counted, report.rejected) == (1, 1)
    assert totals(later, BY_COUNTRY) == {(DAY, "DE"): 1}


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"breakdown": "device"}, "has no breakdown device"),
    ({"breakdown": "country,page"}, "has no breakdown country,page"),
    ({"breakdown": "page"}, "holds all events of views"),
    ({"breakdown": "country page"}, "name one breakdown"),
    ({"breakdown": "country", "dimensions": (("page", "page"),)}, "--dimension country=FIELD"),
    (
        {"breakdown": "country", "dimensions": (*BOTH, ("device", "cc"))},
        "no dimension 'device'",
    ),
    ({"breakdown": "country", "mode": "reconcile"}, "goes with --mode add"),
    ({"breakdown": "country", "counter": "others"}, "'others' has no breakdown country"),
)


def test_what_cannot_be_filled_is_refused(later: str, tmp_path: Path) -> None:
    for given, said in REFUSED:
        with pytest.raises(BackfillError, match=said):
            fill(later, tmp_path / "history.csv", **given)
    assert query(later, "SELECT COUNT(*) FROM backfill_run") == [(1,)]


def test_a_line_without_its_end_leaves_nothing_in_a_breakdown_that_was_declared_since(
    declared: str, tmp_path: Path
) -> None:
    """It was counted in the counter alone: so it is corrected there alone."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    whole = csv(tmp_path / "a.csv", [event("DE", at=now), event("Austria", at=now)]).read_bytes()
    file = write(tmp_path / "a.csv", whole[:-5])
    assert count(declared, file).amount == 2
    set_counter(declared, breakdowns=["page", "country"])
    write(file, whole)
    count(declared, file)
    assert totals(declared, BY_COUNTRY) == {}
    assert sum(totals(declared).values()) == 2


def test_what_is_filled_goes_on_in_a_line_that_had_no_end(later: str, tmp_path: Path) -> None:
    file = tmp_path / "grown.csv"
    whole = csv(file, [event("DE"), event("Austria")]).read_bytes()
    write(file, whole[:-5])
    fill(later, file)
    assert totals(later, BY_COUNTRY) == {(DAY, "DE"): 1, (DAY, "Aus"): 1}
    write(file, whole)
    fill(later, file)
    assert totals(later, BY_COUNTRY) == {(DAY, "DE"): 1, (DAY, "Austria"): 1}
