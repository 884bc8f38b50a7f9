"""Keys of tracked tables: reversible, the same in Python and in SQL; where values are longer than a
key their rows are counted, and never refused."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.row_counts.keys import cut_values, decode, encode, key_sql
from countersink.row_counts.table import Column, read_columns
from countersink.runtime.limits import cut_bytes
from tests.row_counts.application import App
from tests.support.examples import examples

VALUES = st.lists(st.none() | st.text(max_size=8) | st.text("\\|Na", max_size=6), max_size=4)
CHARSETS = ("utf8mb4", "latin1", "ucs2", "utf16", "ascii", "gbk")


@examples(few=30, many=100)
@given(VALUES)
def test_every_list_of_values_has_one_key_and_comes_back(values: list[str | None]) -> None:
    assert decode(encode(values), len(values)) == tuple(values)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ((), b""),
        (("",), b""),
        ((None,), rb"\N"),
        (("\\N",), rb"\\N"),
        (("a|b", "c\\", "é"), b"a\\|b|c\\\\|\xc3\xa9"),
        ((None, "", None), rb"\N||\N"),
    ],
)
def test_keys_are_what_the_documentation_says(values: tuple[str | None, ...], key: bytes) -> None:
    assert encode(values) == key
    assert decode(key, len(values)) == values


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"a", 0),
        (b"a", 2),
        (b"a|b", 1),
        (b"a\\", 1),
        (rb"\x", 1),
        (rb"\NN", 1),
        (b"\xff", 1),
        (b"|", 3),
    ],
)
def test_what_no_trigger_writes_is_no_key(key: bytes, number: int) -> None:
    with pytest.raises(ValueError, match="no key"):
        decode(key, number)


def keys(session: Session, table: str, chosen: Sequence[Column]) -> list[bytes]:
    """The keys of a table's rows by these columns, in the order of its ids."""
    found = session.query(f"SELECT {key_sql(chosen, 't.')} FROM {table} AS t ORDER BY id")
    return [bytes(key) for (key,) in found]


@pytest.mark.random
def test_the_server_makes_the_same_keys_of_any_text_in_any_character_set(app: App) -> None:
    own = ", ".join(f"c_{each} VARCHAR(10) CHARACTER SET {each}" for each in CHARSETS)
    app.run(f"CREATE TABLE texts (id INT PRIMARY KEY, {own})", "SET SESSION sql_mode = ''")
    names = [f"c_{each}" for each in CHARSETS]
    known = read_columns(app.session, app.schema, "texts")
    expression = key_sql([known[name] for name in names])
    marks = ", ".join(["%s"] * len(names))

    @examples(few=20, many=60)
    @given(
        st.none()
        | st.text("\\|Naé😀ß\u0301\0 '\"%`", max_size=8)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    )
    def check(value: str | None) -> None:
        # What a character set lacks becomes a question mark; that is what the column then shows.
        app.session.execute(f"REPLACE INTO texts VALUES (1, {marks})", [value] * len(names))
        shown = app.session.query(f"SELECT {', '.join(names)} FROM texts")[0]
        ((key,),) = app.session.query(f"SELECT {expression} FROM texts")
        assert shown[0] == value
        assert bytes(key) == encode(shown)
        assert decode(bytes(key), len(names)) == shown

    check()


TYPES = """CREATE TABLE kinds (
    id INT PRIMARY KEY,
    tiny TINYINT, big BIGINT UNSIGNED, zeros INT(8) ZEROFILL, truth BOOLEAN, bits BIT(5),
    price DECIMAL(10, 3), born DATE, seen DATETIME(3), long_ago DATETIME, spent TIME(2), y YEAR,
    kind ENUM('a|b', 'c\\\\d', 'é') CHARACTER SET latin1, flags SET('x', 'y|z'),
    fixed CHAR(5), raw VARBINARY(4), uuid BINARY(2))"""
