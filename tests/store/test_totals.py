"""Totals against brute force over the same rows in Python."""

import os
import threading
from collections import Counter
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.store import UnknownCounter
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.errors import SchemaMismatch
from countersink.store.sessions import Pool
from countersink.store.totals import Totals, sums
from countersink.store.totals.answer import answer
from countersink.store.totals.query import Query
from countersink.store.totals.selection import Selection
from countersink.store.totals.snapshot import Snapshot
from tests.store.helpers import MAX, entry, minute, rows
from tests.support.asking import rows_by
from tests.support.examples import examples

BASE = date(2026, 2, 25)
DAYS = [BASE + timedelta(days=index) for index in range(12)]
KEYS = ["", "/a", "/A", "/a ", "é", "\N{GRINNING FACE}"]

Cells = dict[tuple[str, date, str], int]


def _put(session: Session, cells: Cells, counters: tuple[str, ...] = ("c", "d")) -> None:
    """Exactly these cells, scattered over slots whose parts add up to them."""
    session.execute("DELETE FROM counter_slot")
    session.execute("DELETE FROM counter_ledger")
    for counter in counters:
        session.execute(
            "INSERT INTO counter_ledger VALUES (%s, 1, 0, 0, NULL), (%s, 2, 0, 0, NULL)",
            (counter,) * 2,
        )
    for (counter, day, key), amount in cells.items():
        for slot, part in ((0, amount + 7), (3, -10), (300, 3)):
            session.execute(
                "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
                " VALUES (%s, %s, %s, %s, %s)",
                (counter, day, key.encode(), slot, part),
            )


def _by_counter(session: Session, selection: Selection) -> list[tuple[str, int]]:
    return answer(Snapshot(session), Query(selection, by="counter")).rows


_cells = st.dictionaries(
    st.tuples(st.sampled_from(["c", "d"]), st.sampled_from(DAYS), st.sampled_from(KEYS)),
    st.integers(-3, 3),
    max_size=25,
)
_day = st.none() | st.sampled_from([BASE - timedelta(days=3), *DAYS, DAYS[-1] + timedelta(days=3)])


@pytest.mark.servers("mariadb", "mysql")
@examples(few=12, many=60)
@given(
    cells=_cells,
    start=_day,
    end=_day,
    chosen=st.none() | st.lists(st.sampled_from(KEYS), max_size=4),
    n=st.integers(1, 4),
)
def test_every_question_against_brute_force(
    session: Session,
    cells: Cells,
    start: date | None,
    end: date | None,
    chosen: list[str] | None,
    n: int,
) -> None:
    _put(session, cells)
    if start and end and end < start:
        start, end = end, start
    mine = {
        (day, key): amount
        for (counter, day, key), amount in cells.items()
        if counter == "c" and (chosen is None or key in chosen)
    }
    within = {
        (day, key): amount
        for (day, key), amount in mine.items()
        if (start is None or day >= start) and (end is None or day <= end)
    }
    found = sums.total(Snapshot(session), Selection("c", keys=chosen, start=start, end=end))
    assert found == sum(within.values())

    first = start or min((day for day, _ in mine), default=None)
    last = end or max((day for day, _ in mine), default=None)
    by_day = Counter[date]()
    for (day, _), amount in within.items():
        by_day[day] += amount
    expected = []
    if first and last and (mine or (start and end)):
        while first <= last:
            expected.append((first, by_day[first]))
            first += timedelta(days=1)
    assert rows_by("day", session, Selection("c", keys=chosen, start=start, end=end)) == expected

    days = [day for day, _ in mine]
    assert sums.span(Snapshot(session), Selection("c", keys=chosen)) == (
        (min(days), max(days)) if days else None
    )

    if chosen is None:
        by_key = Counter[str]()
        for (_, key), amount in within.items():
            by_key[key] += amount
        ranked = sorted(by_key.items(), key=lambda pair: (-pair[1], pair[0].encode()))
        wanted = Selection("c", start=start, end=end)
        assert sums.by_key(Snapshot(session), wanted) == ranked
        assert (
            sums.by_key(Snapshot(session), Selection("c", start=start, end=end), limit=n)
            == ranked[:n]
        )
        everything = {
            name: sum(
                amount
                for (counter, day, _), amount in cells.items()
                if counter == name
                and (start is None or day >= start)
                and (end is None or day <= end)
            )
            for name in ("c", "d")
        }
        assert dict(_by_counter(session, Selection(start=start, end=end))) == everything
    else:
        asked = {key: sum(a for (_, k), a in within.items() if k == key) for key in chosen}
        found_many = sums.many(Snapshot(session), Selection("c", keys=chosen, start=start, end=end))
        assert found_many == asked
        assert list(found_many) == list(asked)


