"""Connections that break: a value may be lost, and is never handed out twice."""

import os
import re
import threading
from collections.abc import Iterator
from functools import partial

import pytest

import countersink.sequences
from countersink.database.app_connection import AppConnection, Executed, execute
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.store import (
    Conflict,
    Refused,
    SchemaMismatch,
    SequenceUncertain,
    Store,
    Unavailable,
)
from tests.support.entries import together
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

LOCKS, WRITES, COMMIT = "FOR UPDATE", r"\(name, period, value", "^COMMIT$"
"""Statements of a transaction that hands out a value."""


@pytest.fixture
def proxy(mysql_url: str) -> Iterator[MySQLProxy]:
    """In front of the server."""
    with MySQLProxy.to(mysql_url) as opened:
        yield opened


@pytest.fixture
def behind(proxy: MySQLProxy, mysql_url: str) -> Iterator[Store]:
    """A store behind the proxy, whose sequence `a` is at 1."""
    with Store(proxy.url(mysql_url)) as opened:
        assert opened.sequences.next("a") == 1
        yield opened


def _hands_out(request: Request, _: bytes = b"") -> bool:
    return "LAST_INSERT_ID" in request.text


def _has(pattern: str, request: Request, _: bytes = b"") -> bool:
    return re.search(pattern, request.text) is not None


@pytest.mark.parametrize(
    ("phase", "take", "following"),
    [
        pytest.param(Phase.AFTER, 1, 3, id="a lost reply burns the value"),
        pytest.param(Phase.BEFORE, 1, 2, id="a statement that never arrived"),
        pytest.param(Phase.AFTER, 10, 12, id="a block is lost as a whole"),
    ],
)
def test_a_connection_that_is_cut_leaves_it_uncertain(
    behind: Store, proxy: MySQLProxy, phase: Phase, take: int, following: int
) -> None:
    sequences = behind.sequences
    proxy.when("*", phase, Deed.CUT, where=_hands_out)
    with pytest.raises(SequenceUncertain, match="ask for the next one") as caught:
        sequences.next("a") if take == 1 else sequences.next_block("a", take)
    assert caught.value.code in (0, 2006, 2013)
    assert isinstance(caught.value.__cause__, Unavailable)
    assert sequences.next("a") == following


def test_answers_that_leave_it_open(behind: Store, proxy: MySQLProxy) -> None:
    for code in (1053, 1180, 1317, 1927, 3024, 3169, 4031):
        proxy.when("*", Phase.BEFORE, Deed.ERROR, error=code, where=_hands_out)
        with pytest.raises(SequenceUncertain) as caught:
            behind.sequences.next("a")
        assert caught.value.code == code
    assert behind.sequences.next("a") == 2


