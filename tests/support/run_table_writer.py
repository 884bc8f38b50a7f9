"""One writer to an application's own tables, until SIGTERM.

Transactions of several statements and single ones, savepoints and rollbacks at random; a deadlock
or a lock wait is retried as an application does. Prints its connection's id, then a line of JSON
now and then: the errors of its own that it has met since the last one. Ends with status 1 at any
error that is not its own statements' fault.
"""

import json
import signal
import threading
import time
from collections import Counter
from random import Random
from typing import Any

import pymysql

from tests.support.oracle import connect
from tests.support.table_traffic import statement

RETRIED = frozenset({1213, 1205, 1020, 1317})
"""Deadlock, lock wait, a record that has changed since the snapshot, KILL QUERY: rolled back, and
again."""
NO_SAVEPOINT = 1305
"""A deadlock's victim that is killed at the same time is told of the kill (1317) alone, though its
whole transaction is rolled back: the next that it hears is that its savepoint is gone."""
KILLED_WHILE_READ = "has an error in its body"
"""In the text of a syntax error (1064): KILL QUERY came while MariaDB read a trigger."""
STATEMENT_ALONE = frozenset({1205, 1317})
"""Of those, the ones that undo the statement and no more: some writers go on with the next one."""
OWN = frozenset({1062, 1451, 1452})
"""What statements at random cannot help: duplicate keys, and orders that have lines."""
REPORT_EVERY_S = 0.2
MOST_STATEMENTS = 6
ROLLED_BACK = 0.25
"""The share of transactions that are."""


class Writer:
    """A connection, and what is drawn and counted on it."""

    def __init__(self, app_url: str, seed: int, number: int, lock_wait: int) -> None:
        self.draw = Random(seed * 1000 + number)
        self.lax = number % 4 == 1
        self.own = OWN | STATEMENT_ALONE if number % 3 else OWN
        self.connection = connect(app_url)
        self.tally: Counter[str] = Counter()
        self.killed = False
        self.reported = time.monotonic()
        with self.connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", (lock_wait,))
            if self.lax:
                cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
            if number % 2:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            zone = ("+00:00", "+09:00", "-08:00", "+05:45")[number // 2 % 4]
            cursor.execute("SET SESSION time_zone = %s", (zone,))
            if number % 4 == 2:
                cursor.execute("SET SESSION collation_connection = latin1_german1_ci")

    def run(self, stop: threading.Event) -> None:
        """Write until told to stop."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            print(*cursor.fetchone(), flush=True)
            while not stop.is_set():
                state = self.draw.getstate()
                while not self._attempt(cursor):
                    self.draw.setstate(state)  # the same once more
                if time.monotonic() - self.reported > REPORT_EVERY_S:
                    self.report()
        self.report()
        self.connection.close()

    def report(self) -> None:
        """Print what was done since the last report."""
        print(json.dumps(self.tally), flush=True)
        self.tally.clear()
        self.reported = time.monotonic()

    def _attempt(self, cursor: Any) -> bool:
        """One transaction; False where it has to be rerun."""
        try:
            if self.draw.random() < 0.4:
                self._statement(cursor)
            else:
                self._transaction(cursor)
        except pymysql.err.MySQLError as error:
            code = error.args[0]
            if not (
                code in RETRIED
                or (code == NO_SAVEPOINT and self.killed)
                or (code == 1064 and KILLED_WHILE_READ in error.args[1])
            ):
                raise
            self._rollback(cursor)
            return False
        return True

    def _transaction(self, cursor: Any) -> None:
        self.killed = False
        cursor.execute("BEGIN")
        for _ in range(self.draw.randint(1, MOST_STATEMENTS)):
            self._statement(cursor)
            if self.draw.random() < 0.15:
                cursor.execute("SAVEPOINT here")
                self._statement(cursor)
                end = self.draw.choice(("ROLLBACK TO here", "RELEASE SAVEPOINT here"))
                cursor.execute(end)
        cursor.execute("ROLLBACK" if self.draw.random() < ROLLED_BACK else "COMMIT")

    def _statement(self, cursor: Any) -> None:
        try:
            statement(self.draw)(cursor, self.draw, self.lax)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in self.own:
                raise
            self.killed = self.killed or error.args[0] == 1317
            self.tally[f"own {error.args[0]}"] += 1

    def _rollback(self, cursor: Any) -> None:
        while True:
            try:
                cursor.execute("ROLLBACK")
                return
            except pymysql.err.MySQLError as error:
                if error.args[0] not in STATEMENT_ALONE:  # killed, too
                    raise


def main(app_url: str, seed: int, number: int, lock_wait: int) -> int:
    """Write until SIGTERM, waiting so many seconds for a lock; 0 when nothing but what is expected
    went wrong.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Writer(app_url, seed, number, lock_wait).run(stop)
    return 0
