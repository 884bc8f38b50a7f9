"""Deleting: the ledger agrees at every moment, whoever counts meanwhile, whatever is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from countersink.store import Store, UnknownCounter, deletion
from countersink.store.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.deletion import Deleted, delete_counter, delete_key
from countersink.store.errors import Conflict
from countersink.store.merge import Row
from countersink.store.verify import verify
from tests.store.helpers import entry, keys, ledger, minute, row, slots

TABLES = ("counter", "counter_policy", "counter_slot", "counter_month", "counter_ledger")


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The front door of the same database."""
    with Store(mysql_url) as opened:
        yield opened


@pytest.fixture
def deleting(mysql_url: str) -> Iterator[Session]:
    """A session to delete on, and to verify."""
    with connect(mysql_url, isolation="REPEATABLE READ") as opened:
        yield opened


def fill(session: Session, applier: Applier, keys: int = 30) -> None:
    """Two counters over days, slots and months; some rows of the application's own."""
    for slot in (0, 1, 700):
        applier.slot = slot
        rows: list[Row] = [
            (position, counter, f"/{position}", minute() + 1440 * day, position - 5)
            for counter in ("views", "clicks")
            for day in range(2)
            for position in range(keys)
        ]
        applier.apply([entry(rows)])
    for counter in ("views", "clicks"):
        session.execute(
            "INSERT INTO counter_slot VALUES (%s, '2026-11-21', '/1', 256, 40),"
            " (%s, '2026-11-21', '/app', 511, 2)",
            (counter, counter),
        )
        session.execute(
            "INSERT INTO counter_month VALUES (%s, '2026-09-01', '/1', 11),"
            " (%s, '2026-10-01', '/1', 3)",
            (counter, counter),
        )
        session.execute("INSERT INTO counter_ledger VALUES (%s, 999, 14)", (counter,))


def left(session: Session, counter: str) -> dict[str, int]:
    """Rows that a counter has in each table."""
    found = {}
    for table in TABLES:
        name = "name" if table == "counter" else "counter"
        (rows,) = session.query(f"SELECT COUNT(*) FROM {table} WHERE {name} = %s", (counter,))
        found[table] = int(rows[0])
    return found


def everything(session: Session) -> list[object]:
    """All that there is of the other counter."""
    return [
        session.query(f"SELECT * FROM {table} WHERE counter = 'clicks' ORDER BY 1, 2, 3")
        for table in ("counter_slot", "counter_month", "counter_ledger")
    ]


def test_a_counter_goes_with_all_it_had_and_no_other_is_touched(
    store: Store, session: Session, applier: Applier, deleting: Session
) -> None:
    store.counters.set("views", time_zone="Asia/Tokyo")
    fill(session, applier)
    later = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    store.counters.set("views", time_zone="UTC", start=later)
    others = everything(session)
    had = left(session, "views")
    amount = slots(session)["views"] + 14
    deleted = store.counters.delete("views")
    assert deleted == Deleted(had["counter_slot"] + had["counter_month"], amount)
    assert left(session, "views") == dict.fromkeys(TABLES, 0)
    assert everything(session) == others
    assert verify(deleting).differences == []
    with pytest.raises(UnknownCounter):
        store.counters.show("views")


def test_a_key_goes_from_all_buckets_and_months(
    store: Store, session: Session, applier: Applier, deleting: Session
) -> None:
    fill(session, applier)
    others = everything(session)
    before = keys(session)
    deleted = store.counters.delete("views", "/1")
    assert deleted == Deleted(3 * 2 + 1 + 2, before[b"/1"] + 14)
    del before[b"/1"]
    assert keys(session) == before
    assert left(session, "views")["counter_month"] == 0
    assert everything(session) == others
    assert verify(deleting).differences == []
    assert store.counters.delete("views", "/1") == Deleted()
    assert store.counters.delete("views", "no such key") == Deleted()


def test_keys_are_told_apart_byte_by_byte(store: Store, session: Session, applier: Applier) -> None:
    names = ["", "ä", "a", "A", "a ", "a\u0308", "😀", "%", "_", "ab"]
    applier.apply([entry([row(name, 1, position=index) for index, name in enumerate(names)])])
    while names:
        assert store.counters.delete("views", names.pop()) == Deleted(1, 1)
        assert sorted(keys(session)) == sorted(name.encode() for name in names)


