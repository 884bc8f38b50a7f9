"""The most keys that a day of a counter may have, and what becomes of the rest."""

import random
import threading
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest

from countersink.counting.apply import dead, key_caps
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.applier import POINTS, Applied, Applier
from countersink.counting.apply.dead_retry import retry
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.counters.catalog import KeyMemory
from countersink.database.connection import connect
from countersink.database.errors import Unavailable
from countersink.database.session import Session
from countersink.store import Store
from countersink.stream.decode import decode_payload
from tests.support.entries import (
    MAX,
    Database,
    Killed,
    beside,
    entry,
    keys,
    ledger,
    minute,
    row,
    rows,
    together,
    wait_for_update_lock,
)
from tests.support.examples import MANY

OVER = OVERFLOW.encode()
TODAY = date(2026, 11, 21)


def overflown(store: Store) -> dict[date, int]:
    """Amounts that had no room, by day."""
    return {day: total for day, total in store.totals.daily("views", key=OVERFLOW) if total}


def number_of_keys(session: Session, counter: str = "views") -> int:
    """Keys that there are, without the one for the rest."""
    return len(keys(session, counter).keys() - {OVER})


def at(day: date, *amounts: tuple[str, int], of_day: int = 720) -> list[Row]:
    """Rows of a day."""
    return [
        (n, "views", key, minute(day, of_day), amount) for n, (key, amount) in enumerate(amounts)
    ]


def test_rows_of_new_keys_beyond_the_cap_go_to_one_key(db: Database) -> None:
    db.store.counters.set("views", max_keys=2)
    content = rows(("/a", 1), ("/b", 2), ("/c", 4), ("/d", 8), ("/c", 16))
    assert db.applier.apply([entry(content)]) == Applied(applied=1, rows=5, cells=3, overflown=2)
    assert db.keys() == {b"/a": 1, b"/b": 2, OVER: 28}
    assert ledger(db.session) == {"views": 31}
    assert overflown(db.store) == {TODAY: 28}


def test_keys_that_are_there_go_on_being_counted(db: Database) -> None:
    db.store.counters.set("views", max_keys=1)
    db.count(("/a", 1))
    db.count(("/a", 10), ("/b", 100))
    other = Applier(db.mysql_url, 18)  # remembers nothing
    other.apply([entry(rows(("/b", 1000), ("/a", 10000)))])
    other.close()
    assert db.keys() == {b"/a": 10011, OVER: 1100}


@pytest.mark.parametrize("resolution", ["day", "hour", "quarter"])
def test_a_day_is_that_of_the_counters_time_zone_however_many_buckets_it_has(
    db: Database, resolution: str
) -> None:
    db.store.counters.set("views", time_zone="Asia/Tokyo", resolution=resolution, max_keys=2)  # type: ignore[arg-type]
    # 14:59 UTC is 23:59 in Tokyo.
    db.applier.apply([entry(at(TODAY, ("/a", 1), ("/b", 1), of_day=0))])
    fresh = db.worker()
    fresh.apply([entry(at(TODAY, ("/a", 1), ("/c", 1), of_day=899))])
    fresh.apply([entry(at(TODAY, ("/c", 1), ("/d", 1), ("/e", 1), of_day=900))])
    assert db.keys() == {b"/a": 2, b"/b": 1, b"/c": 1, b"/d": 1, OVER: 2}
    assert overflown(db.store) == {TODAY: 1, TODAY + timedelta(days=1): 1}


