"""Requests without a pause, and what became of each."""

import threading
from collections import Counter
from http.client import HTTPConnection, HTTPException
from select import select
from typing import Self

from tests.support.examples import MANY

CLIENTS = 8 if MANY else 4
PAUSE_SECONDS = 0.01 if MANY else 0.05
"""Until a client that was refused tries again."""
KEPT = 50
"""Requests over one connection: the next one may be another process's."""


class Load:
    """Clients that ask one after the other, over connections that they keep for a while, until the
    end of the block.

    Attributes:
        answered: process → requests that it answered.
        failed: requests that may have been sent, and to which no whole answer came.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._tallies: list[tuple[Counter[int], list[int]]] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for _ in range(CLIENTS):
            tally: tuple[Counter[int], list[int]] = (Counter(), [])
            self._tallies.append(tally)
            self._threads.append(threading.Thread(target=self._ask, args=tally, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ask no more; returns when every client has its last answer."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def answered(self) -> Counter[int]:
        return sum((answered.copy() for answered, _ in self._tallies), Counter[int]())

    @property
    def failed(self) -> int:
        return sum(len(failed) for _, failed in self._tallies)

    def _ask(self, answered: Counter[int], failed: list[int]) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        while not self._over.is_set():
            try:
                if connection.sock is not None and select([connection.sock], [], [], 0)[0]:
                    connection.close()  # the server had closed it: nothing was sent
                if connection.sock is None:
                    connection.connect()
            except OSError:
                connection.close()
                self._over.wait(PAUSE_SECONDS)
                continue
            try:
                connection.request("GET", "/")
                response = connection.getresponse()
                body = response.read()
                if response.status != 200:  # by a server that is ending, in the app's place
                    raise HTTPException(response.status)
                answered[int(body)] += 1
                if answered.total() % KEPT == 0:
                    connection.close()
            except (OSError, HTTPException, ValueError):
                failed.append(1)
                connection.close()
        connection.close()
