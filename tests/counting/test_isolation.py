"""A row that cannot be counted takes nothing else with it, and no sum is one."""

import random

import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.amounts import Incoming, Row
from countersink.counting.apply.applier import Applied, Applier
from countersink.database.errors import BadData
from countersink.database.session import Session
from countersink.runtime.dimensions import check_dimensions
from countersink.runtime.members import Seen
from tests.counting.test_reconciled import DAY, mark
from tests.counting.test_tracked_refusals import track
from tests.counting.visitors.sightings import numbers, salt_at, seen_entry
from tests.support.entries import (
    MAX,
    MIN,
    Database,
    entry,
    guard_count,
    ledger,
    minute,
    now_ms,
    rows,
    slots,
)

pytestmark = pytest.mark.servers("mariadb", "mysql")


def _dead(session: Session) -> list[tuple[int, str, bytes]]:
    return sorted(
        (found.position, found.reason, found.payload) for found in dead.list_rows(session)
    )


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("edge", "step"), [(MAX, 1), (MIN, -1)])
def test_sums_beyond_64_bits_go_on_exactly(db: Database, edge: int, step: int) -> None:
    db.count(("/full", edge), ("/ok", 1))
    result = db.count(("/ok", 1), ("/full", step), ("/z", 1))
    assert result == Applied(applied=1, rows=3, cells=3)
    merged = [entry(rows(("/full", 5 * step), ("/full", edge))) for _ in range(3)]
    assert db.applier.apply(merged) == Applied(applied=3, rows=6, cells=1)
    full = 4 * edge + 16 * step
    assert db.keys() == {b"/full": full, b"/ok": 2, b"/z": 1}
    assert ledger(db.session) == slots(db.session) == {"views": full + 3}
    db.count(*[("/full", step - edge)] * 4)
    assert db.keys()[b"/full"] == 20 * step


def test_an_overflowing_key_in_every_entry_costs_its_neighbours_nothing(db: Database) -> None:
    batch = [entry(rows((f"/{n}", n), ("/full", MAX), ("/common", 1))) for n in range(200)]
    assert db.applier.apply(batch) == Applied(applied=200, rows=600, cells=202)
    expected = {f"/{n}".encode(): n for n in range(200)}
    assert db.keys() == expected | {b"/full": 200 * MAX, b"/common": 200}
    assert ledger(db.session) == slots(db.session)


MALFORMED: list[tuple[Row, str]] = [
    ((0, "views", "k" * 256, minute(), 1), "bad_key"),
    ((1, "c" * 65, "k", minute(), 1), "bad_counter"),
    ((2, "vié", "k", minute(), 1), "bad_counter"),
    ((3, "views", "\ud800", minute(), 1), "bad_key"),
    ((4, "views", "k", 10**12, 1), "bad_minute"),
    ((5, "views", "k", minute(), 2**63), "bad_amount"),
    ((6, "views", "k2", minute(), MIN - 1), "bad_amount"),
    ((7, "vi\udc80", "k", minute(), 1), "bad_counter"),
    ((8, "views'); DROP TABLE counter_slot; -- ", "k", minute(), 1), "bad_counter"),
    ((9, "views", "é" * 128, minute(), 1), "bad_key"),
    ((10, "views", "k", -1, 1), "bad_minute"),
    ((11, "", "k", minute(), 1), "bad_counter"),
    ((12, "views", (("No", "x"),), minute(), 1), "bad_key"),
    ((13, "views", (("page", "\udc80"),), minute(), 1), "bad_key"),
]


