"""Sketches go where their rows go: compaction, steps, months, deletion; what verify finds."""

import threading
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.counters import deletion
from countersink.counting.counters.deletion import delete_key
from countersink.counting.errors import DamagedSketch
from countersink.counting.visitors import SketchUnion, checksum
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.store import Store
from countersink.store.verify import verify
from tests.counting.visitors.sightings import Sighting, hashed, salt_at, seen_entry, unions
from tests.support.app_connection import Connection
from tests.support.entries import applier, beside, compacted, keys, rolled_up, says, together
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.sketches import registers, sketch_of
from tests.support.traffic import now_minute

PLACES = ("counter_slot", "visitor_slot")


class Site:
    """Where visitors are seen, and what the tables hold of them."""

    def __init__(self, url: str, session: Session, store: Store) -> None:
        self.url = url
        self.session = session
        self.query = session.query
        self.store = store

    def see(self, made: list[Sighting], slot: int = 3) -> None:
        with closing(applier(self.url, slot)) as one:
            one.apply([seen_entry(self.session, made)])

    def see_in_slots(self) -> None:
        """Sightings of three slots, on days long ago and today, that overlap."""
        now = now_minute()
        for slot in (3, 4, 5):
            made: list[Sighting] = [
                ("visitors", f"/{key}", now - ago * 1440, f"v{n}")
                for key in range(3)
                for ago in (0, 70, 71, 110)
                for n in range(10 * slot, 10 * slot + 15 + 300 * (key == 0))
            ]
            self.see(made, slot)

    def keep_a_month(self) -> None:
        """The same, of a counter whose days become months, and roll them up."""
        self.store.counters.set("visitors", keep="day=30d")
        self.see_in_slots()
        self.before = self.whole()
        rolled_up(self.url)

    def beside_rows(self) -> None:
        """Every sketch lies beside a row of its counter."""
        columns = "counter, bucket, counter_key, width, slot"
        assert set(self.query(f"SELECT {columns} FROM visitor_slot")) <= set(
            self.query(f"SELECT {columns} FROM counter_slot")
        )

    def whole(self) -> dict[str, bytes]:
        """The registers of all that the counter has, by key; every sketch lies beside a row."""
        self.beside_rows()
        found: dict[str, SketchUnion] = {}
        for (_, key), union in unions(self.session, "visitors").items():
            found.setdefault(key, SketchUnion()).add(union.sketch())
        return {key: registers(union.sketch()) for key, union in found.items()}


@pytest.fixture
def site(mysql_url: str, session: Session, store: Store) -> Site:
    """A site that nobody has visited."""
    return Site(mysql_url, session, store)


def registers_of(salt: bytes, members: Iterable[str]) -> bytes:
    """Those of one sketch of all members."""
    return registers(sketch_of(b"".join(hashed(member, salt) for member in members)))


def test_compaction_unites_slots(site: Site) -> None:
    site.see_in_slots()
    before, amounts = site.whole(), keys(site.session, "visitors")
    for _ in range(2):
        done = compacted(site.url)
        assert not done.unreadable
    assert site.query("SELECT DISTINCT slot FROM visitor_slot") == [(0,)]
    assert site.query("SELECT COUNT(*) FROM visitor_slot") == [(12,)]
    assert (site.whole(), keys(site.session, "visitors")) == (before, amounts)
    # And what comes later goes on beside it.
    now = now_minute()
    site.see([("visitors", "/1", now, "v1"), ("visitors", "/1", now, "new")])
    _, salt = salt_at(site.session, "visitors", now)
    expected = registers_of(salt, ("new", "v1", *(f"v{n}" for n in range(30, 65))))
    assert site.whole()["/1"] == expected
    compacted(site.url)
    assert site.query("SELECT DISTINCT slot FROM visitor_slot") == [(0,)]
    site.beside_rows()


