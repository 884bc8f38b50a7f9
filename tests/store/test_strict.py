"""Strict mode: only known counters count; the others' rows are kept, with their reason."""

import json

from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.apply.apply import Applied, Applier
from countersink.store.apply.dead_retry import retry
from countersink.store.connection import Session
from countersink.stream.decode import decode_payload
from tests.store.helpers import entry, ledger, row


def test_it_is_off_at_first_and_can_be_switched(store: Store) -> None:
    assert not store.counters.strict()
    for _ in range(2):
        store.counters.set_strict(True)
        assert store.counters.strict()
    store.counters.set_strict(False)
    assert not store.counters.strict()


def test_rows_of_unknown_counters_are_dead_and_all_others_count(
    store: Store, session: Session, applier: Applier
) -> None:
    applier.apply([entry([row("/a", counter="counted")])])
    store.counters.set("made")
    store.counters.set_strict(True)
    mixed = [
        row("/a", counter="made", position=0),
        row("/b", 7, counter="unknown", position=1),
        row("/a", counter="counted", position=2),
    ]
    batch = [entry(mixed), entry([row("/a", counter="made")])]
    assert applier.apply(batch) == Applied(applied=2, rows=3, cells=2, dead=1)
    assert ledger(session) == {"counted": 2, "made": 2}
    (buried,) = dead.list_rows(session)
    assert (buried.reason, buried.position) == ("unknown_counter", 1)
    assert json.loads(buried.payload)[:2] == ["unknown", "/b"]
    assert "countersink counter set unknown" in buried.detail
    assert applier.apply(batch) == Applied(duplicates=2)


def test_a_counter_is_known_from_the_moment_it_is_made(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set_strict(True)
    applier.apply([entry([row("/a", 3)])])
    assert ledger(session) == {}
    store.counters.set("views")
    applier.apply([entry([row("/a", 4)])])
    done = retry(session, slot=9, decode=decode_payload)
    assert (done.retried, done.failed) == (1, 0)
    assert ledger(session) == {"views": 7}
    assert dead.count(session) == {}


def test_an_unknown_counter_stays_unknown_however_often_it_comes(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set_strict(True)
    for number in range(1, 4):
        assert applier.apply([entry([row("/a")])]) == Applied(applied=1, dead=1)
        assert dead.count(session) == {"unknown_counter": number}
    assert ledger(session) == {}


def test_a_deleted_counter_is_unknown_again(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set_strict(True)
    store.counters.set("views")
    applier.apply([entry([row("/a")])])
    store.counters.delete("views")
    applier.apply([entry([row("/a")])])
    assert ledger(session) == {}
    assert dead.count(session) == {"unknown_counter": 1}


def test_switched_off_it_takes_everything_at_once(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set_strict(True)
    applier.apply([entry([row("/a")])])
    store.counters.set_strict(False)
    applier.apply([entry([row("/a", 5)])])
    assert ledger(session) == {"views": 5}