ROWS = {
    "(-128, 18446744073709551615, 42, TRUE, b'101', '-0.5', '2026-11-21', '2026-11-21 08:00:00.25',"
    " '1000-01-01', '-838:59:59', 2026, 'a|b', 'x,y|z', 'a ', X'FF7C00', X'0A')": (
        *("-128", "18446744073709551615", "42", "1", "5", "-0.500", "2026-11-21"),
        *("2026-11-21 08:00:00.250", "1000-01-01 00:00:00", "-838:59:59.00", "2026", "a|b"),
        *("x,y|z", "a", "FF7C00", "0A00"),
    ),
    "(0, 0, 0, 7, 0, '-0.0001', '0000-00-00', '2026-02-00', '0000-00-00', '12:00', 0, 'no such',"
    " '', '', '', '')": (
        *("0", "0", "0", "7", "0", "0.000", "0000-00-00", "2026-02-00 00:00:00.000"),
        *("0000-00-00 00:00:00", "12:00:00.00", "0000", "", "", "", "", "0000"),
    ),
    f"({', '.join(['NULL'] * 16)})": (None,) * 16,
}


SETTINGS = (
    "sql_mode = ''",
    "sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'",
    "NAMES latin1",
    "time_zone = '+05:30'",
)


def test_each_type_has_its_text_whatever_the_session_is_set_to(app: App) -> None:
    app.run("SET SESSION sql_mode = ''", TYPES)
    for number, values in enumerate(ROWS):
        app.run(f"INSERT INTO kinds VALUES ({number}, {values[1:]}")
    chosen = list(read_columns(app.session, app.schema, "kinds").values())[1:]
    for setting in SETTINGS:
        with connect(app.app_url) as session:
            session.execute(f"SET {setting}")
            found = keys(session, "kinds", chosen)
        assert [decode(key, len(chosen)) for key in found] == list(ROWS.values()), setting
        assert [encode(values) for values in ROWS.values()] == found, setting


LONG = [
    "short",
    "x" * 255,
    "x" * 254 + "|",
    *("y" * number + "😀" * (255 - number) for number in range(5)),
    *("y" * number + "é" * (255 - number) for number in range(3)),
    *("€" * number + "y" * (255 - number) for number in (84, 85, 86)),
    "|" * 200,
    "\\" * 255,
    *("z" * 237 + "\\" * number + "end" for number in range(4)),
]


def cut_keys(*columns: list[str]) -> dict[tuple[str, bytes], int]:
    made = Counter(cut_bytes(encode(values)) for values in zip(*columns, strict=True))
    assert all(len(key) <= 255 for key in made)
    return {("1970-01-01", key): rows for key, rows in made.items()}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("primary", ["PRIMARY KEY", "NULL"])
def test_rows_with_long_values_are_written_counted_and_verified(app: App, primary: str) -> None:
    app.run(
        f"CREATE TABLE users (id INT {primary}, name VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL)"
    )
    app.run("SET SESSION sql_mode = 'STRICT_ALL_TABLES'")
    insert = "INSERT INTO users VALUES (%s, %s)"
    for number, value in enumerate(LONG):
        app.session.execute(insert, (number, value))
    app.track("users", counter="u", by=["name"])
    assert app.counts("u") == cut_keys(LONG)
    for number, value in enumerate(LONG):
        app.session.execute(insert, (1000 + number, value))
    assert app.counts("u") == cut_keys([*LONG, *LONG])
    assert app.found("u") == []
    app.run("UPDATE users SET name = CONCAT(LEFT(name, 254), '!') WHERE id >= 1000")
    now = [*LONG, *(value[:254] + "!" for value in LONG)]
    assert {cell: rows for cell, rows in app.counts("u").items() if rows} == cut_keys(now)
    app.run("UPDATE IGNORE users SET name = REVERSE(name)", "DELETE FROM users WHERE id < 1000")
    left = [(value[:254] + "!")[::-1] for value in LONG]
    assert {cell: rows for cell, rows in app.counts("u").items() if rows} == cut_keys(left)
    assert app.found("u") == []
    assert app.store.row_count(f"{app.schema}.users") == len(LONG)


