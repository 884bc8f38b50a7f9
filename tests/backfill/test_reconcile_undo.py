"""Taking a reconcile back: exactly its corrections, whatever has happened since."""

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill import reconcile, retraction
from countersink.backfill.errors import BackfillError
from countersink.backfill.undo import undo
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_moving
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply import cells
from countersink.store.apply.amounts import Amounts
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.sessions import open_tables
from countersink.stream.entry import new_entry_id
from tests.backfill.helpers import add, write
from tests.backfill.truths import (
    DAY,
    NEXT,
    count,
    drift,
    hour_ago,
    marks,
    on_days,
    options,
    said_by,
    totals,
)
from tests.store.helpers import MAX, entry, ledger, minute, together
from tests.support.proxies.mysql_proxy import MySQLProxy
from tests.support.proxies.rules import Deed, Phase

pytestmark = pytest.mark.servers("mariadb", "mysql")

BEFORE = {(DAY, "/a"): 5, (DAY, "/gone"): 2, (NEXT, "/a"): 1}
SAID = {(DAY, "/a"): 7, (DAY, "/b"): 3, (NEXT, "/a"): -4}


@pytest.fixture
def run(session: Session, applier: Applier, mysql_url: str) -> int:
    """A reconcile that is done."""
    count(applier, BEFORE)
    number = said_by(session, SAID)
    reconcile.correct(mysql_url, number, options(delete_missing=True), hour_ago())
    session.execute("UPDATE backfill_run SET state = 'done'")
    return number


def test_what_was_before_is_there_again_and_what_came_since_stays(
    store: Store, session: Session, applier: Applier, mysql_url: str, run: int
) -> None:
    count(applier, {(DAY, "/a"): 100, (NEXT, "/c"): 1})
    done = undo(mysql_url, run)
    assert (done.state, done.mode, done.cells, done.amount) == (
        "undone",
        "reconcile",
        4,
        -2 + 2 - 3 + 5,
    )
    assert totals(session) == on_days({**BEFORE, (DAY, "/a"): 105, (DAY, "/b"): 0, (NEXT, "/c"): 1})
    assert (marks(session, run), drift(session, run)) == (set(), {})
    with pytest.raises(BackfillError, match="was undone"):
        undo(mysql_url, run)


def test_what_came_late_counts_again_from_then_on(
    store: Store, session: Session, applier: Applier, mysql_url: str, run: int
) -> None:
    sent = hour_ago() - 5000

    def late() -> int:
        row = (0, "views", "/a", minute(DAY), 1)
        return applier.apply([entry([row], id=bytes.fromhex(new_entry_id(sent)), at=sent)]).dead

    assert late() == 1
    undo(mysql_url, run)
    assert late() == 0
    assert totals(session)[minute(DAY, 0) * 60, "/a"] == 6


def test_after_compaction_and_roll_up(
    store: Store, session: Session, mysql_url: str, run: int
) -> None:
    compact(lambda: open_moving(mysql_url), CompactOptions(grace_s=0.0))
    store.counters.set("views", keep_days=30)
    roll_up(lambda: open_moving(mysql_url))
    assert totals(session) == {}
    undo(mysql_url, run)
    assert store.totals.total("views", key="/a") == 6
    assert dict(store.totals.by_key("views")) == {"/a": 6, "/gone": 2, "/b": 0}
    roll_up(lambda: open_moving(mysql_url))
    assert totals(session) == {}
    assert store.totals.total("views", start=date(2026, 3, 1), end=date(2026, 3, 31)) == 8