def test_a_cap_for_all_counters_and_one_of_its_own(db: Database) -> None:
    db.store.counters.set_max_keys(2)
    db.store.counters.set("views", max_keys=4)
    content = [row(f"/{n}", counter=name) for n in range(6) for name in ("views", "clicks")]
    db.applier.apply([entry([(n, *each[1:]) for n, each in enumerate(content)])])
    assert number_of_keys(db.session) == 4
    assert number_of_keys(db.session, "clicks") == 2
    assert (db.store.counters.max_keys(), db.store.counters.show("views").max_keys) == (2, 4)
    db.store.counters.set("views", max_keys="none")
    assert db.store.counters.show("views").max_keys is None
    assert db.store.counters.show("views").most_keys == 2
    db.store.counters.set_max_keys(None)
    assert db.store.counters.max_keys() is None
    db.applier.apply([entry([(n, "clicks", f"/{n}", minute(), 1) for n in range(6)])])
    assert number_of_keys(db.session, "clicks") == 6


def test_a_declared_key_is_one_and_the_key_of_the_rest_is_none(db: Database) -> None:
    db.store.counters.set("views", max_keys=2)
    db.count((OVERFLOW, 5), ("", 0), ("/a", 0), ("/b", 0))
    assert db.keys() == {b"": 0, b"/a": 0, OVER: 5}


def test_a_change_of_the_cap_is_followed_at_once_whatever_is_there(db: Database) -> None:
    def count(*names: str) -> None:
        db.count(*((name, 1) for name in names))

    count("a", "b", "c", "d")
    db.store.counters.set("views", max_keys=3)
    count("a", "d", "e")  # more are there than may be: none is made, none goes
    assert db.keys() == {b"a": 2, b"b": 1, b"c": 1, b"d": 2, OVER: 1}
    db.store.counters.set("views", max_keys=6)
    count("e", "f", "g")
    assert db.keys().keys() == {b"a", b"b", b"c", b"d", b"e", b"f", OVER}
    db.store.counters.set("views", max_keys="none")
    count("h", "i", "j")
    db.store.counters.set("views", max_keys=10)
    count("k", "l", "m")
    assert number_of_keys(db.session) == 10
    assert db.keys()[OVER] == 4
    db.store.counters.set("views", max_keys=1)
    count("m", "a", "n")
    assert number_of_keys(db.session) == 10
    assert db.keys()[OVER] == 6


def test_keys_of_the_applications_own_transactions_are_there_too(db: Database) -> None:
    db.store.counters.set("views", max_keys=2)
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with connect(db.mysql_url) as app:
        for name in ("x", "y", "z"):
            app.begin()
            db.store.increment(app._connection, "views", name, at=now)
            app.commit()
    db.count(("z", 1), ("new", 1))
    assert db.keys() == {b"x": 1, b"y": 1, b"z": 2, OVER: 1}


def test_a_deleted_key_gives_no_room_back_and_a_deleted_counter_leaves_nothing(
    db: Database,
) -> None:
    db.store.counters.set("views", max_keys=2)
    db.count(("a", 1), ("b", 1), ("c", 1))
    db.store.counters.delete("views", "a")
    db.count(("c", 1), ("a", 1))
    assert db.keys() == {b"b": 1, OVER: 3}
    db.store.counters.delete("views")
    assert db.session.query("SELECT * FROM counter_keys") == []
    db.count(*((f"{n}", 1) for n in range(5)))
    assert number_of_keys(db.session) == 5


@pytest.mark.servers("mariadb", "mysql")
def test_rows_that_are_refused_take_no_room_and_do_not_count_as_overflown(db: Database) -> None:
    db.store.counters.set("views", max_keys=1)
    content = rows(("\udc80", 1), ("k" * 256, 1), ("a", 1), ("b", MAX), ("c", MAX))
    content.append((5, "views", (("page", "d"),), minute(), 1))
    applied = db.applier.apply([entry(content)])
    assert (applied.dead, applied.rows, applied.overflown) == (3, 3, 2)
    assert db.keys() == {b"a": 1, OVER: 2 * MAX}
    (letter,) = dead.list_rows(db.session, reason="unknown_dimension")
    assert b'"d"' in letter.payload


