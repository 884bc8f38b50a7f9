"""Listing what backfills there were, however much there is to list."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from countersink.backfill import history
from countersink.backfill.count import targets
from countersink.backfill.options import Recipe
from countersink.counting.counters.buckets import NUMBER, Width
from countersink.database.session import Session
from countersink.logs.template import Condition
from countersink.store import Store
from tests.backfill.helpers import Logs, log, long_log, run_of, write
from tests.backfill.truths import new_run


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows a page."""
    monkeypatch.setattr(history, "PAGE", 4)


def test_a_run_says_what_was_asked_and_what_it_came_to(logs: Logs, session: Session) -> None:
    source = logs.write("ä\udcff.log", log("/a", "/b?x", "/c.css") + b"nonsense\n")
    report = logs.add(
        source,
        rejects=logs.directory / "rejects",
        where=(Condition("status", "=", "200"),),
        exclude_keys=("*.css",),
        start=date(2026, 3, 1),
        strip_query=True,
    )
    run = history.run(session, run_of(report))
    assert run.recipe == Recipe(
        where=(Condition("status", "=", "200"),),
        exclude_keys=("*.css",),
        start=date(2026, 3, 1),
        strip_query=True,
    )
    assert (run.counter, run.mode, run.state, run.error) == ("views", "add", "done", None)
    assert (run.lines, run.counted, run.filtered, run.rejected, run.amount) == (4, 2, 1, 1, 2)
    assert run.size_bytes == source.stat().st_size
    assert [Path(name).name for name in run.sources] == ["ä\\xff.log"]
    now = datetime.now(UTC).replace(tzinfo=None)
    assert run.ended is not None
    assert now - timedelta(minutes=5) < run.started <= run.seen <= run.ended
    assert history.runs(session) == history.runs(session, "views") == [run]
    assert history.runs(session, "view") == []


def test_the_sources_of_a_run_are_those_it_read_anything_new_of(
    logs: Logs, session: Session
) -> None:
    logs.small_chunks(10)
    old = logs.write("old.log", long_log(30))
    logs.add(old)
    grown, new = logs.write("grown.log", long_log(20, first=50)), logs.directory / "new.log"
    logs.add(grown)
    write(grown, long_log(35, first=50))
    run = logs.run(old, grown, write(new, long_log(10, first=100) + b"\x00x\n"))
    found = history.sources_of(session, run)
    assert [(one.path, one.chunks, one.lines, one.rejected) for one in found] == [
        (str(grown), 2, 15, 0),
        (str(new), 2, 11, 1),
    ]
    assert [one.amount for one in found] == [15, 10]
    logs.undo(run)
    assert history.sources_of(session, run) == []
    assert history.sources_of(session, 10**6) == []


@pytest.mark.parametrize("keys", [1, 3, 4, 5, 8, 9])
def test_all_corrections_are_listed_in_order(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.setattr(targets, "_ROWS_PER_DELETE", 3)
    store.counters.set("views", time_zone="Asia/Tokyo")
    run, other = new_run(session), new_run(session)
    buckets: list[tuple[str, Width]] = [
        ("2026-03-14 00:00:00", "hour"),
        ("2026-03-14 00:00:00", "day"),
        ("2026-03-15 00:00:00", "minute"),
        ("2026-03-15 20:00:00", "quarter"),
    ]
    for bucket, width in buckets:
        at = bucket, NUMBER[width]
        for number in range(keys):
            session.execute(
                "INSERT INTO backfill_correction (run, bucket, width, counter_key, had, should_be)"
                " VALUES (%s, %s, %s, %s, %s, %s), (%s, %s, %s, 'x', 1, 2),"
                " (%s, %s, %s, %s, NULL, 1) ON DUPLICATE KEY UPDATE had = 1",
                (run, *at, f"/{number}", 10, number, other, *at, run, *at, f"/{number}/said"),
            )
    found = list(history.drift(session, run))
    assert [(str(one.bucket), one.width, one.key) for one in found] == [
        (*bucket, f"/{number}") for bucket in buckets for number in range(keys)
    ]
    assert [one.delta for one in found[:keys]] == [number - 10 for number in range(keys)]
    # In its zone the quarter is of the next day.
    days = [str(one.day) for one in found[::keys]]
    assert days == ["2026-03-14", "2026-03-14", "2026-03-15", "2026-03-16"]
    assert len(list(history.drift(session, other))) == 4
    targets.discard_truth(session, run)
    assert list(history.drift(session, run)) == found
    assert session.query("SELECT COUNT(*), COUNT(had) FROM backfill_correction") == [
        (4 * keys + 4, 4 * keys + 4)
    ]
    session.execute("DELETE FROM backfill_correction")  # of rows that there never were
