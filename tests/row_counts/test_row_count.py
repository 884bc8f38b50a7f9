"""Row counts: equal to COUNT(*) with the same condition, whatever the values are."""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.row_counts import check
from countersink.row_counts import row_count as module
from countersink.row_counts.row_count import row_count
from countersink.store import Refused, Store, StoreError, UnknownCounter
from tests.row_counts.application import App, user
from tests.support.examples import examples
from tests.support.width_rows import plant

pytestmark = pytest.mark.servers("mariadb", "mysql")

TABLE = """
CREATE TABLE sales (
    plain   VARCHAR(8) CHARACTER SET latin1 COLLATE latin1_swedish_ci NULL,
    folded  VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NULL,
    padded  VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    kind    ENUM('a', 'B', '') CHARACTER SET utf8mb4 NULL,
    number  INT NULL,
    filled  SMALLINT(5) UNSIGNED ZEROFILL NULL,
    flag    BOOLEAN NULL,
    bits    BIT(3) NULL,
    price   DECIMAL(6, 2) NULL,
    born    DATE NULL,
    moment  DATETIME(3) NULL,
    length  TIME(1) NULL,
    year    YEAR NULL,
    fixed   BINARY(2) NULL,
    raw     VARBINARY(4) NULL,
    sold    DATE NULL
)
"""
TEXTS = [None, "", " ", "a", "A", "a ", "ä", "á", "|", "\\", "a|b", "\\N", "a\\|", "?", "ß", "ss"]
VALUES: dict[str, list[Any]] = {
    "plain": [*TEXTS, "ă", "日"],
    "folded": [*TEXTS, "ă", "a\u0301", "\U0001f600"],
    "padded": [*TEXTS, "\U0001f600"],
    "kind": [None, "a", "A", "b", "B", "", "c"],
    "number": [None, 0, -5, 7, 2**31 - 1, 2**40, True],
    "filled": [None, 0, 7, 65_535],
    "flag": [None, True, False, 2],
    "bits": [None, 0, 5, True],
    "price": [None, Decimal("1.50"), Decimal("-0.01"), 3, Decimal("1.505"), Decimal("1e3"), 0],
    "born": [None, date(2026, 11, 21), date(1969, 1, 1)],
    "moment": [
        None,
        datetime.fromisoformat("2026-11-21"),
        datetime.fromisoformat("2026-11-21 08:00:00.250"),
        datetime.fromisoformat("2026-11-21 08:00:00.250001"),
    ],
    "length": [None, timedelta(0), timedelta(hours=-100, seconds=7.5), time(8, 1, 2, 100_000)],
    "year": [None, 1999, 2026, 0, 1, 26, 69, 70, 99, 2156],
    "fixed": [None, b"", b"a", b"a\0", b"|\\"],
    "raw": [None, b"", b"a", b"a ", b"\xff|\\"],
}
DAYS = [None, date(1960, 1, 1), date(1970, 1, 1), date(2026, 11, 20), date(2026, 11, 21)]
DAYS += [date(2026, 11, 22), date(9999, 12, 25), date(9999, 12, 31)]


class Sales(App):
    """An application with the table, filled at will, and both ways of counting its rows."""

    @property
    def name(self) -> str:
        return f"{self.schema}.sales"

    def fill(self, rows: list[dict[str, Any]]) -> None:
        """Let the table have these rows, without the values that a column does not take."""
        with self.session.transaction():
            self.session.execute("DELETE FROM sales")
            for row in rows:
                marks = ", ".join(["%s"] * len(row))
                self.session.execute(
                    f"INSERT IGNORE INTO sales ({', '.join(row)}) VALUES ({marks})",
                    list(row.values()),
                )

    def count_by(self, counter: str, by: Sequence[str] = (), day: str | None = None) -> None:
        """Track the table in a counter."""
        self.track("sales", counter=counter, by=by, day=day)

    def counted(self, where: dict[str, Any], start: Any = None, end: Any = None) -> int:
        """What COUNT(*) says; rows without a day are there when no day is the first one."""
        terms, args = ["TRUE"], list[Any]()
        for name, value in where.items():
            terms.append(f"{name} IS NULL" if value is None else f"{name} = %s")
            args += [] if value is None else [value]
        if start is not None:
            terms.append("sold >= %s")
            args.append(start)
        if end is not None:
            terms.append("(sold <= %s OR sold IS NULL)" if start is None else "sold <= %s")
            args.append(end)
        ((found,),) = self.session.query(
            f"SELECT COUNT(*) FROM sales WHERE {' AND '.join(terms)}", args
        )
        return int(found)


