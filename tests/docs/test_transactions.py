"""What docs/transactions.md says beside its sessions: libraries, and the rights that are enough."""

import inspect
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy

from countersink.database.connection import connect
from countersink.database.url import Settings
from countersink.store import Store, UnknownCounter
from tests.docs.console import blocks
from tests.docs.rights import users_with
from tests.drivers import applications, mysqlclient
from tests.support.app_connection import open_app
from tests.support.ledger import post_planted
from tests.support.processes import PROJECT

PAGE = "docs/transactions.md"
CALLS = (Store.increment, Store.increment_many, Store.delete)


@pytest.fixture
def shop_url(app_database_url: str) -> str:
    """An application's database with two open orders."""
    with connect(app_database_url) as session:
        session.execute("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20))")
        session.execute("INSERT INTO orders VALUES (1, 'open'), (2, 'open')")
    return app_database_url


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_call_is_documented_and_has_an_example(call: Any) -> None:
    text = (PROJECT / PAGE).read_text("utf-8")
    parameters = ", ".join(
        str(parameter).split(":")[0]
        + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")
        for parameter in list(inspect.signature(call).parameters.values())[1:]
    ).replace("'", '"')
    parameters = parameters.replace("at=None", "*, at=None")
    assert f"| `{call.__name__}({parameters})` |" in text
    assert f">>> store.{call.__name__}(connection, " in text
    assert inspect.getdoc(call)


def test_sqlalchemy(store: Store, shop_url: str) -> None:
    found: dict[str, Any] = {"store": store}
    exec(next(block for block in blocks(PAGE, "python") if "sqlalchemy" in block), found)
    engine = sqlalchemy.create_engine(shop_url.replace("mysql://", "mysql+pymysql://"))
    found["pay"](engine, 1)
    found["pay_by_orm"](engine, 2)
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT DISTINCT status FROM orders")).all() == [
            ("paid",)
        ]
    engine.dispose()
    assert store.totals.many("orders", ["open", "paid"]) == {"open": -2, "paid": 2}


def test_django(store: Store, shop_url: str) -> None:
    try:
        mysqlclient.load()
    except ImportError as error:
        pytest.skip(str(error))
    found: dict[str, Any] = {"store": store}
    with closing(applications.on_django(shop_url, raw=False, autocommit=True)) as app:
        exec(next(block for block in blocks(PAGE, "python") if "django" in block), found)
        found["pay"](1)
        with found["transaction"].atomic():
            found["pay"](2)
            found["transaction"].set_rollback(True)
        assert app.run("SELECT status FROM orders ORDER BY id") == [("paid",), ("open",)]
    assert store.totals.many("orders", ["open", "paid"]) == {"open": -1, "paid": 1}


@pytest.fixture
def users(mysql_url: str) -> Iterator[dict[str, str]]:
    """URLs of users that have the rights of the page and no other, by the name there."""
    granted = [
        (rights, table, user)
        for block in blocks(PAGE, "sql")
        for rights, table, user in re.findall(
            r"^GRANT (.+) ON countersink\.(\S+) TO (\w+);$", block, re.MULTILINE
        )
    ]
    assert len(granted) == 5
    with users_with(mysql_url, granted) as urls:
        yield urls


def test_the_rights_on_the_page_are_enough(
    store: Store, mysql_url: str, users: dict[str, str]
) -> None:
    with connect(mysql_url) as root:
        root.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
            " VALUES ('orders', '2020-01-01', 'a', 5, 0, 5)"
        )
        post_planted(root)
    with (
        Store(users["settings_reader"]) as limited,
        open_app(users["shop"], database=None) as app,
    ):
        limited.increment(app, "orders", "a")
        limited.increment_many(app, "orders", {"a": 1, "b": 1})
        limited.increment(app, "orders", "a", 0)
        limited.delete(app, "orders", "a")
        app.commit()
        assert limited.totals.total("orders") == 1
        store.counters.set_strict(True)
        with pytest.raises(UnknownCounter):
            limited.increment(app, "unknown", "a")
        limited.increment(app, "orders", "a")
        app.commit()
    assert store.totals.total("orders") == 2


def test_without_the_rights_of_deleting_counting_goes_on(
    mysql_url: str, store: Store, users: dict[str, str]
) -> None:
    settings = Settings.parse(mysql_url)
    with connect(mysql_url) as root:
        root.execute(f"REVOKE DELETE ON {settings.database}.counter_slot FROM shop@'%%'", ())
    with open_app(users["shop"], database=None) as app:
        store.increment(app, "orders", "a")
        store.increment_many(app, "orders", {"a": 1, "b": 1})
        with pytest.raises(Exception, match="denied"):
            store.delete(app, "orders", "a")
        app.commit()
    assert store.totals.total("orders") == 3
