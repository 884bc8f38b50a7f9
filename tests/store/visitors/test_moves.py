"""Sketches go where their rows go: compaction, steps, months, deletion; what verify finds."""

import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from countersink.store import Store
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.counters import deletion
from countersink.store.counters.deletion import delete_key
from countersink.store.errors import DamagedSketch
from countersink.store.verify import verify
from countersink.store.visitors.sketch import SketchUnion, checksum
from tests.store.app import Connection
from tests.store.helpers import applier, beside, compacted, keys, rolled_up, says, together
from tests.store.visitors.sightings import Sighting, hashed, salt_at, seen_entry, unions
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.sketches import registers, sketch_of
from tests.support.traffic import now_minute

PLACES = ("counter_slot", "visitor_slot")


def see(mysql_url: str, session: Session, made: list[Sighting], slot: int = 3) -> None:
    with closing(applier(mysql_url, slot)) as one:
        one.apply([seen_entry(session, made)])


def see_in_slots(mysql_url: str, session: Session, counter: str = "visitors") -> None:
    """Sightings of three slots, on days long ago and today, that overlap."""
    now = now_minute()
    for slot in (3, 4, 5):
        made: list[Sighting] = [
            (counter, f"/{key}", now - ago * 1440, f"v{n}")
            for key in range(3)
            for ago in (0, 70, 71, 110)
            for n in range(10 * slot, 10 * slot + 15 + 300 * (key == 0))
        ]
        see(mysql_url, session, made, slot)


def whole(session: Session, counter: str = "visitors") -> dict[str, bytes]:
    """The registers of all that a counter has, by key."""
    found: dict[str, SketchUnion] = {}
    for (_, key), union in unions(session, counter).items():
        found.setdefault(key, SketchUnion()).add(union.sketch())
    return {key: registers(union.sketch()) for key, union in found.items()}


def beside_rows(session: Session) -> None:
    """Every sketch lies beside a row of its counter."""
    columns = "counter, bucket, counter_key, width, slot"
    assert set(session.query(f"SELECT {columns} FROM visitor_slot")) <= set(
        session.query(f"SELECT {columns} FROM counter_slot")
    )


def test_compaction_unites_slots(mysql_url: str, session: Session, store: Store) -> None:
    see_in_slots(mysql_url, session)
    before, amounts = whole(session), keys(session, "visitors")
    for _ in range(2):
        done = compacted(mysql_url)
        assert not done.unreadable
    assert session.query("SELECT DISTINCT slot FROM visitor_slot") == [(0,)]
    assert session.query("SELECT COUNT(*) FROM visitor_slot") == [(12,)]
    assert (whole(session), keys(session, "visitors")) == (before, amounts)
    beside_rows(session)
    # And what comes later goes on beside it.
    now = now_minute()
    see(mysql_url, session, [("visitors", "/1", now, "v1"), ("visitors", "/1", now, "new")])
    _, salt = salt_at(session, "visitors", now)
    assert whole(session)["/1"] == registers(
        sketch_of(
            b"".join(hashed(m, salt) for m in ("new", "v1", *(f"v{n}" for n in range(30, 65))))
        )
    )
    compacted(mysql_url)
    assert session.query("SELECT DISTINCT slot FROM visitor_slot") == [(0,)]
    beside_rows(session)


def test_months_are_united_and_added_to(mysql_url: str, session: Session, store: Store) -> None:
    store.counters.set("visitors", keep="day=30d")
    see_in_slots(mysql_url, session)
    before = whole(session)
    rolled_up(mysql_url)
    assert session.query("SELECT COUNT(*) > 0 FROM visitor_slot WHERE width = 5") == [(1,)]
    assert whole(session) == before
    beside_rows(session)
    late: list[Sighting] = [
        ("visitors", "/1", now_minute() - 80 * 1440, "late"),
        ("visitors", "/9", now_minute() - 80 * 1440, "x"),
    ]
    see(mysql_url, session, list(late))
    before = whole(session)
    rolled_up(mysql_url)
    assert whole(session) == before
    assert store.totals.unique("visitors", key="/9").total == 1
    beside_rows(session)


