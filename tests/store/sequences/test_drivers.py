"""Values in transactions of every driver and library that people use."""

from functools import partial
from typing import Any

import pytest
from pymysql.converters import encoders

from countersink.store import SequenceExhausted, Store
from tests.drivers import applications
from tests.drivers.test_drivers import DRIVERS, LIBRARIES, Open
from tests.store.helpers import MAX, MIN

pytestmark = pytest.mark.servers("mariadb", "mysql")


# Of the libraries SQLAlchemy on PyMySQL, and Django with errors of its own: what is below them is
# here already.
@pytest.mark.parametrize(
    "opened",
    [
        *(*DRIVERS, LIBRARIES[0], LIBRARIES[-2]),
        pytest.param(partial(applications.on_pymysql, conv=encoders), id="pymysql-text"),
        pytest.param(partial(applications.on_pure_connector, raw=True), id="connector-bytes"),
    ],
)
def test_every_driver_tells_the_value(mysql_url: str, opened: Open) -> None:
    app = opened(mysql_url)
    with Store(mysql_url) as store:
        sequences = store.sequences
        try:
            assert [sequences.next_in(app.connection, "a", start=-1) for _ in range(3)] == [
                -1,
                0,
                1,
            ]
            app.rollback()
            sequences.set("down", MIN + 2)
            sequences.set("up", MAX - 1)
            assert sequences.next_in(app.connection, "down", -1) == MIN + 1
            assert sequences.next_in(app.connection, "up", 1) == MAX
            for name, step in (("down", -2), ("up", 1)):
                with pytest.raises(SequenceExhausted):
                    sequences.next_in(app.connection, name, step)
            app.commit()
            sequences.set("stock", 5)
            sequences.configure("stock", minimum=0)
            assert sequences.next_in(app.connection, "stock", -2) == 3
            with pytest.raises(SequenceExhausted):
                sequences.next_in(app.connection, "stock", -4)
            app.commit()
            options: dict[str, Any] = {"minimum": 1, "maximum": 2, "cycle": True, "start": 2}
            sequences.configure("yearly", period="year", time_zone="Asia/Tokyo", **options)
            taken = [sequences.next_in(app.connection, "yearly") for _ in range(3)]
            assert taken == [2, 2, 2]
            app.commit()
        finally:
            app.close()
        assert sequences.peek("a") is None
        assert [sequences.peek(name) for name in ("down", "up", "stock")] == [MIN + 1, MAX, 3]
