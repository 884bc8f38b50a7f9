"""Totals: exact, of known counters, by ranges and windows that are some."""

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.counting.apply.applier import Applier
from countersink.counting.totals import Totals
from countersink.counting.totals.query import Query, window_of
from countersink.counting.totals.selection import Selection
from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.sessions import Pool
from countersink.store import Store, UnknownCounter
from tests.support.app_connection import open_app
from tests.support.entries import MAX, entry, minute, rows
from tests.support.width_rows import plant


@pytest.mark.servers("mariadb", "mysql")
def test_sums_beyond_bigint_are_exact(session: Session, totals: Totals) -> None:
    plant(session, ("c", "2026-11-21", "k", 1, MAX), ("c", "2026-11-21", "k", 2, MAX))
    assert totals.total("c") == 2 * MAX
    assert totals.top("c") == [("k", 2 * MAX)]
    assert totals.daily("c") == [(date(2026, 11, 21), 2 * MAX)]


def test_more_keys_than_fit_one_query(session: Session, totals: Totals, applier: Applier) -> None:
    content = {f"/{number}": number for number in range(1201)}
    applier.apply([entry(rows(*content.items()))])
    assert totals.many("views", content) == content
    assert totals.total("views", keys=list(content)) == sum(content.values())
    ((_, amount),) = totals.daily("views", keys=list(content))
    assert amount == sum(content.values())


def test_many_counters(session: Session, totals: Totals) -> None:
    plant(session, *((f"c{number}", "2026-11-21", "", 1, number) for number in range(450)))
    assert totals.counters() == {f"c{number}": number for number in range(450)}
    day = date(2026, 11, 20)
    assert set(totals.counters(end=day).values()) == {0}


def test_an_unknown_counter_is_said_to_be_so_and_one_that_only_the_slots_know_is_known(
    session: Session, totals: Totals
) -> None:
    plant(session, ("c", "2026-11-21", "k", 300, 4))
    assert totals.total("c") == 4
    for ask in (
        lambda: totals.total("nobody"),
        lambda: totals.daily("nobody"),
        lambda: totals.many("nobody", ["k"]),
        lambda: totals.top("nobody"),
        lambda: totals.by_key("nobody"),
        lambda: totals.total("né"),
        lambda: totals.total("x" * 500),
        lambda: totals.total(""),
        lambda: totals.total("c "),
        lambda: totals.total("c\n"),
    ):
        with pytest.raises(UnknownCounter, match="nothing was ever counted"):
            ask()
    assert totals.span("nobody") is None
    assert totals.span("c ") is None


def test_nonsense_is_refused(totals: Totals) -> None:
    with pytest.raises(ValueError, match="at least 1 key"):
        totals.top("views", n=0)
    with pytest.raises(ValueError, match="at least 1 key"):
        Query(Selection("views"), by="key", most=0)
    with pytest.raises(TypeError, match="key="):
        totals.total("views", keys="abc")


@pytest.mark.servers("mariadb", "mysql")
def test_a_series_of_ages_asks_for_a_range(applier: Applier, totals: Totals) -> None:
    far = [
        (0, "views", "k", minute(date(1970, 1, 1)), 1),
        (1, "views", "k", minute(date(9999, 12, 25)), 2),
    ]
    applier.apply([entry(far)])
    with pytest.raises(ValueError, match=r"give a range of at most 100,000"):
        totals.daily("views")
    assert totals.span("views") == (date(1970, 1, 1), date(9999, 12, 25))
    assert totals.daily("views", start=date(9999, 12, 25), end=date.max)[0][1] == 2
    assert totals.total("views", end=date.max) == 3
    assert totals.total("views", start=date.min) == 3
    assert len(totals.daily("views", end=date(2243, 10, 16))) == 100_000


def test_a_read_after_the_server_has_ended_the_connection(
    mysql_url: str, session: Session, applier: Applier
) -> None:
    applier.apply([entry(rows(("k", 1)))])
    made: list[int] = []

    def new() -> Session:
        opened = connect(mysql_url, isolation="REPEATABLE READ")
        made.append(opened.query("SELECT CONNECTION_ID()")[0][0])
        return opened

    pool = Pool(new)
    totals = Totals(pool)
    assert totals.total("views") == totals.total("views") == 1
    assert len(made) == 1
    session.execute("KILL %s", (made[0],))
    assert totals.total("views") == 1
    assert len(made) == 2
    pool.close()
    assert totals.total("views") == 1
    pool.close()