def test_retried_dead_letters_keep_to_the_cap(db: Database) -> None:
    db.store.counters.set("other")
    db.store.counters.set_strict(True)
    db.count(("a", 1), ("b", 2), ("c", 4))
    assert dead.count(db.session) == {"unknown_counter": 3}
    db.store.counters.set("views", max_keys=1)
    with connect(db.mysql_url) as own:
        assert retry(own, slot=9, decode=decode_payload).retried == 3
    assert sum(db.keys().values()) == 7
    assert number_of_keys(db.session) == 1


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("point", POINTS)
def test_dying_at_any_point_leaves_room_exact(db: Database, point: str) -> None:
    def reached(here: str) -> None:
        if here == point:
            raise Killed

    db.store.counters.set("views", max_keys=2)
    dying = Applier(db.mysql_url, 3, reached=reached)
    batch = [entry(rows(("a", 1), ("b", 2), ("c", 4)))]
    with pytest.raises(Killed):
        dying.apply(batch)
    dying.close()
    other = db.worker(4)
    other.apply(batch)
    other.apply([entry(rows(("d", 8), ("b", 16)))])
    assert db.keys() == {b"a": 1, b"b": 18, OVER: 12}
    assert db.session.query("SELECT made FROM counter_keys") == [(2,)]


@pytest.mark.servers("mariadb", "mysql")
def test_a_connection_killed_before_the_commit_remembers_nothing(db: Database) -> None:
    def reached(point: str) -> None:
        if point == "before_commit" and not killed:
            killed.append(True)
            applier._session.abort()

    killed: list[bool] = []
    db.store.counters.set("views", max_keys=1)
    applier = db.worker(3, reached=reached)
    with pytest.raises(Unavailable):
        applier.apply([entry(rows(("a", 1)))])
    other = db.worker(4)
    other.apply([entry(rows(("b", 1)))])
    applier.apply([entry(rows(("a", 1)))])  # a was never made
    assert db.keys() == {b"b": 1, OVER: 1}


