"""The process of `benchmarks.app_transactions`: threads with a connection each."""

from __future__ import annotations

import threading
import time

from benchmarks.app_transactions import COUNTER, KEY, UPDATE
from benchmarks.database import Connected, connect
from benchmarks.processes import answer, first_message
from countersink.store import Store

ORDER = "INSERT INTO orders (status) VALUES (%s)"


class Customer(threading.Thread):
    """Orders over one connection until the time is up."""

    def __init__(self, connection: Connected, store: Store | None, held_s: float) -> None:
        super().__init__(daemon=True)
        self.transactions = 0
        self.deadline = 0.0
        self._connection = connection
        self._store = store
        self._held_s = held_s

    def order(self) -> None:
        """One transaction."""
        with self._connection.cursor() as cursor:
            cursor.execute(ORDER, (KEY,))
            if self._store is not None:
                self._store.increment(self._connection, COUNTER, KEY)
            else:
                cursor.execute(UPDATE)
        time.sleep(self._held_s)
        self._connection.commit()
        self.transactions += 1

    def run(self) -> None:
        while time.monotonic() < self.deadline:
            self.order()


def main() -> None:
    arguments = first_message()
    store = Store(arguments["url"]) if arguments["ours"] else None
    customers = [
        Customer(connect(arguments["url"]), store, arguments["held_s"])
        for _ in range(arguments["connections"])
    ]
    # The first call asks for the counter's settings, and the first row is made: off the clock.
    customers[0].order()
    begun = time.monotonic()
    for customer in customers:
        customer.deadline = begun + arguments["seconds"]
        customer.start()
    for customer in customers:
        customer.join()
    seconds = time.monotonic() - begun
    transactions = sum(customer.transactions for customer in customers)
    answer({"transactions": transactions, "seconds": seconds})


if __name__ == "__main__":
    main()
