"""A process of an application that sells: a row and its count in one transaction, at random.

Ends by itself on SIGTERM, between two transactions.
"""

import random
import signal
import threading
import time

from countersink.store import Store
from tests.support.oracle import connect

COUNTER = "sales"
KEYS = ("a", "b", "c", "d")
RETRIED = (1213, 1020, 1205)
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class Seller:
    """One connection, and what is done over it."""

    def __init__(self, mysql_url: str, shop: str, seed: int, own: str) -> None:
        self._store = Store(mysql_url)
        self._app = connect(mysql_url)
        self._app.autocommit(False)
        self._table = f"{shop}.orders"
        self._random = random.Random(seed)
        self._own = own
        level = self._random.choice(LEVELS)
        self._run(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        self._run("SET SESSION innodb_lock_wait_timeout = 3")

    def transact(self) -> None:
        """One transaction, rolled back at random, and again where it met another one."""
        state = self._random.getstate()
        while True:
            try:
                self._work()
                return
            except Exception as error:
                self._app.rollback()
                if not error.args or error.args[0] not in RETRIED:
                    raise
                self._random.setstate(state)
                time.sleep(random.uniform(0, 0.01))

    def _work(self) -> None:
        draw = self._random
        for _ in range(draw.randrange(1, 4)):
            kind = draw.random()
            if kind < 0.5:
                self._sell(draw.choice((*KEYS, self._own)), draw.randrange(1, 9))
            elif kind < 0.85:
                self._sell_many({draw.choice((*KEYS, self._own)): 1 for _ in range(3)})
            else:
                self._run(f"DELETE FROM {self._table} WHERE product = '{self._own}'")
                self._store.delete(self._app, COUNTER, self._own)
        if draw.random() < 0.2:
            time.sleep(0.003)
        if draw.random() < 0.25:
            self._app.rollback()
        else:
            self._app.commit()

    def _sell(self, product: str, pieces: int) -> None:
        self._run(f"INSERT INTO {self._table} (product, pieces) VALUES ('{product}', {pieces})")
        self._store.increment(self._app, COUNTER, product, pieces)

    def _sell_many(self, products: dict[str, int]) -> None:
        rows = ", ".join(f"('{product}', {pieces})" for product, pieces in products.items())
        self._run(f"INSERT INTO {self._table} (product, pieces) VALUES {rows}")
        self._store.increment_many(self._app, COUNTER, products)

    def _run(self, sql: str) -> None:
        with self._app.cursor() as cursor:
            cursor.execute(sql)


def main(mysql_url: str, shop: str, seed: int, own: str) -> None:
    """Sell in the application's database ``shop`` on the store's server; ``own`` is the key that no
    other process counts, so that this one may take it away.
    """
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    seller = Seller(mysql_url, shop, seed, own)
    print("ready", flush=True)
    while not stopping.is_set():
        seller.transact()
