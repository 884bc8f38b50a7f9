"""No question reads more of the table than its range, and each goes by the index meant for it."""

import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any

import pytest

from countersink.counting.counters.all_counters import counter_names
from countersink.counting.totals import sums
from countersink.counting.totals.answer import answer
from countersink.counting.totals.query import Query
from countersink.counting.totals.selection import KeyMatch, Selection
from countersink.counting.totals.series import Unit, series
from countersink.counting.totals.snapshot import Snapshot
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.database.session import Session
from tests.support.entries import days_of, minute
from tests.support.ledger import post_planted
from tests.support.processes import PROJECT
from tests.support.servers import MySQLServer
from tests.support.width_rows import WidthRow, put_rows, put_scheme

FIRST = date(2026, 1, 1)
Ask = Callable[[Snapshot], Any]

DAYS, KEYS, SLOTS = 20, 40, 2
DAY = FIRST + timedelta(days=10)
LATER = DAY + timedelta(days=2)


@pytest.fixture(scope="module")
def filled(mysql_server: MySQLServer) -> Iterator[Session]:
    """A session that nobody writes with, on a database of the module's own."""
    url = mysql_server.url_for("test_ranges")
    migrate(url)
    with connect(url, idle_seconds=600) as session:
        _fill(session)
        yield session
        session.execute("DROP DATABASE test_ranges")


def _fill(session: Session) -> None:
    """Counters of 1,600 rows, between each other in the index; one whose resolution has changed,
    and one that has months.
    """
    days, keys = (
        days_of(FIRST, FIRST + timedelta(days=DAYS - 1)),
        [f"k{n:02d}" for n in range(KEYS)],
    )
    for counter in ("a", "b", "b1", "b2", "c"):
        rows: list[WidthRow] = [(counter, "day", day, key, 1) for day in days for key in keys]
        put_rows(session, rows, slots=range(SLOTS))
    session.execute(
        "UPDATE counter_slot SET width = 3"
        " WHERE counter = 'b2' AND (bucket > %s OR (bucket = %s AND slot > 0))",
        (DAY, DAY),
    )
    post_planted(session)
    session.execute("DELETE FROM counter_ledger WHERE amount = 0")
    put_scheme(session, "b2", resolution="hour", counted_day=minute(DAY, 1440))
    months = (date(2025, 11, 1), date(2025, 12, 1))
    put_rows(session, [("b1", "month", month, key, 1) for month in months for key in keys])
    put_scheme(session, "b1", rolled_month=minute(FIRST, 0))
    session.query("ANALYZE TABLE counter_slot, counter_ledger")


_HANDLERS = ("key", "next", "prev", "first", "last")
"""Reads through an index. (Scans of temporary tables count as rnd_next; a scan of ours is found by
EXPLAIN.)"""


def _rows_read(session: Session) -> int:
    found = session.query("SHOW SESSION STATUS LIKE 'Handler_read%'")
    wanted = {f"Handler_read_{name}" for name in _HANDLERS}
    return sum(int(value) for name, value in found if name in wanted)


def _cost(session: Session, ask: Ask) -> int:
    before = _rows_read(session)
    ask(Snapshot(session))
    return _rows_read(session) - before


def _rows(unit: Unit, snapshot: Snapshot, selection: Selection) -> list[tuple[date, int]]:
    return series(snapshot, selection, unit, strict=True).rows


def total(counter: str = "b", **wanted: Any) -> Ask:
    return lambda snapshot: sums.total(snapshot, Selection(counter, **wanted))


def many(counter: str = "b", **wanted: Any) -> Ask:
    return lambda snapshot: sums.many(snapshot, Selection(counter, **wanted))


def top(counter: str = "b", limit: int | None = 3, **wanted: Any) -> Ask:
    return lambda snapshot: sums.by_key(snapshot, Selection(counter, **wanted), limit=limit)


def span(counter: str = "b", **wanted: Any) -> Ask:
    return lambda snapshot: sums.span(snapshot, Selection(counter, **wanted))


