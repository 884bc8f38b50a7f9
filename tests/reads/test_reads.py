"""Totals with what is still in the queue: exact whatever was applied, acknowledged, or only
sent.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import redis

from countersink.counting.counters.buckets import MAX_DAYS
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import KeyMatch
from countersink.database.session import Session
from countersink.store import Conflict, Store, UnknownCounter
from countersink.stream.connection import connect as connect_redis
from countersink.stream.entry import encode_rows, new_entry_id
from countersink.stream.errors import StreamUnavailable
from countersink.stream.names import PARTITIONS_KEY
from tests.counting.test_tracked_refusals import track
from tests.reads.support import DAYS, Ground, minute_of, queue, sealed
from tests.support.asking import Asking
from tests.support.entries import minute
from tests.support.factories import RedisFactory
from tests.support.oracle import Oracle
from tests.support.traffic import add, now_ms, send
from tests.support.width_rows import plant, put_rows, put_scheme


@pytest.fixture
def reads(store: Store, redis_client: redis.Redis) -> Asking:
    return Asking(store, redis_client)


@pytest.mark.servers("mariadb", "mysql")
def test_pending_applied_and_acknowledged_entries_count_once_each(
    reads: Asking, ground: Ground
) -> None:
    ground.queue(("views", "/", 0, 1))
    ground.apply(acknowledge=True)
    ground.queue(("views", "/", 0, 10))
    ground.apply(acknowledge=False)
    ground.queue(("views", "/", 0, 100), ("views", "/a", 1, 1000), ("clicks", "", 0, 7))

    assert reads.total("views").value == 11
    found = reads.total("views", include_pending=True)
    assert found.value == 1111
    assert found.pending == 1
    assert reads.total("views", key="/", include_pending=True).value == 111
    assert reads.total("views", keys=["/a", "/b"], include_pending=True).value == 1000
    match = KeyMatch(prefix="/", exclude_keys=["/a"])
    assert reads.total("views", match=match).value == 11
    assert reads.total("views", match=match, include_pending=True).value == 111
    assert reads.daily("views", match=KeyMatch(exclude_keys=["/"]), include_pending=True).value == [
        (DAYS[1], 1000)
    ]
    assert reads.by_key("views", match=match, include_pending=True).value == [("/", 111)]
    assert reads.total("views", start=DAYS[1], include_pending=True).value == 1000
    assert reads.total("views", end=DAYS[0], include_pending=True).value == 111
    assert reads.total("clicks", include_pending=True).value == 7


def test_copies_of_an_entry_in_any_stream_count_once(reads: Asking, ground: Ground) -> None:
    ground.client.set(PARTITIONS_KEY, 3)
    entry = sealed(ground.client, [("views", "/", 0, 5)])
    for partition in (0, 0, 2):
        send(ground.client, entry, partition=partition)
    ground.queue(("views", "/", 0, 1), partition=1)
    found = reads.total("views", include_pending=True)
    assert (found.value, found.pending) == (6, 2)


def test_daily_of_a_counter_that_is_only_pending(reads: Asking, ground: Ground) -> None:
    ground.queue(("views", "/", 0, 2), ("views", "/", 2, 3))
    with pytest.raises(UnknownCounter):
        reads.daily("views")
    found = reads.daily("views", include_pending=True).value
    assert found == list(zip(DAYS, (2, 0, 3), strict=False))
    assert len(reads.daily("views", end=DAYS[3], include_pending=True).value) == 4
    assert reads.daily("views", key="/a", include_pending=True).value == []
    assert reads.total("views", start=DAYS[3], include_pending=True).value == 0
    with pytest.raises(ValueError, match=f"{MAX_DAYS:,}"):
        reads.daily("views", start=date.min, end=date.max, include_pending=True)


@pytest.mark.servers("mariadb", "mysql")
def test_top_ranks_what_both_add_up_to(reads: Asking, ground: Ground) -> None:
    ground.queue(*(("views", f"k{rank}", 0, 100 - rank) for rank in range(20)))
    ground.apply(acknowledge=True)
    # One rises from far below, one falls from the top, one ties, one is new.
    queue(
        ground.client,
        ("views", "k19", 0, 50),
        ("views", "k0", 1, -99),
        ("views", "k3", 0, 1),
        ("views", "new", 0, 98),
    )
    everything = reads.by_key("views", include_pending=True).value
    assert everything[:6] == [
        ("k19", 131),
        ("k1", 99),
        ("k2", 98),
        ("k3", 98),
        ("new", 98),
        ("k4", 96),
    ]
    assert everything[-1] == ("k0", 1)
    assert len(everything) == 21
    for n in (1, 2, 3, 5, 8, 20, 21, 100):
        assert reads.top("views", n=n, include_pending=True).value == everything[:n]
    assert reads.top("views", n=2).value == [("k0", 100), ("k1", 99)]
    with pytest.raises(ValueError, match="at least 1 key"):
        reads.top("views", n=0, include_pending=True)


def test_an_unknown_counter_is_unknown_with_pending_entries_too(
    reads: Asking, ground: Ground
) -> None:
    ground.queue(("views", "/", 0, 2))
    for include_pending in (False, True):
        with pytest.raises(UnknownCounter):
            reads.total("never", include_pending=include_pending)
        with pytest.raises(UnknownCounter):
            reads.top("never", include_pending=include_pending)


def test_bad_rows_are_left_out_as_the_worker_will(reads: Asking, ground: Ground) -> None:
    minute = minute_of(0)
    rows = [["views", "/", minute, 4], ["no blanks", "/", minute, 1], ["views", "/", -1, 8], None]
    add(ground.client, {"rows": encode_rows(rows)})  # type: ignore[arg-type]
    add(ground.client, {"rows": b"not json"})
    add(ground.client, {"v": 99, "rows": encode_rows([("views", "/", minute, 16)])})
    add(ground.client, {"not": "ours"})
    assert reads.total("views", include_pending=True).value == 4
    assert reads.counters(include_pending=True).value == {"views": 4}


def test_entries_older_than_the_watermark_are_left_out_as_the_worker_will(
    reads: Asking, ground: Ground
) -> None:
    with Oracle(ground.servers.mysql_url) as oracle:
        oracle.rows("UPDATE control SET pruned_before = 1000000")
    rows = encode_rows([("views", "/", minute_of(0), 4)])
    for at in (999_999, 1_000_000):
        add(ground.client, {"id": new_entry_id(at), "at": at, "rows": rows})
    found = reads.total("views", include_pending=True)
    assert (found.value, found.pending) == (4, 1)


def test_without_a_queue_there_is_no_time_and_nothing_pending(ground: Ground) -> None:
    ground.queue(("views", "/", 0, 2))
    ground.apply(acknowledge=True)
    reads = Asking(ground.store, None)
    found = reads.total("views")
    assert (found.value, found.complete_up_to, found.unknown_because) == (2, None, None)
    with pytest.raises(ValueError, match="Redis"):
        reads.total("views", include_pending=True)


def test_a_redis_that_is_away_costs_the_time_only_unless_pending_is_asked_for(
    ground: Ground, own_redis_server: RedisFactory
) -> None:
    ground.queue(("views", "/", 0, 2))
    ground.apply(acknowledge=True)
    server = own_redis_server()
    client = connect_redis(server.url)
    server.kill()
    reads = Asking(ground.store, client)
    found = reads.total("views")
    assert (found.value, found.complete_up_to) == (2, None)
    assert isinstance(found.unknown_because, StreamUnavailable)
    with pytest.raises(StreamUnavailable):
        reads.total("views", include_pending=True)
    client.close()


def test_complete_up_to_is_the_arrival_of_the_oldest_entry_else_redis_s_time(
    reads: Asking, ground: Ground
) -> None:
    def at(ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC)

    ground.client.set(PARTITIONS_KEY, 2)
    ground.queue(("views", "/", 0, 1))
    ground.apply(acknowledge=True)
    before = now_ms(ground.client)
    empty = reads.total("views").complete_up_to
    assert empty is not None
    assert at(before) <= empty <= at(now_ms(ground.client) + 1)

    first = ground.queue(("views", "/", 0, 1), partition=1)
    ground.queue(("views", "/", 0, 1))
    oldest = at(int(first.partition("-")[0]))
    assert reads.total("views").complete_up_to == oldest
    assert reads.counters().complete_up_to == oldest

    before = now_ms(ground.client)
    included = reads.total("views", include_pending=True).complete_up_to
    assert included is not None
    assert included >= at(before) >= oldest


def test_a_stream_id_far_in_the_future_breaks_nothing(reads: Asking, ground: Ground) -> None:
    fields = sealed(ground.client, [("views", "/", 0, 1)]).fields()
    ground.client.xadd("{countersink:0}:events", fields, id="18446744073709551615-1")
    found = reads.total("views", include_pending=True)
    assert found.value == 1
    assert reads.counters().complete_up_to is not None


@pytest.mark.servers("mariadb", "mysql")
def test_a_counter_that_changes_while_the_queue_is_read(reads: Asking, ground: Ground) -> None:
    """What was read by the catalog before is read again."""
    ground.queue(("views", "/", 0, 5))
    assert reads.daily("views", include_pending=True).value == [(DAYS[0], 5)]
    # the same Reads still knows the catalog of before
    put_scheme(ground.session, "views", "Europe/Berlin")
    assert reads.daily("views", include_pending=True).value == [(DAYS[1], 5)]
    ground.apply(acknowledge=True)
    assert reads.daily("views", include_pending=True).value == [(DAYS[1], 5)]


def test_a_catalog_that_never_stands_still_is_an_error(ground: Ground) -> None:
    ground.queue(("views", "/", 0, 5))

    class Changing(Store):
        """Somebody changes a counter before each snapshot."""

        def snapshot(self, work: Callable[[Session], Any]) -> Any:
            ground.session.execute("UPDATE control SET catalog_version = catalog_version + 1")
            return super().snapshot(work)

    with Changing(ground.servers.mysql_url) as changing, pytest.raises(Conflict, match="try again"):
        Asking(changing, ground.client).total("views", include_pending=True)


def test_in_strict_mode_unknown_counters_are_left_out_as_the_worker_will(
    reads: Asking, ground: Ground
) -> None:
    ground.queue(("views", "/", 0, 1))
    ground.apply(acknowledge=True)
    ground.queue(("views", "/", 0, 10), ("typo", "/", 0, 100), ("made", "/", 0, 1000))
    put_scheme(ground.session, "made")
    ground.session.execute(
        "UPDATE control SET strict = TRUE, catalog_version = catalog_version + 1"
    )
    for _ in range(2):
        assert reads.counters(include_pending=True).value == {"made": 1000, "views": 11}
        assert reads.total("made", include_pending=True).value == 1000
        with pytest.raises(UnknownCounter):
            reads.total("typo", include_pending=True)
        ground.apply(acknowledge=False)


def test_pending_rows_of_a_tracked_table_are_left_out_as_the_worker_will(
    reads: Asking, ground: Ground
) -> None:
    ground.queue(("orders", "", 0, 3), ("views", "/", 0, 1), ("orders", "", 1, 5))
    assert reads.total("orders", include_pending=True).value == 8
    track(ground.session, "orders")
    plant(ground.session, ("orders", "1970-01-01", "", 256, 7))
    for _ in range(2):
        assert reads.total("orders", include_pending=True).value == 7
        assert reads.counters(include_pending=True).value == {"orders": 7, "views": 1}
        ground.apply(acknowledge=False)


def test_pending_rows_of_days_that_are_rolled_up(reads: Asking, ground: Ground) -> None:
    ground.queue(("views", "/", 0, 2), ("views", "/", 2, 4))
    october, november, december = (date(2026, month, 1) for month in (10, 11, 12))
    put_scheme(ground.session, "views", rolled_month=minute(november, 0))
    put_rows(ground.session, [("views", "month", october, "/", 40)])
    for _ in range(2):
        found = reads.total("views", include_pending=True)
        assert (found.value, found.rolled_up_to) == (46, november)
        with pytest.raises(RolledUp):
            reads.daily("views", include_pending=True)
        daily = reads.daily("views", include_pending=True, unrolled=True).value
        assert daily == list(zip(DAYS, (2, 0, 4), strict=False))
        monthly = reads.monthly("views", include_pending=True).value
        assert monthly == [(october, 40), (november, 6)]
        with pytest.raises(RolledUp):
            reads.total("views", start=date(2026, 10, 2), include_pending=True)
        ground.apply(acknowledge=False)
    assert reads.counters().rolled_up_to == november
    # What is pending of a month that is rolled up is of none of the days that are told.
    put_scheme(ground.session, "views", rolled_month=minute(december, 0))
    ground.queue(("views", "/", 1, 8))
    asked: dict[str, Any] = {"end": december, "include_pending": True}
    assert reads.daily("views", unrolled=True, **asked).value == []
    assert reads.monthly("views", **asked).value == [(october, 40), (november, 14), (december, 0)]


def test_what_is_pending_in_a_bucket_that_a_range_divides_is_an_error(
    reads: Asking, ground: Ground
) -> None:
    """It counted minutes, and counts days now: before the worker has come, there is no day yet."""
    noon = datetime(2026, 11, 19, 12, tzinfo=UTC)
    put_scheme(ground.session, "views", counted_minute=minute(DAYS[2]))
    put_rows(ground.session, [("views", "minute", noon.replace(tzinfo=None), "/", 1)])
    asked: dict[str, Any] = {"end": noon + timedelta(minutes=1), "include_pending": True}
    questions: list[Callable[..., Any]] = [
        *(reads.total, reads.hourly, reads.daily, reads.monthly, reads.by_key),
        lambda name, **options: reads.counters(visible=name.__eq__, **options),
    ]
    assert reads.total("views", **asked).value == 1
    assert reads.hourly("views", start=noon - timedelta(hours=1), **asked).value[-1] == (noon, 1)
    ground.queue(("views", "/", 1, 10), ("hidden", "/", 1, 10))
    for ask in questions:
        for _ in range(2):
            with pytest.raises(InexactZone, match="'views' is counted by day"):
                ask("views", **asked)
        assert reads.total("views", key="/a", **asked).value == 0
    assert reads.total("views", start=DAYS[1], end=DAYS[1], include_pending=True).value == 11
    ground.apply(acknowledge=True)
    for ask in questions:
        with pytest.raises(InexactZone, match="'views' is counted by day"):
            ask("views", **asked)
