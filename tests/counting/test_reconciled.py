"""Marks of reconciled days: what was accepted before goes to the dead letters, nothing else."""

import json
import os
from datetime import date
from typing import Any

import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.applier import Applied, Applier
from countersink.counting.apply.dead_retry import Retried, retry
from countersink.counting.apply.guards import bump, exclusive
from countersink.counting.counters import catalog
from countersink.counting.counters.catalog import KEPT_UNSENT_MS, Mark, accepted
from countersink.database.session import Session
from countersink.runtime.dead_letter import WHOLE_ENTRY
from countersink.store import Store
from countersink.stream.decode import decode_payload
from countersink.stream.entry import new_entry_id
from tests.support.entries import Database, entry, ledger, minute, now_ms

DAY = date(2026, 3, 14)
NEXT = date(2026, 3, 15)
HOUR_MS = 3_600_000

pytestmark = pytest.mark.usefixtures("store")  # what it finds in the end is verified


def mark(
    session: Session, sent_before: int, *days: date, counter: str = "views", run: int = 7
) -> None:
    """Mark days as a reconcile does."""

    def work(_: object) -> None:
        catalog.mark_days(session, counter, run, sent_before, days or (DAY,))
        bump(session)

    exclusive(session, work)


def unmark(session: Session, run: int = 7) -> None:
    def work(_: object) -> None:
        assert catalog.unmark_days(session, "views", run)
        bump(session)

    exclusive(session, work)


def row_of(
    key: str = "/a", *, amount: int = 1, day: date = DAY, counter: str = "views", position: int = 0
) -> tuple[int, str, str, int, int]:
    return position, counter, key, minute(day), amount


def id_of(made: int) -> bytes:
    """An entry id that was made at a time."""
    return bytes.fromhex(new_entry_id(made))


def retried(session: Session, **chosen: object) -> Retried:
    return retry(session, slot=17, decode=decode_payload, **chosen)  # type: ignore[arg-type]


def test_an_entry_is_accepted_when_it_was_made_if_its_id_tells() -> None:
    at = now_ms()
    assert accepted(id_of(at - 5000), at) == at - 5000
    assert accepted(id_of(at), at) == at
    # A clock set back, an id that an app named, one that was made in another way.
    assert accepted(id_of(at + 5000), at) == at
    assert accepted(b"\xff" * 16, at) == at
    assert accepted(bytes(16), at) == at
    assert accepted(id_of(at - KEPT_UNSENT_MS), at) == at - KEPT_UNSENT_MS
    assert accepted(id_of(at - KEPT_UNSENT_MS - 1), at) == at
    assert accepted(bytes(16), 5) == 0


def test_what_was_sent_before_is_dead_and_what_was_sent_later_counts(db: Database) -> None:
    t0 = now_ms() - HOUR_MS
    db.applier.apply([entry([row_of("/a")], at=t0 - 10)])  # before the mark: counted
    mark(db.session, t0)
    late = entry(
        [
            row_of("/a", amount=5),
            row_of("/a", amount=7, day=NEXT, position=1),
            row_of("/a", amount=9, counter="other", position=2),
        ],
        id=id_of(t0 - 1),
        at=t0 - 1,
    )
    new = entry([row_of("/b")], id=id_of(t0), at=t0)
    assert db.applier.apply([late, new]) == Applied(applied=2, rows=3, cells=3, dead=1)
    assert db.keys() == {b"/a": 8, b"/b": 1}
    assert ledger(db.session) == {"other": 9, "views": 9}
    (buried,) = dead.list_rows(db.session)
    assert (buried.reason, buried.position, buried.entry_id) == ("reconciled", 0, late.id)
    assert json.loads(buried.payload) == ["views", "/a", minute(DAY), 5]
    assert "backfill 7" in buried.detail
    assert f"accepted at {t0 - 1}" in buried.detail
    # Delivered again it is a duplicate, not another dead letter.
    assert db.applier.apply([late, new]) == Applied(duplicates=2)
    assert len(dead.list_rows(db.session)) == 1


def test_what_was_accepted_in_the_millisecond_of_the_mark_counts(db: Database) -> None:
    """A day is marked with the time at which nothing of it waits any more."""
    t0 = now_ms() - HOUR_MS
    mark(db.session, t0)
    mark(db.session, t0 + 1000, NEXT)  # so that entries of then are looked at
    assert db.applier.apply([entry([row_of()], id=id_of(t0 - 1), at=t0 - 1)]).dead == 1
    assert db.applier.apply([entry([row_of()], id=id_of(t0), at=t0)]).dead == 0


def test_a_spooled_record_is_as_old_as_its_id_whenever_it_is_sent(db: Database) -> None:
    t0 = now_ms() - HOUR_MS
    mark(db.session, t0)
    spooled = entry([row_of()], id=id_of(t0 - 20 * 24 * HOUR_MS), at=now_ms())
    assert db.applier.apply([spooled]) == Applied(applied=1, dead=1)
    named_by_the_app = entry([row_of()], id=os.urandom(1) + b"\xff" * 15, at=now_ms())
    assert db.applier.apply([named_by_the_app]) == Applied(applied=1, rows=1, cells=1)