@pytest.mark.parametrize("damage", ["sketch = X'01'", "checksum = checksum ^ 1"])
def test_a_key_with_a_damaged_sketch_stays_and_all_others_move(
    mysql_url: str, session: Session, store: Store, damage: str
) -> None:
    see_in_slots(mysql_url, session)
    old = str(datetime.fromtimestamp((now_minute() - 70 * 1440) * 60, UTC).date())
    place = ("/1", old)
    session.execute(
        f"UPDATE visitor_slot SET {damage} WHERE counter_key = %s AND bucket = %s AND slot = 4",
        place,
    )
    done = compacted(mysql_url)
    assert [(one.counter, one.key) for one in done.unreadable] == [("visitors", b"/1")]
    for table in ("counter_slot", "visitor_slot"):
        assert session.query(
            f"SELECT slot FROM {table} WHERE counter_key = %s AND bucket = %s ORDER BY slot", place
        ) == [(3,), (4,), (5,)]
        assert session.query(
            f"SELECT DISTINCT slot FROM {table} WHERE NOT (counter_key = %s AND bucket = %s)", place
        ) == [(0,)]
    store.counters.set("visitors", keep="day=30d")
    rolled = rolled_up(mysql_url)
    assert [one.key for one in rolled.unreadable] == [b"/1"]
    assert "different members cannot be read: 1" in rolled.outcome("").detail
    assert session.query(
        "SELECT COUNT(*) FROM visitor_slot WHERE width = 4 AND bucket < NOW() - INTERVAL 62 DAY"
    ) == [(3,)]
    beside_rows(session)
    # Reads say so, and verify finds it.
    with pytest.raises(DamagedSketch, match=r"'visitors', '/1'.*`countersink verify`"):
        store.totals.unique("visitors", key="/1")
    assert store.totals.unique("visitors", key="/2").total == 35
    assert store.totals.total("visitors", key="/1") == 3 * 15 * 4


def test_verify_finds_damaged_sketches_and_those_beside_no_row(
    mysql_url: str, session: Session, store: Store, verifying: Session
) -> None:
    store.counters.set("visitors", dimensions=["page"], breakdowns=["page"], keep="day=30d")
    see(mysql_url, session, [("visitors", (("page", "/"),), now_minute(), "a")])
    see(mysql_url, session, [("visitors", "/old", now_minute() - 80 * 1440, "a")])
    rolled_up(mysql_url)
    for names in None, "visitors":
        assert verify(verifying, names).agrees
    session.execute("UPDATE visitor_slot SET sketch = X'0102' WHERE counter = 'visitors#1'")
    session.execute("UPDATE visitor_slot SET checksum = 1 WHERE width = 5")
    session.execute("DELETE FROM visitor_slot WHERE counter = 'visitors' AND width = 4")
    sketch = sketch_of(bytes(8))
    crc = checksum("visitors", 86_400 + 4, b"k", 9, sketch)
    session.execute(
        "INSERT INTO visitor_slot VALUES ('visitors', '1970-01-02', 'k', 4, 9, %s, %s)",
        (sketch, crc),
    )
    for name in None, "visitors":
        found = sorted(verify(verifying, name).differences, key=lambda one: one.counter)
        assert [(one.counter, one.problem, one.in_tables) for one in found] == [
            ("visitors", "sketch", 3),
            ("visitors#1", "sketch", 1),
        ]
        assert "'visitors', 'k'" in found[0].detail or "lies beside no row" in found[0].detail
        assert found[0].detail.endswith("; and 2 more")
        assert "'visitors#1', '/'" in found[1].detail


def test_a_key_and_a_counter_are_deleted_with_their_sketches(
    mysql_url: str, session: Session, store: Store
) -> None:
    store.counters.set("visitors", keep="day=30d")
    store.counters.set("other", salt_days=0, dimensions=["page"], breakdowns=["page"])
    see_in_slots(mysql_url, session)
    see(mysql_url, session, [("other", (("page", "/"),), now_minute(), "a")])
    rolled_up(mysql_url)
    see_in_slots(mysql_url, session)
    store.counters.delete("visitors", "/1")
    beside_rows(session)
    for table in PLACES:
        assert session.query(f"SELECT 1 FROM {table} WHERE counter_key = '/1'") == []
    assert set(whole(session)) == {"/0", "/2"}
    store.counters.delete("visitors")
    for table in (*PLACES, "visitor_salt"):
        assert session.query(f"SELECT 1 FROM {table} WHERE counter = 'visitors'") == []
    assert session.query("SELECT COUNT(*) FROM visitor_slot") == [(2,)]
    store.counters.set("other", breakdowns=[])
    assert session.query("SELECT counter FROM visitor_slot") == [("other",)]
    store.counters.delete("other")
    for table in (*PLACES, "visitor_salt"):
        assert session.query(f"SELECT 1 FROM {table}") == []


