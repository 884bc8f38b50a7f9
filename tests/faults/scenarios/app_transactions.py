"""Counting in an application's transactions: the count is that of its rows, whoever dies."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from countersink.store import Store
from tests.faults.stage import Stage
from tests.support.databases import dropped, new_name
from tests.support.entries import again_and_again, compacted
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.run_seller import COUNTER
from tests.support.waiting import eventually

SELLERS = 3

BOTH = """
    SELECT product, CAST(SUM(sold) AS CHAR), CAST(SUM(counted) AS CHAR) FROM (
        SELECT CAST(product AS BINARY) AS product, pieces AS sold, 0 AS counted FROM {shop}.orders
        UNION ALL SELECT counter_key, 0, amount FROM counter_slot WHERE counter = 'sales'
    ) AS both_sides GROUP BY product
"""
"""What was sold of each product, and what was counted: one statement, so one snapshot."""


class Shop:
    """An application's database on the stage's server, and its processes."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self.name = name
        self.sellers: list[Child] = []
        self._started = 0
        with Oracle(stage.mysql_url) as oracle:
            oracle.rows(f"CREATE DATABASE {name}")
            oracle.rows(
                f"CREATE TABLE {name}.orders (id BIGINT AUTO_INCREMENT PRIMARY KEY,"
                " product VARCHAR(20) CHARACTER SET ascii NOT NULL, pieces INT NOT NULL,"
                " KEY product (product)) ENGINE = InnoDB"
            )

    def open(self) -> None:
        """Start another process."""
        self._started += 1
        plan = {
            "mysql_url": self._stage.mysql_url,
            "shop": self.name,
            "seed": self._stage.random.getrandbits(32),
            "own": f"own-{self._started}",
        }
        self.sellers.append(self._stage.children.module("run_seller", plan, name="seller"))

    def close(self) -> None:
        """End all processes in good order."""
        eventually(lambda: all("ready" in seller.output() for seller in self.sellers))
        for seller in self.sellers:
            seller.terminate()
        for seller in self.sellers:
            assert seller.wait(30) == 0, seller.output()

    def check(self, oracle: Oracle, note: str) -> int:
        """Hold the counts against the rows; how much was sold in all."""
        found = oracle.rows(BOTH.format(shop=self.name))
        wrong = [(product, sold, counted) for product, sold, counted in found if sold != counted]
        assert not wrong, f"{note}: (product, sold, counted) {wrong} (seed {self._stage.seed})"
        return sum(int(sold) for _, sold, _ in found)

    def sold(self, oracle: Oracle) -> int:
        """The last number that an order was given: grows with every sale."""
        return int(oracle.rows(f"SELECT COALESCE(MAX(id), 0) FROM {self.name}.orders")[0][0])


def sold_among_kills(stage: Stage, kills: int = 4, rows: int = 60) -> None:
    """SIGKILL of the application's processes at random moments, beside compaction and readers.

    Meanwhile the counter's slots are changed again and again, and nobody sees rows that are not
    counted, or counts without their rows. Between two deaths there are about so many `rows`.
    """
    with (
        dropped(stage.mysql_server, new_name()) as url,
        Oracle(stage.mysql_url) as oracle,
        _changing_slots(stage),
    ):
        shop = Shop(stage, url.rsplit("/", 1)[1])
        for _ in range(SELLERS):
            shop.open()
        with stage.compacting():
            for _ in range(kills):
                until = shop.sold(oracle) + stage.random.randrange(rows // 2, 2 * rows)

                def reached(until: int = until) -> bool:
                    shop.check(oracle, "in the midst of it")
                    stopped = [seller for seller in shop.sellers if not seller.running]
                    if stopped:
                        raise RuntimeError(f"a seller has ended: {stopped[0].output()}")
                    return shop.sold(oracle) >= until

                eventually(reached, 60)
                victim = stage.random.choice(shop.sellers)
                shop.sellers.remove(victim)
                victim.kill()
                shop.open()
            shop.close()
        total = shop.check(oracle, "in the end")
        _check_all(stage, shop, oracle, total)
        _forget(oracle)
    stage.faults["seller killed"] += kills


@contextmanager
def _changing_slots(stage: Stage) -> Iterator[None]:
    """Change over how many slots the counter spreads, again and again."""
    draw = Random(stage.seed)

    def change() -> None:
        time.sleep(0.1)
        store.counters.set(COUNTER, app_slots=draw.choice((1, 2, 3, 16, 256)))

    with Store(stage.mysql_url) as store, again_and_again(change):
        yield


def _check_all(stage: Stage, shop: Shop, oracle: Oracle, total: int) -> None:
    """Verify agrees, and so it does when all is compacted."""
    with Store(stage.mysql_url) as store:
        assert store.totals.total(COUNTER) == total
    stage.verify("in the end")
    compacted(stage.mysql_url)
    assert shop.check(oracle, "after compaction") == total
    stage.verify("after compaction")


def _forget(oracle: Oracle) -> None:
    """For whoever plays another scenario on the same stage."""
    for table in ("counter_slot", "counter_ledger"):
        oracle.rows(f"DELETE FROM {table} WHERE counter = '{COUNTER}'")
    oracle.rows(f"DELETE FROM counter WHERE name = '{COUNTER}'")
