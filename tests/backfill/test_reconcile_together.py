"""Reconciling beside others who count, compact and reconcile, and whatever becomes of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from typing import Any

import pytest

from countersink.backfill.errors import BackfillError
from countersink.backfill.reconcile import correction
from countersink.counting.apply.applier import Applier
from countersink.database import sessions
from countersink.database.connection import connect
from countersink.database.errors import Conflict, Unavailable
from countersink.database.sql import day_label
from countersink.stream.entry import new_entry_id
from tests.backfill.truths import (
    DAY,
    NEXT,
    Scene,
    hour_ago,
    on_days,
)
from tests.support.entries import (
    again_and_again,
    compacted,
    entry,
    minute,
    once,
    row,
    says,
    together,
)
from tests.support.proxies.mysql_proxy import MySQLProxy
from tests.support.proxies.rules import Deed, Phase, Request

pytestmark = [pytest.mark.servers("mariadb", "mysql"), pytest.mark.usefixtures("store")]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.5)


def is_sum(request: Request, _: bytes) -> bool:
    """The locking read."""
    return "SUM(amount)" in request.text and request.text.endswith("FOR UPDATE")


def is_correction(request: Request, _: bytes) -> bool:
    return "INTO backfill_correction (run, bucket, width, counter_key, had" in request.text


@pytest.mark.parametrize("rows", [2, 1000])
def test_two_at_once_towards_the_same_truth_correct_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(correction, "ROWS", rows)
    said = {(day, f"/{number}"): 10 + number for day in (DAY, NEXT) for number in range(9)}
    # Of the second day nothing is there at all: there both find gaps.
    scene.count({(DAY, f"/{number}"): number for number in range(0, 9, 2)})
    for _ in range(3):
        runs = [scene.said_by(said) for _ in range(2)]
        done = together(*(partial(scene.correct, run, delete_missing=True) for run in runs))
        assert scene.totals() == on_days(said)
        written = [scene.drift(run) for run in runs]
        assert not written[0].keys() & written[1].keys()
        assert [one.corrections for one in done] == [len(one) for one in written]
        scene.session.execute("UPDATE backfill_run SET state = 'done'")
        said = {key: amount + 3 for key, amount in said.items()}


def test_the_second_sums_up_what_the_first_has_added(scene: Scene, proxy: MySQLProxy) -> None:
    first, second = (scene.said_by({(DAY, "/"): 10}) for _ in range(2))
    with ThreadPoolExecutor(1) as others:
        started: list[Any] = []
        once(
            proxy,
            is_sum,
            lambda: started.append(others.submit(scene.correct, second)),
            Phase.AFTER,
        )
        assert scene.correct(first, proxy=proxy).corrections == 1
        assert started[0].result(30).corrections == 0
    assert scene.totals() == on_days({(DAY, "/"): 10})


def test_workers_and_compaction_beside_it_lose_and_double_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correction, "ROWS", 3)
    t0 = hour_ago()
    sent = [0, 0]

    def count_in(slot: int) -> Callable[[], object]:
        applier = Applier(scene.url, slot)

        def work() -> None:
            # What was accepted before it began is in the truth; today's traffic is its own.
            rows = [(n, "views", f"/{n}", minute(DAY), 1) for n in range(12)]
            before = entry(rows, id=bytes.fromhex(new_entry_id(t0 - 5)), at=t0 - 5)
            applier.apply([before, entry([row("/0")])])
            sent[slot - 1] += 1

        return work

    said = {(DAY, f"/{n}"): 1000 + n for n in range(0, 15, 2)}
    squeeze = partial(compacted, scene.url, grace_s=0.0, rows=7)
    with again_and_again(count_in(1), count_in(2), squeeze):
        for _ in range(4):
            run = scene.said_by(said)
            scene.correct(run, t0, delete_missing=True)
            found = scene.amounts()
            assert {k: v for k, v in found.items() if k[0] == day_label(DAY)} == on_days(said)
            said = {key: amount + 7 for key, amount in said.items()}
    assert scene.totals()[day_label(date(2026, 11, 21)), "/0"] == sum(sent)


def test_what_is_sent_after_it_began_and_counted_behind_its_sum_is_on_top(
    scene: Scene, proxy: MySQLProxy
) -> None:
    scene.count({(DAY, "/"): 1})
    run = scene.said_by({(DAY, "/"): 10, (DAY, "/b"): 1})
    with ThreadPoolExecutor(1) as others:
        waiting: list[Any] = []

        # It waits for the range: also where it makes a row in a gap.
        live = {(DAY, "/"): 5, (DAY, "/a"): 2}
        once(
            proxy,
            is_sum,
            lambda: waiting.append(others.submit(scene.count, live)),
            Phase.AFTER,
        )
        scene.correct(run, proxy=proxy)
        waiting[0].result(30)
    assert scene.totals() == on_days({(DAY, "/"): 15, (DAY, "/a"): 2, (DAY, "/b"): 1})


def test_days_rolled_up_meanwhile_are_left_as_they_are(scene: Scene, proxy: MySQLProxy) -> None:
    april = date(2026, 4, 1)
    scene.set_counter(keep="day=30d")
    scene.count({(DAY, "/"): 1, (april, "/"): 1})
    run = scene.said_by({(DAY, "/"): 10, (april, "/"): 10})

    announce = partial(scene.execute, "UPDATE counter SET rolled_month = '2026-04-01'")
    rule = once(proxy, says("INTO counter (name"), announce)
    done = scene.correct(run, proxy=proxy)
    assert rule.acted == 1
    assert scene.totals() == on_days({(DAY, "/"): 1, (april, "/"): 10})
    assert done.notices == [f"left out (rolled up to months): {DAY}"]


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("phase", list(Phase))
def test_a_commit_of_unknown_outcome_is_looked_for_before_it_is_tried_again(
    scene: Scene, proxy: MySQLProxy, monkeypatch: pytest.MonkeyPatch, skip: int, phase: Phase
) -> None:
    monkeypatch.setattr(correction, "ROWS", 3)  # of the truth and the counter: /a and /b, then /c
    scene.count({(DAY, "/a"): 1, (DAY, "/c"): 3})
    run = scene.said_by({(DAY, "/a"): 10, (DAY, "/b"): 20, (DAY, "/c"): 30})

    def live(_: Request) -> None:
        # Behind a COMMIT that was done these are on top, and must not be corrected away.
        if phase is Phase.AFTER:
            scene.count({(DAY, "/a"): 1, (DAY, "/c"): 1})

    # The first COMMIT is that of the marks.
    rule = proxy.when("commit_other", phase, Deed.CUT, call=live, skip=skip, times=1)
    done = scene.correct(run, proxy=proxy)
    assert rule.acted == 1
    on_top = {"/a": 0, "/c": 0}
    if phase is Phase.AFTER:
        on_top = {"/a": int(skip >= 1), "/c": int(skip == 2)}
    assert scene.totals() == on_days(
        {(DAY, "/a"): 10 + on_top["/a"], (DAY, "/b"): 20, (DAY, "/c"): 30 + on_top["/c"]}
    )
    assert done.corrections == len(scene.drift(run)) == 3


def test_killed_between_the_marks_and_the_corrections_it_is_made_right_by_another_run(
    scene: Scene, proxy: MySQLProxy
) -> None:
    scene.count({(DAY, "/"): 3})
    t0 = hour_ago()
    dead_run = scene.said_by({(DAY, "/"): 10})
    rule = proxy.when("*", Phase.BEFORE, Deed.CUT, where=is_correction, times=0)
    with pytest.raises(Unavailable):
        scene.correct(dead_run, t0, proxy=proxy)
    assert rule.acted > 1
    assert scene.marks(dead_run)
    assert scene.totals() == on_days({(DAY, "/"): 3})
    assert scene.late((0, "views", "/", minute(DAY), 5), sent=t0 - 1) == 1
    run = scene.said_by({(DAY, "/"): 10})
    assert scene.correct(run).corrections == 1
    assert scene.totals() == on_days({(DAY, "/"): 10})


def test_killed_in_the_midst_it_is_made_right_by_another_run(
    scene: Scene, proxy: MySQLProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correction, "ROWS", 1)
    said = {(day, key): 10 for day in (DAY, NEXT) for key in ("/a", "/b", "/c")}
    scene.count({(DAY, "/a"): 3, (DAY, "/gone"): 1, (NEXT, "/c"): 11})
    dead_run = scene.said_by(said)
    proxy.when("*", Phase.BEFORE, Deed.CUT, where=is_correction, skip=3, times=0)
    with pytest.raises(Unavailable):
        scene.correct(dead_run, proxy=proxy, delete_missing=True)
    assert len(scene.drift(dead_run)) == 3
    run = scene.said_by(said)
    done = scene.correct(run, delete_missing=True)
    assert done.corrections == 4
    assert scene.totals() == on_days({**said, (DAY, "/gone"): 0})


def test_who_holds_rows_for_ever_is_named_in_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correction, "ATTEMPTS", 1)
    scene.count({(DAY, "/"): 3})
    run = scene.said_by({(DAY, "/"): 10})
    with connect(scene.url) as other, other.transaction():
        other.query("SELECT * FROM counter_slot FOR UPDATE")
        with pytest.raises(Conflict, match="keeps rows of views locked"):
            scene.correct(run)
    assert scene.correct(run).corrections == 1


@pytest.mark.parametrize("code", [1205, 1213])
def test_what_met_another_transaction_is_tried_again_with_fewer_keys(
    scene: Scene, proxy: MySQLProxy, code: int
) -> None:
    said = {(DAY, f"/{n:02}"): n + 1 for n in range(40)}
    run = scene.said_by(said)
    proxy.when("*", Phase.BEFORE, Deed.ERROR, where=is_sum, times=2, error=code)
    assert scene.correct(run, proxy=proxy).corrections == 40
    assert scene.totals() == on_days(said)
    ranges = [one for one in proxy.seen if is_correction(one, b"")]
    assert len(ranges) > 1


def test_a_run_undone_meanwhile_corrects_no_more(scene: Scene, proxy: MySQLProxy) -> None:
    run = scene.said_by({(DAY, "/"): 10, (NEXT, "/"): 10})

    undoing = partial(scene.execute, "UPDATE backfill_run SET state = 'undoing'")
    once(proxy, is_sum, undoing, skip=1)
    with pytest.raises(BackfillError, match="is undoing now"):
        scene.correct(run, proxy=proxy)
    assert scene.totals() == on_days({(DAY, "/"): 10})
    assert scene.new_run() > run
