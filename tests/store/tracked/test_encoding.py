"""Keys of tracked tables: reversible, and the same in Python and in SQL."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store.connection import Session, connect
from countersink.store.tracked.encoding import decode, encode, key_sql
from countersink.store.tracked.table import Column, read_columns
from tests.store.tracked.application import App
from tests.support.examples import examples

VALUES = st.lists(st.none() | st.text(max_size=8) | st.text("\\|Na", max_size=6), max_size=4)
CHARSETS = ("utf8mb4", "latin1", "ucs2", "utf16", "ascii", "gbk")


@examples(few=30, many=100)
@given(VALUES)
def test_every_list_of_values_has_one_key_and_comes_back(values: list[str | None]) -> None:
    assert decode(encode(values), len(values)) == tuple(values)


@examples(few=30, many=100)
@given(VALUES, VALUES)
def test_no_two_lists_of_values_have_the_same_key(
    some: list[str | None], others: list[str | None]
) -> None:
    others = [*others, *some][: len(some)]
    assert (encode(some) == encode(others)) == (some == others)


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


def test_values_are_text() -> None:
    with pytest.raises(TypeError, match="not int"):
        encode([1])  # type: ignore[list-item]


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


def test_half_a_surrogate_pair_is_one_key_for_triggers_and_for_counting(app: App) -> None:
    app.run("CREATE TABLE halves (id INT PRIMARY KEY, half VARCHAR(5) CHARACTER SET ucs2)")
    app.run("INSERT INTO halves VALUES (1, X'0061D800'), (2, X'D800')")
    app.track("halves", counter="halves", by=["half"])
    app.run("INSERT INTO halves VALUES (3, X'0061D800'), (4, X'D800')")
    assert app.found() == []
    assert sum(app.counts("halves").values()) == 4
    for _, key in app.counts("halves"):
        # MariaDB writes the half, MySQL leaves it out.
        assert encode(decode(key, 1)) == key
