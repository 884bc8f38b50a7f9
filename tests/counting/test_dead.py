"""Dead rows: listed, dropped, retried; each counts once however many retry it."""

import json
import os

import pytest

from countersink.counting.apply import dead
from countersink.counting.apply.amounts import Incoming
from countersink.counting.apply.applier import Applied, Applier
from countersink.counting.apply.dead import (
    MOST_BYTES,
    MOST_COUNTERS,
    MOST_ROWS,
    UNBOUNDED,
    DeadRow,
    parse_ref,
)
from countersink.counting.apply.dead_retry import Retried, retry
from countersink.database.connection import connect
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.runtime.dead_letter import WHOLE_ENTRY, DeadReason
from countersink.store import Store
from countersink.stream.decode import ReadRows, decode_payload, decode_rows
from tests.support.entries import entry, keys, ledger, minute, now_ms, rows, slots, together


def _bury(session: Session, *buried: DeadRow) -> None:
    with session.transaction():
        dead.insert(session, buried)


def _row(number: int, *, reason: str = "bad_sketch", payload: bytes | None = None) -> DeadRow:
    if payload is None:
        payload = json.dumps(["views", f"/{number}", minute(), 1]).encode()
    return DeadRow(number.to_bytes(16, "big"), 0, "s", 0, reason, "why", payload)


def test_rows_are_listed_newest_first_and_counted_by_reason(session: Session) -> None:
    for number in range(5):
        _bury(session, _row(number, reason="b" if number % 2 else "a"))
        session.execute(
            "UPDATE dead_row SET created = %s WHERE entry_id = %s",
            (f"2026-11-21 00:00:0{number}", number.to_bytes(16, "big")),
        )
    listed = dead.list_rows(session)
    assert [found.entry_id[-1] for found in listed] == [4, 3, 2, 1, 0]
    assert [found.entry_id[-1] for found in dead.list_rows(session, reason="a")] == [4, 2, 0]
    assert len(dead.list_rows(session, limit=2)) == 2
    assert dead.list_rows(session, refs=[listed[1].ref]) == [listed[1]]
    assert dead.list_rows(session, refs=[listed[1].ref], reason="a") == []
    assert dead.count(session) == {"a": 3, "b": 2}


def test_a_ref_names_a_row_or_all_of_an_entry() -> None:
    name = bytes(range(16))
    assert parse_ref(name.hex()) == (name, None)
    assert parse_ref(f"{name.hex().upper()}:12") == (name, 12)
    assert DeadRow(name, 7, "", 0, "r", "", b"").ref == f"{name.hex()}:7"
    assert DeadRow(name, -1, "", 0, "r", "", b"").ref == f"{name.hex()}:-1"
    assert parse_ref(f"{name.hex()}:-1") == (name, -1)
    for wrong in ("", "x", name.hex()[:-1], f"{name.hex()}:", f"{name.hex()}:x", name.hex() + "0"):
        with pytest.raises(ValueError, match="names no dead row"):
            parse_ref(wrong)


@pytest.mark.servers("mariadb", "mysql")
def test_dropping_all_by_reason_and_by_name(session: Session) -> None:
    _bury(session, *(_row(number, reason="b" if number % 2 else "a") for number in range(1300)))
    assert dead.drop(session, refs=[_row(4).ref, _row(5).ref, _row(9999).ref]) == 2
    assert dead.drop(session, reason="b") == 649
    assert dead.count(session) == {"a": 649}
    assert dead.drop(session) == 649


def test_a_dead_row_that_is_there_already_stays_as_it_is(session: Session) -> None:
    _bury(session, _row(1, reason="first"))
    _bury(session, _row(1, reason="second"))
    assert dead.count(session) == {"first": 1}


@pytest.mark.servers("mariadb", "mysql")
def test_a_retried_row_counts_in_slot_and_ledger(session: Session) -> None:
    _bury(session, *(_row(number) for number in range(250)))
    assert retry(session, slot=9, decode=decode_payload) == Retried(retried=250, rows=250)
    assert dead.count(session) == {}
    assert len(keys(session)) == 250
    assert session.query("SELECT slot, amount FROM counter_ledger") == [(9, 250)]
    assert retry(session, slot=9, decode=decode_payload) == Retried()


