"""Who is in charge: one, whoever lives, and never one that was frozen."""

import pytest

from countersink.runtime.process import process_name
from countersink.schedules.history import in_charge
from countersink.schedules.scheduler.leader import Leadership
from countersink.store.connection import Session
from countersink.store.errors import StoreError
from countersink.store.migrate import migrate
from countersink.store.sessions import lease_session
from tests.schedules.scheduling import LONG, depose
from tests.support.factories import MySQLFactory
from tests.support.waiting import eventually


def claim(runs_url: str, name: str, lease_s: float = LONG) -> Leadership:
    return Leadership(lease_session(runs_url), name, lease_s)


def test_one_leads_and_the_others_stand_by(runs_url: str, session: Session) -> None:
    one, other = claim(runs_url, "one"), claim(runs_url, "other")
    one.step()
    other.step()
    assert one.token == 1
    assert other.token is None
    one.step()
    assert one.token == 1
    leader = in_charge(session)
    assert leader is not None
    assert (leader.scheduler, leader.token) == ("one", 1)


def test_who_resigns_makes_room_at_once(runs_url: str, session: Session) -> None:
    one, other = claim(runs_url, "one"), claim(runs_url, "other")
    one.step()
    one.resign()
    assert in_charge(session) is None
    other.step()
    assert other.token == 2
    one.step()
    assert one.token is None


def test_who_lost_the_lease_finds_out_and_gets_a_new_token(runs_url: str, session: Session) -> None:
    one, other = claim(runs_url, "one"), claim(runs_url, "other")
    one.step()
    depose(session)
    other.step()
    assert other.token == 2
    one.step()
    assert one.token is None
    depose(session)
    one.step()
    assert one.token == 3


def test_a_lease_that_ran_out_by_our_own_clock_is_not_renewed(runs_url: str) -> None:
    one = claim(runs_url, "one", lease_s=0.05)
    one.step()
    assert one.token == 1

    def over() -> bool:
        one.expire()
        return one.token is None

    eventually(over)

    def leads_again() -> bool:
        one.step()
        return one.token == 2

    eventually(leads_again)


def test_without_mysql_it_leads_until_the_lease_has_surely_run_out(
    own_mysql_server: MySQLFactory,
) -> None:
    server = own_mysql_server(fast=True)
    url = server.url_for("countersink")
    migrate(url)
    one = claim(url, "one", lease_s=1.0)
    one.step()
    assert one.token == 1
    server.stop()
    with pytest.raises(StoreError):
        one.step()

    def over() -> bool:
        one.expire()
        return one.token is None

    eventually(over)


def test_no_two_processes_have_the_same_name() -> None:
    names = {process_name() for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) <= 255 for name in names)
