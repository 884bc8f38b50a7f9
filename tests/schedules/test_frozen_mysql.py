"""A MySQL that does not answer for longer than a run may be silent."""

import threading
from typing import Any

import pytest

from countersink.schedules import runs
from countersink.store.connection import Session, connect
from countersink.store.migrate import migrate
from tests.schedules.scheduling import require_no_gap, said
from tests.support import scheduled
from tests.support.factories import MySQLFactory
from tests.support.forked import ForkedChildren
from tests.support.waiting import eventually

FROZEN_S = 40.0
"""Twice as long as a run may be without a sign of life."""


@pytest.mark.long("a MySQL that is frozen for 40 s")
def test_a_frozen_mysql_loses_no_run_and_overlaps_at_most_one_transaction(
    own_mysql_server: MySQLFactory, redis_url: str
) -> None:
    server = own_mysql_server(fast=True)
    url = server.url_for("countersink")
    migrate(url)
    plan: dict[str, Any] = {"mysql_url": url, "redis_url": redis_url}
    jobs = {"tick": ("* * * * * *", 60), "steps": ("0 0 1 1 *", 600)}
    with ForkedChildren() as children:
        with connect(url) as session:
            scheduled.make_table(session)
            for _ in range(2):
                scheduled.start(children, "scheduler", plan | {"jobs": jobs})
                scheduled.start(children, "jobs", plan | {"jobs_redis_url": redis_url})
            eventually(lambda: "steps" in runs.jobs(session))
            assert runs.add(session, "steps")
            eventually(lambda: steps(session))
            (first,) = {pid for _, pid in steps(session)}
        server.freeze()
        threading.Event().wait(FROZEN_S)  # nothing tells that it is over: nobody answers
        server.thaw()
        with connect(url) as session:
            eventually(lambda: any(pid != first for _, pid in steps(session)), 60)
            ticks = session.query("SELECT COUNT(*) FROM job_run WHERE job = 'tick'")[0][0]
            eventually(lambda: done(session) > ticks, 60)
            for child in children:
                child.terminate()
            for child in children:
                assert child.wait(20) == 0, child.output()
            check(session, first)
        assert sum(said(child).count("run_lost") for child in children) >= 1


def check(session: Session, first: int) -> None:
    """No second is left out, and of two attempts one transaction overlaps at most."""
    begun = next(number for number, pid in steps(session) if pid != first)
    late = [number for number, pid in steps(session) if pid == first and number > begun]
    assert len(late) <= 1, late
    require_no_gap(session, "tick")
    assert not session.query("SELECT 1 FROM job_run WHERE state = 'failed'")


def steps(session: Session) -> list[tuple[int, int]]:
    """(number, process) of each transaction of the job, in order."""
    return session.query("SELECT id, pid FROM test_step ORDER BY id")


def done(session: Session) -> int:
    """Seconds whose run is done."""
    query = "SELECT COUNT(*) FROM job_run WHERE job = 'tick' AND state = 'done'"
    return int(session.query(query)[0][0])
