"""Taking a reconcile back: exactly its corrections, whatever has happened since."""

from datetime import date
from functools import partial

import pytest

from countersink.backfill import retraction
from countersink.backfill.errors import BackfillError
from countersink.backfill.undo import undo
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_moving
from countersink.schedules.jobs.retention import roll_up
from countersink.store.counters.buckets import width_of
from countersink.store.sessions import open_tables
from countersink.store.sql import day_label
from countersink.stream.entry import new_entry_id
from tests.backfill.truths import (
    DAY,
    NEXT,
    Scene,
    hour_ago,
    on_days,
)
from tests.store.helpers import MAX, entry, minute, together
from tests.support.proxies.mysql_proxy import MySQLProxy
from tests.support.proxies.rules import Deed, Phase

pytestmark = pytest.mark.servers("mariadb", "mysql")

BEFORE = {(DAY, "/a"): 5, (DAY, "/gone"): 2, (NEXT, "/a"): 1}
SAID = {(DAY, "/a"): 7, (DAY, "/b"): 3, (NEXT, "/a"): -4}


@pytest.fixture
def run(scene: Scene) -> int:
    """A reconcile that is done."""
    scene.count(BEFORE)
    number = scene.said_by(SAID)
    scene.correct(number, delete_missing=True)
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    return number


def test_what_was_before_is_there_again_and_what_came_since_stays(scene: Scene, run: int) -> None:
    scene.count({(DAY, "/a"): 100, (NEXT, "/c"): 1})
    done = undo(scene.url, run)
    assert (done.state, done.mode, done.cells, done.amount) == (
        "undone",
        "reconcile",
        4,
        -2 + 2 - 3 + 5,
    )
    assert scene.totals() == on_days({**BEFORE, (DAY, "/a"): 105, (NEXT, "/c"): 1})
    assert (scene.marks(run), scene.drift(run)) == (set(), {})
    with pytest.raises(BackfillError, match="was undone"):
        undo(scene.url, run)


def test_what_came_late_counts_again_from_then_on(scene: Scene, run: int) -> None:
    sent = hour_ago() - 5000

    def late() -> int:
        row = (0, "views", "/a", minute(DAY), 1)
        return scene.applier.apply(
            [entry([row], id=bytes.fromhex(new_entry_id(sent)), at=sent)]
        ).dead

    assert late() == 1
    undo(scene.url, run)
    assert late() == 0
    assert scene.totals()[day_label(DAY), "/a"] == 6


def test_after_compaction_and_roll_up(scene: Scene, run: int) -> None:
    compact(lambda: open_moving(scene.url), CompactOptions(grace_s=0.0))
    scene.store.counters.set("views", keep="day=30d")
    roll_up(lambda: open_moving(scene.url))
    assert {width_of(label) for label, _ in scene.totals()} == {"month"}
    undo(scene.url, run)
    assert scene.store.totals.total("views", key="/a") == 6
    assert dict(scene.store.totals.by_key("views")) == {"/a": 6, "/gone": 2, "/b": 0}
    roll_up(lambda: open_moving(scene.url))
    assert {width_of(label) for label, _ in scene.totals()} == {"month"}
    assert scene.store.totals.total("views", start=date(2026, 3, 1), end=date(2026, 3, 31)) == 8


def test_two_at_once_take_it_back_once(
    scene: Scene, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    scene.session.execute("UPDATE backfill_run SET state = 'undoing'")
    opened = partial(open_tables, scene.url)
    done = together(*(partial(retraction.take_corrections_back, opened, run) for _ in range(2)))
    assert sum(one.cells for one in done) == 4
    assert scene.totals() == on_days(BEFORE)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_lost_commit_is_no_matter(
    scene: Scene,
    run: int,
    proxy: MySQLProxy,
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
    skip: int,
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    scene.session.execute("UPDATE backfill_run SET state = 'undoing'")
    rule = proxy.when("commit_other", phase, Deed.CUT, skip=skip, times=1)
    done = retraction.take_corrections_back(partial(open_tables, proxy.url(scene.url)), run)
    assert rule.acted == 1
    assert done.finished
    assert scene.totals() == on_days(BEFORE)


def test_stopped_it_goes_on_where_it_was(
    scene: Scene, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraction, "ROWS", 1)
    told: list[tuple[int, int]] = []
    scene.session.execute("UPDATE backfill_run SET state = 'undoing'")
    opened = partial(open_tables, scene.url)
    first = retraction.take_corrections_back(
        opened, run, on_progress=lambda *done: told.append(done), stop=lambda: len(told) == 3
    )
    assert (first.chunks, first.cells, first.finished) == (3, 3, False)
    assert told == [(1, 4), (2, 4), (3, 4)]
    assert scene.marks(run)
    second = retraction.take_corrections_back(opened, run)
    assert (second.chunks, second.finished) == (1, True)
    assert first.amount + second.amount == 2
    assert scene.totals() == on_days(BEFORE)


def test_one_that_was_killed_in_the_midst_and_the_one_that_made_it_right(
    scene: Scene, run: int
) -> None:
    scene.count({(DAY, "/b"): 1})
    again = scene.said_by({**SAID, (DAY, "/b"): 30})
    scene.correct(again)
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    # In whatever order.
    undo(scene.url, run)
    assert scene.totals()[day_label(DAY), "/b"] == 27
    assert scene.marks(again)
    undo(scene.url, again)
    assert scene.totals() == on_days({**BEFORE, (DAY, "/b"): 1})


def test_totals_that_pass_64_bits_are_taken_back(scene: Scene) -> None:
    scene.count({(DAY, "/"): MAX})
    run = scene.said_by({(DAY, "/"): -MAX})
    scene.correct(run)
    for _ in range(2):
        scene.count({(DAY, "/"): MAX})
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    undo(scene.url, run)
    assert scene.totals() == on_days({(DAY, "/"): 3 * MAX})


def test_a_counter_that_is_a_tables_by_now_is_left_alone(scene: Scene, run: int) -> None:
    scene.session.execute(
        "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots,"
        " triggers, created) VALUES ('views', 'app', 'orders', '[]', 16, 'x', NOW(3))"
    )
    before = scene.totals()
    with pytest.raises(BackfillError, match="tracked table"):
        undo(scene.url, run)
    assert scene.totals() == before
