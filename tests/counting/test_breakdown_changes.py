"""Breakdowns that are declared later, beside history, deletion and what was counted for times to
come."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.counters import catalog, deletion
from countersink.counting.counters.buckets import Resolution
from countersink.counting.counters.deletion import Deleted
from countersink.counting.errors import IncompleteBreakdown
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.reads.formats import frame
from countersink.runtime.dimensions import RowKey
from countersink.store import Store
from countersink.store.verify import verify
from tests.support.entries import Database, entry, minute

PAGE: RowKey = (("country", "DE"), ("page", "/a"))
LATEST = minute(date(2149, 12, 31))
"""Unix minutes, before the times for which something is counted far ahead."""


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    """The store of the same database."""
    with Store(mysql_url) as opened:
        yield opened


def count(applier: Applier, key: RowKey, amount: int, at: int | None = None) -> None:
    """Count one row."""
    applier.apply([entry([(0, "views", key, minute() if at is None else at, amount)])])


def test_a_smaller_breakdown_that_is_declared_later_hides_no_history(
    store: Store, applier: Applier
) -> None:
    store.counters.set(
        "views",
        resolution="minute",
        dimensions=["country", "page"],
        breakdowns=["country,page"],
    )
    count(applier, PAGE, 7)
    changed = store.counters.set("views", breakdowns=["country,page", "country"])
    assert changed.breakdowns[1].since
    assert store.totals.by("views", ["country"]) == [(("DE",), 7)]
    assert store.totals.total("views", where={"country": "DE"}) == 7
    since = datetime.fromtimestamp(changed.breakdowns[1].since * 60, UTC)
    # What begins then is whole in the smaller one.
    count(applier, PAGE, 2, changed.breakdowns[1].since)
    assert store.totals.by("views", ["country"], start=since) == [(("DE",), 2)]


@pytest.mark.parametrize("resolution", ["minute", "day"])
def test_totals_of_a_range_before_a_later_breakdown_are_refused(
    store: Store, applier: Applier, resolution: Resolution
) -> None:
    """A plain value cannot say that it is a part."""
    store.counters.set("views", resolution=resolution, dimensions=["country"], salt_days=0)
    count(applier, PAGE[:1], 7)
    late = store.counters.set("views", breakdowns=["country"]).breakdowns[0].since
    since = datetime.fromtimestamp(late * 60, UTC)
    count(applier, PAGE[:1], 2, late)
    totals, where = store.totals, {"country": "DE"}
    earlier: tuple[dict[str, Any], ...] = ({}, {"start": since - timedelta(days=1)})
    for asked in earlier:
        for question in (
            partial(totals.by, "views", ["country"], **asked),
            partial(totals.total, "views", where=where, **asked),
            partial(totals.daily, "views", where=where, **asked),
            partial(totals.monthly, "views", where=where, **asked),
            partial(totals.unique, "views", where=where, **asked),
            partial(totals.unique_by, "views", "day", where=where, **asked),
            partial(totals.unique_by_dimensions, "views", ["country"], **asked),
            partial(frame, store, "views", by="country", **asked),
            partial(frame, store, ["views"], by="total", where=where, **asked),
        ):
            with pytest.raises(IncompleteBreakdown, match="country of 'views'") as caught:
                question()
            assert caught.value.since == since
    begins = since if resolution == "minute" else since.date()
    assert totals.by("views", ["country"], start=begins) == [(("DE",), 2)]
    assert totals.total("views", where=where, start=begins) == 2
    if resolution == "day":
        assert frame(store, "views", by="country", start=begins)["total"].tolist() == [2]


def test_a_counter_that_gets_breakdowns_while_it_is_deleted_keeps_them_and_its_counts(
    store: Store, db: Database, verifying: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.counters.set("views", dimensions=["country", "page"], breakdowns=["country"])
    count(db.applier, PAGE, 7)
    delete = deletion.delete_counter
    declared: list[str] = []

    def delete_slowly(*args: Any, **kwargs: Any) -> Deleted:
        deleted = delete(*args, **kwargs)
        if not declared:
            declared.append("page")
            with Store(db.mysql_url) as other:
                other.counters.set("views", breakdowns=["page", "country"])
        return deleted

    monkeypatch.setattr(deletion, "delete_counter", delete_slowly)
    with pytest.raises(Conflict, match="run this again"):
        store.counters.delete("views")
    assert {each.text for each in store.counters.show("views").breakdowns} == {"page", "country"}
    assert verify(verifying).differences == []
    store.counters.delete("views")
    assert not db.session.query("SELECT name FROM counter WHERE created IS NOT NULL")
    # Their numbers are used by nobody else's rows.
    store.counters.set("views", dimensions=["country", "page", "device"], breakdowns=["device"])
    assert store.totals.by("views", ["device"]) == []


@pytest.mark.parametrize(
    ("zone", "now", "begins"),
    [
        ("UTC", datetime(2026, 11, 24, 23, 30, tzinfo=UTC), datetime(2026, 11, 26, tzinfo=UTC)),
        # 20:30 of the 24th; what is counted for the 25th has a label before the 25th, 01:30 UTC.
        (
            "America/New_York",
            datetime(2026, 11, 25, 1, 30, tzinfo=UTC),
            datetime(2026, 11, 26, 5, tzinfo=UTC),
        ),
    ],
)
def test_a_breakdown_begins_behind_the_day_for_which_something_was_counted(
    store: Store, db: Database, zone: str, now: datetime, begins: datetime
) -> None:
    store.counters.set("views", time_zone=zone, dimensions=["country"])
    count(db.applier, PAGE[:1], 7, minute(date(2026, 11, 25), 17 * 60))
    assert next_midnight(db.session, now) == begins


@pytest.mark.parametrize(
    ("zone", "now", "begins"),
    [
        ("UTC", "2026-11-24T08:00:00Z", "2026-11-25T00:00Z"),
        ("UTC", "2026-11-24T23:50:00Z", "2026-11-25T00:00Z"),
        ("UTC", "2026-11-24T23:50:01Z", "2026-11-26T00:00Z"),
        ("Asia/Kathmandu", "2026-11-24T18:05:00Z", "2026-11-24T18:15Z"),
        ("Asia/Kathmandu", "2026-11-24T18:06:00Z", "2026-11-25T18:15Z"),
        # Of 25 hours; and one that begins at 01:00, as midnight is left out.
        ("Europe/Berlin", "2026-10-25T08:00:00+01:00", "2026-10-26T00:00+01:00"),
        ("Africa/Cairo", "2026-04-23T20:00:00+02:00", "2026-04-24T01:00+03:00"),
    ],
)
def test_a_breakdown_begins_at_the_first_midnight_that_is_ten_minutes_ahead(
    store: Store, session: Session, zone: str, now: str, begins: str
) -> None:
    store.counters.set("views", time_zone=zone, resolution="quarter", dimensions=["country"])
    found = next_midnight(session, datetime.fromisoformat(now))
    assert found == datetime.fromisoformat(begins)


def next_midnight(session: Session, now: datetime) -> datetime:
    """When a breakdown of the counter begins that is declared at a time."""
    found = catalog.next_midnight(session, "views", round(now.timestamp() * 1000))
    return datetime.fromtimestamp(found * 60, UTC)


def test_what_was_counted_far_ahead_is_named_with_what_takes_it_back(
    store: Store, applier: Applier
) -> None:
    """A breakdown that begins behind it would be empty until then; keys do not delay it."""
    store.counters.set("views", dimensions=["country"])
    count(applier, "a key", 1, int(datetime(2150, 1, 1, tzinfo=UTC).timestamp()) // 60)
    far = int(datetime(2150, 1, 1, 8, tzinfo=UTC).timestamp()) // 60
    count(applier, PAGE[:1], 7, far)
    with pytest.raises(ValueError, match="views has 7 counted ahead") as refused:
        store.counters.set("views", breakdowns=["country"])
    assert "countersink increment views --at 2150-01-01T00:00Z --amount -7" in str(refused.value)
    assert store.counters.show("views").breakdowns == ()
    count(applier, "", -7, int(datetime(2150, 1, 1, tzinfo=UTC).timestamp()) // 60)
    changed = store.counters.set("views", breakdowns=["country"])
    assert 0 < changed.breakdowns[0].since < LATEST
    assert store.totals.total("views") == 1
