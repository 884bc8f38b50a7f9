"""Rows that a statement with IGNORE leaves as they were are counted as they were.

MariaDB runs AFTER UPDATE triggers for them all the same; MySQL does not.
"""

import pytest

from countersink.store import Store
from tests.support.oracle import connect
from tests.support.table_oracle import Tracked, snapshot

pytestmark = pytest.mark.servers("mariadb", "mysql")

CREATE = (
    "CREATE TABLE parent (id INT PRIMARY KEY) ENGINE = InnoDB",
    """CREATE TABLE item (
        tenant INT NOT NULL, id INT NOT NULL, code INT NULL, status VARCHAR(8) NULL,
        parent INT NULL, PRIMARY KEY (tenant, id), UNIQUE KEY code (code),
        CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES parent (id)
    ) ENGINE = InnoDB CHARACTER SET utf8mb4""",
)
FILL = (
    "DELETE FROM item",
    "REPLACE INTO parent VALUES (1), (2)",
    "INSERT INTO item VALUES (1, 1, 1, 'a', 1), (1, 2, 2, 'b', 1), (2, 3, 3, NULL, NULL)",
)
JOIN = "UPDATE IGNORE item JOIN parent ON parent.id = item.parent"
STATEMENTS = (
    "UPDATE IGNORE item SET status = 'x', code = 2",
    "UPDATE IGNORE item SET status = 'x', parent = 77",
    "UPDATE IGNORE item SET status = 'x', tenant = 1, id = 2",
    "UPDATE IGNORE item SET status = 'x', id = id + 1 ORDER BY id",
    "UPDATE IGNORE item SET status = 'x', id = id + 1 ORDER BY id DESC",
    "UPDATE IGNORE item SET tenant = tenant + 1",
    f"{JOIN} SET item.status = 'x', item.code = 3",
    f"{JOIN} SET item.status = 'x', item.id = 9",
    "INSERT IGNORE INTO item VALUES (1, 1, 9, 'z', 1) ON DUPLICATE KEY UPDATE status='x', code=2",
    "UPDATE item SET status = UPPER(status), id = id + 10",
    "DELETE IGNORE FROM parent",
)


def test_what_ignore_leaves_alone_is_counted_where_it_is(
    mysql_url: str, app_database_url: str
) -> None:
    schema = app_database_url.rpartition("/")[2]
    tracked = Tracked("items", schema, "item", ("status", "tenant"))
    with connect(app_database_url) as app, app.cursor() as cursor, Store(mysql_url) as store:
        for sql in CREATE:
            cursor.execute(sql)
        store.tracked.track(f"{schema}.item", counter="items", by=tracked.by)
        for statement in STATEMENTS:
            for sql in (*FILL, "BEGIN", statement, statement, "COMMIT"):
                cursor.execute(sql)
            with snapshot(mysql_url) as seen:
                assert seen.differences(tracked) == [], statement
