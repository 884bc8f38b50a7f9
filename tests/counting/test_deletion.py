"""Deleting: the ledger agrees at every moment, whoever counts meanwhile, whatever is killed."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import count

import pytest

from countersink.counting.apply.amounts import Row
from countersink.counting.apply.applier import Applier
from countersink.counting.counters import deletion
from countersink.counting.counters.deletion import Deleted, delete_counter, delete_key
from countersink.database.connection import connect
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.store import Store, UnknownCounter
from countersink.store.verify import verify
from tests.support.entries import (
    Database,
    again_and_again,
    entry,
    keys,
    killed_anywhere,
    minute,
    row,
    slots,
)
from tests.support.examples import MANY
from tests.support.ledger import post_planted
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.waiting import eventually
from tests.support.width_rows import plant

pytestmark = pytest.mark.servers("mariadb", "mysql")

TABLES = ("counter", "counter_slot", "counter_ledger")


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
        plant(
            session, (counter, "2026-11-21", "/1", 256, 40), (counter, "2026-11-21", "/app", 511, 2)
        )
        plant(
            session,
            (counter, "2026-09-01", "/1", 0, 11),
            (counter, "2026-10-01", "/1", 0, 3),
            width=5,
        )
        session.execute(
            "INSERT INTO counter (name, rolled_month, created)"
            " VALUES (%s, '2026-11-01', '2026-01-01')"
            " ON DUPLICATE KEY UPDATE rolled_month = '2026-11-01'",
            (counter,),
        )
    post_planted(session)


def left(session: Session, counter: str) -> dict[str, int]:
    """Rows that a counter has in each table; of ``counter`` not what only keeps a time zone."""
    found = {}
    for table in TABLES:
        name = "created IS NOT NULL AND name" if table == "counter" else "counter"
        (rows,) = session.query(f"SELECT COUNT(*) FROM {table} WHERE {name} = %s", (counter,))
        found[table] = int(rows[0])
    return found


def everything(session: Session) -> list[object]:
    """All that there is of the other counter."""
    return [
        session.query(f"SELECT * FROM {table} WHERE counter = 'clicks' ORDER BY 1, 2, 3")
        for table in TABLES[1:]
    ]


def test_a_counter_goes_with_all_it_had_and_no_other_is_touched(
    db: Database, deleting: Session
) -> None:
    db.store.counters.set("views", time_zone="Asia/Tokyo")
    fill(db.session, db.applier)
    db.store.counters.set("views", resolution="hour")
    others = everything(db.session)
    had = left(db.session, "views")
    amount = slots(db.session)["views"]
    deleted = db.store.counters.delete("views")
    assert deleted == Deleted(had["counter_slot"], amount)
    assert left(db.session, "views") == dict.fromkeys(TABLES, 0)
    assert everything(db.session) == others
    assert verify(deleting).differences == []
    with pytest.raises(UnknownCounter):
        db.store.counters.show("views")


def test_a_key_goes_from_all_buckets(db: Database, deleting: Session) -> None:
    fill(db.session, db.applier)
    others = everything(db.session)
    before = db.keys()
    deleted = db.store.counters.delete("views", "/1")
    assert deleted == Deleted(3 * 2 + 1 + 2, before[b"/1"])
    del before[b"/1"]
    assert db.keys() == before
    assert everything(db.session) == others
    assert verify(deleting).differences == []
    assert db.store.counters.delete("views", "/1") == Deleted()
    assert db.store.counters.delete("views", "no such key") == Deleted()


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


@pytest.mark.parametrize("key", [None, "/1"])
def test_killed_anywhere_the_ledger_agrees_and_it_can_be_run_again(
    db: Database, deleting: Session, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 50 if key is None else 2)
    fill(db.session, db.applier)
    had = left(db.session, "views")
    others = everything(db.session)

    def delete(reached: Callable[[str], None]) -> None:
        with connect(db.mysql_url, isolation="REPEATABLE READ") as dying:
            if key is None:
                delete_counter(dying, "views", reached=reached)
            else:
                delete_key(dying, "views", key, reached=reached)

    def check() -> None:
        assert verify(deleting).differences == []

    # One more is committed at each attempt.
    assert killed_anywhere(delete, check) > 2
    check()
    assert everything(db.session) == others
    now = left(db.session, "views")
    if key is None:
        assert now == dict.fromkeys(TABLES, 0)
    else:
        assert now["counter_slot"] == had["counter_slot"] - 9


@pytest.mark.random
@pytest.mark.parametrize("key", [None, "/1"])
def test_beside_whoever_counts_the_ledger_agrees_at_every_moment(
    db: Database, deleting: Session, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 20)
    fill(db.session, db.applier)
    counted = 0

    def apply() -> None:
        nonlocal counted
        counting.apply([entry([row(f"/{n}", 1, position=n) for n in range(20)])])
        counted += 1

    def check() -> None:
        assert verify(deleting).differences == []

    counting = db.worker(9)
    with again_and_again(apply, check) as going:
        for _ in range(10 if MANY else 4):
            db.store.counters.delete("views", key)
            before = counted
            # the first one may have been committed before the counter was gone
            eventually(lambda before=before: counted >= before + 2 or not going())  # type: ignore[misc]


def test_a_row_that_an_application_holds_is_waited_for_without_holding_up_others(
    db: Database, deleting: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db.session, db.applier)
    pauses: list[float] = []
    with connect(db.mysql_url) as app:
        app.begin()
        app.execute("UPDATE counter_slot SET amount = amount + 0 WHERE slot = 256")

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:
                assert db.applier.apply([entry([row("/1"), row("/2", position=1)])]).cells == 2
                app.commit()

        # A row is new by then; the one with slot 256 was the application's.
        assert delete_key(deleting, "views", "/1", pause=pause).rows >= 3 * 2 + 1 + 2
        assert len(pauses) == 1
        app.begin()
        app.execute("UPDATE counter_slot SET amount = amount + 0 WHERE slot = 511")
        monkeypatch.setattr(deletion, "ATTEMPTS", 1)
        with pytest.raises(Conflict, match=r"keeps holding rows of views.*run this again"):
            delete_key(deleting, "views", "/app", pause=pauses.append)
    assert deleting.query("SELECT @@innodb_lock_wait_timeout") == [(5,)]
    assert verify(deleting).differences == []


def rows_read(session: Session) -> int:
    """Rows that the server has read, and sorted, for this session."""
    found = session.query(
        "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler\\_read%'"
        " OR Variable_name = 'Sort_rows'"
    )
    return sum(int(value) for _, value in found)


@pytest.mark.parametrize("key", [None, "/1"])
def test_every_row_is_looked_at_a_few_times_only(
    session: Session, deleting: Session, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 100)
    monkeypatch.setattr(deletion, "FEW", 100)
    first = datetime(2026, 1, 1)  # noqa: DTZ001 (as the table has it)
    for name in ("/0", "/1", "/2"):
        days = [first + timedelta(days=day) for day in range(200)]
        plant(session, *(("views", day, name, slot, 1) for day in days for slot in (0, 1, 2)))
    post_planted(session)
    session.execute("ANALYZE TABLE counter_slot")
    before = rows_read(deleting)
    if key is None:
        assert delete_counter(deleting, "views").rows == 3 * 600
        assert rows_read(deleting) - before < 10 * 3 * 600
    else:
        assert delete_key(deleting, "views", key).rows == 600
        assert rows_read(deleting) - before < 10 * 600
        assert sorted(keys(session)) == [b"/0", b"/2"]
        assert verify(deleting).differences == []


@pytest.mark.parametrize("per_page", [20, 200])
def test_a_counter_that_is_counted_meanwhile_is_deleted_or_said_to_be_counted_too_fast(
    db: Database, deleting: Session, monkeypatch: pytest.MonkeyPatch, per_page: int
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 50)
    monkeypatch.setattr(deletion, "FEW", 60)
    monkeypatch.setattr(deletion, "MOST", 100)
    numbers = count()

    def put(rows: int) -> None:
        db.applier.apply([entry([row(f"{next(numbers):09}", position=n) for n in range(rows)])])

    db.session.execute("INSERT INTO counter (name, created) VALUES ('views', '2026-01-01')")
    put(1000)
    proxy = MySQLProxy.to(db.mysql_url)
    try:
        # Before each page; not while the end of it keeps everybody from counting.
        rule = proxy.when(
            "*", Phase.BEFORE, Deed.PASS, call=lambda _: put(per_page), times=200, where=is_page
        )
        with connect(proxy.url(db.mysql_url), isolation="REPEATABLE READ") as beside:
            if per_page == 20:
                delete_counter(beside, "views")
            else:
                with pytest.raises(Conflict, match="stop its producers, and run this again"):
                    delete_counter(beside, "views")
                assert verify(deleting).differences == []
                assert left(db.session, "views")["counter"] == 1
    finally:
        proxy.close()
    assert 20 <= rule.acted < 200
    if per_page == 200:
        delete_counter(deleting, "views")
    assert left(db.session, "views") == dict.fromkeys(TABLES, 0)


def is_page(request: Request, _reply: bytes) -> bool:
    text = request.text
    return "FOR UPDATE" in text and "NOWAIT" not in text and "counter_slot" in text