@pytest.fixture
def sales(app: App) -> Sales:
    """The table in a database of its own."""
    app.run(TABLE)
    return Sales(app.mysql_url, app.app_url, app.session, app.own, app.store)


GROUPS = [["plain"], ["folded"], ["padded", "kind"], ["number", "filled", "flag", "bits"]]
GROUPS += [["price", "born", "moment"], ["length", "year", "fixed", "raw"]]


def test_every_type_of_column_is_compared_as_the_server_compares_it(sales: Sales) -> None:
    for group in GROUPS:
        sales.count_by("-".join(group), group)
    sales.fill([{name: value} for name, values in VALUES.items() for value in values])
    for name, values in VALUES.items():
        for value in values:
            try:
                wanted = sales.counted({name: value})
            except StoreError:
                wanted = 0  # it cannot be written in the column's character set
            assert sales.store.row_count(sales.name, where={name: value}) == wanted, (name, value)


ROW = st.fixed_dictionaries(
    {
        "plain": st.sampled_from(TEXTS),
        "folded": st.sampled_from(TEXTS),
        "number": st.sampled_from([None, 0, -5, 7]),
        "sold": st.sampled_from(DAYS),
    }
)


@examples(few=4, many=12)
@given(data=st.data())
def _compare(sales: Sales, data: st.DataObject) -> None:
    sales.fill(data.draw(st.lists(ROW, max_size=12)))
    for _ in range(6):
        where: dict[str, Any] = dict(data.draw(ROW))
        for name in data.draw(st.sets(st.sampled_from(["plain", "folded", "number"]))):
            del where[name]
        del where["sold"]
        start, end = data.draw(st.tuples(RANGE_DAYS, RANGE_DAYS).filter(_is_range))
        assert sales.store.row_count(sales.name, start=start, end=end, **where) == sales.counted(
            where, start, end
        ), (where, start, end)


RANGE_DAYS = st.sampled_from([None, *(day for day in DAYS[2:6] if day is not None)])


def _is_range(days: tuple[date | None, date | None]) -> bool:
    return None in days or days[0] <= days[1]  # type: ignore[operator]


