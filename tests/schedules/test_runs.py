"""A run's row: each attempt starts once, no two runs of a job at a time, and only its holder ends
it.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.schedules.options import JobProcessOptions
from countersink.schedules.report import RunHeartbeat, shared_moment
from countersink.schedules.runs import (
    STALE,
    Attempt,
    Begun,
    beat,
    begin,
    finish,
    give_back,
    open_runs,
    put_back,
    skip,
)
from tests.schedules.scheduling import run_row
from tests.support.waiting import eventually

NINE = datetime(2099, 11, 21, 9, tzinfo=UTC)
TEN = datetime(2099, 11, 21, 10, tzinfo=UTC)
MOST = 3

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture(autouse=True)
def jobs(session: Session) -> None:
    for name in ("j", "k", *(f"j{number}" for number in range(5))):
        session.execute(
            "INSERT INTO job (name, cron, time_zone) VALUES (%s, 'off', 'UTC')",
            (name,),
        )


def plan(session: Session, moment: datetime = NINE, job: str = "j") -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, state, due_at)"
        " VALUES (%s, %s, 'planned', UTC_TIMESTAMP(3))",
        (job, moment.replace(tzinfo=None)),
    )


def attempt(number: int = 1, moment: datetime = NINE, holder: str = "h", job: str = "j") -> Attempt:
    return Attempt(job, moment, number, holder)


def begun(session: Session, one: Attempt) -> Begun:
    return begin(session, one, MOST)[0]


def started(session: Session) -> Attempt:
    """The first attempt of a run that was planned."""
    plan(session)
    assert begun(session, attempt()) is Begun.STARTED
    return attempt()


def shown(session: Session, *columns: str, moment: datetime = NINE) -> list[Any]:
    """Some columns of a run's row."""
    row = run_row(session, "j", moment)
    return [row[name] for name in columns]


def left_behind(session: Session) -> None:
    """What a scheduler does with the run that is going, after it was silent for long."""
    (seen,) = (run for run in open_runs(session) if run.state == "running")
    assert give_back(session, seen)


def test_a_planned_run_starts_once_and_ends_with_what_it_did(session: Session) -> None:
    one = started(session)
    assert begun(session, one) is Begun.STARTED  # asked again, as its COMMIT was uncertain
    assert shown(session, "state", "attempts", "holder") == ["running", 1, "h"]
    assert begun(session, attempt(holder="other")) is Begun.NOTHING
    assert beat(session, one)
    assert finish(session, one, "done", "12 rows to 3", 12)
    assert shown(session, "state", "row_count", "detail") == ["done", 12, "12 rows to 3"]
    assert not beat(session, one)
    for again in (attempt(holder="other"), attempt(2, holder="other")):
        assert begun(session, again) is Begun.NOTHING


def test_a_run_that_nobody_planned_does_not_start(session: Session) -> None:
    assert begun(session, attempt()) is Begun.NOTHING
    plan(session)
    assert begun(session, attempt(2)) is Begun.NOTHING  # the first comes first
    assert begun(session, attempt()) is Begun.STARTED


def test_of_many_that_begin_at_once_one_starts(mysql_url: str, session: Session) -> None:
    for number in range(5):
        plan(session, NINE.replace(minute=number), f"j{number}")

    def starter(holder: str) -> Callable[[], int]:
        def start() -> int:
            with connect(mysql_url) as own:
                return sum(
                    begun(own, attempt(1, NINE.replace(minute=n), holder, f"j{n}")) is Begun.STARTED
                    for n in range(5)
                )

        return start

    with ThreadPoolExecutor(6) as pool:
        starts = [pool.submit(starter(f"h{number}")) for number in range(6)]
        assert sum(done.result() for done in starts) == 5


def test_of_two_runs_of_a_job_that_begin_at_once_one_waits(
    mysql_url: str, session: Session
) -> None:
    for turn in range(5):
        moments = [NINE.replace(day=1 + turn), TEN.replace(day=1 + turn)]
        for moment in moments:
            plan(session, moment)

        def start(moment: datetime) -> Begun:
            with connect(mysql_url) as own:
                return begun(own, attempt(moment=moment, holder=str(moment)))

        with ThreadPoolExecutor(2) as pool:
            assert set(pool.map(start, moments)) == {Begun.STARTED, Begun.BUSY}
        session.execute("UPDATE job_run SET state = 'done'")


def test_two_runs_of_a_job_do_not_overlap_and_those_of_two_jobs_may(session: Session) -> None:
    plan(session, NINE)
    plan(session, TEN)
    plan(session, TEN, "k")
    first, second = attempt(), attempt(moment=TEN, holder="g")
    assert begun(session, first) is Begun.STARTED
    what, other = begin(session, second, MOST)
    assert (what, other and other.planned_at) == (Begun.BUSY, NINE)
    assert begun(session, attempt(moment=TEN, holder="k", job="k")) is Begun.STARTED
    assert finish(session, first, "done", None)
    assert begun(session, second) is Begun.STARTED


def test_a_run_that_is_skipped_does_not_start_and_one_that_started_is_not_skipped(
    session: Session,
) -> None:
    plan(session, NINE)
    plan(session, TEN)
    assert skip(session, attempt(), "the one before goes on")
    why = "the one before goes on"
    assert shown(session, "state", "detail", "attempts") == ["skipped", why, 0]
    assert begun(session, attempt()) is Begun.NOTHING
    assert begun(session, attempt(moment=TEN)) is Begun.STARTED
    assert not skip(session, attempt(moment=TEN), "late")


