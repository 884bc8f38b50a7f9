"""Values in the application's own transaction: without gaps, rolled back with it."""

from functools import partial
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from pymysql.converters import encoders
from pymysql.cursors import DictCursor, SSCursor, SSDictCursor

from countersink.sequences import Sequences
from countersink.store import SequenceExhausted, Store
from tests.drivers import applications
from tests.drivers.test_drivers import DRIVERS, LIBRARIES, Open
from tests.support.app_connection import (
    Connection,
    open_app,
    run,
    wait_for_lock_wait,
    without_snapshot_isolation,
)
from tests.support.entries import MAX, MIN, Database, beside, together

pytestmark = pytest.mark.servers("mariadb", "mysql")

LAX_MODES = (
    "",
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
    "NO_UNSIGNED_SUBTRACTION",
    "ORACLE",
)
ISOLATIONS = ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def test_it_rolls_back_with_the_transaction(sequences: Sequences, app: Connection) -> None:
    assert [sequences.next_in(app, "a"), sequences.next_in(app, "a")] == [1, 2]
    assert sequences.peek("a") is None
    app.rollback()
    assert [sequences.next_in(app, "a"), sequences.next_in(app, "a", 5)] == [1, 6]
    app.commit()
    assert sequences.next("a") == 7
    assert sequences.next_in(app, "a", start=100) == 8
    app.rollback()
    assert sequences.next_in(app, "a") == 8
    assert sequences.next_in(app, "down", -3, start=-10) == -10
    assert sequences.next_in(app, "zero", start=0) == 0


def test_whoever_asks_waits_for_the_transaction(sequences: Sequences, db: Database) -> None:
    assert sequences.next_in(db.app, "a") == 1
    with beside(lambda: sequences.next("a")) as got:
        wait_for_lock_wait(db.session)
        assert not got.done()
        db.app.rollback()
    assert got.result() == 1