@pytest.mark.random
def test_any_rows_and_any_question_give_what_count_gives(
    sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.count_by("all")
    sales.count_by("of-days", [], "sold")
    sales.count_by("sales", ["number", "folded", "plain"], "sold")
    _compare(sales)
    monkeypatch.setattr(module, "ENTRIES", 2)
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    _compare(sales)


def test_the_fewest_columns_that_will_do_are_read(sales: Sales) -> None:
    sales.count_by("wide", ["number", "flag"], "sold")
    sales.count_by("narrow", ["number"])
    sales.count_by("all")
    sales.fill([{"number": 1, "flag": True, "sold": "2026-11-21"}] * 3)
    for counter, amount in (("wide", 1000), ("narrow", 100), ("all", 10)):
        sales.own.execute(
            "UPDATE counter_slot SET amount = %s WHERE counter = %s", (amount, counter)
        )
    count = sales.store.row_count
    assert count(sales.name) == 10
    assert count(sales.name, number=1) == 100
    assert count(sales.name, flag=True) == 1000
    assert count(sales.name, number=1, start=date(2026, 11, 21)) == 1000
    assert count("wide") == 1000
    assert count("narrow", number=1) == 100


def test_names_of_columns_are_taken_in_any_case_and_values_from_both_places(sales: Sales) -> None:
    sales.count_by("orders", ["number", "plain"])
    sales.fill([{"number": 1, "plain": "a"}, {"number": 1, "plain": "b"}])
    count = sales.store.row_count
    assert count("orders", Number=1, where={"PLAIN": "A"}) == 1
    with pytest.raises(ValueError, match="number: given as an argument and in where"):
        count("orders", number=1, where={"number": 1})
    with pytest.raises(ValueError, match="given twice"):
        count("orders", number=1, where={"NUMBER": 1})


def test_what_cannot_be_told_is_an_error_that_says_what_can(sales: Sales) -> None:
    sales.count_by("orders", ["number", "plain", "born"])
    sales.count_by("orders-by-day", [], "sold")
    count = sales.store.row_count
    with pytest.raises(UnknownCounter, match="'other' is tracked: countersink track other"):
        count("other")
    with pytest.raises(
        ValueError,
        match="orders is not counted by colour: orders counts by number, plain, born",
    ):
        count("orders", colour="red")
    with pytest.raises(ValueError, match="not counted by day: orders counts by"):
        count("orders", start=date(2026, 11, 21))
    with pytest.raises(ValueError, match=r"day and number.*orders-by-day counts by day of sold"):
        count(sales.name, number=1, end=date(2026, 11, 21))
    for wrong in ("1", 1.0, Decimal(1), date(2026, 11, 21)):
        with pytest.raises(TypeError, match="number is of type INT, which cannot be compared"):
            count("orders", number=wrong)
    with pytest.raises(TypeError, match="DATE, which cannot be compared with a value of type da"):
        count("orders", born=datetime.fromisoformat("2026-11-21"))
    with pytest.raises(ValueError, match="cannot be encoded as UTF-8"):
        count("orders", plain="\udc80")


def test_days_that_are_counted_as_one_are_not_told_apart(sales: Sales) -> None:
    sales.count_by("orders", [], "sold")
    sales.fill([{"sold": day} for day in DAYS])
    count = sales.store.row_count
    assert count("orders", end=date(1969, 12, 31)) == 2
    assert count("orders", start=date(1969, 12, 31)) == len(DAYS)
    assert count("orders", start=date(9999, 12, 26)) == 1
    assert count("orders", start=date(2026, 11, 21), end=date.max) == 4
    for wrong in (date(1969, 12, 30), date.min, date(9999, 12, 27)):
        with pytest.raises(ValueError, match=f"no range can start on {wrong}"):
            count("orders", start=wrong)
    for wrong in (date(1969, 12, 30), date(9999, 12, 26), date(9999, 12, 30)):
        with pytest.raises(ValueError, match=f"no range can end on {wrong}"):
            count("orders", end=wrong)
    with pytest.raises(ValueError, match=r"ends .* before it begins"):
        count("orders", start=date(2026, 11, 22), end=date(2026, 11, 21))
    with pytest.raises(TypeError, match="a range is given in days"):
        count("orders", start=datetime.fromisoformat("2026-11-21"))


def test_a_table_that_is_not_counted_yet_has_no_count_to_read(sales: Sales) -> None:
    sales.count_by("orders", ["number"])
    sales.count_by("all")
    sales.own.execute("UPDATE tracked_table SET counted = NULL WHERE counter = 'all'")
    sales.fill([{"number": 1}])
    assert sales.store.row_count(sales.name) == 1  # by the other one
    with pytest.raises(Refused, match=r"counter all of .*: the table is being tracked, repaired"):
        sales.store.row_count("all")


def test_a_name_that_means_two_tables_is_refused(sales: Sales) -> None:
    sales.count_by("orders")
    sales.own.execute(
        "INSERT INTO tracked_table SELECT 'own', DATABASE(), 'orders', '[]', NULL, 16,"
        " 'countersink_own', created, counted FROM tracked_table"
    )
    with pytest.raises(ValueError, match=r"counter of .*\.sales, and also a table tracked as"):
        sales.store.row_count("orders")


def test_a_column_that_is_gone_or_out_of_sight_is_named(sales: Sales) -> None:
    sales.count_by("orders", ["number"])
    sales.session.execute("ALTER TABLE sales DROP COLUMN number")
    assert sales.store.row_count("orders", number=None) == 0
    with pytest.raises(Refused, match=r"column number of .* is missing, or this user may not"):
        sales.store.row_count("orders", number=1)
    sales.session.execute("DROP TABLE sales")
    with pytest.raises(Refused, match=r"sales is missing, or this user may not see it"):
        sales.store.row_count("orders", number=1)


def test_a_reader_needs_no_rights_on_the_table_but_to_see_the_columns_it_asks_for(
    sales: Sales,
) -> None:
    sales.count_by("orders", ["number"])
    sales.fill([{"number": 1}, {"number": None}])
    rights = f"SELECT ON {Settings.parse(sales.mysql_url).database}.*"
    with user(sales.mysql_url, rights) as url, Store(url) as store:
        assert store.row_count(sales.name) == 2
        assert store.row_count("orders", number=None) == 1
        with pytest.raises(Refused, match="grant SELECT on the table"):
            store.row_count("orders", number=1)
        sales.run(f"GRANT SELECT ON {sales.name} TO limited@'%'")
        assert store.row_count("orders", number=1) == 1


def test_keys_that_no_trigger_wrote_are_nobodys_rows(sales: Sales) -> None:
    columns = ["price", "plain", "folded"]
    for column in columns:
        sales.count_by(column, [column])
    sales.count_by("all", columns)
    strange = [b"\xff", b"a\\", b"\\x", b"a|b|c|d", b"\xed\xa0\x80", b"x" * 254 + b"\xc3", b"NaN"]
    for counter in (*columns, "all"):
        for key in (*strange, *(b"NaN|" + key + b"|" + key for key in strange[:4])):
            plant(sales.own, (counter, "1970-01-01", key, 0, 5))
    sales.fill([{"price": 1, "plain": "a", "folded": "a"}])
    for where in ({"price": 1}, {"plain": "a"}, {"folded": "A"}):
        assert sales.store.row_count(sales.name, where=where) == 1, where
        assert sales.store.row_count("all", where=where) == 1, where
    for number in ("NaN", "sNaN", "Infinity"):
        assert sales.store.row_count("price", price=Decimal(number)) == 0


def reads(session: Session) -> int:
    """How many rows of indexes and tables this session has read so far."""
    found = session.query("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for name, value in found if "rnd" not in name)  # those of SHOW itself


def test_only_what_is_asked_for_is_read(sales: Sales, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES", 10)  # as many as this small table makes sense with
    sales.count_by("orders", ["number", "plain"], "sold")
    dates = [date(2026, 1, 1) + timedelta(days=n) for n in range(200)]
    texts = [f"{number}|{text}" for number in range(20) for text in "abAB"]
    plant(sales.own, *(("orders", day, text, 256, 1) for day in dates for text in texts))
    sales.own.execute("ANALYZE TABLE counter_slot")
    day = date(2026, 1, 2)
    for where, days, found, most in (
        ({"number": 7, "plain": "a"}, {}, 400, 500),
        ({"number": 7}, {}, 800, 900),
        ({"number": 7}, {"start": day, "end": day}, 4, 100),
        ({"plain": "a"}, {"start": day, "end": day}, 40, 400),
        ({}, {"start": day, "end": day}, 80, 150),
        ({"plain": None}, {}, 0, 700),
    ):

        def work(session: Session, where: Any = where, days: Any = days) -> tuple[int, int]:
            before = reads(session)
            return row_count(session, sales.schema, "sales", where, **days), reads(session) - before

        counted, read = sales.store.snapshot(work)
        assert counted == found, where
        assert read < most, (where, days, read)


KEYS = {
    "INT": "-5, 0, 3, 4, 9",
    "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci": "'', 'a', 'B', 'é', 'z%s'",
    "ENUM('z', 'a', 'm', 'b', 'y')": "'z', 'a', 'm', 'b', 'y'",
    "DECIMAL(10, 2)": "-1.5, 0, 0.01, 7, 99999999.99",
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


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_are_read_in_parts_by_keys_of_many_types(
    app: App, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """A part ends behind all rows of a first key, though two rows would do."""
    monkeypatch.setattr(check, "ROWS_PER_QUERY", 2)
    mariadb = app.session.dialect.name == "mariadb"
    app.run("SET SESSION sql_mode = ''")
    for number, (kind, values) in enumerate({**KEYS, **(OF_MARIADB if mariadb else {})}.items()):
        app.run(
            f"CREATE TABLE t{number} (k {kind} NOT NULL, n INT NOT NULL, PRIMARY KEY (k, n))",
            *(
                f"INSERT INTO t{number} VALUES ({value}, {row})"
                for value in split(values)
                for row in range(rows)
            ),
        )
        seen = list[int]()
        app.track(
            f"t{number}",
            counter=f"c{number}",
            progress=lambda done, _, seen=seen: seen.append(done),
        )
        whole = 5 * rows
        parts = (
            [whole]
            if kind.startswith(("ENUM", "DECIMAL"))
            else [*range(rows, whole + 1, rows), whole]
        )
        assert seen == [0, *parts, whole], kind
        assert app.counts(f"c{number}") == {("1970-01-01", b""): whole}, kind


def split(values: str) -> list[str]:
    return values.split(", ")
