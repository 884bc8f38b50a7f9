"""Reading a table some rows at a time: every row once, whatever its primary key is made of."""

import pytest

from countersink.store.connection import connect
from countersink.store.errors import Unavailable
from countersink.store.sessions import open_tables
from countersink.store.tracked import check
from countersink.store.tracked.check import differences
from countersink.store.tracked.table import read_table
from tests.store.tracked.application import App

pytestmark = pytest.mark.servers("mariadb", "mysql")

KEYS = {
    "INT": "-5, 0, 3, 4, 9",
    "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci": "'', 'a', 'B', 'é', 'z%s'",
    "VARBINARY(4)": "'', X'00', 'a', X'FF00', X'FFFF'",
    "DATE": "'0000-00-00', '2026-02-00', '1969-12-31', '2026-11-21', '9999-12-31'",
    "DATETIME(6)": "'0000-00-00', '1000-01-01', '2026-11-21 08:00:00.000001',"
    " '2026-11-21 08:00:00.000002', '9999-12-31 23:59:59.999999'",
    "TIMESTAMP(3)": "'2026-03-29 00:30:00', '2026-10-25 00:30:00.001', '2026-10-25 00:30:00.002',"
    " '2026-10-25 01:30:00', '2037-01-01'",
}
OF_MARIADB = {
    "UUID": "'00000000-0000-0000-0000-000000000000', '6ccd780c-baba-1026-9564-5b8c656024db',"
    " '6ccd780c-baba-7026-9564-5b8c656024db', '7ccd780c-baba-1026-8564-5b8c656024db',"
    " 'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "INET6": "'::', '::1', '::ffff:1.2.3.4', '2001:db8::1', 'ffff::'",
}


def test_rows_are_read_in_parts_by_keys_of_many_types(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "ROWS_PER_QUERY", 2)
    mariadb = app.session.dialect.name == "mariadb"
    app.run("SET SESSION sql_mode = ''")
    for number, (kind, values) in enumerate({**KEYS, **(OF_MARIADB if mariadb else {})}.items()):
        # Two rows of each first key: a part ends behind both.
        app.run(
            f"CREATE TABLE t{number} (k {kind} NOT NULL, n INT NOT NULL, PRIMARY KEY (k, n))",
            *(
                f"INSERT INTO t{number} VALUES ({value}, 1), ({value}, 2)"
                for value in split(values)
            ),
        )
        seen = list[int]()
        app.track(
            f"t{number}",
            counter=f"c{number}",
            progress=lambda done, _, seen=seen: seen.append(done),
        )
        assert seen == [0, 2, 4, 6, 8, 10, 10, 10], kind
        assert app.counts(f"c{number}") == {("1970-01-01", b""): 10}, kind


def split(values: str) -> list[str]:
    return values.split(", ")


def test_a_server_that_is_silent_for_too_long_is_told(app: App) -> None:
    app.run("CREATE TABLE t (a INT NOT NULL)", "INSERT INTO t VALUES (1), (2)")
    tracked = app.store.tracked.plan(f"{app.schema}.t", counter="c").definition
    with connect(app.app_url) as other, open_tables(app.mysql_url, read_timeout=1) as session:
        table = read_table(session, app.schema, "t", "")
        other.execute("LOCK TABLES t WRITE")
        with pytest.raises(Unavailable, match=r"rows of .*\.t were counted, or .* 60 minutes"):
            differences(session, tracked, table)
