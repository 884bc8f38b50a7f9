"""An application's own tables, the kinds of values in them, and rows to begin with."""

from random import Random

from tests.support.oracle import connect

CUSTOMERS = 20
IDS = 400
"""Orders have ids from 1 to this while they are written to: so few that keys meet."""
CODES = 150
TOKENS = 300
OUT_OF_REACH = 1_000_000
"""Ids from here on are never written to."""

STATUSES = (
    *(None, "open", "open", "paid", "PAID", "Paid", "paid ", "", "a|b", "a\\b", "\\N", "\\", "|"),
    *("\\|", "N", "é", "e\u0301", "😀", "ß", "ss"),
)
"""Some differ only as bytes do, some look like escapes."""
TENANTS = (-1, 0, 1, 2)
DAYS = (
    *(None, "1000-01-01", "1969-12-31", "1970-01-01", "9999-12-25", "9999-12-26", "9999-12-31"),
    *("2026-11-19", "2026-11-20", "2026-11-21", "2026-11-22"),
)
LAX_DAYS = (*DAYS, "0000-00-00", "2026-11-00", "2026-00-20", "2026-02-31")
COUNTRIES = (None, "de", "DE", "fr", "é", "E", "a|b\\")
KINDS = ("page", "a|b", "ü")
MOMENTS = (
    None,
    "1970-01-02 00:00:00",
    "2037-12-31 12:00:00",
    *(f"2026-11-{day} {hour}:30:00" for day in (19, 20, 21) for hour in ("00", "06", "15", "23")),
)
"""Each a moment of the session's own time zone."""

CREATE = (
    "CREATE TABLE customers (id INT NOT NULL PRIMARY KEY) ENGINE = InnoDB",
    """CREATE TABLE orders (
        id INT NOT NULL PRIMARY KEY,
        code VARCHAR(8) CHARACTER SET ascii NULL,
        tenant INT NOT NULL,
        number INT NULL,
        status VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NULL,
        placed DATE NULL,
        note INT NOT NULL DEFAULT 0,
        customer INT NULL,
        UNIQUE KEY code (code),
        UNIQUE KEY number (tenant, number),
        CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES customers (id) ON DELETE CASCADE
    ) ENGINE = InnoDB""",
    """CREATE TABLE order_lines (
        id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
        order_id INT NOT NULL,
        CONSTRAINT of_order FOREIGN KEY (order_id) REFERENCES orders (id)
    ) ENGINE = InnoDB""",
    """CREATE TABLE visits (
        id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
        token INT NULL,
        country VARCHAR(8) CHARACTER SET latin1 COLLATE latin1_swedish_ci NULL,
        kind ENUM('page', 'a|b', 'ü') CHARACTER SET utf8mb4 NOT NULL,
        seen TIMESTAMP NULL,
        UNIQUE KEY token (token)
    ) ENGINE = InnoDB""",
)


def create(app_url: str, rows: int = 0) -> None:
    """Make the tables in the database at `app_url`; both of them with at least so many rows, which
    are out of reach."""
    draw = Random(rows)
    with connect(app_url) as app, app.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for sql in CREATE:
            cursor.execute(sql)
        cursor.executemany(
            "INSERT INTO customers VALUES (%s)", [(number,) for number in range(CUSTOMERS)]
        )
        if not rows:
            return
        first = [
            (OUT_OF_REACH + number, draw.choice(TENANTS), draw.choice(STATUSES), draw.choice(DAYS))
            for number in range(min(rows, 2000))
        ]
        cursor.executemany(
            "INSERT INTO orders (id, tenant, status, placed) VALUES (%s, %s, %s, %s)", first
        )
        cursor.executemany(
            "INSERT INTO visits (country, kind, seen) VALUES (%s, %s, %s)",
            [
                (draw.choice(COUNTRIES), draw.choice(KINDS), draw.choice(MOMENTS))
                for _ in range(len(first))
            ],
        )
        there = len(first)
        while there < rows:
            cursor.execute(
                "INSERT INTO orders (id, tenant, status, placed)"
                f" SELECT id + {there}, tenant, status, placed FROM orders"
            )
            cursor.execute(
                "INSERT INTO visits (country, kind, seen) SELECT country, kind, seen FROM visits"
            )
            there *= 2