def test_months_are_united_and_added_to(site: Site) -> None:
    site.keep_a_month()
    assert site.query("SELECT COUNT(*) > 0 FROM visitor_slot WHERE width = 5") == [(1,)]
    assert site.whole() == site.before
    late: list[Sighting] = [
        ("visitors", "/1", now_minute() - 80 * 1440, "late"),
        ("visitors", "/9", now_minute() - 80 * 1440, "x"),
    ]
    site.see(list(late))
    before = site.whole()
    rolled_up(site.url)
    assert site.whole() == before
    assert site.store.totals.unique("visitors", key="/9").total == 1


@pytest.mark.parametrize("damage", ["sketch = X'01'", "checksum = checksum ^ 1"])
def test_a_key_with_a_damaged_sketch_stays_and_all_others_move(site: Site, damage: str) -> None:
    site.see_in_slots()
    old = str(datetime.fromtimestamp((now_minute() - 70 * 1440) * 60, UTC).date())
    place = ("/1", old)
    site.session.execute(
        f"UPDATE visitor_slot SET {damage} WHERE counter_key = %s AND bucket = %s AND slot = 4",
        place,
    )
    done = compacted(site.url)
    assert [(one.counter, one.key) for one in done.unreadable] == [("visitors", b"/1")]
    for table in ("counter_slot", "visitor_slot"):
        assert site.query(
            f"SELECT slot FROM {table} WHERE counter_key = %s AND bucket = %s ORDER BY slot", place
        ) == [(3,), (4,), (5,)]
        assert site.query(
            f"SELECT DISTINCT slot FROM {table} WHERE NOT (counter_key = %s AND bucket = %s)", place
        ) == [(0,)]
    site.store.counters.set("visitors", keep="day=30d")
    rolled = rolled_up(site.url)
    assert [one.key for one in rolled.unreadable] == [b"/1"]
    assert "different members cannot be read: 1" in rolled.outcome("").detail
    assert site.query(
        "SELECT COUNT(*) FROM visitor_slot WHERE width = 4 AND bucket < NOW() - INTERVAL 62 DAY"
    ) == [(3,)]
    site.beside_rows()
    # Reads say so, and verify finds it.
    with pytest.raises(DamagedSketch, match=r"'visitors', '/1'.*`countersink verify`"):
        site.store.totals.unique("visitors", key="/1")
    assert site.store.totals.unique("visitors", key="/2").total == 35
    assert site.store.totals.total("visitors", key="/1") == 3 * 15 * 4


def test_verify_finds_damaged_sketches_and_those_beside_no_row(
    site: Site, verifying: Session
) -> None:
    site.store.counters.set("visitors", dimensions=["page"], breakdowns=["page"], keep="day=30d")
    site.see([("visitors", (("page", "/"),), now_minute(), "a")])
    site.see([("visitors", "/old", now_minute() - 80 * 1440, "a")])
    rolled_up(site.url)
    for names in None, "visitors":
        assert verify(verifying, names).agrees
    site.session.execute("UPDATE visitor_slot SET sketch = X'0102' WHERE counter = 'visitors#1'")
    site.session.execute("UPDATE visitor_slot SET checksum = 1 WHERE width = 5")
    site.session.execute("DELETE FROM visitor_slot WHERE counter = 'visitors' AND width = 4")
    sketch = sketch_of(bytes(8))
    crc = checksum("visitors", 86_400 + 4, b"k", 9, sketch)
    site.session.execute(
        "INSERT INTO visitor_slot VALUES ('visitors', '1970-01-02', 'k', 4, 9, %s, %s)",
        (sketch, crc),
    )
    for name in None, "visitors":
        found = sorted(verify(verifying, name).differences, key=lambda one: one.counter)
        assert [(one.counter, one.problem, one.in_tables) for one in found] == [
            ("visitors", "sketch", 3),
            ("visitors#1", "sketch", 1),
        ]
        assert "'visitors', 'k'" in found[0].detail or "has no row" in found[0].detail
        assert found[0].detail.endswith("; and 2 more")
        assert "'visitors#1', '/'" in found[1].detail


