"""Values that are longer than a key: their rows are counted, and never refused."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.runtime.limits import cut_bytes
from countersink.store.tracked.encoding import cut_values, encode
from tests.store.tracked.application import App
from tests.support.examples import examples

pytestmark = pytest.mark.servers("mariadb", "mysql")

VALUES = [
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


def keys(*columns: list[str]) -> dict[tuple[str, bytes], int]:
    made = Counter(cut_bytes(encode(values)) for values in zip(*columns, strict=True))
    assert all(len(key) <= 255 for key in made)
    return {("1970-01-01", key): rows for key, rows in made.items()}


@pytest.mark.parametrize("primary", ["PRIMARY KEY", "NULL"])
def test_rows_with_long_values_are_written_counted_and_verified(app: App, primary: str) -> None:
    app.run(
        f"CREATE TABLE users (id INT {primary}, name VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL)"
    )
    app.run("SET SESSION sql_mode = 'STRICT_ALL_TABLES'")
    insert = "INSERT INTO users VALUES (%s, %s)"
    for number, value in enumerate(VALUES):
        app.session.execute(insert, (number, value))
    app.track("users", counter="u", by=["name"])
    assert app.counts("u") == keys(VALUES)
    for number, value in enumerate(VALUES):
        app.session.execute(insert, (1000 + number, value))
    assert app.counts("u") == keys([*VALUES, *VALUES])
    assert app.found("u") == []
    app.run("UPDATE users SET name = CONCAT(LEFT(name, 254), '!') WHERE id >= 1000")
    now = [*VALUES, *(value[:254] + "!" for value in VALUES)]
    assert {cell: rows for cell, rows in app.counts("u").items() if rows} == keys(now)
    app.run("UPDATE IGNORE users SET name = REVERSE(name)", "DELETE FROM users WHERE id < 1000")
    left = [(value[:254] + "!")[::-1] for value in VALUES]
    assert {cell: rows for cell, rows in app.counts("u").items() if rows} == keys(left)
    assert app.found("u") == []
    assert app.store.row_count(f"{app.schema}.users") == len(VALUES)


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