@pytest.mark.servers("mariadb", "mysql")
def test_sums_beyond_bigint_are_exact(session: Session, totals: Totals) -> None:
    session.execute("INSERT INTO counter_ledger VALUES ('c', 1, 0, 0, NULL)")
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('c', '2026-11-21', 'k', 1, %s),"
        " ('c', '2026-11-21', 'k', 2, %s)",
        (MAX, MAX),
    )
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
    for number in range(450):
        session.execute("INSERT INTO counter_ledger VALUES (%s, 1, 0, 0, NULL)", (f"c{number}",))
        session.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES (%s, '2026-11-21', '', 1, %s)",
            (f"c{number}", number),
        )
    assert totals.counters() == {f"c{number}": number for number in range(450)}
    day = date(2026, 11, 20)
    assert set(totals.counters(end=day).values()) == {0}


def test_an_unknown_counter_is_said_to_be_so(session: Session, totals: Totals) -> None:
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('c', '2026-11-21', 'k', 300, 4)"
    )
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


def test_a_counter_that_only_the_slots_know_is_known(session: Session, totals: Totals) -> None:
    session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        " VALUES ('c', '2026-11-21', 'k', 300, 4)"
    )
    assert totals.total("c") == 4


def test_a_declared_counter_is_known(applier: Applier, totals: Totals) -> None:
    applier.apply([entry(rows(("k", 0)))])
    assert totals.total("views") == 0
    assert totals.top("views") == [("k", 0)]


def test_nonsense_is_refused(applier: Applier, totals: Totals) -> None:
    applier.apply([entry(rows(("k", 1)))])
    early, late = date(2026, 1, 1), date(2026, 1, 2)
    with pytest.raises(ValueError, match="before it begins"):
        totals.total("views", start=late, end=early)
    with pytest.raises(ValueError, match="1 key or more"):
        totals.top("views", n=0)
    with pytest.raises(ValueError, match="not both"):
        totals.total("views", key="a", keys=["b"])
    with pytest.raises(TypeError, match="key="):
        totals.total("views", keys="abc")
    with pytest.raises(ValueError, match="no time zone"):
        totals.total("views", start=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match="in days"):
        totals.total("views", start="2026-01-01")  # type: ignore[arg-type]


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


def test_threads_share_a_store(applier: Applier, totals: Totals) -> None:
    applier.apply([entry(rows(("k", 1)))])
    wrong: list[int] = []

    def ask() -> None:
        for _ in range(20):
            if totals.total("views") != 1:
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_makes_its_own_connection(applier: Applier, totals: Totals) -> None:
    applier.apply([entry(rows(("k", 1)))])
    assert totals.total("views") == 1
    child = os.fork()
    if not child:
        os._exit(0 if totals.total("views") == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert totals.total("views") == 1


def test_a_newer_schema_is_not_read(session: Session, totals: Totals) -> None:
    session.execute("INSERT INTO schema_version VALUES (999, 'later', UTC_TIMESTAMP(3))")
    with pytest.raises(SchemaMismatch):
        totals.counters()
