"""Different members: `Producer.seen` against PFADD by hand, and the bytes that the sets take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from redis import Redis

from benchmarks.command import service
from benchmarks.database import connect, one_value
from benchmarks.measuring import Measurement, Wrong
from benchmarks.pipeline import apply_all
from benchmarks.processes import Child, Message
from benchmarks.site import Site
from benchmarks.workload import COUNTER, Members, members_by_key
from countersink.database.migrate import migrate
from countersink.store import Store

PASS: Final = 500_000
"""Sightings, until they begin anew with other keys."""
QUICK_PASS: Final = 20_000
"""In a run of less than a second per measurement."""
BYTES: Final = "bytes_per_1000_keys"
"""The extra field with the bytes of sketches, or what Redis says that its keys take."""
TABLE_BYTES: Final = "table_bytes_per_1000_keys"
"""The extra field with those of their table and its index."""
KEYS_PER_PIPELINE: Final = 1_000
ERRORS: Final = 3
"""How many times two standard errors (the bounds of an answer) the number may be away from it."""
PFCOUNT_OFF: Final = 0.06
"""The same of PFCOUNT, as a share: more than seven standard errors of 0.81 %."""


class SeenCalls:
    """`seen_repeated`, `seen_new`: through a Producer, as shipped."""

    def __init__(self, site: Site, members: Members) -> None:
        self.name = f"seen_{members}"
        self._site = site
        self._members: Members = members

    def measure(self, seconds: float) -> Measurement:
        """Sightings, from the first call until all of them are in Redis; then a worker applies
        them, which is not timed. Raises Wrong if a count is not exact or an estimate is far off."""
        count = _pass(seconds)
        with self._site.database() as url:
            migrate(url)
            with Store(url) as store:
                store.counters.set(COUNTER, salt_days=0)
            with _child(self._site, self._members, seconds, by_hand=False) as child:
                with service("worker", self._site.redis_url, url):
                    child.hear()  # it has the salt, which a worker publishes
                child.say(begin=True)
                said = child.hear()
            apply_all(self._site, url)
            check_tables(url, self._members, passes=said["passes"], count=count)
            extras = _bytes(url)
        return _measurement(said, extras)


class PfaddCalls:
    """`peer_pfadd_repeated`, `peer_pfadd_new`: the same sightings, by hand."""

    def __init__(self, site: Site, members: Members) -> None:
        self.name = f"peer_pfadd_{members}"
        self._site = site
        self._members: Members = members

    def measure(self, seconds: float) -> Measurement:
        """Sightings, from the first PFADD until the last is answered. Raises Wrong if the keys are
        not all there, or what is in them is far off."""
        count = _pass(seconds)
        with self._site.database():
            with _child(self._site, self._members, seconds, by_hand=True) as child:
                said = child.hear()
            with self._site.redis_client() as client:
                size = check_redis(client, self._members, passes=said["passes"], count=count)
        return _measurement(said, {BYTES: size})


def check_tables(url: str, members: Members, *, passes: int, count: int) -> None:
    """Check what workers have made of so many passes through ``count`` sightings. Raises Wrong if
    a total is not exact, or an estimate is far off."""
    with Store(url) as store:
        total = store.totals.total(COUNTER)
        found = dict(store.totals.unique_by_key(COUNTER))
    expected = {
        f"/{number}{key}": different
        for number in range(passes)
        for key, different in members_by_key(members, count).items()
    }
    if total != passes * count or set(found) != set(expected):
        raise Wrong(
            f"{passes * count:,} sightings of {len(expected):,} keys, in the tables {total:,} of"
            f" {len(found):,}"
        )
    for key, different in expected.items():
        answer = found[key]
        if abs(answer.total - different) > ERRORS * (answer.high - answer.low) / 2:
            raise Wrong(f"{different:,} members of {key}, answered with {answer}")


def check_redis(client: Redis, members: Members, *, passes: int, count: int) -> float:
    """Check what PFADD has made of them; the bytes of 1,000 keys. Raises Wrong if keys are missing,
    or the numbers of their members are far off."""
    keys = memory = counted = 0
    found: Iterator[bytes] = client.scan_iter(count=KEYS_PER_PIPELINE)
    while names := list(islice(found, KEYS_PER_PIPELINE)):
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.memory_usage(name)
            pipeline.pfcount(name)
        answers: Sequence[Any] = pipeline.execute()
        keys += len(names)
        memory += sum(answers[::2])
        counted += sum(answers[1::2])
    expected = members_by_key(members, count).values()
    if keys != passes * len(expected):
        raise Wrong(f"{keys:,} keys in Redis, not {passes * len(expected):,}")
    if abs(counted / (passes * sum(expected)) - 1) > PFCOUNT_OFF:
        raise Wrong(f"PFCOUNT says {counted:,} members, not {passes * sum(expected):,}")
    return 1_000 * memory / keys


def _pass(seconds: float) -> int:
    return QUICK_PASS if seconds < 1 else PASS


def _child(site: Site, members: Members, seconds: float, *, by_hand: bool) -> Child:
    return Child(
        "benchmarks.children.sightings",
        redis_url=site.redis_url,
        members=members,
        count=_pass(seconds),
        seconds=seconds,
        by_hand=by_hand,
    )


def _measurement(said: Message, extras: dict[str, float]) -> Measurement:
    share = {"process_cpu_share": said["cpu"] / said["seconds"]}
    return Measurement(said["events"], said["seconds"], {**extras, **share})


def _bytes(url: str) -> dict[str, float]:
    """Of the sketches of one worker, which are a row for each key, as compaction leaves them."""
    connection = connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE TABLE visitor_slot")
    finally:
        connection.close()
    rows = one_value(url, "SELECT COUNT(*) FROM visitor_slot")
    sketches = one_value(url, "SELECT SUM(LENGTH(sketch)) FROM visitor_slot")
    table = one_value(
        url,
        "SELECT data_length + index_length FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = 'visitor_slot'",
    )
    return {BYTES: 1_000 * sketches / rows, TABLE_BYTES: 1_000 * table / rows}


def rows(site: Site) -> list[SeenCalls | PfaddCalls]:
    """All of them."""
    each: tuple[Members, ...] = ("repeated", "new")
    return [
        row for members in each for row in (SeenCalls(site, members), PfaddCalls(site, members))
    ]