def test_what_fails_again_stays_with_its_new_reason(session: Session) -> None:
    undeclared = json.dumps(["views", {"page": "/a"}, minute(), 1]).encode()
    _bury(
        session,
        _row(1),
        _row(2, payload=undeclared),
        _row(3, payload=b'["views","k",9]'),
        _row(4, payload=b"nonsense", reason="other"),
    )
    assert retry(session, slot=17, decode=decode_payload) == Retried(retried=1, failed=3, rows=1)
    assert keys(session) == {b"/1": 1}
    left = {found.entry_id[-1]: found for found in dead.list_rows(session)}
    assert {number: found.reason for number, found in left.items()} == {
        2: "unknown_dimension",
        3: "not_a_row",
        4: "bad_entry",
    }
    assert left[2].payload == undeclared
    assert ledger(session) == slots(session)


def test_what_is_too_old_is_retried_only_by_reason_or_name(session: Session) -> None:
    """It may have been counted already."""
    too_old = (_row(number, reason="too_old") for number in (2, 3, 4))
    _bury(session, _row(1), _row(5, reason="b"), *too_old)
    assert retry(session, slot=9, decode=decode_payload, reason="b").retried == 1
    assert dead.count(session) == {"bad_sketch": 1, "too_old": 3}
    everything = retry(session, slot=9, decode=decode_payload)
    assert everything == Retried(retried=1, rows=1, left_out=3)
    assert dead.count(session) == {"too_old": 3}
    named = retry(session, slot=9, decode=decode_payload, refs=[_row(2).ref])
    assert named == Retried(retried=1, rows=1)
    assert retry(session, slot=9, decode=decode_payload, reason="too_old").retried == 2


def test_a_whole_entry_is_named_apart_from_its_rows(session: Session) -> None:
    whole = DeadRow(b"x" * 16, -1, "s", 3, "r", "why", b"[]")
    part = DeadRow(b"x" * 16, 0, "s", 3, "r", "why", b"[]")
    _bury(session, whole, part)
    assert dead.drop(session, refs=[whole.ref]) == 1
    assert [row.position for row in dead.list_rows(session)] == [0]
    _bury(session, whole)
    assert dead.drop(session, refs=[(b"x" * 16).hex()]) == 2


def test_a_whole_entry_is_decoded_again_and_leaves_its_bad_rows(session: Session) -> None:
    name = os.urandom(16)
    items = [
        ["views", "/a", minute(), 1],
        ["views", "/b"],
        ["views", {"page": "/a"}, minute(), 1],
        ["views", "/c", minute(), 1],
    ]
    _bury(session, DeadRow(name, -1, "s", 3, "newer_version", "why", json.dumps(items).encode()))
    assert retry(session, slot=17, decode=decode_payload) == Retried(retried=1, failed=2, rows=2)
    assert keys(session) == {b"/a": 1, b"/c": 1}
    left = {found.position: found for found in dead.list_rows(session)}
    assert {place: found.reason for place, found in left.items()} == {
        1: "not_a_row",
        2: "unknown_dimension",
    }
    assert json.loads(left[2].payload) == items[2]
    assert (left[1].entry_id, left[1].stream, left[1].at) == (name, "s", 3)
    assert retry(session, slot=17, decode=decode_payload) == Retried(failed=2)


def test_what_a_worker_without_dimensions_set_apart_is_counted_after_an_upgrade(
    session: Session, store: Store
) -> None:
    store.counters.set("views", dimensions=["page", "country"], breakdowns=["page"])
    items = [["views", {"page": page, "country": "DE"}, minute(), 2] for page in ("/a", "/b")]
    fields = {"v": "1", "at": "3", "rows": json.dumps(items)}
    row = json.dumps(items[0]).encode()  # of an entry that an earlier producer's replay called 1
    _bury(
        session,
        DeadRow(os.urandom(16), -1, "s", 3, "newer_version", "why", json.dumps(fields).encode()),
        DeadRow(os.urandom(16), 0, "s", 3, "bad_key", "why", row),
    )
    assert retry(session, slot=17, decode=decode_payload).failed == 0
    assert dead.list_rows(session) == []
    assert keys(session, "views") == {b"": 6}
    assert keys(session, "views#1") == {b"/a": 4, b"/b": 2}


