"""A run's row: each attempt starts once, no two runs of a job at a time, and only its holder ends
it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from countersink.schedules.runner.attempts import (
    STALE,
    Attempt,
    Begun,
    begin,
    finish,
    put_back,
    skip,
)
from countersink.store import lease
from countersink.store.connection import Session, connect
from tests.schedules.scheduling import run_row

NINE, TEN = datetime(2099, 11, 21, 9), datetime(2099, 11, 21, 10)  # noqa: DTZ001 (as in the tables)
LEASE_S = 60.0


def plan(session: Session, moment: datetime = NINE, job: str = "j") -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state) VALUES (%s, %s, 1, 'planned')",
        (job, moment),
    )


def attempt(number: int = 1, moment: datetime = NINE, holder: str = "h", job: str = "j") -> Attempt:
    return Attempt(job, moment, number, holder)


def expire(session: Session) -> None:
    session.execute("UPDATE lease SET expires_at = 1 WHERE name = 'job:j'")


def test_a_planned_run_starts_once_and_ends_with_what_it_did(session: Session) -> None:
    plan(session)
    one = attempt()
    assert begin(session, one, LEASE_S) is Begun.STARTED
    row = run_row(session, "j", NINE)
    assert (row["state"], row["attempts"], row["holder"]) == ("running", 1, "h")
    assert begin(session, attempt(holder="other"), LEASE_S) is Begun.NOTHING
    assert finish(session, one, rows=12, detail="12 rows to 3")
    row = run_row(session, "j", NINE)
    assert (row["state"], row["row_count"], row["detail"]) == ("done", 12, "12 rows to 3")
    assert begin(session, attempt(holder="other"), LEASE_S) is Begun.NOTHING
    assert begin(session, attempt(2, holder="other"), LEASE_S) is Begun.NOTHING


def test_a_run_that_nobody_planned_does_not_start(session: Session) -> None:
    assert begin(session, attempt(), LEASE_S) is Begun.NOTHING
    plan(session)
    assert begin(session, attempt(2), LEASE_S) is Begun.NOTHING  # the first comes first
    assert begin(session, attempt(), LEASE_S) is Begun.STARTED


def test_of_many_that_begin_at_once_one_starts(runs_url: str, session: Session) -> None:
    for number in range(5):
        plan(session, NINE.replace(minute=number), f"j{number}")

    def starter(holder: str) -> Callable[[], int]:
        def start() -> int:
            with connect(runs_url) as own:
                return sum(
                    begin(own, attempt(1, NINE.replace(minute=n), holder, f"j{n}"), LEASE_S)
                    is Begun.STARTED
                    for n in range(5)
                )

        return start

    with ThreadPoolExecutor(6) as pool:
        starts = [pool.submit(starter(f"h{number}")) for number in range(6)]
        assert sum(done.result() for done in starts) == 5


def test_two_runs_of_a_job_do_not_overlap_and_those_of_two_jobs_may(session: Session) -> None:
    plan(session, NINE)
    plan(session, TEN)
    plan(session, TEN, "k")
    first, second = attempt(), attempt(moment=TEN, holder="g")
    assert begin(session, first, LEASE_S) is Begun.STARTED
    assert begin(session, second, LEASE_S) is Begun.BUSY
    assert begin(session, attempt(moment=TEN, holder="k", job="k"), LEASE_S) is Begun.STARTED
    assert finish(session, first)
    assert begin(session, second, LEASE_S) is Begun.STARTED


def test_who_finds_another_run_going_for_too_long_is_skipped_and_says_why(
    session: Session,
) -> None:
    plan(session, NINE)
    plan(session, TEN)
    assert begin(session, attempt(), LEASE_S) is Begun.STARTED
    second = attempt(moment=TEN, holder="g")
    reason = skip(session, second, 20.0)
    assert reason == "the run planned at 2099-11-21 09:00:00 UTC was still going after 20 s"
    row = run_row(session, "j", TEN)
    assert (row["state"], row["detail"], row["attempts"]) == ("skipped", reason, 0)
    assert skip(session, second, 20.0) is None
    assert begin(session, second, LEASE_S) is Begun.NOTHING


def test_a_run_left_behind_is_taken_over_by_the_next_attempt(session: Session) -> None:
    plan(session)
    dead, late = attempt(), attempt(holder="late")
    assert begin(session, dead, LEASE_S) is Begun.STARTED
    heir = attempt(2, holder="heir")
    assert begin(session, heir, LEASE_S) is Begun.BUSY  # it lives, as far as anybody knows
    expire(session)
    assert begin(session, late, LEASE_S) is Begun.NOTHING
    assert begin(session, heir, LEASE_S) is Begun.STARTED
    assert run_row(session, "j", NINE)["attempts"] == 2
    # the first one was frozen, not dead: it has nothing more to say
    assert not lease.renew(session, dead.lease, dead.holder, LEASE_S)
    assert not finish(session, dead, rows=1, detail="too late")
    assert run_row(session, "j", NINE)["state"] == "running"
    assert finish(session, heir, rows=2, detail="right")
    assert run_row(session, "j", NINE)["detail"] == "right"


def test_whoever_lost_its_lease_cannot_end_the_run_though_nobody_took_it_over(
    session: Session,
) -> None:
    plan(session)
    one = attempt()
    begin(session, one, LEASE_S)
    expire(session)
    assert not finish(session, one, rows=1)
    assert run_row(session, "j", NINE)["state"] == "running"


def test_a_failed_run_can_be_tried_again_and_keeps_the_error_as_its_story(
    session: Session,
) -> None:
    plan(session)
    one, two = attempt(), attempt(2, holder="g")
    begin(session, one, LEASE_S)
    assert finish(session, one, error="no luck")
    row = run_row(session, "j", NINE)
    assert (row["state"], row["error"]) == ("failed", "no luck")
    assert begin(session, attempt(holder="again"), LEASE_S) is Begun.NOTHING
    assert begin(session, two, LEASE_S) is Begun.STARTED
    assert finish(session, two, rows=3, detail="done at last")
    row = run_row(session, "j", NINE)
    assert (row["state"], row["attempts"], row["error"]) == ("done", 2, "no luck")


def test_what_is_said_is_cut_to_its_column_and_any_text_is_stored(session: Session) -> None:
    plan(session)
    one = attempt()
    begin(session, one, LEASE_S)
    assert finish(session, one, rows=2**70, error="ñ🙂\udcff\0" + "x" * 5000)
    row = run_row(session, "j", NINE)
    assert row["error"].startswith("ñ🙂?xx")
    assert len(row["error"]) == 1000
    assert row["error"].endswith("…")
    assert row["row_count"] == 2**63 - 1


def test_a_run_that_waited_for_hours_makes_way_for_later_ones(session: Session) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, token, state) VALUES"
        " ('j', UTC_TIMESTAMP() - INTERVAL 2 HOUR, 1, 'planned'),"
        " ('j', UTC_TIMESTAMP() - INTERVAL 90 MINUTE, 1, 'planned')"
    )
    old, young = (
        moment for (moment,) in session.query("SELECT planned_at FROM job_run ORDER BY planned_at")
    )
    assert begin(session, attempt(moment=old), LEASE_S) is Begun.STALE
    assert run_row(session, "j", old)["detail"] == STALE
    # the last one runs, however old: there is none after it
    assert begin(session, attempt(moment=young, holder="g"), LEASE_S) is Begun.STARTED


def test_a_dead_run_that_cannot_be_taken_over_ends_as_failed(session: Session) -> None:
    plan(session, NINE)
    plan(session, TEN)
    begin(session, attempt(), LEASE_S)
    expire(session)
    assert begin(session, attempt(moment=TEN, holder="g"), LEASE_S) is Begun.STARTED
    heir = attempt(2, holder="heir")
    assert begin(session, heir, LEASE_S) is Begun.BUSY
    reason = skip(session, heir, 20.0)
    assert reason is not None
    assert "ended in the midst" in reason
    row = run_row(session, "j", NINE)
    assert (row["state"], row["error"]) == ("failed", reason)


def test_a_run_that_is_put_back_starts_again_once_as_the_same_attempt(session: Session) -> None:
    plan(session)
    one = attempt()
    begin(session, one, LEASE_S)
    assert put_back(session, one, "half of it")
    row = run_row(session, "j", NINE)
    assert (row["state"], row["attempts"], row["detail"]) == ("planned", 0, "half of it")
    assert not put_back(session, one)
    assert not finish(session, one, rows=1)
    assert begin(session, attempt(2, holder="late"), LEASE_S) is Begun.NOTHING
    assert begin(session, attempt(holder="g"), LEASE_S) is Begun.STARTED
    assert begin(session, attempt(holder="again"), LEASE_S) is Begun.NOTHING
    assert not put_back(session, one)
    assert run_row(session, "j", NINE)["holder"] == "g"


def test_a_run_whose_lease_was_lost_is_put_back_unless_another_has_taken_it_over(
    session: Session,
) -> None:
    plan(session)
    one = attempt()
    begin(session, one, LEASE_S)
    expire(session)
    assert put_back(session, one)
    two = attempt(holder="g")
    assert begin(session, two, LEASE_S) is Begun.STARTED
    expire(session)
    assert begin(session, attempt(2, holder="heir"), LEASE_S) is Begun.STARTED
    assert not put_back(session, two)
    row = run_row(session, "j", NINE)
    assert (row["state"], row["attempts"], row["holder"]) == ("running", 2, "heir")
    assert lease.renew(session, attempt().lease, "heir", LEASE_S)
