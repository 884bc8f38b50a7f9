"""Taking a reconcile back: exactly its corrections, whatever has happened since."""

from datetime import date
from functools import partial
from typing import Any

import pytest

from countersink.backfill import undo
from countersink.backfill.errors import BackfillError
from countersink.backfill.undo import TakenBack
from countersink.counting.counters.buckets import width_of
from countersink.counting.errors import TrackedCounter
from countersink.database.sessions import open_tables
from countersink.database.sql import day_label
from tests.backfill.truths import (
    DAY,
    NEXT,
    Scene,
    hour_ago,
    on_days,
)
from tests.counting.test_tracked_refusals import track
from tests.support.entries import compacted, minute, rolled_up, together
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
    return number


@pytest.fixture
def singly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One correction in a transaction."""
    monkeypatch.setattr(undo, "ROWS", 1)


def take_back(scene: Scene, run: int, url: str = "", **asides: Any) -> TakenBack:
    """Take corrections back of a run that is being undone."""
    opened = partial(open_tables, url or scene.url)
    scene.execute("UPDATE backfill_run SET state = 'undoing'")
    return undo.take_corrections_back(opened, run, **asides)


def test_what_was_before_is_there_again_and_what_came_since_stays(scene: Scene, run: int) -> None:
    scene.count({(DAY, "/a"): 100, (NEXT, "/c"): 1})
    done = scene.undo(run)
    assert (done.state, done.mode) == ("undone", "reconcile")
    assert (done.cells, done.amount) == (4, -2 + 2 - 3 + 5)
    assert scene.totals() == on_days({**BEFORE, (DAY, "/a"): 105, (NEXT, "/c"): 1})
    assert (scene.marks(run), scene.drift(run)) == (set(), {})
    with pytest.raises(BackfillError, match="was undone"):
        scene.undo(run)


def test_what_came_late_counts_again_from_then_on(scene: Scene, run: int) -> None:
    late = partial(scene.late, (0, "views", "/a", minute(DAY), 1), sent=hour_ago() - 5000)
    assert late() == 1
    scene.undo(run)
    assert late() == 0
    assert scene.totals()[day_label(DAY), "/a"] == 6


def test_after_compaction_and_roll_up(scene: Scene, run: int) -> None:
    compacted(scene.url, grace_s=0.0)
    scene.set_counter(keep="day=30d")
    rolled_up(scene.url)
    assert {width_of(label) for label, _ in scene.totals()} == {"month"}
    scene.undo(run)
    assert scene.store.totals.total("views", key="/a") == 6
    assert scene.by_key() == {"/a": 6, "/gone": 2, "/b": 0}
    rolled_up(scene.url)
    assert {width_of(label) for label, _ in scene.totals()} == {"month"}
    assert scene.store.totals.total("views", start=date(2026, 3, 1), end=date(2026, 3, 31)) == 8


@pytest.mark.usefixtures("singly")
def test_two_at_once_take_it_back_once(scene: Scene, run: int) -> None:
    done = together(*[partial(take_back, scene, run)] * 2)
    assert sum(one.cells for one in done) == 4
    assert scene.totals() == on_days(BEFORE)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.usefixtures("singly")
def test_a_lost_commit_is_no_matter(
    scene: Scene, run: int, proxy: MySQLProxy, phase: Phase, skip: int
) -> None:
    rule = proxy.when("commit_other", phase, Deed.CUT, skip=skip, times=1)
    done = take_back(scene, run, proxy.url(scene.url))
    assert rule.acted == 1
    assert done.finished
    assert scene.totals() == on_days(BEFORE)


@pytest.mark.usefixtures("singly")
def test_stopped_it_goes_on_where_it_was(scene: Scene, run: int) -> None:
    told: list[tuple[int, int]] = []
    first = take_back(
        scene, run, on_progress=lambda *done: told.append(done), stop=lambda: len(told) == 3
    )
    assert (first.chunks, first.cells, first.finished) == (3, 3, False)
    assert told == [(1, 4), (2, 4), (3, 4)]
    assert scene.marks(run)
    second = take_back(scene, run)
    assert (second.chunks, second.finished) == (1, True)
    assert first.amount + second.amount == 2
    assert scene.totals() == on_days(BEFORE)


def test_one_that_was_killed_in_the_midst_and_the_one_that_made_it_right(
    scene: Scene, run: int
) -> None:
    scene.count({(DAY, "/b"): 1})
    again = scene.said_by({**SAID, (DAY, "/b"): 30})
    scene.correct(again)
    # In whatever order.
    scene.undo(run)
    assert scene.totals()[day_label(DAY), "/b"] == 27
    assert scene.marks(again)
    scene.undo(again)
    assert scene.totals() == on_days({**BEFORE, (DAY, "/b"): 1})


def test_a_counter_that_is_a_tables_by_now_is_left_alone(scene: Scene, run: int) -> None:
    track(scene.session, "views")
    before = scene.totals()
    with pytest.raises(TrackedCounter, match="tracked table"):
        scene.undo(run)
    assert scene.totals() == before
