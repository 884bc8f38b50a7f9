"""Making counters, and what of them can be changed when."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import countersink.store
from countersink.counting.apply.applier import Applier
from countersink.counting.counters.all_counters import read_better
from countersink.database.session import Session
from countersink.store import Misconfigured, Store, StoreError, UnknownCounter
from tests.support.entries import Database, entry, row, together
from tests.support.width_rows import plant


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store, on tables that are put up by hand: verify would find that."""
    with Store(mysql_url) as opened:
        yield opened


def version(session: Session) -> int:
    """The number of the catalog in force."""
    return int(session.query("SELECT catalog_version FROM control")[0][0])


def test_a_counter_that_was_never_counted_has_its_settings_for_all_time(store: Store) -> None:
    made = store.counters.set("views", time_zone="Europe/Berlin", resolution="quarter")
    assert (made.name, made.time_zone, made.resolution) == ("views", "Europe/Berlin", "quarter")
    assert (made.keep, made.app_slots, made.made, made.rolled_up_to) == ((), 16, True, {})
    assert store.counters.show("views") == made


def test_what_is_not_given_stays(store: Store) -> None:
    store.counters.set("views", time_zone="Asia/Tokyo", resolution="hour", keep="day=30d")
    made = store.counters.set("views", app_slots=64)
    assert (made.time_zone, made.resolution) == ("Asia/Tokyo", "hour")
    assert (made.keep, made.app_slots) == ((("day", 30 * 1440),), 64)
    assert store.counters.set("views", keep="forever").keep == ()
    made = store.counters.set("views", resolution="day")
    assert (made.time_zone, made.resolution) == ("Asia/Tokyo", "day")


def test_a_rise_is_good_unless_it_was_set_and_after_deletion(store: Store, db: Database) -> None:
    db.count(("/a", 0))
    assert store.counters.show("views").better == "up"
    assert store.counters.set("views", better="down").better == "down"
    assert store.counters.set("views", app_slots=8).better == "down"
    store.counters.set("moods", better="none")
    names = ["views", "moods", "unknown"]
    assert read_better(db.session, names) == {"views": "down", "moods": "none"}
    assert read_better(db.session, []) == {}
    store.counters.delete("views")
    assert store.counters.set("views").better == "up"


def test_setting_what_is_in_force_changes_nothing(store: Store, applier: Applier) -> None:
    def again() -> None:
        store.counters.set("views", time_zone="UTC", resolution="day", keep="day=9d", app_slots=8)

    again()
    applier.apply([entry([row("/a")])])
    before = store.counters.show("views")
    again()
    store.counters.set("views", time_zone="UTC")
    store.counters.set("views")
    assert store.counters.show("views") == before


def test_what_is_refused_changes_nothing_of_a_counted_counter(store: Store, db: Database) -> None:
    db.count(("/a", 0))
    before = version(db.session)
    with pytest.raises(
        ValueError, match="been counted in UTC, and its time zone cannot be changed"
    ):
        store.counters.set("views", time_zone="Europe/Berlin", keep="day=3d")
    assert version(db.session) == before
    assert store.counters.show("views").keep == ()
    assert not store.counters.show("views").made


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"time_zone": "Mars/Olympus"}, "no time zone"),
    ({"time_zone": "Asia/Kolkata", "resolution": "hour"}, "use the resolution quarter"),
    ({"time_zone": "Australia/Lord_Howe", "resolution": "hour"}, "use the resolution quarter"),
    ({"resolution": "second"}, "one of day, hour, quarter, minute"),
    ({"better": "high"}, "use one of up, down, none"),
    ({"app_slots": 0}, "app_slots is 0"),
    ({"app_slots": 257}, "app_slots is 257"),
]


def test_what_cannot_be_is_refused_and_changes_nothing(store: Store, session: Session) -> None:
    for changes, said in REFUSED:
        with pytest.raises(ValueError, match=said):
            store.counters.set("views", **changes)
    assert version(session) == 0
    assert store.counters.list() == []


def test_what_is_no_name_is_refused(store: Store) -> None:
    store.counters.set("views")
    for name in ("", "a b", "ä", "x" * 65, "views\n", "views "):
        with pytest.raises(ValueError, match="1 to 64 characters"):
            store.counters.set(name)
        with pytest.raises(UnknownCounter):
            store.counters.show(name)
    with pytest.raises(TypeError, match="a counter name is a str"):
        store.counters.set(7)  # type: ignore[arg-type]


def test_a_zone_that_was_off_the_hour_long_ago_may_have_hours(store: Store) -> None:
    made = store.counters.set("views", time_zone="Europe/Amsterdam", resolution="hour")
    assert made.resolution == "hour"


def test_the_list_has_what_was_made_and_what_was_counted(store: Store, db: Database) -> None:
    store.counters.set("made")
    db.applier.apply([entry([row("/a", counter="counted")])])
    plant(db.session, ("kept", "2026-01-01", "k", 0, 1), width=5)
    db.session.execute(
        "INSERT INTO counter (name, rolled_month, created) VALUES ('z', '2026-02-01', NOW(3))"
    )
    assert [(one.name, one.made, one.rolled_up_to) for one in store.counters.list()] == [
        ("counted", False, {}),
        ("kept", False, {}),
        ("made", True, {}),
        ("z", True, {"month": datetime(2026, 2, 1, tzinfo=UTC)}),
    ]
    with pytest.raises(UnknownCounter, match="no counter 'other'"):
        store.counters.show("other")


def test_two_changes_at_the_same_moment_follow_one_on_the_other(db: Database, store: Store) -> None:
    with Store(db.mysql_url) as other:
        together(
            lambda: store.counters.set("views", keep="day=30d"),
            lambda: other.counters.set("views", app_slots=4),
        )
    found = store.counters.show("views")
    assert (found.keep, found.app_slots) == ((("day", 43_200),), 4)
    assert version(db.session) == 2


def test_the_public_names() -> None:
    names = (
        "BadData Conflict DamagedSketch DuplicateKey IncompleteBreakdown InexactZone KeyMatch Last"
        " Misconfigured NoSketches NotUnique Query Refused RolledUp SchemaMismatch Selection"
        " SequenceExhausted SequenceUncertain Store StoreError TrackedCounter Unavailable"
        " UnknownCounter UnknownDimension"
    )
    assert sorted(countersink.store.__all__) == names.split()
    for name in countersink.store.__all__:
        found = getattr(countersink.store, name)
        is_error = isinstance(found, type) and issubclass(found, StoreError)
        assert is_error or name in ("KeyMatch", "Last", "Query", "Selection", "Store")


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL", raising=False)
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL_FILE", raising=False)
    with pytest.raises(Misconfigured, match="set COUNTERSINK_MYSQL_URL"):
        Store.from_env()
    file = tmp_path / "url"
    file.write_text("mysql://file:s3cret@h/d\n")
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL_FILE", str(file))
    assert repr(Store.from_env()) == "Store('mysql://file@h:3306/d')"
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL", "mysql://env:s3cret@h/d")
    with pytest.raises(Misconfigured, match="are both set"):
        Store.from_env()
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL_FILE")
    assert repr(Store.from_env()) == "Store('mysql://env@h:3306/d')"
    monkeypatch.delenv("COUNTERSINK_MYSQL_URL")
    monkeypatch.setenv("COUNTERSINK_MYSQL_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(Misconfigured, match="cannot be read"):
        Store.from_env()


@pytest.mark.parametrize("url", ["mysql://h", "redis://h/0"])
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="MySQL URL"):
        Store(url)