def test_a_key_and_a_counter_are_deleted_with_their_sketches(site: Site) -> None:
    site.store.counters.set("visitors", keep="day=30d")
    site.store.counters.set("other", salt_days=0, dimensions=["page"], breakdowns=["page"])
    site.see_in_slots()
    site.see([("other", (("page", "/"),), now_minute(), "a")])
    rolled_up(site.url)
    site.see_in_slots()
    site.store.counters.delete("visitors", "/1")
    for table in PLACES:
        assert site.query(f"SELECT 1 FROM {table} WHERE counter_key = '/1'") == []
    assert set(site.whole()) == {"/0", "/2"}
    site.store.counters.delete("visitors")
    for table in (*PLACES, "visitor_salt"):
        assert site.query(f"SELECT 1 FROM {table} WHERE counter = 'visitors'") == []
    assert site.query("SELECT COUNT(*) FROM visitor_slot") == [(2,)]
    site.store.counters.set("other", breakdowns=[])
    assert site.query("SELECT counter FROM visitor_slot") == [("other",)]
    site.store.counters.delete("other")
    for table in (*PLACES, "visitor_salt"):
        assert site.query(f"SELECT 1 FROM {table}") == []


def test_a_first_sighting_that_comes_while_a_key_is_deleted_goes_or_stays_as_a_whole(
    site: Site,
) -> None:
    written, locking = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "before_commit":
            written.set()
            assert locking.wait(30)

    worker = Applier(site.url, 3, reached=hold)
    entry = seen_entry(site.session, [("visitors", "/", now_minute(), "a")])
    with beside(lambda: worker.apply([entry])), MySQLProxy.to(site.url) as proxy:
        assert written.wait(30)
        locked = says("FOR UPDATE")
        proxy.when("*", Phase.BEFORE, Deed.PASS, call=lambda _: locking.set(), where=locked)
        with connect(proxy.url(site.url), isolation="REPEATABLE READ") as deleting:
            delete_key(deleting, "visitors", "/")
    worker.close()
    site.beside_rows()
    assert site.store.totals.unique("visitors").total == site.store.totals.total("visitors")


def test_an_application_deletes_a_key_with_its_sketches(site: Site, app: Connection) -> None:
    site.keep_a_month()
    before = site.whole()
    site.store.delete(app, "visitors", "/1")
    app.rollback()
    assert site.whole() == before
    site.store.delete(app, "visitors", "/1")
    app.commit()
    assert set(site.whole()) == {"/0", "/2"}


def test_many_keys_are_deleted_page_by_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "ROWS", 100)
    made: list[Sighting] = [("visitors", f"/{n}", now_minute(), f"v{n}") for n in range(450)]
    site.see(made, 3)
    site.see(made, 4)
    site.store.counters.set("kept", salt_days=0)
    site.see([("kept", "/", now_minute(), "a")])
    site.store.counters.delete("visitors")
    assert site.query("SELECT counter FROM visitor_slot") == [("kept",)]


def test_workers_go_on_while_sketches_are_moved(site: Site) -> None:
    now = now_minute()
    _, salt = salt_at(site.session, "visitors", now)
    entries = [
        seen_entry(
            site.session, [("visitors", f"/{n % 4}", now - 1440, f"v{n}-{m}") for m in range(30)]
        )
        for n in range(20)
    ]

    def work(slot: int) -> None:
        with closing(applier(site.url, slot)) as one:
            for entry in entries[slot::2]:
                one.apply([entry])

    def moving() -> None:
        for _ in range(8):
            compacted(site.url)

    together(lambda: work(0), lambda: work(1), moving)
    compacted(site.url)
    wanted = {
        f"/{key}": registers_of(salt, (f"v{n}-{m}" for n in range(key, 20, 4) for m in range(30)))
        for key in range(4)
    }
    assert site.whole() == wanted
    assert keys(site.session, "visitors") == {f"/{key}".encode(): 150 for key in range(4)}