@pytest.mark.parametrize("payload", [b"nonsense", b'[["v"],["w"]]', b"{}"])
def test_a_whole_entry_of_which_nothing_can_be_counted_stays_whole(
    session: Session, payload: bytes
) -> None:
    _bury(session, _row(1), DeadRow(b"x" * 16, -1, "s", 3, "first", "why", payload))
    assert retry(session, slot=9, decode=decode_payload, refs=[(b"x" * 16).hex()]).failed == 1
    (left,) = dead.list_rows(session, refs=[(b"x" * 16).hex()])
    assert (left.position, left.payload) == (-1, payload)
    assert left.reason != "first"


def test_a_truncated_payload_is_not_retried(session: Session, mysql_url: str) -> None:
    whole = b"[" + b",".join([b'["views","k",5,1]'] * 400_000) + b"]"
    _bury(session, DeadRow(b"x" * 16, -1, "s", 3, "bad_entry", "why", whole))
    (stored,) = dead.list_rows(session)
    assert stored.truncated
    assert whole.startswith(stored.payload)
    assert retry(session, slot=9, decode=decode_payload) == Retried(failed=1)
    assert keys(session) == {}
    assert dead.count(session) == {"bad_entry": 1}


@pytest.mark.servers("mariadb", "mysql")
def test_two_retries_at_once_count_each_row_once(mysql_url: str, session: Session) -> None:
    with connect(mysql_url) as one, connect(mysql_url) as two:
        for round_ in range(1, 4):
            _bury(session, *(_row(number) for number in range(60)))
            results = together(
                lambda: retry(one, slot=1, decode=decode_payload),
                lambda: retry(two, slot=2, decode=decode_payload),
            )
            assert sum(result.rows for result in results) == 60
            assert sum(result.retried for result in results) == 60
            assert keys(session) == {f"/{number}".encode(): round_ for number in range(60)}
    assert ledger(session) == slots(session)


@pytest.mark.servers("mariadb", "mysql")
def test_a_row_that_is_being_retried_is_locked(mysql_url: str, session: Session) -> None:
    _bury(session, _row(1))
    looked: list[bool] = []

    def read(raw: bytes) -> ReadRows:
        with connect(mysql_url) as other, pytest.raises(Conflict):
            other.query("SELECT 1 FROM dead_row FOR UPDATE NOWAIT")
        looked.append(True)
        return decode_payload(raw)

    assert retry(session, slot=9, decode=read).retried == 1
    assert looked == [True]


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
        lambda: [appliers[0].apply(batch) for batch in batches[:half]],
        lambda: [appliers[1].apply(batch) for batch in batches[half:]],
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


def test_what_is_wrong_with_a_row_of_a_counter_takes_the_room_of_the_counter() -> None:
    items = [
        *(["views", 5, 1, 1], ["views"], ["views", "k", -1, 1, 0, "x"]),
        *([["v"], "k", 1, 1], 5, ["no name", "k", 1, 1]),
    ]
    _, _, wrong = decode_rows(json.dumps(items).encode())
    assert [one.counter for one in wrong] == ["views", "views", "views", "", "", ""]


@pytest.mark.servers("mariadb", "mysql")
def test_many_unknown_counters_have_a_bounded_number_of_rooms(
    session: Session, store: Store, applier: Applier
) -> None:
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
def test_names_that_no_counter_can_have_share_one_room(session: Session, applier: Applier) -> None:
    names = ("ü", "x" * 65, *(f"no name {number}" for number in range(3)))
    content = [(n, counter, "k", minute(), 1) for n, counter in enumerate(names)]
    assert applier.apply([entry(content)]).dead == 5
    assert session.query("SELECT DISTINCT counter FROM dead_row") == [("",)]
    assert dead.not_kept(session) == {("bad_counter", ""): 3}


@pytest.mark.usefixtures("few")
def test_counting_goes_on_beside_what_has_no_room(session: Session, applier: Applier) -> None:
    applier.apply([bad(5), entry(rows(("/a", 1))), bad(5)])
    assert keys(session) == {b"/a": 1}
    assert dead.not_kept(session) == {("bad_minute", "views"): 8}
