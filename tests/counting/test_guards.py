"""Pruning forgets guards and never lets an entry count again."""

from typing import Any

import pytest

from countersink.counting.apply import dead, guards
from countersink.counting.apply.applier import POINTS, Applied, Applier
from countersink.counting.apply.guards import read_control
from countersink.database.errors import Conflict, Refused
from countersink.database.session import Session
from tests.support.entries import Database, entry, guard_count, keys, now_ms, rows
from tests.support.examples import MANY

pytestmark = pytest.mark.servers("mariadb", "mysql")


def prune(session: Session, **how: Any) -> guards.Pruned:
    return guards.prune(session, **{"now_ms": now_ms(), "keep_ms": 0} | how)


@pytest.mark.parametrize("jump", [240_000, -240_000])
def test_the_earlier_of_the_two_clocks_decides(session: Session, jump: int) -> None:
    """Entries carry Redis's time: a clock of MySQL that runs ahead would bury the young ones."""
    clock = read_control(session, lock="").now
    pruned = prune(session, now_ms=now_ms() + jump, keep_ms=1000)
    assert abs(pruned.watermark - (clock + min(jump, 0) - 1000)) < 60_000


@pytest.mark.parametrize("jump", [3_600_000, -3_600_000])
def test_clocks_that_differ_much_prune_nothing(db: Database, jump: int) -> None:
    db.applier.apply([entry([])])
    with pytest.raises(Refused, match=r"clocks of MySQL and Redis differ by 3,[56]\d\d s.* NTP"):
        prune(db.session, now_ms=now_ms() + jump)
    assert guards.watermark(db.session) == 0
    assert guard_count(db.session) == 1
    assert db.session.query("SELECT @@innodb_lock_wait_timeout") == [(5,)]
    assert db.count(("/a", 1)).applied == 1


def test_the_watermark_follows_the_clocks_up_to_the_oldest_entry_that_may_come_back(
    session: Session,
) -> None:
    oldest = now_ms() - 10**9
    assert prune(session, not_above_ms=oldest).watermark == oldest
    first = prune(session, keep_ms=1000)
    assert abs(first.watermark - (now_ms() - 1000)) < 60_000
    # It never falls.
    assert prune(session, keep_ms=10**9).watermark == first.watermark
    assert prune(session, not_above_ms=5).watermark == first.watermark
    assert guards.watermark(session) == first.watermark


def test_only_guards_below_the_watermark_go(session: Session, applier: Applier) -> None:
    applier.apply([entry([]) for _ in range(5)])
    old = [entry([]) for _ in range(25)]
    applier.apply(old)
    for number, past in enumerate(old):
        session.execute(
            "UPDATE applied_entry SET keep_from = %s WHERE entry_id = %s", (1000 + number, past.id)
        )
    assert prune(session, keep_ms=10**9, not_above_ms=1020, chunk=7).deleted == 20
    assert guard_count(session) == 10
    assert prune(session, keep_ms=10**9, not_above_ms=1020, chunk=5).deleted == 0


def test_around_the_watermark_nothing_counts_twice(session: Session, applier: Applier) -> None:
    start = now_ms() - 10**6
    entries = [entry(rows((f"/{step}", 1)), at=start + step) for step in range(10)]
    applier.apply(entries)
    for step, counted in enumerate(entries):  # as if they had been applied when they were sent
        session.execute(
            "UPDATE applied_entry SET keep_from = %s WHERE entry_id = %s",
            (start + step, counted.id),
        )
    assert prune(session, not_above_ms=start + 5).deleted == 5
    again = applier.apply(entries)
    assert again == Applied(duplicates=5, dead=5, too_old=5)
    assert keys(session) == {f"/{step}".encode(): 1 for step in range(10)}
    assert dead.count(session) == {"too_old": 5}


def test_an_entry_at_the_watermark_itself_is_young_enough(db: Database) -> None:
    limit = prune(db.session).watermark
    assert db.applier.apply([entry([], at=limit), entry([], at=limit - 1)]) == Applied(
        applied=1, dead=0, too_old=1
    )


@pytest.mark.random
def test_the_watermark_stays_while_a_batch_is_being_applied(db: Database) -> None:
    """Else a guard could be pruned between the look at the watermark and the commit."""
    refused: list[str] = []
    points = list(POINTS[:-1]) if MANY else [POINTS[0], POINTS[-2]]

    def reached(point: str) -> None:
        if point in points:
            with pytest.raises(Conflict):
                prune(db.session, attempts=1)
            refused.append(point)

    applier = db.worker(3, reached=reached)
    assert applier.apply([entry(rows(("/a", 1)), at=now_ms() - 1000)]).applied == 1
    assert refused == points
    assert prune(db.session).watermark > 0


def test_a_guard_outlives_a_clock_that_was_set_back_behind_the_watermark(db: Database) -> None:
    """That of an entry which is too old as well: once retried it must not come again."""
    watermark = now_ms() + 10**9
    db.session.execute("UPDATE control SET pruned_before = %s", (watermark,))
    old = entry(rows(("/a", 1)), at=now_ms())
    assert db.applier.apply([old]).too_old == 1
    assert prune(db.session).deleted == 0
    assert db.applier.apply([old]) == Applied(duplicates=1)


def test_known_says_which_have_guards(session: Session, applier: Applier) -> None:
    there = [entry([]) for _ in range(1500)]
    applier.apply(there)
    absent = [entry([]).id for _ in range(1500)]
    assert guards.known(session, [*absent, *(e.id for e in there)]) == {e.id for e in there}
    assert guards.known(session, []) == set()


@pytest.mark.parametrize("wrong", [{"keep_ms": -1}, {"keep_ms": 1, "chunk": 0}])
def test_pruning_with_nonsense_is_refused(session: Session, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="keep_ms"):
        prune(session, **wrong)