def test_what_is_not_there_is_unknown(store: Store) -> None:
    for name in ("views", "", "views ", "no name"):
        with pytest.raises(UnknownCounter):
            store.counters.delete(name)
        with pytest.raises(UnknownCounter):
            store.counters.delete(name, "/a")


def test_a_deleted_counter_begins_anew_with_the_defaults(
    store: Store, session: Session, applier: Applier
) -> None:
    store.counters.set("views", time_zone="Asia/Tokyo", resolution="quarter", keep_days=3)
    applier.apply([entry([row("/a", 5)])])
    store.counters.delete("views")
    applier.apply([entry([row("/a", 7)])])
    assert ledger(session) == {"views": 7}
    found = session.query("SELECT bucket, amount FROM counter_slot")
    assert [(bucket.isoformat(), amount) for bucket, amount in found] == [
        ("2026-11-21T00:00:00", 7)
    ]
    assert not store.counters.show("views").made


class _Killed(Exception):
    """Stands for a process that dies at a point."""


def die_at(commit: int) -> Callable[[str], None]:
    """Dies before the commit with this number, from 1."""
    commits = count(1)

    def reached(point: str) -> None:
        if next(commits) == commit:
            raise _Killed

    return reached


@pytest.mark.parametrize("key", [None, "/1"])
def test_killed_anywhere_the_ledger_agrees_and_it_can_be_run_again(
    mysql_url: str,
    session: Session,
    applier: Applier,
    deleting: Session,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 50 if key is None else 2)
    fill(session, applier)
    had = left(session, "views")
    others = everything(session)
    deaths = 0
    while True:
        reached = die_at(deaths + 1)  # one more is committed at each attempt
        with connect(mysql_url, isolation="REPEATABLE READ") as dying:
            try:
                if key is None:
                    delete_counter(dying, "views", reached=reached)
                else:
                    delete_key(dying, "views", key, reached=reached)
                break
            except _Killed:
                deaths += 1
        assert verify(deleting).differences == []
        assert deaths < 30
    assert deaths > 2
    assert verify(deleting).differences == []
    assert everything(session) == others
    now = left(session, "views")
    if key is None:
        assert now == dict.fromkeys(TABLES, 0)
    else:
        assert now["counter_slot"] == had["counter_slot"] - 7
        assert now["counter_month"] == 0


@pytest.mark.parametrize("key", [None, "/1"])
def test_beside_whoever_counts_the_ledger_agrees_at_every_moment(
    mysql_url: str,
    store: Store,
    session: Session,
    applier: Applier,
    deleting: Session,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 20)
    fill(session, applier)
    stop = threading.Event()
    errors: list[BaseException] = []

    def beside(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    counted = 0

    def apply() -> None:
        nonlocal counted
        counting.apply([entry([row(f"/{n}", 1, position=n) for n in range(20)])])
        counted += 1

    def check() -> None:
        assert verify(deleting).differences == []

    counting = Applier(mysql_url, 9)
    threads = [beside(apply), beside(check)]
    for _ in range(8):
        before = counted
        store.counters.delete("views", key)
        while counted == before and not errors:
            stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join(60)
    counting.close()
    assert not errors
    assert verify(deleting).differences == []


def test_a_row_that_an_application_holds_is_waited_for_without_holding_up_others(
    mysql_url: str, session: Session, applier: Applier, deleting: Session
) -> None:
    fill(session, applier)
    pauses: list[float] = []
    with connect(mysql_url) as app:
        app.begin()
        app.execute("UPDATE counter_slot SET amount = amount + 1 WHERE slot = 256")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:
                assert applier.apply([entry([row("/1"), row("/2", position=1)])]).cells == 2
                app.commit()

        # A row is new by then; the one with slot 256 was the application's.
        assert delete_key(deleting, "views", "/1", pause=pause).rows >= 3 * 2 + 1 + 2
        assert len(pauses) == 1
        app.begin()
        app.execute("UPDATE counter_slot SET amount = amount + 1 WHERE slot = 511")
        with pytest.raises(Conflict, match=r"holds rows of views all the time.*run this again"):
            delete_key(deleting, "views", "/app", pause=pauses.append, attempts=1)
    assert deleting.query("SELECT @@innodb_lock_wait_timeout") == [(5,)]
    assert verify(deleting).differences == []
