"""Backfill, reconcile and their undo, where buckets were rolled up to wider ones."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.undo import undo
from countersink.schedules.jobs.move import PassDone
from countersink.schedules.jobs.move import open_tables as open_moving
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.connection import Session
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


def widths(session: Session) -> dict[str, int]:
    """How many rows there are of each width."""
    return {
        resolution: int(rows)
        for resolution, rows in session.query(
            "SELECT p.resolution, COUNT(*) FROM counter_slot AS s JOIN counter_policy AS p"
            " ON p.counter = s.counter AND p.number = SECOND(s.bucket) GROUP BY p.resolution"
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


ROLLED = "left out, as their days are rolled up to wider buckets, all of them or a part: {}"


def test_days_in_wider_buckets_are_left_out_and_others_are_set(scene: Scene) -> None:
    old, new = noon(6), noon(2)
    scene.store.counters.set("views", keep="minute=4d,hour=90d")
    scene.count({(old, "/"): 1, (new, "/"): 1})
    roll(scene.url)
    run = scene.said_by({(old, "/"): 10, (new, "/"): 10})
    done = scene.correct(run)
    assert by_key(scene.store) == {"/": 11}
    assert len(done.notices) == 1
    assert done.notices[0].startswith(ROLLED.format(f"{day_of(old)} to "))
    assert scene.marks(run) >= {minute * 60 for minute in range(new - 720, new + 720)}
    assert min(scene.marks(run)) > (old + 720) * 60
    assert scene.store.totals.total("views", start=day_of(old), end=day_of(old)) == 1


@pytest.mark.parametrize("delete_missing", [False, True])
def test_the_day_in_which_the_boundary_lies_is_left_out_whole(
    scene: Scene, delete_missing: bool
) -> None:
    begins = noon(3) - 720
    until_noon = now_minute() - noon(3)
    scene.store.counters.set("views", keep=f"minute={until_noon}m,hour=90d")
    roll(scene.url)
    events = {(begins, "/x"): 1, (begins + A_DAY - 1, "/x"): 1, (begins + A_DAY, "/x"): 1}
    scene.count(events)
    run = scene.said_by(dict.fromkeys(events, 10))
    done = scene.correct(run, delete_missing=delete_missing)
    assert by_key(scene.store)["/x"] == 12
    assert ROLLED.format(day_of(begins)) in done.notices


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_the_boundary_moves_between_the_sources_and_the_correction(
    scene: Scene, proxy: MySQLProxy, skip: int
) -> None:
    """What is set stays set; what is rolled up by then is left as it is, and named."""
    scene.store.counters.set("views", keep="minute=50d")
    minutes = [noon(4), noon(3), noon(3) + 1]
    scene.count(dict.fromkeys(((at, "/") for at in minutes), 1))
    run = scene.said_by(dict.fromkeys(((at, "/") for at in minutes), 10))

    def announce(_: Request) -> None:
        scene.store.counters.set("views", keep=KEPT)
        roll(scene.url)

    rule = proxy.when(
        "*", Phase.BEFORE, Deed.PASS, call=announce, where=is_first_check, skip=skip, times=1
    )
    done = scene.correct(run, url=proxy.url(scene.url))
    assert rule.acted == 1
    assert by_key(scene.store) == {"/": 3 + 9 * skip}
    left = sorted({day_of(at) for at in minutes[skip:]})
    named = f"{left[0]}" if len(left) == 1 else f"{left[0]} to {left[1]}"
    assert done.notices == (ROLLED.format(named),)
    assert widths(scene.session) == {"hour": 2}
    undone = undo(scene.url, run)
    assert undone.amount == -9 * skip
    assert by_key(scene.store) == {"/": 3}


def is_first_check(request: Request, _reply: bytes) -> bool:
    """The first statement of a correction, before it holds the policies."""
    return "FROM backfill_counter WHERE counter" in request.text and "FOR UPDATE" in request.text


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
    """Steps make policies, but none under which events are counted."""
    scene.store.counters.set("views", keep="forever")
    at = noon(1)
    scene.count({(at, "/"): 1})
    run = scene.said_by({(at, "/"): 10})
    scene.store.counters.set("views", keep="minute=2d,quarter=3d")
    assert scene.correct(run).corrections == 1
    assert by_key(scene.store) == {"/": 10}
