"""A row that cannot be stored takes nothing else with it."""

import random

import pytest

from countersink.store.apply import dead
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applied, Applier
from countersink.store.connection import Session
from tests.store.helpers import MAX, MIN, entry, keys, ledger, minute, rows, slots

pytestmark = pytest.mark.servers("mariadb", "mysql")


def _dead(session: Session) -> list[tuple[int, str, bytes]]:
    return sorted(
        (found.position, found.reason, found.payload) for found in dead.list_rows(session)
    )


@pytest.mark.parametrize(("edge", "step"), [(MAX, 1), (MIN, -1)])
def test_a_sum_beyond_bigint_over_two_batches(
    session: Session, applier: Applier, edge: int, step: int
) -> None:
    applier.apply([entry(rows(("/full", edge), ("/ok", 1)))])
    result = applier.apply([entry(rows(("/ok", 1), ("/full", step), ("/z", 1)))])
    assert result == Applied(applied=1, rows=2, cells=2, dead=1)
    assert keys(session) == {b"/full": edge, b"/ok": 2, b"/z": 1}
    assert [(position, reason) for position, reason, _ in _dead(session)] == [(1, "out_of_range")]
    assert ledger(session) == slots(session) == {"views": edge + 3}


@pytest.mark.parametrize(("edge", "step"), [(MAX, 1), (MIN, -1)])
def test_a_sum_beyond_bigint_by_merging_within_the_batch(
    session: Session, applier: Applier, edge: int, step: int
) -> None:
    first = entry(rows(("/full", edge)))
    second = entry(rows(("/full", 5 * step), ("/ok", 1)))
    third = entry(rows(("/full", -step)))
    assert applier.apply([first, second, third]).dead == 1
    assert keys(session) == {b"/full": edge - step, b"/ok": 1}
    (buried,) = dead.list_rows(session)
    assert (buried.entry_id, buried.position) == (second.id, 0)
    assert ledger(session) == slots(session)


def test_a_merged_sum_that_fits_is_applied_though_its_parts_alone_would_not(
    session: Session, applier: Applier
) -> None:
    applier.apply([entry(rows(("/a", MAX)))])
    assert applier.apply([entry(rows(("/a", 1), ("/b", 1))), entry(rows(("/a", -2)))]).dead == 0
    assert keys(session) == {b"/a": MAX - 1, b"/b": 1}


def test_a_counter_of_which_nothing_could_be_applied_stays_unknown(
    session: Session, applier: Applier
) -> None:
    applier.apply([entry([(0, "views", "k" * 256, minute(), 1), (1, "other", "k", minute(), 1)])])
    assert ledger(session) == {"other": 1}


def test_every_kind_of_bad_value_at_once(session: Session, applier: Applier) -> None:
    content = [
        (0, "views", "k" * 256, minute(), 1),
        (1, "c" * 65, "k", minute(), 1),
        (2, "vié", "k", minute(), 1),
        (3, "views", "\ud800", minute(), 1),
        (4, "views", "k", 10**12, 1),
        (5, "views", "k", minute(), 2**63),
        (6, "views", "k2", minute(), MIN - 1),
        (7, "vi\udc80", "k", minute(), 1),
        (8, "views", "fine", minute(), 1),
        (9, "views'); DROP TABLE counter_slot; -- ", "fine", minute(), 1),
    ]
    assert applier.apply([entry(content)]).dead == 8
    assert [(position, reason) for position, reason, _ in _dead(session)] == [
        (0, "too_long"),
        (1, "too_long"),
        (2, "wrong_encoding"),
        (3, "wrong_encoding"),
        (4, "out_of_range"),
        (5, "out_of_range"),
        (6, "out_of_range"),
        (7, "wrong_encoding"),
    ]
    assert keys(session) == {b"fine": 1}
    assert len(slots(session)) == 2


def test_scattered_failures_among_thousands_of_cells(session: Session, applier: Applier) -> None:
    drawn = random.Random(7)
    content = [(f"/{number:05d}", drawn.randint(-5, 5)) for number in range(3500)]
    poison = drawn.sample(range(3500), 25)
    for number in poison:
        content[number] = (content[number][0], MAX)
    applier.apply([entry(rows(*((content[number][0], 1) for number in poison)))])
    numbered = rows(*content)
    batch = [entry(numbered[start : start + 1000]) for start in range(0, 3500, 1000)]
    assert applier.apply(batch) == Applied(applied=4, rows=3475, cells=3475, dead=25)
    expected = {key.encode(): 1 if amount == MAX else amount for key, amount in content}
    assert keys(session) == expected
    assert ledger(session) == slots(session)
    assert {position for position, _, _ in _dead(session)} == set(poison)


def test_a_batch_in_which_nothing_can_be_stored(session: Session, applier: Applier) -> None:
    poisoned: list[Incoming] = [entry([(0, "views", "k" * 300, minute(), 1)]) for _ in range(3)]
    assert applier.apply(poisoned) == Applied(applied=3, dead=3)
    assert keys(session) == {}
    assert applier.apply(poisoned) == Applied(duplicates=3)


def test_a_dead_row_is_stored_whatever_is_in_it(session: Session, applier: Applier) -> None:
    strange = entry([(0, "views", "\ud800" * 300, minute(), 1)], stream="str\udc80eam" * 60)
    applier.apply([strange])
    (buried,) = dead.list_rows(session)
    assert buried.payload.startswith(b'["views","\\ud800\\ud800')
    assert len(buried.stream) == 255
