"""All counters are read together: the answers are those of each by itself, in few statements."""

from dataclasses import replace
from datetime import date, datetime, time
from itertools import product
from typing import Any

import pytest

from countersink.counting.counters import all_counters
from countersink.counting.counters.buckets import Width
from countersink.counting.totals import sums
from countersink.counting.totals.query import COLUMNS, Query, Row
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.snapshot import MAX_ROWS
from countersink.database.errors import StoreError
from countersink.database.session import Session
from countersink.reads.overview import OverviewQuery
from countersink.store import Store
from tests.reads.support import DAYS, Ground
from tests.support.asking import Asking
from tests.support.entries import minute
from tests.support.examples import MANY
from tests.support.width_rows import put_rows, put_scheme

pytestmark = pytest.mark.servers("mariadb", "mysql")

COUNTERS = 1_200 if MANY else 400
QUESTIONS = [
    Query(Selection(), by="day"),
    Query(Selection(start=DAYS[1], end=DAYS[2]), by="day"),
    Query(Selection(keys=("k1", "k2", "nobody's")), by="day"),
    Query(Selection(start=DAYS[1]), by="hour"),
    Query(Selection(), by="month"),
    Query(Selection(start=DAYS[1]), by="week"),
    Query(Selection(), by="key"),
    Query(Selection(start=DAYS[1]), by="key", top=2),
    Query(Selection(keys=KeyMatch(prefix="k", contains="1")), by="key"),
    Query(Selection(keys=("k2", "k1")), by="key"),
    Query(Selection(keys=KeyMatch(prefix="k", exclude_keys=["k1"])), by="key"),
    Query(Selection(keys=KeyMatch(prefix=("k1", "k2"), exclude_prefix="k3")), by="day"),
    Query(Selection(keys=KeyMatch(exclude_prefix="k1")), by="month"),
    Query(Selection(keys=KeyMatch(exclude_keys=["k2"], contains="k")), by="total"),
    Query(Selection(keys=("k2",)), by="total"),
    Query(Selection(time_zone="Asia/Kolkata"), by="day"),
]


def put(session: Session, rows: list[tuple[str, date, str, int]], width: Width = "day") -> None:
    """Slot rows: counter, bucket, key, amount."""
    put_rows(session, [(name, width, bucket, key, amount) for name, bucket, key, amount in rows])


def at(day: date, hour: int = 0) -> datetime:
    return datetime.combine(day, time(hour))


def fill(session: Session) -> None:
    """Counters of every shape: plain ones, of other zones and widths, changed, in months, made and
    never counted."""
    rows: list[tuple[str, date, str, int]] = [
        (f"plain{number}", day, f"k{key}", number + key + 1)
        for number in range(4)
        for day in DAYS[number % 2 :]
        for key in range(number + 2)
    ]
    put_scheme(session, "days.tokyo", "Asia/Tokyo")
    rows += [("days.tokyo", day, "k1", 3) for day in DAYS]
    rows += [("changed", day, "k1", 5) for day in DAYS[:2]]
    put_scheme(session, "changed", resolution="hour", counted_day=minute(DAYS[2], 0))
    rows += [("months", day, "k1", 2) for day in DAYS[1:]]
    put_scheme(session, "months", rolled_month=minute(date(2026, 11, 1), 0))
    put_scheme(session, "made")
    put(session, rows)
    for name, zone in (("berlin", "Europe/Berlin"), ("kolkata", "Asia/Kolkata")):
        put_scheme(session, name, zone, "quarter")
        rows = [(name, at(day, hour), f"k{hour % 3}", hour) for day in DAYS for hour in (1, 22)]
        put(session, rows, "quarter")
    put(session, [("changed", at(DAYS[2], 7), "k2", 9)], "hour")
    months = [("months", date(2026, 9, 1), "k1", 30), ("months", date(2026, 10, 1), "k3", 4)]
    put(session, months, "month")


def told(reads: Asking, query: Query) -> tuple[list[Row], date | None, date | None]:
    """What an answer tells."""
    found = reads.ask(query)
    return found.rows, found.rolled_up_to, found.told_from


def narrowed(query: Query, **wanted: Any) -> Query:
    """The same of other counts."""
    return replace(query, selection=replace(query.selection, **wanted))


def outcome(reads: Asking, query: Query) -> object:
    """The same, or the error."""
    try:
        return told(reads, query)
    except StoreError as error:
        return type(error), str(error)


