"""Statements at random on an application's own tables.

Everything that changes which rows there are, or how they are grouped, is among the statements:
single and multi-row INSERT, IGNORE, INSERT … SELECT, upserts, REPLACE, UPDATE of what rows are
grouped by, of their day, of their key and of nothing, joins, DELETE, and errors of the
application's own making in the midst of them.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.app_tables import (
    CODES,
    COUNTRIES,
    CUSTOMERS,
    DAYS,
    IDS,
    KINDS,
    LAX_DAYS,
    MOMENTS,
    STATUSES,
    TENANTS,
    TOKENS,
)

Cursor = Any
"""A DB-API cursor."""
Statement = Callable[[Cursor, Random, bool], None]
"""Runs one statement. Takes the cursor, what is drawn from, and whether the session is lax: its
sql_mode takes dates that are none."""

ORDER = "INTO orders (id, code, tenant, number, status, placed, customer)"
MARKS = "(%s, %s, %s, %s, %s, %s, %s)"
VISIT = "INTO visits (token, country, kind, seen)"


def order_row(draw: Random, lax: bool) -> tuple[Any, ...]:
    """The columns of a new order."""
    return (
        draw.randrange(1, IDS),
        draw.choice((None, f"c{draw.randrange(CODES)}")),
        draw.choice(TENANTS),
        draw.choice((None, draw.randrange(CODES))),
        draw.choice(STATUSES),
        day(draw, lax),
        draw.choice((None, draw.randrange(CUSTOMERS))),
    )


def day(draw: Random, lax: bool) -> str | None:
    """A date that the session may store."""
    return draw.choice(LAX_DAYS if lax else DAYS)


def _ids(draw: Random) -> list[int]:
    return sorted(draw.randrange(1, IDS) for _ in range(draw.randrange(1, 6)))


def _range(draw: Random) -> tuple[int, int]:
    low = draw.randrange(1, IDS)
    return low, low + draw.randrange(1, 8)


# -- orders ----------------------------------------------------------------------------------------


def _insert(verb: str, how_many: int, end: str = "") -> Statement:
    """INSERT, INSERT IGNORE or REPLACE of at most so many rows, with this behind them."""

    def run(cursor: Cursor, draw: Random, lax: bool) -> None:
        rows = sorted((order_row(draw, lax) for _ in range(draw.randint(1, how_many))), key=_id)
        values = ", ".join([MARKS] * len(rows))
        cursor.execute(
            f"{verb} {ORDER} VALUES {values} {end}", [one for row in rows for one in row]
        )

    return run


def _id(row: tuple[Any, ...]) -> int:
    return int(row[0])


def _upsert(how_many: int) -> Statement:
    def run(cursor: Cursor, draw: Random, lax: bool) -> None:
        changes = {
            "status": draw.choice(STATUSES),
            "tenant": draw.choice(TENANTS),
            "placed": day(draw, lax),
        }
        chosen = draw.sample(sorted(changes), draw.randint(0, 3))
        sets = "".join(f", {column} = %s" for column in chosen)
        end = f"ON DUPLICATE KEY UPDATE note = note + 1{sets}"
        rows = sorted((order_row(draw, lax) for _ in range(draw.randint(1, how_many))), key=_id)
        values = ", ".join([MARKS] * len(rows))
        cursor.execute(
            f"INSERT {ORDER} VALUES {values} {end}",
            [*(one for row in rows for one in row), *(changes[column] for column in chosen)],
        )

    return run


def _insert_select(cursor: Cursor, draw: Random, lax: bool) -> None:
    low, high = _range(draw)
    cursor.execute(
        "INSERT IGNORE INTO orders (id, tenant, status, placed)"
        " SELECT id + %s, tenant, status, %s FROM orders WHERE id BETWEEN %s AND %s",
        (draw.randrange(1, 30), day(draw, lax), low, high),
    )


def _update(
    sets: str, choose: Callable[[Random, bool], tuple[Any, ...]], verb: str = "UPDATE"
) -> Statement:
    """UPDATE of one order or of a range."""

    def run(cursor: Cursor, draw: Random, lax: bool) -> None:
        low, high = _range(draw)
        if draw.random() < 0.6:
            high = low
        cursor.execute(
            f"{verb} orders SET {sets} WHERE id BETWEEN %s AND %s", (*choose(draw, lax), low, high)
        )

    return run


def _delete(cursor: Cursor, draw: Random, _lax: bool) -> None:
    ids = _ids(draw)
    marks = ", ".join(["%s"] * len(ids))
    cursor.execute(f"DELETE FROM orders WHERE id IN ({marks})", ids)


def _delete_range(cursor: Cursor, draw: Random, _lax: bool) -> None:
    ignore = draw.choice(("", "IGNORE"))
    cursor.execute(f"DELETE {ignore} FROM orders WHERE id BETWEEN %s AND %s", _range(draw))


def _add_lines(cursor: Cursor, draw: Random, _lax: bool) -> None:
    """While an order has lines, it cannot be deleted or replaced."""
    cursor.executemany(
        "INSERT INTO order_lines (order_id) VALUES (%s)", [(one,) for one in _ids(draw)[:2]]
    )


def _delete_lines(cursor: Cursor, draw: Random, _lax: bool) -> None:
    low, _ = _range(draw)
    cursor.execute("DELETE FROM order_lines WHERE order_id BETWEEN %s AND %s", (low, low + 60))


def _update_join(cursor: Cursor, draw: Random, _lax: bool) -> None:
    low, high = _range(draw)
    cursor.execute(
        "UPDATE orders AS o JOIN order_lines AS l ON l.order_id = o.id SET o.status = %s"
        " WHERE o.id BETWEEN %s AND %s",
        (draw.choice(STATUSES), low, high),
    )


def _delete_join(cursor: Cursor, draw: Random, _lax: bool) -> None:
    low, high = _range(draw)
    cursor.execute(
        "DELETE l, o FROM orders AS o LEFT JOIN order_lines AS l ON l.order_id = o.id"
        " WHERE o.id BETWEEN %s AND %s",
        (low, high),
    )


# -- visits ----------------------------------------------------------------------------------------


def _visits(verb: str, end: str = "") -> Statement:
    def run(cursor: Cursor, draw: Random, _lax: bool) -> None:
        cursor.execute(
            f"{verb} {VISIT} VALUES (%s, %s, %s, %s) {end}",
            (
                draw.randrange(TOKENS),
                draw.choice(COUNTRIES),
                draw.choice(KINDS),
                draw.choice(MOMENTS),
            ),
        )

    return run


def _many_visits(cursor: Cursor, draw: Random, _lax: bool) -> None:
    count = draw.randrange(1, 6)
    values = ", ".join(["(%s, %s, %s)"] * count)
    drawn = [
        one
        for _ in range(count)
        for one in (draw.choice(COUNTRIES), draw.choice(KINDS), draw.choice(MOMENTS))
    ]
    cursor.execute(f"INSERT INTO visits (country, kind, seen) VALUES {values}", drawn)


def _change_visits(cursor: Cursor, draw: Random, _lax: bool) -> None:
    changes = {
        "country": draw.choice(COUNTRIES),
        "kind": draw.choice(KINDS),
        "seen": draw.choice(MOMENTS),
    }
    chosen = draw.sample(sorted(changes), draw.randint(1, 3))
    sets = ", ".join(f"{column} = %s" for column in chosen)
    low = draw.randrange(TOKENS)
    cursor.execute(
        f"UPDATE visits SET {sets} WHERE token BETWEEN %s AND %s",
        (*(changes[column] for column in chosen), low, low + draw.randrange(4)),
    )


def _delete_visits(cursor: Cursor, draw: Random, _lax: bool) -> None:
    low = draw.randrange(TOKENS)
    cursor.execute(
        "DELETE FROM visits WHERE token BETWEEN %s AND %s", (low, low + draw.randrange(6))
    )


STATEMENTS: tuple[tuple[Statement, int], ...] = (
    (_insert("INSERT", 1), 10),
    (_insert("INSERT", 5), 6),
    (_insert("INSERT IGNORE", 6), 6),
    (_insert("REPLACE", 1), 6),
    (_insert("REPLACE", 4), 4),
    (_upsert(1), 8),
    (_upsert(5), 5),
    (_insert_select, 4),
    (_update("status = %s", lambda draw, _: (draw.choice(STATUSES),)), 8),
    (_update("tenant = %s, number = NULL", lambda draw, _: (draw.choice(TENANTS),)), 4),
    (_update("tenant = %s", lambda draw, _: (draw.choice(TENANTS),)), 2),
    (_update("tenant = %s", lambda draw, _: (draw.choice(TENANTS),), "UPDATE IGNORE"), 2),
    (_update("placed = %s", lambda draw, lax: (day(draw, lax),)), 5),
    (
        _update(
            "status = %s, placed = %s", lambda draw, lax: (draw.choice(STATUSES), day(draw, lax))
        ),
        4,
    ),
    (_update("note = note + 1", lambda *_: ()), 4),
    (_update("status = status, tenant = tenant", lambda *_: ()), 3),
    (_update("status = UPPER(status)", lambda *_: ()), 2),
    (_update("id = %s", lambda draw, _: (draw.randrange(1, IDS),)), 2),
    (_delete, 10),
    (_delete_range, 8),
    (_add_lines, 4),
    (_delete_lines, 5),
    (_update_join, 2),
    (_delete_join, 3),
    (_visits("INSERT IGNORE"), 8),
    (_visits("REPLACE"), 8),
    (_visits("INSERT", "ON DUPLICATE KEY UPDATE country = NULL, seen = NULL"), 5),
    (_visits("INSERT", "ON DUPLICATE KEY UPDATE kind = 'page'"), 5),
    (_many_visits, 6),
    (_change_visits, 10),
    (_delete_visits, 10),
)
"""What is drawn from, with how often."""


def statement(draw: Random) -> Statement:
    """One of the statements."""
    kinds, weights = zip(*STATEMENTS, strict=True)
    chosen: Statement = draw.choices(kinds, weights)[0]
    return chosen