def _cells(session: Session) -> dict[tuple[str, int, bytes], int]:
    """Totals by counter, number of the day, and key."""
    return {
        (counter, minute(bucket.date()) // 1440, bytes(key)): int(amount)
        for counter, bucket, key, amount in session.query(
            "SELECT counter, bucket, counter_key, SUM(amount) FROM counter_slot"
            " GROUP BY counter, bucket, counter_key"
        )
    }


def _sums(batches: list[list[Incoming]]) -> int:
    return sum(r[4] for batch in batches for one in batch for r in one.rows)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.parametrize("slots", [(1, 2, 3, 4), (9, 9, 9, 9)], ids=["own slots", "a shared slot"])
def test_many_workers_with_new_keys_at_the_same_moment_never_make_too_many(
    db: Database, slots: tuple[int, ...]
) -> None:
    """Several counters and days in different orders: and nobody waits in a circle."""
    names, days = ("a", "b", "c"), [TODAY + timedelta(days=n) for n in range(3)]
    for name, most in zip(names, (5, 17, 60), strict=True):
        db.store.counters.set(name, max_keys=most)
    chance = random.Random(7)

    def chosen(number: int) -> Row:
        key = f"/{chance.randrange(80)}"
        return number, chance.choice(names), key, minute(chance.choice(days)), 1

    pauses: list[float] = []
    appliers = [Applier(db.mysql_url, slot, pause=pauses.append) for slot in slots]
    sent = 0
    for _ in range(6 if MANY else 3):
        batches = [[entry(list(map(chosen, range(30)))) for _ in range(4)] for _ in appliers]
        sent += _sums(batches)
        before = _cells(db.session)
        together(*(partial(one.apply, batch) for one, batch in zip(appliers, batches, strict=True)))
        # Whatever was there has got all of its own rows, whichever worker had them.
        added = Counter(
            (row[1], row[3] // 1440, str(row[2]).encode())
            for batch in batches
            for each in batch
            for row in each.rows
        )
        after = _cells(db.session)
        old = [cell for cell in before if cell[2] != OVER]
        assert [after[cell] - before[cell] for cell in old] == [added[cell] for cell in old]
    if len(set(slots)) == len(slots):
        assert pauses == []
    found: Counter[tuple[str, date]] = Counter()
    recorded = {
        (counter, day): int(made)
        for counter, day, made in db.session.query("SELECT counter, day, made FROM counter_keys")
    }
    for counter, bucket, key in db.session.query(
        "SELECT DISTINCT counter, bucket, counter_key FROM counter_slot"
    ):
        found[counter, bucket.date()] += bytes(key) != OVER
    assert found == {
        (name, day): most for name, most in zip(names, (5, 17, 60), strict=True) for day in days
    }
    assert recorded == found
    assert sum(ledger(db.session).values()) == sent
    for one in appliers:
        one.close()


@pytest.mark.servers("mariadb", "mysql")
def test_a_key_made_by_another_worker_meanwhile_is_not_taken_for_new(db: Database) -> None:
    """One waits for the lock with a key that the one that holds it is making."""
    db.store.counters.set("views", max_keys=1)
    Applier(db.mysql_url, 5).apply([entry(rows(("x", 1), counter="other"))])
    holding, go_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "upserted":
            holding.set()
            assert go_on.wait(30)

    first, second = db.worker(1, reached=reached), db.worker(2)
    # The row is made by a first attempt of its own.
    with beside(lambda: first.apply([entry(rows(("a", 1)))])) as one:
        assert holding.wait(30)
        with beside(lambda: second.apply([entry(rows(("b", 10), ("a", 100)))])) as two:
            wait_for_update_lock(db.session)
            go_on.set()
    assert (one.result().applied, two.result().applied) == (1, 1)
    assert db.keys() == {b"a": 101, OVER: 10}


def test_memory_of_keys_is_bounded() -> None:
    memory = KeyMemory(most=10)
    memory.add("a", TODAY, ["1", "2", "3", "4"])
    memory.add("b", TODAY, ["1", "2", "3", "4"])
    assert memory.keys("a", TODAY) == {"1", "2", "3", "4"}
    memory.add("c", TODAY, ["1", "2", "3"])
    assert memory.keys("b", TODAY) == memory.keys("a", TODAY) == set()
    assert memory.keys("c", TODAY) == {"1", "2", "3"}


def test_records_of_days_that_are_rolled_up_are_forgotten_and_made_again(db: Database) -> None:
    db.store.counters.set("views", max_keys=2)
    today = datetime.now(UTC).date()
    for days in (0, 8, 80):
        day = today - timedelta(days=days)
        db.applier.apply([entry(at(day, ("a", 1), ("b", 1), ("c", 1)))])
    month = (today - timedelta(days=45)).replace(day=1)
    db.session.execute("UPDATE counter SET rolled_month = %s", (month,))
    assert key_caps.prune(db.session, stop=lambda: True) == (0, False)
    assert key_caps.prune(db.session) == (1, True)
    assert key_caps.prune(db.session) == (0, True)
    left = {day for (day,) in db.session.query("SELECT day FROM counter_keys")}
    assert left == {today, today - timedelta(days=8)}
    db.applier.apply([entry(at(today - timedelta(days=80), ("d", 1), ("a", 1)))])
    assert number_of_keys(db.session) == 2
    assert key_caps.overflown_by_counter(db.session) == {"views": 1}
    for _ in range(2):
        shown = db.store.counters.show("views")
        assert (shown.most_keys, shown.overflown) == (2, 1)
        # What there was is told however caps are changed.
        db.store.counters.set("views", max_keys="none")
        db.store.counters.set_max_keys(None)
        db.store.counters.set_max_keys(2)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "5", 10**9])
def test_what_is_no_number_of_keys_is_refused(store_of_nowhere: Store, wrong: object) -> None:
    with pytest.raises(ValueError, match="a number of keys from 1"):
        store_of_nowhere.counters.set("views", max_keys=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a number of keys from 1"):
        store_of_nowhere.counters.set_max_keys(wrong)  # type: ignore[arg-type]