def test_a_reply_that_the_driver_stumbles_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: the statement was sent, and nobody knows what is still to be read."""
    assert store.sequences.next("a") == 1

    def stumble(connection: AppConnection, sql: str) -> Executed:
        execute(connection, sql)
        raise RuntimeError("what a packet")

    with monkeypatch.context() as patched:
        patched.setattr("countersink.database.session.execute", stumble)
        with pytest.raises(SequenceUncertain, match="what a packet"):
            store.sequences.next("a")
    assert store.sequences._handing_out._kept == []
    assert store.sequences.next("a") == 3


def test_a_statement_that_was_undone_runs_again(behind: Store, proxy: MySQLProxy) -> None:
    for value, code in enumerate((1213, 1205, 1020, 3572, 3101), start=2):
        proxy.when("*", Phase.BEFORE, Deed.ERROR, error=code, where=_hands_out, times=2)
        assert behind.sequences.next("a") == value
    proxy.when("*", Phase.BEFORE, Deed.ERROR, error=1205, where=_hands_out, times=0)
    with pytest.raises(Conflict):
        behind.sequences.next("a")
    proxy.forget()
    assert behind.sequences.next("a") == 7


def test_a_server_that_will_not_write(behind: Store, proxy: MySQLProxy) -> None:
    answers: list[tuple[int, type[Exception]]] = [
        (1290, Unavailable),  # what was the primary is a replica now
        (1836, Unavailable),
        (1047, Unavailable),
        (3098, Unavailable),
        (3100, SequenceUncertain),
        (1142, Refused),
        (1021, Refused),
        (1146, SchemaMismatch),
    ]
    for code, error in answers:
        proxy.when("*", Phase.BEFORE, Deed.ERROR, error=code, where=_hands_out)
        with pytest.raises(error):
            behind.sequences.next("a")
    assert behind.sequences.next("a") == 2


def test_no_connection_is_no_doubt(behind: Store, proxy: MySQLProxy) -> None:
    proxy.refusing = True
    proxy.cut_all()
    for _ in range(2):
        with pytest.raises(Unavailable):
            behind.sequences.next("a")
    proxy.refusing = False
    assert behind.sequences.next("a") == 2


def test_a_transaction_that_breaks_off(behind: Store, proxy: MySQLProxy) -> None:
    """A first value, and one of a period, takes one; only its COMMIT can lose the value."""
    behind.sequences.configure("yearly", period="year")
    for name in ("new", "yearly"):
        lost = 0
        for statement in (LOCKS, WRITES, COMMIT):
            for phase in (Phase.BEFORE, Phase.AFTER):
                proxy.when("*", phase, Deed.CUT, where=partial(_has, statement))
                with pytest.raises(SequenceUncertain):
                    behind.sequences.next(name)
                lost += statement == COMMIT and phase is Phase.AFTER
        assert behind.sequences.periods(name)[0].value == lost == 1
        assert behind.sequences.next(name) == 2


def test_a_transaction_that_was_undone_runs_again(behind: Store, proxy: MySQLProxy) -> None:
    """Also at its COMMIT, where Galera says that another node was faster."""
    behind.sequences.configure("yearly", period="year")
    value = 0
    for statement in (COMMIT, LOCKS, WRITES):
        for code in (1213, 1205, 3101):
            where = partial(_has, statement)
            rule = proxy.when("*", Phase.BEFORE, Deed.ERROR, error=code, where=where, times=2)
            value += 1
            assert behind.sequences.next("yearly") == value
            assert rule.acted == 2


def test_an_idle_connection_that_was_killed_is_no_doubt(store: Store, session: Session) -> None:
    """The server has ended it meanwhile: that is found out before anything is sent."""
    for expected in range(1, 6):
        assert store.sequences.next("a") == expected
        _kill_others(session)
        eventually(lambda: not _connections(session))


def test_a_connection_that_went_away_without_a_word(
    behind: Store, proxy: MySQLProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while it is asked; nothing is lost if it does not answer."""
    monkeypatch.setattr(countersink.sequences, "PING_AFTER", 0.0)
    pings = proxy.when("*", Phase.BEFORE, Deed.CUT, where=lambda request, _: request.text == "DO 0")
    assert behind.sequences.next("a") == 2
    assert pings.acted == 1
    assert behind.sequences.next("a") == 3


def test_a_forked_child_makes_connections_of_its_own(store: Store) -> None:
    assert store.sequences.next("a") == 1
    pid = os.fork()
    if pid == 0:  # the child, which must not run into pytest
        status = 1
        try:
            if [store.sequences.next("a") for _ in range(20)]:
                status = 0
        finally:
            os._exit(status)
    own = [store.sequences.next("a") for _ in range(20)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(set(own)) == 20
    assert store.sequences.next("a") == 42


def test_values_among_threads_whose_connections_are_cut(behind: Store, proxy: MySQLProxy) -> None:
    proxy.when("*", Phase.AFTER, Deed.CUT, where=_hands_out, skip=10, times=5)
    lost = threading.Semaphore(0)

    def take() -> list[int]:
        taken = []
        for _ in range(15):
            try:
                taken.append(behind.sequences.next("a"))
            except SequenceUncertain:
                lost.release()
        return taken

    taken = [value for own in together(*[take] * 4) for value in own]
    assert len(set(taken)) == len(taken) == 55
    assert behind.sequences.next("a") == 62


def _connections(session: Session) -> set[int]:
    """Those of this test's database, but for this one."""
    rows = session.query(
        "SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    )
    return {int(number) for (number,) in rows}


def _kill_others(session: Session) -> None:
    for number in _connections(session):
        session.execute("KILL %s", (number,))


def test_a_closed_store_connects_anew(store: Store, mysql_url: str) -> None:
    with connect(mysql_url) as session:
        others = _connections(session)
        assert store.sequences.next("a") == 1
        store.close()
        assert store.sequences.next("a") == 2
        assert _connections(session) - others
        store.close()
        eventually(lambda: not _connections(session) - others)