def test_a_run_left_behind_is_taken_over_by_the_next_attempt(session: Session) -> None:
    dead, late = started(session), attempt(holder="late")
    heir = attempt(2, holder="heir")
    assert begun(session, heir) is Begun.NOTHING  # it lives, as far as anybody knows
    left_behind(session)
    assert begun(session, late) is Begun.NOTHING
    assert not beat(session, dead)  # nobody else has it yet
    assert begun(session, heir) is Begun.STARTED
    assert shown(session, "attempts") == [2]
    # the first one was frozen, not dead: it has nothing more to say
    assert not beat(session, dead)
    assert not finish(session, dead, "done", "too late", 1)
    assert not put_back(session, dead, None, spent=True)
    assert shown(session, "state") == ["running"]
    assert finish(session, heir, "done", "right", 2)
    assert shown(session, "detail") == ["right"]


def test_a_run_whose_process_dies_every_time_ends_as_failed(session: Session) -> None:
    plan(session)
    for number in range(1, MOST + 1):
        assert begun(session, attempt(number, holder=f"h{number}")) is Begun.STARTED
        left_behind(session)
    assert begun(session, attempt(MOST + 1)) is Begun.EXHAUSTED
    state, attempts, why = shown(session, "state", "attempts", "detail")
    assert (state, attempts) == ("failed", MOST)
    assert "last of 3 attempts" in why
    assert begun(session, attempt(MOST + 1)) is Begun.NOTHING


def test_a_failed_run_is_tried_again_after_a_pause(session: Session) -> None:
    one, two = started(session), attempt(2, holder="g")
    assert put_back(session, one, "no luck", spent=True, pause_s=0.0)
    assert shown(session, "state", "attempts", "detail") == ["planned", 1, "no luck"]
    assert [run.attempts for run in open_runs(session)] == [1]
    assert begun(session, attempt(holder="again")) is Begun.NOTHING
    assert begun(session, two) is Begun.STARTED
    assert put_back(session, two, "no luck again", spent=True, pause_s=3600.0)
    assert open_runs(session) == []
    session.execute("UPDATE job_run SET due_at = UTC_TIMESTAMP(3)")
    three = attempt(3, holder="f")
    assert begun(session, three) is Begun.STARTED
    assert finish(session, three, "done", "done at last", 3)
    assert shown(session, "state", "attempts", "detail") == ["done", 3, "done at last"]


def test_what_is_said_is_cut_to_its_column_and_any_text_is_stored(session: Session) -> None:
    assert finish(session, started(session), "failed", "ñ🙂\udcff\0" + "x" * 5000, 2**70)
    row = run_row(session, "j", NINE)
    assert row["detail"].startswith("ñ🙂?xx")
    assert len(row["detail"]) == 1000
    assert row["detail"].endswith("…")
    assert row["row_count"] == 2**63 - 1


def test_a_run_that_waited_for_hours_makes_way_for_later_ones(session: Session) -> None:
    session.execute(
        "INSERT INTO job_run (job, planned_at, due_at, state) VALUES"
        " ('j', UTC_TIMESTAMP() - INTERVAL 2 HOUR, UTC_TIMESTAMP(3), 'planned'),"
        " ('j', UTC_TIMESTAMP() - INTERVAL 100 MINUTE, UTC_TIMESTAMP(3), 'planned'),"
        " ('j', UTC_TIMESTAMP() - INTERVAL 90 MINUTE, UTC_TIMESTAMP(3), 'planned')"
    )
    old, late, young = (run.planned_at for run in open_runs(session))
    assert begun(session, attempt(moment=old)) is Begun.STALE
    assert shown(session, "detail", moment=old) == [STALE]
    # the last one runs, however old: there is none after it
    assert begun(session, attempt(moment=young, holder="g")) is Begun.STARTED
    # and while it is going another makes way at once
    assert begun(session, attempt(moment=late, holder="g")) is Begun.STALE


def test_a_run_that_is_put_back_starts_again_once_as_the_same_attempt(session: Session) -> None:
    one = started(session)
    assert put_back(session, one, "half of it", spent=False)
    assert shown(session, "state", "attempts", "detail") == ["planned", 0, "half of it"]
    assert not put_back(session, one, None, spent=False)
    assert not finish(session, one, "done", None)
    assert begun(session, attempt(2, holder="late")) is Begun.NOTHING
    assert begun(session, attempt(holder="g")) is Begun.STARTED
    assert begun(session, attempt(holder="again")) is Begun.NOTHING
    assert not put_back(session, one, None, spent=False)
    assert shown(session, "holder") == ["g"]


def test_a_run_that_was_given_back_or_frozen_right_after_it_began_is_lost_to_its_process(
    mysql_url: str, session: Session
) -> None:
    options = JobProcessOptions(
        mysql_url=mysql_url, redis_url="", jobs_redis_url="", beat_every_s=0.05
    )
    since, one = time.monotonic(), started(session)
    with RunHeartbeat(shared_moment(), options, one, since - options.silent_s) as heartbeat:
        assert heartbeat.lost
    with RunHeartbeat(shared_moment(), options, one, since) as heartbeat:
        assert not heartbeat.lost
        left_behind(session)
        eventually(lambda: heartbeat.lost)
