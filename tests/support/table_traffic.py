"""Statements at random on an application's own tables.

Everything that changes which rows there are, or how they are grouped, is among the statements:
single and multi-row INSERT, IGNORE, INSERT … SELECT, upserts, REPLACE, UPDATE of what rows are
grouped by, of their day, of their key and of nothing, joins, DELETE, and errors of the
application's own making in the midst of them.
"""

from collections.abc import Callable, Iterable
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
Drawing = Callable[[Random, bool], Iterable[Any]]
"""Draws parameters of a statement."""

ORDER = "INTO orders (id, code, tenant, number, status, placed, customer)"
MARKS = "(%s, %s, %s, %s, %s, %s, %s)"
VISIT = "INTO visits (token, country, kind, seen)"
UPSERT = "ON DUPLICATE KEY UPDATE note = note + 1"


# -- parameters ------------------------------------------------------------------------------------


def _order(draw: Random, lax: bool) -> tuple[Any, ...]:
    """The columns of a new order."""
    return (
        draw.randrange(1, IDS),
        draw.choice((None, f"c{draw.randrange(CODES)}")),
        draw.choice(TENANTS),
        draw.choice((None, draw.randrange(CODES))),
        draw.choice(STATUSES),
        *_day(draw, lax),
        draw.choice((None, draw.randrange(CUSTOMERS))),
    )


def _day(draw: Random, lax: bool) -> list[str | None]:
    """A date that the session may store."""
    return [draw.choice(LAX_DAYS if lax else DAYS)]


def _status(draw: Random, _lax: bool) -> list[str | None]:
    return [draw.choice(STATUSES)]


def _tenant(draw: Random, _lax: bool) -> list[int]:
    return [draw.choice(TENANTS)]


def _visit(draw: Random, _lax: bool) -> list[str | None]:
    return [draw.choice(COUNTRIES), draw.choice(KINDS), draw.choice(MOMENTS)]


def _token(draw: Random, _lax: bool) -> list[int]:
    return [draw.randrange(TOKENS)]


def _ids(count: int) -> Drawing:
    return lambda draw, _: sorted(draw.randrange(1, IDS) for _ in range(count))


def _range(width: int, most: int = IDS) -> Drawing:
    """A range of ids, or tokens, of at most so many more than one."""

    def drawn(draw: Random, _lax: bool) -> list[int]:
        low = draw.randrange(1, most)
        return [low, low + draw.randint(0, width)]

    return drawn


def _one_or_more(draw: Random, lax: bool) -> Iterable[Any]:
    return _range(0 if draw.random() < 0.6 else 7)(draw, lax)


# -- statements ------------------------------------------------------------------------------------


def _run(sql: str, *drawings: Drawing) -> Statement:
    def run(cursor: Cursor, draw: Random, lax: bool) -> None:
        cursor.execute(sql, [one for drawn in drawings for one in drawn(draw, lax)])

    return run


def _insert(verb: str, most: int, end: str = "", *drawings: Drawing) -> Statement:
    """INSERT, INSERT IGNORE or REPLACE of at most so many orders, with this behind them."""

    def run(cursor: Cursor, draw: Random, lax: bool) -> None:
        rows = sorted((_order(draw, lax) for _ in range(draw.randint(1, most))), key=_id)
        values = ", ".join([MARKS] * len(rows))
        drawn = [one for drawing in drawings for one in drawing(draw, lax)]
        given = [*(one for row in rows for one in row), *drawn]
        cursor.execute(f"{verb} {ORDER} VALUES {values} {end}", given)

    return run


def _id(row: tuple[Any, ...]) -> int:
    return int(row[0])


def _update(sets: str, *drawings: Drawing, verb: str = "UPDATE") -> Statement:
    """UPDATE of one order or of a range."""
    return _run(f"{verb} orders SET {sets} WHERE id BETWEEN %s AND %s", *drawings, _one_or_more)


def _visits(verb: str, end: str = "") -> Statement:
    return _run(f"{verb} {VISIT} VALUES (%s, %s, %s, %s) {end}", _token, _visit)


STATEMENTS: tuple[tuple[Statement, int], ...] = (
    (_insert("INSERT", 1), 10),
    (_insert("INSERT", 5), 6),
    (_insert("INSERT IGNORE", 6), 6),
    (_insert("REPLACE", 1), 6),
    (_insert("REPLACE", 4), 4),
    (_insert("INSERT", 1, UPSERT), 4),
    (_insert("INSERT", 1, f"{UPSERT}, status = %s, tenant = %s", _status, _tenant), 4),
    (_insert("INSERT", 5, f"{UPSERT}, status = %s, placed = %s", _status, _day), 5),
    (
        _run(
            "INSERT IGNORE INTO orders (id, tenant, status, placed)"
            " SELECT id + 13, tenant, status, %s FROM orders WHERE id BETWEEN %s AND %s",
            _day,
            _range(8),
        ),
        4,
    ),
    (_update("status = %s", _status), 8),
    (_update("tenant = %s, number = NULL", _tenant), 4),
    (_update("tenant = %s", _tenant), 2),
    (_update("tenant = %s", _tenant, verb="UPDATE IGNORE"), 2),
    (_update("placed = %s", _day), 5),
    (_update("status = %s, placed = %s", _status, _day), 4),
    (_update("note = note + 1"), 4),
    (_update("status = status, tenant = tenant"), 3),
    (_update("status = UPPER(status)"), 2),
    (_update("id = %s", _ids(1)), 2),
    (_run("DELETE FROM orders WHERE id IN (%s, %s, %s)", _ids(3)), 10),
    (_run("DELETE FROM orders WHERE id BETWEEN %s AND %s", _range(8)), 4),
    (_run("DELETE IGNORE FROM orders WHERE id BETWEEN %s AND %s", _range(8)), 4),
    # While an order has lines, it cannot be deleted or replaced.
    (_run("INSERT INTO order_lines (order_id) VALUES (%s), (%s)", _ids(2)), 4),
    (_run("DELETE FROM order_lines WHERE order_id BETWEEN %s AND %s", _range(60)), 5),
    (
        _run(
            "UPDATE orders AS o JOIN order_lines AS l ON l.order_id = o.id SET o.status = %s"
            " WHERE o.id BETWEEN %s AND %s",
            _status,
            _range(8),
        ),
        2,
    ),
    (
        _run(
            "DELETE l, o FROM orders AS o LEFT JOIN order_lines AS l ON l.order_id = o.id"
            " WHERE o.id BETWEEN %s AND %s",
            _range(8),
        ),
        3,
    ),
    (_visits("INSERT IGNORE"), 8),
    (_visits("REPLACE"), 8),
    (_visits("INSERT", "ON DUPLICATE KEY UPDATE country = NULL, seen = NULL"), 5),
    (_visits("INSERT", "ON DUPLICATE KEY UPDATE kind = 'page'"), 5),
    (
        _run(
            "INSERT INTO visits (country, kind, seen) VALUES (%s, %s, %s), (%s, %s, %s)",
            _visit,
            _visit,
        ),
        6,
    ),
    (
        _run(
            "UPDATE visits SET country = %s, kind = %s, seen = %s WHERE token BETWEEN %s AND %s",
            _visit,
            _range(3, TOKENS),
        ),
        10,
    ),
    (_run("DELETE FROM visits WHERE token BETWEEN %s AND %s", _range(5, TOKENS)), 10),
)
"""What is drawn from, with how often."""


def statement(draw: Random) -> Statement:
    """One of the statements."""
    kinds, weights = zip(*STATEMENTS, strict=True)
    chosen: Statement = draw.choices(kinds, weights)[0]
    return chosen
