"""The scheduler process: real processes, real signals, servers that go away."""

import pytest
import redis

from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.session import Session
from tests.schedules.scheduling import (
    planned,
    queued,
    require_no_gap,
    said,
    scheduler,
    wait_said,
)
from tests.support.factories import MySQLFactory
from tests.support.processes import Child, Children
from tests.support.waiting import eventually

ENDS_WITHIN = 10.0
NOWHERE = "redis://127.0.0.1:1"
HOURS = pytest.mark.long("a step ahead, beside one of 2 s and one back")


def wait_planned(session: Session, count: int, child: Child) -> None:
    eventually(
        lambda: session.query("SELECT COUNT(*) FROM job_run")[0][0] >= count,
        30,
        message=child.output,
    )


def end(child: Child) -> None:
    child.terminate()
    assert child.wait(ENDS_WITHIN) == 0, child.output()
    assert "Traceback" not in child.output()


def test_two_plan_every_second_once_whoever_of_them_is_frozen_or_ends(
    session: Session, redis_client: redis.Redis, redis_url: str, mysql_url: str, children: Children
) -> None:
    first = scheduler(children, redis_url, mysql_url)
    second = scheduler(children, redis_url, mysql_url)
    for each in (first, second):
        wait_said(each, "ready")
    for _ in range(3):
        first.stop()
        wait_planned(session, len(planned(session)) + 2, second)
        first.go_on()
        wait_planned(session, len(planned(session)) + 1, second)
    first.kill()
    wait_planned(session, len(planned(session)) + 2, second)
    third = scheduler(children, redis_url, mysql_url)
    wait_said(third, "ready")
    end(second)
    wait_planned(session, len(planned(session)) + 2, third)
    end(third)
    require_no_gap(session)
    assert len(set(queued(redis_client))) >= len(planned(session)) - 1


def test_one_that_cannot_reach_redis_plans_and_another_hands_over(
    session: Session, redis_client: redis.Redis, redis_url: str, mysql_url: str, children: Children
) -> None:
    cut_off = scheduler(children, NOWHERE, mysql_url)
    wait_said(cut_off, "waiting")
    wait_planned(session, 3, cut_off)
    other = scheduler(children, redis_url, mysql_url)
    wait_said(other, "ready")
    count = len(planned(session))
    eventually(lambda: len(set(queued(redis_client))) >= count, 30, message=other.output)
    for child in (cut_off, other):
        end(child)
        assert all(line.startswith("{") for line in child.output().splitlines() if line)


@pytest.mark.parametrize("step", [2, -7200, pytest.param(7200, marks=HOURS)])
def test_a_step_of_the_hosts_clock_neither_stops_it_nor_dates_runs_ahead(
    session: Session, redis_url: str, mysql_url: str, children: Children, step: int
) -> None:
    child = scheduler(children, redis_url, mysql_url, clock_step=step)
    wait_said(child, "ready")
    wait_planned(session, 5, child)
    assert not session.query("SELECT 1 FROM job_run WHERE planned_at > UTC_TIMESTAMP()")
    end(child)
    require_no_gap(session)


def test_a_mysql_that_restarts_is_waited_for(
    own_mysql_server: MySQLFactory, redis_url: str, children: Children
) -> None:
    server = own_mysql_server(fast=True)
    url = server.url_for("countersink")
    child = scheduler(children, redis_url, url)
    wait_said(child, "waiting")  # there are no tables yet
    migrate(url)
    wait_said(child, "ready")
    with connect(url) as session:
        wait_planned(session, 1, child)
    server.stop()
    wait_said(child, "waiting", times=2)
    server.start()
    wait_said(child, "resumed", times=2)
    with connect(url) as session:
        count = session.query("SELECT COUNT(*) FROM job_run")[0][0]
        wait_planned(session, count + 1, child)
    end(child)


def test_newer_tables_end_it_with_a_reason(
    session: Session, redis_url: str, mysql_url: str, children: Children
) -> None:
    session.execute(
        "INSERT INTO schema_version (version, name, applied_at) VALUES (999, 'x', NOW())"
    )
    try:
        child = scheduler(children, redis_url, mysql_url)
        assert child.wait(30) == 1, child.output()
        assert "schema_too_new" in said(child)
    finally:
        session.execute("DELETE FROM schema_version WHERE version = 999")