def by(unit: Unit, counter: str = "b", **wanted: Any) -> Ask:
    return lambda snapshot: _rows(unit, snapshot, Selection(counter, **wanted))


def together(ask: Callable[..., Ask], *how: Any, **wanted: Any) -> Ask:
    """Ask the same of three counters, which are read together."""

    def of_three(snapshot: Snapshot) -> None:
        with snapshot.together(["a", "b", "c"]):
            for name in ("a", "b", "c"):
                ask(*how, counter=name, **wanted)(snapshot)

    return of_three


ONE_DAY = KEYS * SLOTS
ONE_KEY = DAYS * SLOTS
ALL = DAYS * KEYS * SLOTS
DECEMBER = date(2025, 12, 1)
OF_DAY: dict[str, Any] = {"start": DAY, "end": DAY}
OF_THREE: dict[str, Any] = {"start": DAY, "end": LATER}
TWO: dict[str, Any] = {"keys": ["k07", "k30"], **OF_THREE}
PREFIX = KeyMatch(prefix="k07")
PREFIXES = KeyMatch(prefix=["k07", "k30"], exclude_keys=["k30"], contains="k")

QUESTIONS: dict[str, tuple[Ask, int]] = {
    "a day's total": (total(**OF_DAY), 1),
    "three days": (by("day", **OF_THREE), 3),
    "one key, all days": (total(keys=["k07"]), ONE_KEY),
    "one key's series": (by("day", keys=["k07"]), ONE_KEY),
    "one key, one day": (total(keys=["k07"], **OF_DAY), SLOTS),
    "two keys, three days": (many(**TWO), 6 * SLOTS),
    "a day's top": (top(**OF_DAY), ONE_DAY),
    "the counter's total": (total(), DAYS),
    "all counters, one day": (
        lambda s: answer(s, Query(Selection(**OF_DAY), by="counter")),
        6,
    ),
    "the span": (span(), 2),
    "a key's span": (span(keys=["k07"]), 2),
    "an absent key": (total(keys=["nobody"]), 0),
    "names": (lambda s: counter_names(s.session), 10),
    "whether it is known": (lambda s: s.require_known("b"), 0),
    "after a change, a day's total": (total("b2", start=LATER, end=LATER), 1),
    "after a change, a day's top": (top("b2", **OF_DAY), 2 * ONE_DAY),  # the day of the change
    "after a change, one key, all days": (by("day", "b2", keys=["k07"]), ONE_KEY + SLOTS),
    "after a change, two keys, three days": (many("b2", **TWO), 8 * SLOTS),
    "after a change, the span": (span("b2"), 4),
    "months too, one key": (by("month", "b1", keys=["k07"]), ONE_KEY + 2),
    "months too, the total of one": (total("b1", start=DECEMBER, end=date(2025, 12, 31)), 1),
    "months too, a month's top": (
        top("b1", start=DECEMBER, end=FIRST),
        KEYS + ONE_DAY + KEYS,  # and their sums
    ),
    "after a change, hours": (by("hour", "b2", start=LATER, end=LATER), 1),
    "days behind months": (by("day", "b1", **OF_THREE), 3),
    "whether a month is cut": (total("b1", start=date(2025, 10, 2), end=date(2025, 10, 3)), 2),
    "how far days are rolled up": (lambda s: s.rolled_up_to(), 10),
    "together, a day of three": (together(by, "day", **OF_DAY), 3),
    "together, one key of three": (together(by, "day", keys=["k07"]), 3 * ONE_KEY),
    "one key by prefix, all days": (total(keys=PREFIX), ONE_KEY),
    "a series of two prefixes without a key": (by("day", keys=PREFIXES), 2 * ONE_KEY),
    "a day without a key": (total(keys=KeyMatch(exclude_keys=["k07"]), **OF_DAY), ONE_DAY),
    "a day's keys by prefix": (top(limit=None, keys=KeyMatch(prefix="k0"), **OF_DAY), 10 * SLOTS),
    "months too, by prefix": (by("month", "b1", keys=PREFIX), ONE_KEY + 2),
    "together, a prefix of three": (
        together(by, "day", keys=PREFIX),
        3 * ONE_KEY + 2 * DAYS,  # and the sums
    ),
    "together, a day's top of three": (
        together(top, limit=None, **OF_DAY),
        3 * (ONE_DAY + 2 * KEYS),  # and the sums
    ),
}
"""Each with the number of rows in its range."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_reads_its_range(filled: Session, question: str) -> None:
    """What comes on top: the ends of ranges, the check that the counter exists, the groups."""
    ask, rows = QUESTIONS[question]
    ask(Snapshot(filled))
    groups = KEYS + DAYS if rows >= ONE_KEY else 0
    assert _cost(filled, ask) <= rows + ONE_KEY + groups + 12


def test_no_query_is_a_full_scan(filled: Session) -> None:
    """As EXPLAIN sees it: a range or a lookup, by the primary key or by_key, never ALL or index."""
    seen: list[tuple[str, tuple[object, ...]]] = []

    class Recording:
        """A session that notes what it is asked."""

        dialect = filled.dialect

        def query(self, sql: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
            seen.append((sql, tuple(args)))
            return filled.query(sql, args)

    recording: Any = Recording()
    for ask, _ in QUESTIONS.values():
        ask(Snapshot(recording))
    _rows("day", Snapshot(recording), Selection("b"))
    checked = 0
    for sql, args in seen:
        for line in _explain(filled, sql, args):
            if line["table"] == "counter_slot":
                assert line["type"] in ("range", "ref", "eq_ref", "const"), (sql, line)
                assert line["key"] in ("PRIMARY", "by_key"), (sql, line)
                checked += 1
    assert checked > 10


def _explain(session: Session, sql: str, args: tuple[object, ...]) -> list[dict[str, Any]]:
    """EXPLAIN's lines; the layout of columns is the same on both servers up to the key."""
    traditional = "FORMAT=TRADITIONAL " if session.dialect.name == "mysql" else ""
    rows = session.query(f"EXPLAIN {traditional}{sql}", args)
    mysql = session.dialect.name == "mysql"
    table, kind, key = (2, 4, 6) if mysql else (2, 3, 5)
    return [{"table": row[table], "type": row[kind], "key": row[key]} for row in rows]