@pytest.mark.parametrize("isolation", ISOLATIONS[1:])
def test_first_use_by_many_transactions(store: Store, mysql_url: str, isolation: str) -> None:
    """They queue up. None of them is a deadlock's victim, as long as the first one commits."""

    def take(name: str) -> int:
        with open_app(mysql_url) as app:
            # with it they are to be run again: see tests/drivers/test_snapshot_isolation.py
            without_snapshot_isolation(app)
            run(app, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            value = store.sequences.next_in(app, name)
            app.commit()
            return value

    taken = together(*[lambda: take("new")] * 5)
    assert sorted(taken) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", LAX_MODES)
def test_an_application_that_is_not_strict(sequences: Sequences, db: Database, mode: str) -> None:
    if mode == "ORACLE" and db.session.dialect.name == "mysql":
        pytest.skip("MySQL has no such sql_mode")
    run(db.app, f"SET SESSION sql_mode = '{mode}'")
    run(db.app, "SET SESSION time_zone = '-11:00'")
    name = 'it\'s "a" \\ `name`'
    assert [sequences.next_in(db.app, name, start=-1) for _ in range(3)] == [-1, 0, 1]
    sequences.configure("limited", maximum=2)
    sequences.configure("wide", period="year")
    db.app.commit()
    sequences.set("top", MAX)
    sequences.set("bottom", MIN)
    assert [sequences.next_in(db.app, "limited"), sequences.next_in(db.app, "limited")] == [1, 2]
    for full, step in (("limited", 1), ("top", 1), ("bottom", -1)):
        with pytest.raises(SequenceExhausted):
            sequences.next_in(db.app, full, step)
    assert sequences.next_in(db.app, "wide") == 1
    db.app.commit()
    assert [sequences.peek(full) for full in ("limited", "top", "bottom")] == [2, MAX, MIN]
    assert run(db.app, "SHOW WARNINGS") == []


def test_errors_of_the_driver_come_as_they_are(db: Database) -> None:
    db.store.sequences.next_in(db.app, "a")
    with open_app(db.mysql_url) as other:
        run(other, "START TRANSACTION READ ONLY")
        with pytest.raises(pymysql.err.MySQLError) as caught:
            db.store.sequences.next_in(other, "a")
        assert caught.value.args[0] == 1792
    db.app.close()
    with pytest.raises(pymysql.err.InterfaceError):
        db.store.sequences.next_in(db.app, "a")


@pytest.mark.parametrize("autocommit", [True, False])
def test_values_that_take_several_statements_are_handed_out_once(
    db: Database, autocommit: bool
) -> None:
    """Within a transaction or without any: the sequence is locked from the first to the last."""
    db.store.sequences.configure("yearly", period="year")
    db.store.sequences.configure("new", start=7)

    def take() -> list[int]:
        with open_app(db.mysql_url, autocommit=autocommit) as app:
            without_snapshot_isolation(app)
            taken = []
            for _ in range(25):
                taken.append(db.store.sequences.next_in(app, "yearly"))
                app.commit()
            taken.append(db.store.sequences.next_in(app, "new") - 1000)
            app.commit()
            return taken

    taken = sorted(value for own in together(*[take] * 4) for value in own)
    assert taken == [7 - 1000, 8 - 1000, 9 - 1000, 10 - 1000, *range(1, 101)]


def test_a_sequence_that_was_deleted_meanwhile(db: Database) -> None:
    """At REPEATABLE READ the application's transaction holds the gap where its options were."""
    for isolation in ("REPEATABLE READ", "READ COMMITTED"):
        run(db.app, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        db.store.sequences.configure("a", period="month", start=7)
        assert db.store.sequences.next_in(db.app, "a") == 7
        db.app.commit()
        with Store(db.mysql_url) as other:
            other.sequences.delete("a")
        assert db.store.sequences.next_in(db.app, "a") == 1
        db.app.commit()
        assert db.store.sequences.next("a") == 2
        with Store(db.mysql_url) as other:
            other.sequences.delete("a")
            other.sequences.configure("a", period="year", start=70)
        assert db.store.sequences.next_in(db.app, "a") == 70
        db.app.commit()
        db.store.sequences.delete("a")


@pytest.mark.parametrize("isolation", ISOLATIONS[1:3])
@pytest.mark.parametrize("step", [1, -1])
def test_a_change_waits_for_the_transaction(db: Database, isolation: str, step: int) -> None:
    """So nobody goes by options that have changed; also where a new row would have no room."""
    run(db.app, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    db.store.sequences.set("a", 50)
    db.store.sequences.configure("a", minimum=0)
    assert db.store.sequences.next_in(db.app, "a", step) == 50 + step
    with beside(lambda: db.store.sequences.configure("a", step=5)) as changed:
        wait_for_lock_wait(db.session)
        assert not changed.done()
        db.app.commit()
    assert changed.result().options.step == 5
    assert db.store.sequences.next("a") == 55 + step


def test_in_a_transaction_with_a_snapshot_of_its_own(store: Store, app: Connection) -> None:
    """What others have added since it began is added to, not overwritten."""
    without_snapshot_isolation(app)
    store.sequences.configure("yearly", period="year")
    for name in ("a", "yearly"):
        store.sequences.next(name)
        run(app, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        assert [store.sequences.next(name), store.sequences.next(name)] == [2, 3]
        assert store.sequences.next_in(app, name) == 4
        app.commit()
        assert store.sequences.next(name) == 5


KINDS: dict[str, dict[str, Any]] = {
    "text": {"conv": encoders},
    "dict": {"cursorclass": DictCursor},
    "stream": {"cursorclass": SSCursor},
    "dict-stream": {"cursorclass": SSDictCursor},
    "found-rows": {"client_flag": CLIENT.FOUND_ROWS},
    "latin1": {"charset": "latin1"},
    "no-database": {"database": None},
    "safe-updates": {"init_command": "SET SESSION sql_safe_updates = 1"},
}
"""Ways of connecting by PyMySQL."""


# Of the libraries SQLAlchemy on PyMySQL, and Django with errors of its own: what is below them is
# here already.
@pytest.mark.parametrize(
    "opened",
    [
        *(*DRIVERS, LIBRARIES[0], LIBRARIES[-2]),
        *(
            pytest.param(partial(applications.on_pymysql, **how), id=name)
            for name, how in KINDS.items()
        ),
        pytest.param(partial(applications.on_pure_connector, raw=True), id="connector-bytes"),
    ],
)
def test_every_driver_tells_the_value(store: Store, mysql_url: str, opened: Open) -> None:
    app = opened(mysql_url)
    sequences, next_in = store.sequences, partial(store.sequences.next_in, app.connection)
    try:
        assert [next_in("ä", start=-1) for _ in range(3)] == [-1, 0, 1]
        app.rollback()
        sequences.set("down", MIN + 2)
        sequences.set("up", MAX - 1)
        assert next_in("down", -1) == MIN + 1
        assert next_in("up", 1) == MAX
        for name, step in (("down", -2), ("up", 1)):
            with pytest.raises(SequenceExhausted):
                next_in(name, step)
        app.commit()
        sequences.set("stock", 5)
        sequences.configure("stock", minimum=0, maximum=5)
        assert next_in("stock", -2) == 3
        with pytest.raises(SequenceExhausted):
            next_in("stock", -4)
        app.commit()
        options: dict[str, Any] = {"minimum": 1, "maximum": 2, "cycle": True, "start": 2}
        sequences.configure("yearly", period="year", time_zone="Asia/Tokyo", **options)
        assert [next_in("yearly") for _ in range(3)] == [2, 2, 2]
        app.commit()
    finally:
        app.close()
    assert sequences.peek("ä") is None
    assert [sequences.peek(name) for name in ("down", "up", "stock")] == [MIN + 1, MAX, 3]