@pytest.mark.servers("mariadb", "mysql")
def test_what_can_be_told_of_long_values_is_and_the_rest_refused(app: App) -> None:
    app.run(
        "CREATE TABLE users (id INT PRIMARY KEY, plain VARCHAR(255) CHARACTER SET utf8mb4,"
        " exact VARBINARY(255), state VARCHAR(10) CHARACTER SET utf8mb4)"
    )
    rows = [("a", b"a", "new"), ("A", b"b", "old"), ("é" * 255, b"x" * 255, "new"), (None,) * 3]
    for number, row in enumerate(rows):
        app.session.execute("INSERT INTO users VALUES (%s, %s, %s, %s)", (number, *row))
    for counter, by in (("p", ["plain"]), ("e", ["exact"]), ("s", ["state", "plain"])):
        app.track("users", counter=counter, by=by)
    users = f"{app.schema}.users"

    def counted(**where: object) -> int:
        return app.store.row_count(users, where=where)

    ((alike,),) = app.session.query("SELECT COUNT(*) FROM users WHERE plain = 'a'")
    assert counted(plain="a") == alike
    assert counted(plain=None) == 1
    assert counted(exact=b"x" * 255) == 1
    assert counted(exact=b"x" * 254) == 0
    assert counted(state="new") == 2
    assert counted(state="old", plain="A") == 1
    for where in ({"plain": "é" * 255}, {"plain": "b" * 200}):
        with pytest.raises(ValueError, match="too long for a key, which is cut"):
            counted(**where)
    assert app.found() == []


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize(
    ("collation", "text", "longer"),
    [
        ("latin1_swedish_ci", "paid", "Paid" + " " * 290),
        ("utf8mb4_bin", "paid", "paid" + " " * 290),
        ("utf8mb4_unicode_ci", "paid", "paid" + "\u0301" * 290),
        ("utf8mb4_unicode_ci", "\u3300" * 30, "アパート" * 30),
    ],
)
def test_a_text_that_is_equal_to_a_far_longer_one_is_not_left_out(
    app: App, collation: str, text: str, longer: str
) -> None:
    charset = collation.partition("_")[0]
    app.run(
        "CREATE TABLE bills (id INT PRIMARY KEY,"
        f" status VARCHAR(300) CHARACTER SET {charset} COLLATE {collation})"
    )
    for number, status in enumerate((text, longer, "unpaid" * 50)):
        app.session.execute("INSERT INTO bills VALUES (%s, %s)", (number, status))
    app.track("bills", counter="b", by=["status"])
    (equal,) = app.session.query("SELECT COUNT(*) FROM bills WHERE status = %s", (text,))
    assert equal == (2,)
    with pytest.raises(ValueError, match="too long for a key, which is cut"):
        app.store.row_count(f"{app.schema}.bills", where={"status": text})
    assert app.store.row_count(f"{app.schema}.bills", where={"status": "x"}) == 0


@pytest.mark.servers("mariadb", "mysql")
def test_a_null_that_ends_a_cut_key_is_not_told_from_other_values(app: App) -> None:
    app.run(
        "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(255) CHARACTER SET utf8mb4,"
        " state VARCHAR(9) CHARACTER SET utf8mb4, rest VARCHAR(20) CHARACTER SET utf8mb4)"
    )
    insert = "INSERT INTO users VALUES (1, %s, NULL, 'abcdefghijklmnopqrst')"
    app.session.execute(insert, ("x" * 235,))
    app.track("users", counter="u", by=["name", "state", "rest"])
    with pytest.raises(ValueError, match="too long for a key, which is cut"):
        app.store.row_count(f"{app.schema}.users", state=None)


@examples(few=30, many=100)
@given(st.lists(st.none() | st.text(alphabet="a|\\é😀", max_size=300), min_size=1, max_size=3))
def test_the_values_that_a_cut_key_still_tells(values: list[str | None]) -> None:
    key = cut_bytes(encode(values))
    found = cut_values(key)
    if len(encode(values)) <= 255:
        assert key == encode(values)
        return
    assert found is not None
    whole, begun = found
    assert list(whole) == values[: len(whole)]
    begins = begun.rstrip("\ufffd")
    assert (values[len(whole)] or "\\N").startswith(begins)
