"""What is no window or time is refused in Python too, whatever asks."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from countersink.store import Store
from countersink.store.totals.selection import Selection
from countersink.store.totals.windows import window_of
from tests.store.app import open_app

AT = datetime(2026, 11, 20, 8, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"last": "0h"}, ValueError, "no window"),
    ({"last": "-1h"}, ValueError, "no window"),
    ({"last": "3w"}, ValueError, "no window"),
    ({"last": "24H"}, ValueError, "no window"),
    ({"last": " 24h"}, ValueError, "no window"),
    ({"last": "36501d"}, ValueError, "36,500 days"),
    ({"last": timedelta(0)}, ValueError, "whole minutes"),
    ({"last": timedelta(minutes=-5)}, ValueError, "whole minutes"),
    ({"last": timedelta(seconds=90)}, ValueError, "whole minutes"),
    ({"last": timedelta.max}, ValueError, "whole minutes"),
    ({"last": 24}, TypeError, "a window is a text"),
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
    series = (totals.daily, totals.hourly, totals.minutely, totals.monthly)
    for question in (totals.total, *series, totals.top, totals.by_key):
        with pytest.raises(kind, match=says):
            question("views", **asked)


def test_a_window_of_a_timedelta_is_that_of_the_same_text(store: Store) -> None:
    assert store.totals.total("views", last=timedelta(days=1)) == 0
    assert len(store.totals.minutely("views", last=timedelta(minutes=90))) == 90
    assert len(store.totals.daily("views", last="7d")) == 7


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