def test_rows_of_every_refusal_among_thousands_lose_nothing_but_themselves(db: Database) -> None:
    db.store.counters.set("views")
    db.store.counters.set("visitors", salt_days=0)
    db.store.counters.set("regional", dimensions=["country"], breakdowns=["country"])
    db.applier.apply([seen_entry(db.session, [("visitors", "/damaged", minute(), "a")])])
    db.session.execute("UPDATE visitor_slot SET sketch = X'0102'")
    db.store.counters.set_strict(True)
    track(db.session, "orders")
    mark(db.session, now_ms() + 3_600_000)
    number, _ = salt_at(db.session, "visitors", minute())
    refused: list[tuple[str, tuple[str, object, int, int], int | None]] = [
        *((reason, row[1:], None) for row, reason in MALFORMED),
        ("unknown_counter", ("nobody", "k", minute(), 1), None),
        ("tracked_counter", ("orders", "k", minute(), 1), None),
        ("unknown_dimension", ("regional", check_dimensions({"city": "x"}), minute(), 1), None),
        ("unknown_dimension", ("views", check_dimensions({"country": "x"}), minute(), 1), None),
        ("not_unique", ("views", "k", minute(), 1), number),
        ("wrong_salt", ("visitors", "k", minute(), 1), number + 1),
        ("bad_sketch", ("visitors", "/damaged", minute(), 1), number),
        ("reconciled", ("views", "k", minute(DAY), 1), None),
    ]
    drawn = random.Random(11)
    content: list[tuple[object, ...]] = []
    seen: dict[int, Seen] = {}
    reasons: dict[int, str] = {}
    for at in range(4000):
        content.append((at, "views", f"/{at % 3500}", minute(), at))
        if drawn.random() < 0.02:
            # Each kind several times, and among the first and the last rows of statements.
            reason, row, salt = refused[len(reasons) % len(refused)]
            reasons[10_000 + at] = reason
            content.append((10_000 + at, *row))
            if salt is not None:
                seen[10_000 + at] = Seen(salt, b"12345678")
    assert set(reasons.values()) == {reason for reason, _, _ in refused}
    several = [("visitors", f"/{n}", minute(), "b") for n in range(3)]
    good = seen_entry(db.session, several, ("regional", (("country", "DE"),), minute(), 7))
    mixed = Incoming(good.id[::-1], now_ms(), content, seen=seen)  # type: ignore[arg-type]
    applied = db.applier.apply([mixed, good])
    assert (applied.applied, applied.rows, applied.dead) == (2, 4004, len(reasons))
    assert {at: reason for at, reason, _ in _dead(db.session)} == reasons
    expected = {f"/{n}".encode(): n + (n + 3500 if n < 500 else 0) for n in range(3500)}
    assert db.keys() == expected
    assert db.keys("visitors") == {b"/damaged": 1, b"/0": 1, b"/1": 1, b"/2": 1}
    assert db.keys("regional#1") == {b"DE": 7}
    assert ledger(db.session) == slots(db.session)
    assert db.applier.apply([mixed, good]) == Applied(duplicates=2)
    # What verify is to find nothing wrong with, afterwards.
    db.session.execute("DELETE FROM tracked_table")
    db.store.counters.delete("visitors", "/damaged")
    assert set(numbers(db.session, "visitors").values()) == {1}


def test_what_the_server_refuses_undoes_the_whole_transaction(db: Database) -> None:
    """Rows that are said to be checked, and are not: a bug, which must not count a part."""
    good = entry(rows(("/a", 1)))
    wrong = Incoming(b"w" * 16, now_ms(), rows(("/b", 1), ("k" * 256, 1)), checked=True)
    with pytest.raises(BadData):
        db.applier.apply([good, wrong])
    assert (db.keys(), ledger(db.session), guard_count(db.session)) == ({}, {}, 0)
    assert db.applier.apply([good]).applied == 1
    assert db.keys() == {b"/a": 1}


def test_a_dead_row_is_stored_whatever_is_in_it(session: Session, applier: Applier) -> None:
    strange = entry([(0, "views", "\ud800" * 300, minute(), 1)], stream="str\udc80eam" * 60)
    applier.apply([strange])
    (buried,) = dead.list_rows(session)
    assert buried.payload.startswith(b'["views","\\ud800\\ud800')
    assert len(buried.stream) == 255