def test_the_latest_mark_of_a_day_holds(store: Store, session: Session, applier: Applier) -> None:
    t0 = now_ms() - HOUR_MS
    mark(session, t0 + 1000, run=9)
    mark(session, t0, run=11)
    late = entry([row_of()], id=id_of(t0 + 500), at=t0 + 500)
    assert applier.apply([late]).dead == 1
    assert "backfill 9" in dead.list_rows(session)[0].detail
    unmark(session, run=9)
    assert applier.apply([entry([row_of()], id=id_of(t0 + 500), at=t0 + 500)]).dead == 0
    unmark(session, run=11)
    assert applier.apply([entry([row_of()], id=id_of(t0 - 5), at=t0 - 5)]).dead == 0


@pytest.mark.parametrize("resolution", ["minute", "quarter", "day"])
def test_a_mark_is_on_a_day_of_the_counter_whatever_its_buckets(
    db: Database, resolution: Any
) -> None:
    db.store.counters.set("views", time_zone="Asia/Kolkata", resolution=resolution)
    t0 = now_ms() - HOUR_MS
    mark(db.session, t0, NEXT)
    begins = 18 * 60 + 30
    for of_day, dead_rows in ((begins - 1, 0), (begins, 1), (begins + 1439, 1), (begins + 1440, 0)):
        late = entry([(0, "views", "/", minute(DAY, of_day), 1)], id=id_of(t0 - 1), at=t0 - 1)
        assert db.applier.apply([late]).dead == dead_rows
    # In whatever resolution it is counted later.
    db.store.counters.set("views", resolution="minute")
    late = entry([(0, "views", "/", minute(DAY, begins), 1)], id=id_of(t0 - 1), at=t0 - 1)
    assert db.applier.apply([late]).dead == 1


def test_marks_that_only_too_old_entries_could_meet_are_not_read_by_workers(
    session: Session,
) -> None:
    now = now_ms()
    mark(session, now - KEPT_UNSENT_MS, run=1)
    mark(session, now - KEPT_UNSENT_MS + 1, NEXT, run=2)
    assert catalog.load_marks(session) == {
        "views": {
            DAY: Mark(now - KEPT_UNSENT_MS, 1),
            NEXT: Mark(now - KEPT_UNSENT_MS + 1, 2),
        }
    }
    session.execute("UPDATE control SET pruned_before = %s", (now,))
    assert catalog.load(session).mark("views", minute(DAY), 0) is None
    assert catalog.load(session).mark("views", minute(DAY) + 1440, 0) is not None
    assert catalog.load(session, old_marks=True).mark("views", minute(DAY), 0) is not None
    assert catalog.load(session).marked_before == now - KEPT_UNSENT_MS + 1


def test_retrying_leaves_them_out_until_they_are_asked_for(db: Database) -> None:
    t0 = now_ms() - HOUR_MS
    mark(db.session, t0)
    entries = [entry([row_of(f"/{n}", amount=n)], id=id_of(t0 - n), at=t0 - n) for n in (1, 2, 4)]
    assert db.applier.apply(entries).dead == 3
    assert retried(db.session) == Retried(left_out=3)
    assert dead.count(db.session) == {"reconciled": 3}
    assert retried(db.session, refs=[f"{entries[0].id.hex()}:0"]) == Retried(retried=1, rows=1)
    assert db.keys() == {b"/1": 1}
    assert retried(db.session, reason="reconciled") == Retried(retried=2, rows=2)
    assert db.keys() == {b"/1": 1, b"/2": 2, b"/4": 4}
    assert retried(db.session, reason="reconciled") == Retried()


@pytest.mark.parametrize("position", [0, WHOLE_ENTRY])
def test_what_was_dead_for_another_reason_when_its_day_was_reconciled_is_not_counted_on_top(
    db: Database, position: int
) -> None:
    t0 = now_ms() - HOUR_MS
    payload = b'["views","/a",%d,5]' % minute(DAY)
    whole = position == WHOLE_ENTRY
    name = id_of(t0 - 1)
    with db.session.transaction():
        dead.insert(
            db.session,
            [
                dead.DeadRow(
                    name,
                    position,
                    "s",
                    t0 - 1,
                    "too_old",
                    "",
                    b"[%s]" % payload if whole else payload,
                )
            ],
        )
    mark(db.session, t0)
    # A mark that workers do not read any more holds here all the same.
    db.session.execute("UPDATE control SET pruned_before = %s", (now_ms() + 2 * KEPT_UNSENT_MS,))
    assert retried(db.session, reason="too_old") == Retried(failed=1)
    assert dead.count(db.session) == {"reconciled": 1}
    assert retried(db.session) == Retried(left_out=1)
    assert retried(db.session, refs=[name.hex()]) == Retried(retried=1, rows=1)
    assert db.keys() == {b"/a": 5}


def test_a_day_marked_while_a_worker_counts_it_is_marked_for_the_next_batch(db: Database) -> None:
    db.applier.apply([entry([row_of()])])  # has read the catalog
    mark(db.session, now_ms() + HOUR_MS)
    assert db.applier.apply([entry([row_of()])]).dead == 1
