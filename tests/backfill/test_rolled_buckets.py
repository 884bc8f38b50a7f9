"""Backfill, reconcile and their undo, where buckets were rolled up to wider ones."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from countersink.backfill.reconcile import correction
from countersink.counting.counters.buckets import ONE_DAY, WIDTHS, Width
from countersink.database.session import Session
from countersink.schedules.jobs.move import PassDone
from countersink.store import Store
from tests.backfill.helpers import Logs, line, write
from tests.backfill.truths import Scene, hour_ago
from tests.support.entries import once, rolled_up, says
from tests.support.proxies import MySQLProxy
from tests.support.traffic import now_minute

KEPT = "minute=2d,hour=90d"
A_DAY = 1440


@pytest.fixture(autouse=True)
def kept(store: Store, logs: Logs) -> Iterator[None]:
    """The counter keeps minutes for two days; and whatever is done, verify is content."""
    store.counters.set("views", resolution="minute", keep=KEPT)
    yield
    logs.require_verified()


def noon(days_ago: int) -> int:
    """The Unix minute of a noon in UTC."""
    return now_minute() // A_DAY * A_DAY - days_ago * A_DAY + 720


def day_of(at: int) -> date:
    return datetime.fromtimestamp(at * 60, UTC).date()


def widths(session: Session) -> dict[Width, int]:
    """How many rows there are of each width."""
    return {
        WIDTHS[width - 1]: int(rows)
        for width, rows in session.query(
            "SELECT width, COUNT(*) FROM counter_slot GROUP BY width ORDER BY width"
        )
    }


def log(path: Path, at: int, *keys: str) -> Path:
    begins = datetime.fromtimestamp(at * 60, UTC)
    return write(path, b"".join(line(key, at=begins, minutes=n) for n, key in enumerate(keys)))


# -- adding -------------------------------------------------------------------------------------


def test_a_log_of_days_that_are_rolled_up_is_added_and_taken_back(logs: Logs, scene: Scene) -> None:
    old = noon(4)
    scene.count({(old, "/a"): 1, (old + 1, "/b"): 2})
    rolled_up(logs.url)
    report = logs.add(log(logs.directory / "a.log", old, *["/a", "/b", "/c"] * 3))
    assert scene.by_key() == {"/a": 4, "/b": 5, "/c": 3}
    assert widths(scene.session) == {"hour": 2, "minute": 9}
    logs.require_verified()
    assert rolled_up(logs.url).rolled_up == 9
    assert scene.by_key() == {"/a": 4, "/b": 5, "/c": 3}
    assert widths(scene.session) == {"hour": 3}
    done = logs.undo(report)
    assert (done.state, done.amount) == ("undone", -9)
    assert scene.by_key() == {"/a": 1, "/b": 2, "/c": 0}
    logs.require_verified()
    rolled_up(logs.url)
    assert widths(scene.session) == {"hour": 3}
    assert scene.by_key() == {"/a": 1, "/b": 2, "/c": 0}
    assert scene.store.totals.total("views", start=day_of(old), end=day_of(old)) == 3


@pytest.mark.servers("mariadb", "mysql")
def test_a_log_is_taken_back_while_its_minutes_become_wider(
    logs: Logs, scene: Scene, proxy: MySQLProxy
) -> None:
    at = noon(4)
    added = logs.run(log(logs.directory / "a.log", at, *["/a", "/b"] * 300))
    # When three of its hours are moved, and the others are not.
    rule = once(proxy, says("FOR UPDATE NOWAIT"), lambda: logs.undo(added), skip=3)
    assert rolled_up(proxy.url(logs.url)).rolled_up >= 180
    assert rule.acted == 1
    assert scene.by_key() == {"/a": 0, "/b": 0}
    logs.require_verified()
    rolled_up(logs.url)
    assert scene.by_key() == {"/a": 0, "/b": 0}
    assert set(widths(scene.session)) == {"hour"}


# -- reconciling --------------------------------------------------------------------------------


def test_days_in_wider_buckets_are_set_like_others(scene: Scene) -> None:
    old, new = noon(6), noon(2)
    scene.set_counter(keep="minute=4d,hour=90d")
    scene.count({(old, "/"): 1, (old + 1, "/gone"): 3, (new, "/"): 1})
    rolled_up(scene.url)
    run = scene.said_by({(old, "/"): 10, (old + 1, "/"): 5, (new, "/"): 10})
    done = scene.correct(run)
    assert done.notices == []
    assert scene.by_key() == {"/": 25, "/gone": 3}
    assert scene.marks(run) == {day_of(old) + ONE_DAY * number for number in range(5)}
    assert scene.store.totals.total("views", start=day_of(old), end=day_of(old)) == 18
    rolled_up(scene.url)
    assert scene.by_key() == {"/": 25, "/gone": 3}
    assert widths(scene.session) == {"minute": 2, "hour": 3}  # rows of several slots
    scene.undo(run)
    assert scene.by_key() == {"/": 2, "/gone": 3}
    rolled_up(scene.url)
    assert scene.by_key() == {"/": 2, "/gone": 3}


@pytest.mark.parametrize("delete_missing", [False, True])
def test_the_day_in_which_the_boundary_lies_is_set_whole(
    scene: Scene, delete_missing: bool
) -> None:
    begins = noon(3) - 720
    until_noon = now_minute() - noon(3)
    scene.set_counter(keep=f"minute={until_noon}m,hour=90d")
    events = [(begins, "/x"), (begins + A_DAY - 1, "/x"), (begins + A_DAY, "/x"), (begins, "/y")]
    scene.count(dict.fromkeys(events, 1))
    rolled_up(scene.url)
    assert widths(scene.session) == {"minute": 2, "hour": 2}
    run = scene.said_by(dict.fromkeys(events[:3], 10))
    done = scene.correct(run, delete_missing=delete_missing)
    assert done.notices == []
    assert scene.by_key() == {"/x": 30, "/y": 0 if delete_missing else 1}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("skip", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "before", ["control WHERE id = 1 LOCK IN SHARE", "INTO backfill_correction (run"]
)
def test_the_boundary_moves_between_the_sources_and_the_correction(
    logs: Logs, scene: Scene, proxy: MySQLProxy, before: str, skip: int
) -> None:
    """Days that are set stay set, in the hours that they are rolled up to by then."""
    logs.monkeypatch.setattr(correction, "ROWS", 2)
    scene.set_counter(keep="minute=50d")
    minutes = [noon(4), noon(4) + 1, noon(3), noon(3) + 1]
    had = {(at, key): 1 for at in minutes for key in ("/", "/a")}
    scene.count(had)
    run = scene.said_by({(at, "/"): 10 for at in minutes} | {(minutes[0], "/a"): 7})
    scene.set_counter(keep=KEPT)
    with ThreadPoolExecutor(1) as others:
        moving: list[Future[PassDone]] = []

        def move() -> None:
            moving.append(others.submit(rolled_up, scene.url))
            if "SHARE" in before:
                moving[-1].result(30)  # nobody holds anything yet

        rule = once(proxy, says(before), move, skip=skip)
        done = scene.correct(run, proxy=proxy)
        for each in moving:
            each.result(30)
    assert done.notices == []
    assert scene.by_key() == {"/": 40, "/a": 7 + 2}
    rolled_up(scene.url)
    assert scene.by_key() == {"/": 40, "/a": 7 + 2}
    assert set(widths(scene.session)) == {"hour"}
    logs.require_verified()
    scene.undo(run)
    assert scene.by_key() == {"/": 4, "/a": 4}
    assert rule.acted == (skip < 3)


def test_marks_keep_late_entries_out_after_their_buckets_became_wider(
    logs: Logs, scene: Scene
) -> None:
    scene.set_counter(keep="minute=50d")
    at = noon(4)
    scene.count({(at, "/"): 3})
    run = scene.said_by({(at, "/"): 10})
    t0 = hour_ago()
    assert scene.correct(run, t0).corrections == 1
    scene.set_counter(keep=KEPT)
    assert rolled_up(scene.url).rolled_up == 2

    def late(sent: int) -> int:
        return scene.late((0, "views", "/", at, 1), sent=sent)

    assert late(t0 - 1) == 1
    assert scene.by_key() == {"/": 10}
    assert late(t0 + 1) == 0
    rolled_up(scene.url)
    assert late(t0 - 2) == 1
    assert scene.by_key() == {"/": 11}
    done = scene.undo(run)
    assert (done.state, done.amount) == ("undone", -7)
    assert scene.by_key() == {"/": 4}
    logs.require_verified()
    assert late(t0 - 3) == 0
    rolled_up(scene.url)
    assert scene.by_key() == {"/": 5}
    assert widths(scene.session) == {"hour": 1}
