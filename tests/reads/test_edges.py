"""Answers at the edges: parts of series that are too long, ranges that end where single days are
told from, parts of many keys, and questions that do not go together.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
import redis

from countersink.counting.errors import InexactZone, SeriesTooLong
from countersink.counting.totals import sums
from countersink.counting.totals.query import DIMENSIONS, Query
from countersink.counting.totals.selection import Selection
from countersink.database.session import Session
from countersink.reads import ANYTHING, Reads
from countersink.store import Store
from tests.reads.support import queue
from tests.support.asking import exported
from tests.support.entries import minute
from tests.support.width_rows import put_rows, put_scheme


def at(day: date, hour: int, of_hour: int = 0) -> datetime:
    return datetime.combine(day, time(hour, of_hour))


def test_a_part_of_a_series_ends_where_the_range_does(store: Store, session: Session) -> None:
    put_scheme(session, "x", resolution="minute")
    last = date(2026, 11, 18)
    put_rows(session, [("x", "minute", at(date(2026, 8, 1), 5), "k", 1)])
    put_rows(session, [("x", "minute", at(last, hour, 30), "k", 1) for hour in range(24)])
    end = datetime(2026, 11, 18, 8, tzinfo=UTC)
    found = store.totals.ask(Query(Selection("x", end=end), by="minute"))
    assert found.truncated
    assert found.rows[-1][0] == end - timedelta(minutes=1)
    assert sum(total for _, total in found.rows) == 8
    # A file that lacks some of its rows would look whole.
    with pytest.raises(SeriesTooLong):
        exported(session, "minute", Selection("x"))


def test_a_part_of_a_series_has_no_wider_buckets(store: Store, session: Session) -> None:
    begin = date(2026, 8, 1)
    put_scheme(session, "y", resolution="minute", rolled_hour=minute(begin, 5 * 60))
    rows: list[tuple[str, Any, Any, str, int]] = [
        *(("y", "hour", at(begin, hour), "k", 1) for hour in range(5)),
        *(("y", "minute", at(begin, hour, 10), "k", 1) for hour in range(5, 9)),
        *(("y", "minute", at(begin + n * timedelta(days=1), 9, 10), "k", 1) for n in range(1, 21)),
        ("y", "minute", at(date(2026, 11, 18), 1), "k", 1),
    ]
    put_rows(session, rows)
    found = store.totals.ask(Query(Selection("y"), by="minute"))
    assert found.truncated
    assert found.told_from == found.rows[0][0] == datetime(2026, 8, 1, 5, tzinfo=UTC)
    assert sum(total for _, total in found.rows) == 24


def test_a_range_that_ends_before_single_days_are_told_has_no_rows(
    store: Store, session: Session
) -> None:
    """The months of Tokyo end within a day of UTC."""
    until = minute(date(2026, 11, 1), -9 * 60)
    put_scheme(session, "t", "Asia/Tokyo", "hour", rolled_month=until)
    put_rows(session, [("t", "month", date(2026, 10, 1), "k", 50)])
    put_rows(session, [("t", "hour", at(date(2026, 11, 3), 20), "k", 7)])
    wanted = Selection("t", time_zone="UTC", end=date(2026, 10, 31))
    found = store.totals.ask(Query(wanted, by="day"))
    assert (found.rows, found.told_from) == ([], date(2026, 11, 1))
    assert exported(session, "key-day", wanted) == []
    later = Selection("t", time_zone="UTC", start=date(2026, 11, 1))
    assert exported(session, "key-month", later) == [(date(2026, 11, 1), "k", 7)]


def test_sums_of_many_keys_of_several_counters_are_whole(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [date(2026, 11, 1) + n * timedelta(days=1) for n in range(7)]
    keys = ["k1", "k2", "k3", "k4"]
    some = {"k1": days[:2], "k2": days[:2], "k3": days, "k4": days}
    put_rows(session, [(n, "day", day, k, 1) for n in "abc" for k in keys for day in some[k]])
    monkeypatch.setattr(sums, "_KEYS_PER_QUERY", 2)
    for most in range(1, 40):
        monkeypatch.setattr(sums, "MAX_ROWS", most)
        found = store.totals.ask(Query(Selection(keys=keys), by="day"))
        each = [(day, 4 if day in days[:2] else 2) for day in days]
        assert found.rows == [(name, *one) for name in "abc" for one in each], most


def test_what_is_pending_is_asked_for_where_the_queue_was_read_for_it(
    store: Store, redis_client: redis.Redis
) -> None:
    queue(redis_client, ("views", "/", 0, 3))
    reads = Reads(store, redis_client)
    own = Query(Selection("views", keys=["/"]), by="total", include_pending=True)
    assert reads.read(lambda moment: moment.ask(own), own).rows == [(3,)]
    for folded, asked in (
        (ANYTHING, own),
        (own, Query(Selection("clicks", keys=["/"]), by="total")),
        (own, Query(Selection("views"), by="total")),
        (own, Query(Selection("views"), by=DIMENSIONS, dimensions=("page",))),
    ):
        with pytest.raises(ValueError, match="the queue was not read"):
            reads.read(lambda moment, asked=asked: moment.ask(asked), folded)  # type: ignore[misc]


@pytest.mark.parametrize("by", ["day", "total", "counter"])
def test_further_ranges_of_days_are_of_keys_and_dimensions(by: str) -> None:
    days = (date(2026, 11, 18), date(2026, 11, 19))
    with pytest.raises(ValueError, match=f"rows by keys or dimensions .* not {by}s"):
        Query(Selection("views"), by=by, also=[days])


def test_days_by_key_are_told_where_days_are(store: Store, session: Session) -> None:
    """Before the first day and the first month nothing was counted: they may begin in a bucket."""
    put_scheme(session, "hours", "UTC", "hour")
    put_scheme(session, "own", "Asia/Kolkata", "hour")
    noon = date(2026, 11, 18)
    for name in ("hours", "own"):
        put_rows(
            session, [(name, "hour", at(noon, 13), "k", 1), (name, "hour", at(noon, 15), "k", 2)]
        )
    put_rows(session, [("days", "day", date(2026, 11, day), "k", day) for day in (18, 19, 20)])
    begin, end = (datetime(2026, 11, 18, hour, tzinfo=UTC) for hour in (12, 17))
    for wanted, by in (
        (Selection("hours", time_zone="Asia/Kathmandu"), "day"),
        (Selection("hours", time_zone="Asia/Kathmandu"), "month"),
        (Selection("hours", time_zone="Asia/Kathmandu", start=begin, end=end), "day"),
        (Selection("own"), "day"),
        (Selection("own"), "month"),
        (Selection("days", time_zone="America/New_York"), "month"),
    ):
        ((place, total),) = exported(session, by, wanted)
        assert exported(session, f"key-{by}", wanted) == [(place, "k", total)]
    ((monday, _),) = exported(session, "week", Selection("own"))
    assert monday == date(2026, 11, 16)
    for by in ("day", "key-day"):
        with pytest.raises(InexactZone):
            exported(session, by, Selection("days", time_zone="America/New_York"))


def test_a_day_in_two_pieces_is_whole_from_its_first_beginning_on(
    store: Store, session: Session
) -> None:
    """St. John's set its clocks back at 00:01: the 7th began, then the 6th came back."""
    until = minute(date(2012, 1, 1), 3 * 60 + 30)
    put_scheme(session, "n", "America/St_Johns", "minute", rolled_day=until)
    put_rows(session, [("n", "day", date(2010, 11, 7), "k", 7)])
    first, back, again = (
        datetime(2010, 11, 7, *each, tzinfo=UTC) for each in ((2, 30), (2, 31), (3, 30))
    )
    assert store.totals.total("n", start=first) == 7
    assert store.totals.total("n", end=first) == 0
    for cut in (back, again):
        with pytest.raises(InexactZone):
            store.totals.total("n", start=cut)
    put_scheme(session, "o", "America/St_Johns", "minute", rolled_day=until)
    put_rows(session, [("o", "day", date(2010, 11, 6), "k", 6)])
    assert store.totals.total("o", start=again) == 0
    assert store.totals.total("o", end=again) == 6
    for cut in (first, back):
        with pytest.raises(InexactZone):
            store.totals.total("o", start=cut)


def test_a_breakdown_lacks_what_was_before_it_in_whatever_zone(
    store: Store, session: Session
) -> None:
    """A zone that is more than a day behind begins that date after the breakdown does."""
    store.counters.set("b", time_zone="Pacific/Auckland", resolution="hour", dimensions=["page"])
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    put_rows(session, [("b", "hour", now, "k", 5)])
    store.counters.set("b", breakdowns=["page"])
    since = store.counters.show("b").breakdowns[0].since
    for zone in ("UTC", "Pacific/Honolulu", "Pacific/Pago_Pago", "Etc/GMT+12"):
        found = store.totals.ask(
            Query(Selection("b", time_zone=zone), by=DIMENSIONS, dimensions=("page",))
        )
        assert (found.rows, found.since) == ([], datetime.fromtimestamp(since * 60, UTC))