def test_two_at_once_take_it_back_once(
    store: Store,
    session: Session,
    mysql_url: str,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    session.execute("UPDATE backfill_run SET state = 'undoing'")
    opened = partial(open_tables, mysql_url)
    done = together(*(partial(retraction.take_corrections_back, opened, run) for _ in range(2)))
    assert sum(one.cells for one in done) == 4
    assert totals(session) == on_days({**BEFORE, (DAY, "/b"): 0})


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_lost_commit_is_no_matter(
    store: Store,
    session: Session,
    mysql_url: str,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
    skip: int,
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    session.execute("UPDATE backfill_run SET state = 'undoing'")
    proxy = MySQLProxy.to(mysql_url)
    try:
        rule = proxy.when("commit_other", phase, Deed.CUT, skip=skip, times=1)
        done = retraction.take_corrections_back(partial(open_tables, proxy.url(mysql_url)), run)
    finally:
        proxy.close()
    assert rule.acted == 1
    assert done.finished
    assert totals(session) == on_days({**BEFORE, (DAY, "/b"): 0})


def test_stopped_it_goes_on_where_it_was(
    store: Store,
    session: Session,
    mysql_url: str,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    told: list[tuple[int, int]] = []
    session.execute("UPDATE backfill_run SET state = 'undoing'")
    opened = partial(open_tables, mysql_url)
    first = retraction.take_corrections_back(
        opened, run, on_progress=lambda *done: told.append(done), stop=lambda: len(told) == 3
    )
    assert (first.chunks, first.cells, first.finished) == (3, 3, False)
    assert told == [(1, 4), (2, 4), (3, 4)]
    assert marks(session, run)
    second = retraction.take_corrections_back(opened, run)
    assert (second.chunks, second.finished) == (1, True)
    assert first.amount + second.amount == 2
    assert totals(session) == on_days({**BEFORE, (DAY, "/b"): 0})


def test_one_that_was_killed_in_the_midst_and_the_one_that_made_it_right(
    store: Store, session: Session, applier: Applier, mysql_url: str, run: int
) -> None:
    count(applier, {(DAY, "/b"): 1})
    again = said_by(session, {**SAID, (DAY, "/b"): 30})
    reconcile.correct(mysql_url, again, options(), hour_ago())
    session.execute("UPDATE backfill_run SET state = 'done'")
    # In whatever order.
    undo(mysql_url, run)
    assert totals(session)[minute(DAY, 0) * 60, "/b"] == 27
    assert marks(session, again)
    undo(mysql_url, again)
    assert totals(session) == on_days({**BEFORE, (DAY, "/b"): 1})


def test_what_does_not_fit_one_slot_goes_to_another(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    count(applier, {(DAY, "/"): MAX})
    run = said_by(session, {(DAY, "/"): 0})
    reconcile.correct(mysql_url, run, options(), hour_ago())
    one = Amounts()
    one.add("views", minute(DAY, 0) * 60, "/", MAX)
    for slot in range(cells.FIRST_SLOT, cells.FIRST_SLOT + cells.SLOTS):
        with session.transaction():
            cells.add(session, slot, one)
    # Where the correction is, 0 is left.
    assert totals(session) == on_days({(DAY, "/"): MAX * cells.SLOTS})
    undo(mysql_url, run)
    assert totals(session) == on_days({(DAY, "/"): MAX * (cells.SLOTS + 1)})
    assert ledger(session) == {"views": MAX * (cells.SLOTS + 1)}


def test_a_counter_that_is_a_tables_by_now_is_left_alone(
    session: Session, mysql_url: str, run: int
) -> None:
    session.execute(
        "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots,"
        " triggers, created) VALUES ('views', 'app', 'orders', '[]', 16, 'x', NOW(3))"
    )
    before = totals(session)
    with pytest.raises(BackfillError, match="tracked table"):
        undo(mysql_url, run)
    assert totals(session) == before


def test_what_a_breakdown_was_filled_with_is_not_taken_back(
    store: Store, session: Session, applier: Applier, mysql_url: str, tmp_path: Path
) -> None:
    """Its counter would differ from it."""
    count(applier, {(DAY, ""): 5})
    number = said_by(session, {(DAY, ""): 2})
    reconcile.correct(mysql_url, number, options(delete_missing=True), hour_ago())
    session.execute("UPDATE backfill_run SET state = 'done'")
    store.counters.set("views", dimensions=["page"])
    store.counters.set("views", breakdowns=["page"])
    source = write(tmp_path / "a.csv", f"at,page\n{DAY}T12:00Z,/a\n{DAY}T13:00Z,/b\n".encode())
    csv: dict[str, Any] = {"input_format": "csv", "time_column": "at"}
    add(mysql_url, source, **csv, dimensions=(("page", "page"),), breakdown="page")
    store.counters.set("views", breakdown_since={"page": DAY})
    with pytest.raises(BackfillError, match="the breakdown page was filled"):
        undo(mysql_url, number)
    assert store.totals.total("views") == 2
    store.counters.set("views", breakdowns=[])
    undo(mysql_url, number)
    assert store.totals.total("views") == 5