def test_a_forked_child_makes_its_own_connection(applier: Applier, totals: Totals) -> None:
    applier.apply([entry(rows(("k", 1)))])
    assert totals.total("views") == 1
    child = os.fork()
    if not child:
        os._exit(0 if totals.total("views") == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert totals.total("views") == 1


AT = datetime(2026, 11, 20, 8, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"last": "0h"}, ValueError, "no window"),
    ({"last": "-1h"}, ValueError, "no window"),
    ({"last": "3y"}, ValueError, "no window"),
    ({"last": "5215w"}, ValueError, "36,500 days"),
    ({"last": "24H"}, ValueError, "no window"),
    ({"last": "36501d"}, ValueError, "36,500 days"),
    ({"last": timedelta(0)}, ValueError, "whole minutes"),
    ({"last": timedelta(minutes=-5)}, ValueError, "whole minutes"),
    ({"last": timedelta(seconds=90)}, ValueError, "whole minutes"),
    ({"last": timedelta.max}, ValueError, "whole minutes"),
    ({"last": "24h", "start": AT}, ValueError, "not both"),
    ({"last": "24h", "end": AT.date()}, ValueError, "not both"),
    ({"start": AT.replace(tzinfo=None)}, ValueError, "no time zone"),
    ({"end": datetime(1969, 12, 31, 23, 59, tzinfo=UTC)}, ValueError, "1970-01-01"),
    ({"start": AT.replace(second=1)}, ValueError, "whole minute"),
    ({"start": AT.replace(microsecond=1)}, ValueError, "whole minute"),
    ({"start": AT, "end": AT}, ValueError, "before it begins"),
    ({"start": AT, "end": AT - timedelta(minutes=1)}, ValueError, "before it begins"),
    ({"start": "2026-11-20"}, TypeError, "datetime.date"),
    ({"start": date(2026, 11, 20), "end": date(2026, 11, 19)}, ValueError, "before it begins"),
    ({"start": AT, "end": date(2026, 11, 18)}, ValueError, "before it begins"),
    ({"start": date(2026, 11, 22), "end": AT}, ValueError, "before it begins"),
    # Clocks in Berlin show 02:45 before 02:30 that night.
    (
        {
            "start": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
            "end": datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN),
        },
        ValueError,
        "before it begins",
    ),
]


@pytest.fixture
def store(mysql_url: str) -> Iterator[Store]:
    with Store(mysql_url) as opened:
        opened.counters.set("views", resolution="minute")
        yield opened


@pytest.mark.parametrize(("asked", "kind", "says"), WRONG, ids=lambda it: str(it)[:60])
def test_what_is_no_window_is_an_error_of_every_question(
    store_of_nowhere: Store, asked: dict[str, Any], kind: type[Exception], says: str
) -> None:
    totals = store_of_nowhere.totals
    series = (totals.daily, totals.weekly, totals.hourly, totals.minutely, totals.monthly)
    for question in (totals.total, *series, totals.top, totals.by_key):
        with pytest.raises(kind, match=says):
            question("views", **asked)


def test_a_window_of_a_timedelta_is_that_of_the_same_text(store: Store) -> None:
    assert store.totals.total("views", last=timedelta(days=1)) == 0
    assert len(store.totals.minutely("views", last=timedelta(minutes=90))) == 90
    assert len(store.totals.daily("views", last="7d")) == 7
    assert len(store.totals.weekly("views", last="4w")) == 4


def test_a_range_from_a_day_to_a_time_ends_at_the_time(store: Store, mysql_url: str) -> None:
    """Also where buckets are days, and the range could be taken for one of days."""
    store.counters.set("days", time_zone="America/New_York")
    with closing(open_app(mysql_url, autocommit=True)) as connection:
        for day, amount in ((20, 1), (21, 2), (22, 4)):
            at = datetime(2026, 11, day, 12, tzinfo=UTC)
            store.increment(connection, "days", "a", amount, at=at)
    midnight = datetime(2026, 11, 22, 5, tzinfo=UTC)
    asked: dict[str, Any] = {"start": date(2026, 11, 21), "end": midnight}
    assert store.totals.total("days", **asked) == 2
    assert store.totals.daily("days", **asked) == [(date(2026, 11, 21), 2)]
    assert store.totals.total("days", start=midnight, end=date(2026, 11, 22)) == 4


def test_the_window_before_a_range_is_as_long_where_clocks_change() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    window = window_of(Selection("views", start=start, end=start + timedelta(days=1)))
    assert window is not None
    before = window.before
    assert before is not None
    assert (before.start, before.end) == (
        datetime(2026, 10, 23, 9, tzinfo=UTC),  # 25 hours
        datetime(2026, 10, 24, 10, tzinfo=UTC),
    )
