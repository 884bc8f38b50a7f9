"""The table of an application whose rows are counted: small rows, a status, a moment."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any, Final

TABLE: Final = "orders"
STATUSES: Final = ("open", "paid", "shipped", "returned", "cancelled")
FIRST: Final = date(2026, 11, 1)
DAYS: Final = 30
CREATE: Final = f"""
CREATE TABLE {TABLE} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant INT NOT NULL,
    status VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL,
    placed DATETIME NOT NULL,
    KEY by_status (status)
) ENGINE = InnoDB
"""
"""With an index that COUNT(*) … WHERE status = … can be answered from."""
BY: Final = ("status",)
DAY: Final = "placed"


def insert(number: int, rows: int) -> tuple[str, list[Any]]:
    """An INSERT of so many rows from this number on, and its arguments."""
    values = ", ".join(["(%s, %s, %s)"] * rows)
    arguments: list[Any] = []
    for each in range(number, number + rows):
        day = FIRST + timedelta(each * 31 % DAYS)
        arguments += (each % 100, STATUSES[each * 7919 % 10 // 2], f"{day} {each % 24:02d}:00:00")
    return f"INSERT INTO {TABLE} (tenant, status, placed) VALUES {values}", arguments