def test_a_first_sighting_that_comes_while_a_key_is_deleted_goes_or_stays_as_a_whole(
    mysql_url: str, session: Session, store: Store
) -> None:
    written, locking = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "before_commit":
            written.set()
            assert locking.wait(30)

    worker = Applier(mysql_url, 3, reached=hold)
    entry = seen_entry(session, [("visitors", "/", now_minute(), "a")])
    with beside(lambda: worker.apply([entry])), MySQLProxy.to(mysql_url) as proxy:
        assert written.wait(30)
        locked = says("FOR UPDATE")
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=lambda _: locking.set(), where=locked)
        with connect(proxy.url(mysql_url), isolation="REPEATABLE READ") as deleting:
            delete_key(deleting, "visitors", "/")
    worker.close()
    beside_rows(session)
    assert store.totals.unique("visitors").total == store.totals.total("visitors")


def test_an_application_deletes_a_key_with_its_sketches(
    mysql_url: str, session: Session, store: Store, app: Connection
) -> None:
    store.counters.set("visitors", keep="day=30d")
    see_in_slots(mysql_url, session)
    rolled_up(mysql_url)
    before = whole(session)
    store.delete(app, "visitors", "/1")
    app.rollback()
    assert whole(session) == before
    store.delete(app, "visitors", "/1")
    app.commit()
    assert set(whole(session)) == {"/0", "/2"}
    beside_rows(session)


def test_many_keys_are_deleted_page_by_page(
    mysql_url: str, session: Session, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 100)
    made: list[Sighting] = [("visitors", f"/{n}", now_minute(), f"v{n}") for n in range(450)]
    see(mysql_url, session, made, 3)
    see(mysql_url, session, made, 4)
    store.counters.set("kept", salt_days=0)
    see(mysql_url, session, [("kept", "/", now_minute(), "a")])
    store.counters.delete("visitors")
    assert session.query("SELECT counter FROM visitor_slot") == [("kept",)]


def test_workers_go_on_while_sketches_are_moved(
    mysql_url: str, session: Session, store: Store
) -> None:
    now = now_minute()
    _, salt = salt_at(session, "visitors", now)
    entries = [
        seen_entry(session, [("visitors", f"/{n % 4}", now - 1440, f"v{n}-{m}") for m in range(30)])
        for n in range(20)
    ]

    def work(slot: int) -> None:
        with closing(applier(mysql_url, slot)) as one:
            for entry in entries[slot::2]:
                one.apply([entry])

    def moving() -> None:
        for _ in range(8):
            compacted(mysql_url)

    together(lambda: work(0), lambda: work(1), moving)
    compacted(mysql_url)
    wanted = {
        f"/{key}": registers(
            sketch_of(
                b"".join(hashed(f"v{n}-{m}", salt) for n in range(key, 20, 4) for m in range(30))
            )
        )
        for key in range(4)
    }
    assert whole(session) == wanted
    assert keys(session, "visitors") == {f"/{key}".encode(): 150 for key in range(4)}
    beside_rows(session)


def test_a_month_ends_with_its_last_day(mysql_url: str, session: Session, store: Store) -> None:
    store.counters.set("visitors", keep="day=30d")
    see_in_slots(mysql_url, session)
    rolled_up(mysql_url)
    today = datetime.now(UTC).date()
    days = store.totals.unique_by("visitors", "day", start=today - timedelta(days=5), key="/1")
    assert [found.total for _, found in days] == [0, 0, 0, 0, 0, 35]
    months = store.totals.unique_by("visitors", "month", key="/1")
    assert {found.total for _, found in months} <= {0, 35}
    assert months[-1] == (today.replace(day=1), months[-1][1])