def test_the_view_is_read_by_range_too(filled: Session) -> None:
    sql = "SELECT * FROM counter_daily WHERE counter = %s"
    lines = [line for line in _explain(filled, sql, ("b",)) if line["table"] == "counter_slot"]
    assert lines
    assert all(line["type"] in ("range", "ref") for line in lines), lines


def test_the_query_of_a_bi_tool_finds_its_key_alone_and_by_range(session: Session) -> None:
    page = PROJECT / "docs/how-to/bi-tool.md"
    (query,) = re.findall(r"^SELECT .* FROM counter_daily .*;$", page.read_text("utf-8"), re.M)
    others = [f"/{number}" for number in range(300)]
    put_rows(
        session,
        [
            ("page_views", "day", date(2026, 11, day), key, 1)
            for day in (20, 21)
            for key in ("/home", "/Home", "/home ", "/hóme", "/homé", *others)
        ],
        slots=(1, 2),
    )
    session.query("ANALYZE TABLE counter_slot, counter_ledger")
    sql = query.rstrip(";").replace("%", "%%")
    before = _rows_read(session)
    found = session.query(sql)
    assert [(day.isoformat(), int(total)) for day, total in found] == [
        ("2026-11-20", 2),
        ("2026-11-21", 2),
    ]
    assert _rows_read(session) - before < 30
    lines = [line for line in _explain(session, sql, ()) if line["table"] == "counter_slot"]
    assert [(line["type"], line["key"]) for line in lines] in (
        [("ref", "by_key")],
        [("range", "by_key")],
    )
