"""Backfill, reconcile and their undo, where buckets were rolled up to wider ones."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.reconcile import correction
from countersink.backfill.undo import undo
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.move import open_tables as open_moving
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.connection import Session
from countersink.store.counters.buckets import ONE_DAY, WIDTHS, Width
from countersink.stream.entry import new_entry_id
from tests.backfill.helpers import Logs, line, outcomes, require_verified, run_of, write
from tests.backfill.truths import Scene, hour_ago
from tests.store.helpers import entry
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.traffic import now_minute

KEPT = "minute=2d,hour=90d"
A_DAY = 1440


@pytest.fixture(autouse=True)
def kept(store: Store, mysql_url: str) -> Iterator[None]:
    """The counter keeps minutes for two days; and whatever is done, verify is content."""
    store.counters.set("views", resolution="minute", keep=KEPT)
    yield
    require_verified(mysql_url)


def noon(days_ago: int) -> int:
    """The Unix minute of a noon in UTC."""
    return now_minute() // A_DAY * A_DAY - days_ago * A_DAY + 720


def day_of(at: int) -> date:
    return datetime.fromtimestamp(at * 60, UTC).date()


def roll(url: str) -> PassDone:
    return roll_up(partial(open_moving, url))


def by_key(store: Store) -> dict[str, int]:
    return dict(store.totals.by_key("views"))


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
    roll(logs.url)
    report = logs.add(log(logs.directory / "a.log", old, *["/a", "/b", "/c"] * 3))
    assert by_key(scene.store) == {"/a": 4, "/b": 5, "/c": 3}
    assert widths(scene.session) == {"hour": 2, "minute": 9}
    require_verified(logs.url)
    assert roll(logs.url).rolled_up == 9
    assert by_key(scene.store) == {"/a": 4, "/b": 5, "/c": 3}
    assert widths(scene.session) == {"hour": 3}
    done = logs.undo(report)
    assert (done.state, done.amount) == ("undone", -9)
    assert by_key(scene.store) == {"/a": 1, "/b": 2, "/c": 0}
    require_verified(logs.url)
    roll(logs.url)
    assert widths(scene.session) == {"hour": 3}
    assert by_key(scene.store) == {"/a": 1, "/b": 2, "/c": 0}
    assert scene.store.totals.total("views", start=day_of(old), end=day_of(old)) == 3


@pytest.mark.servers("mariadb", "mysql")
def test_a_log_is_taken_back_while_its_minutes_become_wider(logs: Logs, scene: Scene) -> None:
    at = noon(4)
    added = run_of(logs.add(log(logs.directory / "a.log", at, *["/a", "/b"] * 300)))
    # When three of its hours are moved, and the others are not.
    with MySQLProxy.to(logs.url) as proxy:
        rule = proxy.when(
            "*",
            Phase.BEFORE,
            Deed.PASS,
            call=lambda _: logs.undo(added),
            where=lambda request, _: "FOR UPDATE NOWAIT" in request.text,
            skip=3,
            times=1,
        )
        assert roll(proxy.url(logs.url)).rolled_up >= 180
    assert rule.acted == 1
    assert by_key(scene.store) == {"/a": 0, "/b": 0}
    require_verified(logs.url)
    roll(logs.url)
    assert by_key(scene.store) == {"/a": 0, "/b": 0}
    assert set(widths(scene.session)) == {"hour"}


def test_the_keys_of_a_day_are_capped_whatever_is_rolled_up(logs: Logs, scene: Scene) -> None:
    scene.store.counters.set("views", max_keys=2)
    at = noon(4)
    logs.add(log(logs.directory / "a.log", at, "/a", "/b", "/c"))
    assert by_key(scene.store) == {"/a": 1, "/b": 1, "__overflow__": 1}
    for number in range(2):
        roll(logs.url)
        path = logs.directory / f"{number}.log"
        logs.add(log(path, at + 70 + number, f"/d{number}", "/a", "/c"))
    assert by_key(scene.store) == {"/a": 3, "/b": 1, "__overflow__": 5}


# -- reconciling --------------------------------------------------------------------------------


def test_days_in_wider_buckets_are_set_like_others(scene: Scene) -> None:
    old, new = noon(6), noon(2)
    scene.store.counters.set("views", keep="minute=4d,hour=90d")
    scene.count({(old, "/"): 1, (old + 1, "/gone"): 3, (new, "/"): 1})
    roll(scene.url)
    run = scene.said_by({(old, "/"): 10, (old + 1, "/"): 5, (new, "/"): 10})
    done = scene.correct(run)
    assert done.notices == []
    assert by_key(scene.store) == {"/": 25, "/gone": 3}
    assert scene.marks(run) == {day_of(old) + ONE_DAY * number for number in range(5)}
    assert scene.store.totals.total("views", start=day_of(old), end=day_of(old)) == 18
    roll(scene.url)
    assert by_key(scene.store) == {"/": 25, "/gone": 3}
    assert widths(scene.session) == {"minute": 2, "hour": 3}  # rows of several slots
    undo(scene.url, run)
    assert by_key(scene.store) == {"/": 2, "/gone": 3}
    roll(scene.url)
    assert by_key(scene.store) == {"/": 2, "/gone": 3}
    require_verified(scene.url)


@pytest.mark.parametrize("delete_missing", [False, True])
def test_the_day_in_which_the_boundary_lies_is_set_whole(
    scene: Scene, delete_missing: bool
) -> None:
    begins = noon(3) - 720
    until_noon = now_minute() - noon(3)
    scene.store.counters.set("views", keep=f"minute={until_noon}m,hour=90d")
    events = [(begins, "/x"), (begins + A_DAY - 1, "/x"), (begins + A_DAY, "/x"), (begins, "/y")]
    scene.count(dict.fromkeys(events, 1))
    roll(scene.url)
    assert widths(scene.session) == {"minute": 2, "hour": 2}
    run = scene.said_by(dict.fromkeys(events[:3], 10))
    done = scene.correct(run, delete_missing=delete_missing)
    assert done.notices == []
    assert by_key(scene.store) == {"/x": 30, "/y": 0 if delete_missing else 1}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("skip", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "before", ["control WHERE id = 1 LOCK IN SHARE", "INTO backfill_correction (run"]
)
def test_the_boundary_moves_between_the_sources_and_the_correction(
    scene: Scene, proxy: MySQLProxy, monkeypatch: pytest.MonkeyPatch, before: str, skip: int
) -> None:
    """Days that are set stay set, in the hours that they are rolled up to by then."""
    monkeypatch.setattr(correction, "ROWS", 2)
    scene.store.counters.set("views", keep="minute=50d")
    minutes = [noon(4), noon(4) + 1, noon(3), noon(3) + 1]
    had = {(at, key): 1 for at in minutes for key in ("/", "/a")}
    scene.count(had)
    run = scene.said_by({(at, "/"): 10 for at in minutes} | {(minutes[0], "/a"): 7})
    scene.store.counters.set("views", keep=KEPT)
    with ThreadPoolExecutor(1) as others:
        moving: list[Future[PassDone]] = []

        def move(_: Request) -> None:
            moving.append(others.submit(roll, scene.url))
            if "SHARE" in before:
                moving[-1].result(30)  # nobody holds anything yet

        rule = proxy.when(
            "*",
            Phase.BEFORE,
            Deed.PASS,
            call=move,
            where=lambda request, _: before in request.text,
            skip=skip,
            times=1,
        )
        done = scene.correct(run, url=proxy.url(scene.url))
        for each in moving:
            each.result(30)
    assert done.notices == []
    assert by_key(scene.store) == {"/": 40, "/a": 7 + 2}
    roll(scene.url)
    assert by_key(scene.store) == {"/": 40, "/a": 7 + 2}
    assert set(widths(scene.session)) == {"hour"}
    require_verified(scene.url)
    undo(scene.url, run)
    assert by_key(scene.store) == {"/": 4, "/a": 4}
    assert rule.acted == (skip < 3)


def test_marks_keep_late_entries_out_after_their_buckets_became_wider(scene: Scene) -> None:
    scene.store.counters.set("views", keep="minute=50d")
    at = noon(4)
    scene.count({(at, "/"): 3})
    run = scene.said_by({(at, "/"): 10})
    t0 = hour_ago()
    assert scene.correct(run, t0).corrections == 1
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    scene.store.counters.set("views", keep=KEPT)
    assert roll(scene.url).rolled_up == 2

    def late(sent: int) -> int:
        row = (0, "views", "/", at, 1)
        return scene.applier.apply(
            [entry([row], id=bytes.fromhex(new_entry_id(sent)), at=sent)]
        ).dead

    assert late(t0 - 1) == 1
    assert by_key(scene.store) == {"/": 10}
    assert late(t0 + 1) == 0
    roll(scene.url)
    assert late(t0 - 2) == 1
    assert by_key(scene.store) == {"/": 11}
    done = undo(scene.url, run)
    assert (done.state, done.amount) == ("undone", -7)
    assert by_key(scene.store) == {"/": 4}
    require_verified(scene.url)
    assert late(t0 - 3) == 0
    roll(scene.url)
    assert by_key(scene.store) == {"/": 5}
    assert widths(scene.session) == {"hour": 1}


def test_nothing_is_added_to_what_a_reconcile_has_set_and_was_rolled_up_since(
    logs: Logs, scene: Scene
) -> None:
    scene.store.counters.set("views", keep="minute=50d")
    at = noon(4)
    run = scene.said_by({(at + n, "/"): 1 for n in range(3)})
    scene.correct(run)
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    scene.store.counters.set("views", keep=KEPT)
    roll(logs.url)
    source = log(logs.directory / "a.log", at, "/", "/", "/")
    refused = logs.add(source)
    assert (refused.state, outcomes(refused)) == ("failed", ["failed"])
    assert by_key(scene.store) == {"/": 3}
    logs.undo(run)
    roll(logs.url)
    logs.add(source)
    assert by_key(scene.store) == {"/": 3}


def test_a_source_that_was_read_is_compared_though_steps_were_set_meanwhile(scene: Scene) -> None:
    scene.store.counters.set("views", keep="forever")
    at = noon(2)
    scene.count({(at, "/"): 1})
    run = scene.said_by({(at, "/"): 10})
    scene.store.counters.set("views", keep="minute=3d,quarter=4d")
    assert scene.correct(run).corrections == 1
    assert by_key(scene.store) == {"/": 10}
