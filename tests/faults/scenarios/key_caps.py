"""Counters whose days may have so many keys only: among deaths, and under an attack of new keys."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from countersink.counting.apply.key_caps import OVERFLOW
from countersink.store import Store
from tests.faults.scenarios.worker_deaths import POINTS, Point, killed_at
from tests.faults.stage import Stage
from tests.support.oracle import Oracle
from tests.support.processes import Child
from tests.support.proxies import Phase
from tests.support.traffic import DAYS, FIRST_MINUTE, KEYS, day_of, now_ms, send
from tests.support.waiting import eventually

CAPPED = "views"
OVER = OVERFLOW.encode()
OWN_POINTS = (
    Point("day", Phase.AFTER),  # when it is locked
    Point("room", Phase.AFTER),  # when it is taken
)
ALL_POINTS = (*OWN_POINTS, *POINTS)
FIRST_CAP = 3
ATTACKED = "searches"
MOST_KEYS = 1000
ROWS = 1000
"""Of an entry of the attack."""
MOST_GROWTH_MB = 40


def killed_with_a_cap(
    stage: Stage, points: Sequence[Point] = ALL_POINTS, count: int | None = None
) -> None:
    """SIGKILL at every point, the cap one higher each time, other counters beside it."""
    caps = iter(range(FIRST_CAP, len(KEYS)))
    with Store(stage.mysql_url) as store:

        def raise_cap() -> None:
            store.counters.set(CAPPED, max_keys=next(caps))
            stage.send(stage.random.randint(10, 30))

        killed_at(stage, points, raise_cap, count=count)
        stage.forget()
        most = next(caps)
        # Two at once, with a last change between them.
        others = _two(stage)
        store.counters.set(CAPPED, max_keys=most)
        stage.send(60)
        stage.wait_applied()
        for other in others:
            stage.end(other)
        _check_capped(stage, most)
        store.counters.set(CAPPED, max_keys="none")
    stage.finish("after deaths with a cap")


def attacked_with_new_keys(stage: Stage, entries: int = 1000) -> None:
    """A thousand new keys an entry, among live traffic; nothing grows, and that counts exactly."""
    with Store(stage.mysql_url) as store:
        store.counters.set_max_keys(MOST_KEYS)
        workers = _two(stage)
        few = entries // 10
        _attack(stage, 0, few)
        stage.wait_applied()
        before = [_peak_mb(worker) for worker in workers]
        for start in range(few, entries, 100):
            _attack(stage, start, min(start + 100, entries))
            stage.wait_applied()
        after = [_peak_mb(worker) for worker in workers]
        for worker in workers:
            stage.end(worker)
        assert max(b - a for a, b in zip(before, after, strict=True)) < MOST_GROWTH_MB
        store.counters.set_max_keys(None)
    day = day_of(FIRST_MINUTE)
    with Oracle(stage.mysql_url) as oracle:
        found = _by_key(oracle, ATTACKED)[day]
        ((rows,),) = oracle.rows(f"SELECT COUNT(*) FROM counter_slot WHERE counter = '{ATTACKED}'")
    assert len(found.keys() - {OVER}) == MOST_KEYS
    assert found.total() == entries * ROWS
    assert found[OVER] == entries * ROWS - MOST_KEYS
    assert rows <= (MOST_KEYS + 1) * len(workers)
    _rebook(stage, ATTACKED, day, found)
    stage.finish("after an attack")


def _two(stage: Stage) -> list[Child]:
    """Two workers that are ready, so that a SIGTERM ends them in good order."""
    workers = [stage.worker(proxied=False) for _ in range(2)]
    for worker in workers:
        eventually(lambda worker=worker: " ready " in worker.output())  # type: ignore[misc]
    return workers


def _attack(stage: Stage, start: int, end: int) -> None:
    """Entries with new keys only, and as many of ordinary traffic between them."""
    for number in range(start, end):
        rows = [
            (ATTACKED, f"/search?q={number * ROWS + row}", FIRST_MINUTE + row % 600, 1)
            for row in range(ROWS)
        ]
        send(stage.redis, stage.traffic.entry(now_ms(stage.redis), rows), stage.entry())


def _check_capped(stage: Stage, most: int) -> None:
    """Each day has as many keys as it may, and all that was sent; other counters are as ever."""
    with Oracle(stage.mysql_url) as oracle:
        found = _by_key(oracle, CAPPED)
    days = {day for counter, day, _ in stage.traffic.expected if counter == CAPPED}
    assert len(days) in (DAYS, DAYS + 1)
    for day in days:
        own = {key for counter, at, key in stage.traffic.expected if (counter, at) == (CAPPED, day)}
        kept = found[day].keys() - {OVER}
        assert len(kept) == min(most, len(own)), f"{day}: {sorted(kept)} (seed {stage.seed})"
        assert kept <= own
        _rebook(stage, CAPPED, day, found[day])


def _rebook(stage: Stage, counter: str, day: date, found: Counter[bytes]) -> None:
    """See that a day's sum is right, then take its keys as they are into the books."""
    expected = stage.traffic.expected
    cells = [cell for cell in expected if cell[:2] == (counter, day)]
    assert sum(expected.pop(cell) for cell in cells) == found.total(), f"seed {stage.seed}"
    expected.update({(counter, day, key): amount for key, amount in found.items()})


def _by_key(oracle: Oracle, counter: str) -> dict[date, Counter[bytes]]:
    found: dict[date, Counter[bytes]] = {}
    for name, bucket, key, amount in oracle.rows(
        "SELECT counter, DATE(bucket), counter_key, SUM(amount) FROM counter_slot"
        " GROUP BY counter, DATE(bucket), counter_key"
    ):
        if name == counter:
            found.setdefault(bucket, Counter())[bytes(key)] = int(amount)
    return found


def _peak_mb(child: Child) -> int:
    """The most resident memory that a process ever had."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024
