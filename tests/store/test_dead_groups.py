"""Dead rows of one reason and counter: so many are kept, of the others there is an exact number."""

import json
import os
from collections.abc import Sequence
from functools import partial

import pytest

from countersink.runtime.dead_letter import WHOLE_ENTRY, DeadReason
from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.apply.amounts import Incoming
from countersink.store.apply.apply import Applied, Applier
from countersink.store.apply.dead import (
    MOST_BYTES,
    MOST_COUNTERS,
    MOST_ROWS,
    UNBOUNDED,
    DeadRow,
)
from countersink.store.apply.dead_retry import Retried, retry
from countersink.store.connection import Session
from countersink.stream.decode import decode_payload, decode_rows
from tests.store.helpers import entry, keys, minute, now_ms, rows, together


def bad(
    number: int, *, counter: str = "views", reason: str = "bad_minute", payload: bytes = b"[]"
) -> Incoming:
    """An entry with so many rows that cannot be counted."""
    name = os.urandom(16)
    letters = [
        DeadRow(name, position, "s", 0, reason, "why", payload, counter=counter)
        for position in range(number)
    ]
    return Incoming(name, now_ms(), (), letters)


def applied(applier: Applier, batches: Sequence[Sequence[Incoming]]) -> list[Applied]:
    return [applier.apply(batch) for batch in batches]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two rows, and for two counters."""
    monkeypatch.setattr(dead, "MOST_ROWS", 2)
    monkeypatch.setattr(dead, "MOST_COUNTERS", 2)


@pytest.mark.servers("mariadb", "mysql")
def test_a_flood_from_two_workers_leaves_so_many_rows_and_an_exact_number(
    session: Session, mysql_url: str
) -> None:
    """Each meets the reasons and counters in an order of its own."""
    groups = [("bad_key", "views"), ("bad_minute", "views"), ("bad_minute", "clicks")]
    each = 3 * MOST_ROWS // 2
    batches = [
        [
            bad(1000, counter=counter, reason=reason)
            for reason, counter in (groups if worker else groups[::-1])
        ]
        for worker in range(2)
        for _ in range(each // 1000)
    ]
    half = len(batches) // 2
    appliers = [Applier(mysql_url, slot) for slot in (1, 2)]
    done = together(
        partial(applied, appliers[0], batches[:half]),
        partial(applied, appliers[1], batches[half:]),
    )
    assert sum(one.dead for some in done for one in some) == 3 * 2 * each
    assert sum(one.not_kept for some in done for one in some) == 3 * (2 * each - MOST_ROWS)
    assert dead.count(session) == {"bad_key": MOST_ROWS, "bad_minute": 2 * MOST_ROWS}
    expected = dict.fromkeys(groups, 2 * each - MOST_ROWS)
    assert dead.not_kept(session) == expected
    assert dead.not_kept_by_reason(session) == {
        "bad_key": 2 * each - MOST_ROWS,
        "bad_minute": 2 * (2 * each - MOST_ROWS),
    }
    again = [entry for batch in batches for entry in batch]
    assert appliers[0].apply(again) == Applied(duplicates=len(again))
    assert dead.not_kept(session) == expected
    for applier in appliers:
        applier.close()


@pytest.mark.parametrize("reason", sorted(UNBOUNDED))
def test_what_is_retried_once_its_cause_is_mended_is_kept_whole(
    session: Session, applier: Applier, few: None, reason: str
) -> None:
    done = applier.apply([bad(7, counter="views", reason=reason), bad(5, counter="views")])
    assert (done.dead, done.not_kept) == (12, 3)
    assert dead.count(session)[reason] == 7


def test_names_that_no_counter_can_have_share_one_room(session: Session, applier: Applier) -> None:
    total = MOST_ROWS + 5_000
    for start in range(0, total, 5_000):
        name = os.urandom(16)
        raw = json.dumps([[f"no name {start + n}", "k", minute(), 1] for n in range(5_000)])
        good, _, wrong = decode_rows(raw.encode())
        letters = [
            DeadRow(
                name, one.position, "s", 0, one.reason, one.detail, one.payload, counter=one.counter
            )
            for one in wrong
        ]
        assert not good
        applier.apply([Incoming(name, now_ms(), good, letters)])
    assert dead.count(session) == {"bad_counter": MOST_ROWS}
    assert dead.not_kept(session) == {("bad_counter", ""): 5_000}


def test_what_is_wrong_with_a_row_of_a_counter_takes_the_room_of_the_counter() -> None:
    items = [["views", 5, 1, 1], ["views"], ["views", "k", -1, 1, 0, "x"], [["v"], "k", 1, 1], 5]
    _, _, wrong = decode_rows(json.dumps(items).encode())
    assert [one.counter for one in wrong] == ["views", "views", "views", "", ""]


@pytest.mark.servers("mariadb", "mysql")
def test_many_unknown_counters_have_a_bounded_number_of_rooms(
    session: Session, mysql_url: str, applier: Applier
) -> None:
    with Store(mysql_url) as store:
        store.counters.set_strict(True)
    content = [(n, f"name{n:05d}", "k", minute(), 1) for n in range(2_000)]
    done = applier.apply([entry(content[start : start + 500]) for start in range(0, 2_000, 500)])
    assert (done.dead, done.not_kept) == (2_000, 0)
    found = session.query("SELECT counter, COUNT(*) FROM dead_row GROUP BY counter")
    assert dict(found) == {
        "": 2_000 - MOST_COUNTERS,
        **{f"name{n:05d}": 1 for n in range(MOST_COUNTERS)},
    }
    assert session.query("SELECT COUNT(*) FROM dead_group") == [(MOST_COUNTERS + 1,)]
    with Store(mysql_url) as store:
        store.counters.set_strict(False)
    assert retry(session, slot=9, decode=decode_payload) == Retried(retried=2_000, rows=2_000)


@pytest.mark.servers("mariadb", "mysql")
def test_large_payloads_have_room_by_their_bytes(session: Session, applier: Applier) -> None:
    letter = b"x" * dead.MAX_PAYLOAD
    fit = MOST_BYTES // len(letter)
    done = [applier.apply([bad(1, reason="bad_entry", payload=letter)]) for _ in range(fit + 2)]
    assert [one.not_kept for one in done] == [0] * fit + [1, 1]
    assert dead.count(session) == {"bad_entry": fit}


@pytest.mark.usefixtures("few")
def test_there_is_room_again_after_a_retry_or_a_drop(session: Session, applier: Applier) -> None:
    payload = json.dumps(["views", "k", minute(), 1]).encode()
    applier.apply([bad(5, payload=payload)])
    assert retry(session, slot=9, decode=decode_payload) == Retried(retried=2, rows=2)
    assert keys(session) == {b"k": 2}
    assert dead.not_kept(session) == {("bad_minute", "views"): 3}
    assert applier.apply([bad(3)]).not_kept == 1
    assert dead.drop(session, refs=[row.ref for row in dead.list_rows(session)]) == 2
    assert dead.not_kept(session) == {("bad_minute", "views"): 4}
    assert applier.apply([bad(3)]).not_kept == 1
    applier.apply([bad(3, reason="bad_key")])
    assert dead.drop(session, reason="bad_minute") == 2
    assert dead.not_kept(session) == {("bad_key", "views"): 1}
    assert dead.drop(session) == 2
    assert dead.not_kept(session) == {}


@pytest.mark.usefixtures("few")
def test_what_came_after_it_was_looked_at_is_not_forgotten(
    session: Session, applier: Applier
) -> None:
    applier.apply([bad(3)])
    _, up_to = dead.counted(session)
    applier.apply([bad(3, reason="bad_key")])
    session.execute(
        "UPDATE dead_group SET last_at = last_at + INTERVAL 1 SECOND WHERE reason = 'bad_key'"
    )
    dead.drop(session, up_to=up_to)
    assert dead.not_kept(session) == {("bad_key", "views"): 1}


@pytest.mark.usefixtures("few")
def test_a_retry_keeps_what_was_kept_and_has_room_for_parts_of_entries_only(
    session: Session, applier: Applier
) -> None:
    name = os.urandom(16)
    items = [["views", "/good", minute(), 1], *([["views", "/bad", -1, 1]] * 5)]
    whole = DeadRow(
        name, WHOLE_ENTRY, "s", 3, DeadReason.TOO_OLD, "why", json.dumps(items).encode()
    )
    applier.apply([Incoming(name, now_ms(), (), [whole])])
    done = retry(session, slot=9, decode=decode_payload, reason="too_old")
    assert done == Retried(retried=1, failed=5, rows=1)
    assert keys(session) == {b"/good": 1}
    assert dead.count(session) == {"bad_minute": 2}
    assert dead.not_kept(session) == {("bad_minute", "views"): 3}
    # They fail again: their room is theirs.
    assert retry(session, slot=9, decode=decode_payload) == Retried(failed=2)
    assert dead.count(session) == {"bad_minute": 2}
    assert dead.not_kept(session) == {("bad_minute", "views"): 3}


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.usefixtures("few")
def test_rows_of_what_is_no_name_for_the_server_are_kept(
    session: Session, applier: Applier
) -> None:
    content = [(n, counter, "k", minute(), 1) for n, counter in enumerate(("ü", "x" * 65))]
    assert applier.apply([entry(content)]).dead == 2
    assert session.query("SELECT DISTINCT counter FROM dead_row") == [("",)]


@pytest.mark.usefixtures("few")
def test_counting_goes_on_beside_what_has_no_room(session: Session, applier: Applier) -> None:
    applier.apply([bad(5), entry(rows(("/a", 1))), bad(5)])
    assert keys(session) == {b"/a": 1}
    assert dead.not_kept(session) == {("bad_minute", "views"): 8}