def test_what_is_read_together_is_what_each_is_by_itself(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ground.session)
    ground.queue(("plain1", "k1", 1, 100), ("berlin", "new", 2, 7), ("queued", "k1", 3, 1))
    reads = Asking(ground.store, ground.client)
    for query, include_pending in product(QUESTIONS, (False, True)):
        asked = replace(query, include_pending=include_pending)
        names = reads.names(include_pending=include_pending)
        if query.selection.time_zone is not None or query.by == "hour":
            # Of the others it cannot be told, which is an error of all.
            names = [name for name in names if name in ("berlin", "kolkata")]
            asked = narrowed(asked, visible=names.__contains__)
        each = [told(reads, narrowed(asked, counter=name)) for name in names]
        rows = [(name, *row) for name, (own, *_) in zip(names, each, strict=True) for row in own]
        rolled = max((up_to for _, up_to, _ in each if up_to), default=None)
        begins = max((begin for *_, begin in each if begin), default=None)
        assert rows, query
        for most in (MAX_ROWS, 7, 1):
            with monkeypatch.context() as patch:
                patch.setattr(sums, "MAX_ROWS", most)
                found = outcome(reads, asked)
            assert found == (rows, rolled, begins), (most, asked)


def test_what_cannot_be_told_of_one_cannot_be_told_of_all(store: Store, session: Session) -> None:
    fill(session)
    reads = Asking(store, None)
    query = Query(Selection(), by="hour")
    assert outcome(reads, query) == outcome(reads, narrowed(query, counter="days.tokyo"))
    other = narrowed(query, visible=lambda name: name != "days.tokyo")
    assert outcome(reads, other) == outcome(reads, narrowed(query, counter="months"))


def test_counters_that_may_not_be_seen_have_no_part_in_an_answer(
    store: Store, session: Session
) -> None:
    fill(session)
    reads = Asking(store, None)
    # Within a month: of `months` that is an error.
    plain = Selection(start=DAYS[0], visible=lambda name: "plain" in name)
    query = Query(plain, by="counter")
    assert {row[0] for row in reads.ask(query).rows} == {f"plain{n}" for n in range(4)}
    for by in COLUMNS:
        if by not in ("hour", "minute"):
            assert reads.ask(narrowed(replace(query, by=by), start=None)).rolled_up_to is None
    assert reads.ask(Query(Selection(), by="month")).rolled_up_to == date(2026, 11, 1)


@pytest.mark.random
def test_the_number_of_statements_does_not_grow_with_the_counters(
    store: Store, session: Session
) -> None:
    names = [f"c{number:04d}" for number in range(COUNTERS)]
    put(session, [(name, at(day), "k", 1) for name in names for day in DAYS[:2]])
    for name in names[::40]:
        put_scheme(session, name, "Europe/Berlin")
    reads = Asking(store, None)

    def asked() -> int:
        return int(session.query("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])

    for by in ("day", "week", "month", "key", "total", "counter"):
        query = Query(Selection(start=DAYS[0], keys=None if by == "counter" else ("k",)), by=by)
        before = asked()
        found = reads.ask(query)
        assert asked() - before < COUNTERS // 16, by
        assert len({row[0] for row in found.rows}) == COUNTERS, by

    def overview() -> int:
        before = asked()
        query = reads.overview(OverviewQuery(limit=COUNTERS, days=3))
        assert len(query.lines) == COUNTERS
        return asked() - before

    # The server counts what others ask meanwhile, too.
    assert min(overview() for _ in range(3)) < COUNTERS // 16


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_by_name_are_the_same_where_the_names_come_in_parts(
    ground: Ground, reverse: bool
) -> None:
    names = [f"c{number:03d}{'x' * (number % 3 == 0)}" for number in range(120)]
    breakdowns = [f"{name}#1" for name in names[::7]]
    put(ground.session, [(name, at(DAYS[0]), "k", 1) for name in (*names, *breakdowns)])
    ground.queue(("c0505", "k", 0, 1))
    reads = Asking(ground.store, ground.client)

    def pages(**question: Any) -> list[str]:
        found: list[str] = []
        while True:
            query = OverviewQuery(
                after=found[-1] if found else "", limit=4, days=0, reverse=reverse, **question
            )
            page = reads.overview(query, include_pending=True)
            found += [line.counter for line in page.lines]
            if not page.more:
                return found

    questions: list[dict[str, Any]] = [
        {},
        {"search": "x"},
        {"search": "nothing"},
        {"visible": lambda name: name.endswith("5")},
    ]
    whole = [pages(**each) for each in questions]
    assert whole[0] == sorted([*names, "c0505"], reverse=reverse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_counters, "NAMES_PER_QUERY", 9)
        assert [pages(**each) for each in questions] == whole
        assert reads.overview(OverviewQuery(limit=3)).counters is None
        all_names, seen = reads.today(["c001", "nobody", "c003x"])
        assert all_names is None
        assert [line.counter for line in seen.lines] == ["c001", "c003x"]
    with pytest.raises(ValueError, match="`after`"):
        reads.overview(OverviewQuery(after="no name"))
