"""The job that verifies: done when all agrees, failed with the list when not."""

from __future__ import annotations

import pytest

from countersink.schedules.context import Context, JobOptions, Outcome
from countersink.schedules.failure import Failed
from countersink.schedules.verification import Differs, job
from countersink.store.apply import Applier
from countersink.store.connection import connect
from tests.store.helpers import entry, row


@pytest.fixture
def context(mysql_url: str) -> Context:
    """What a run works with; this one needs no Redis."""
    return Context(
        mysql_url=mysql_url, redis_url="redis://none", options=JobOptions(), stop=lambda: False
    )


def count(context: Context, counters: int) -> None:
    applier = Applier(context.mysql_url, 3)
    applier.apply([entry([row("/a", 1, counter=f"c{n:02}", position=n) for n in range(counters)])])
    applier.close()


def test_all_agrees(context: Context) -> None:
    count(context, 3)
    assert job(context) == Outcome(rows=3, detail="3 counters agree with the ledger")


def test_what_differs_is_named(context: Context) -> None:
    count(context, 3)
    with connect(context.mysql_url) as session:
        session.execute("UPDATE counter_slot SET amount = 5 WHERE counter = 'c01'")
    with pytest.raises(Differs) as raised:
        job(context)
    assert str(raised.value) == (
        "c01: the tables hold +4 against the ledger: see countersink verify"
    )


def test_of_many_the_first_are_named(context: Context) -> None:
    count(context, 30)
    with connect(context.mysql_url) as session:
        session.execute("DELETE FROM counter_slot")
    with pytest.raises(Differs, match=r"^c00: .*; c09: .*; and 20 more: see countersink verify$"):
        job(context)


def test_a_run_that_is_told_to_stop_proves_nothing(context: Context) -> None:
    count(context, 3)
    stopping = Context(
        mysql_url=context.mysql_url,
        redis_url=context.redis_url,
        options=context.options,
        stop=lambda: True,
    )
    with pytest.raises(Failed, match="stopped when 0 counters were verified"):
        job(stopping)
