"""Moving a range: all of it or nothing, whoever reads, writes, holds or kills meanwhile."""

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from functools import partial

import pytest
from pymysql.cursors import DictCursor

from countersink.database.connection import connect
from countersink.database.errors import Conflict, Unavailable
from countersink.database.session import Session
from countersink.database.sql import month_label
from countersink.runtime.retry import Pace
from countersink.schedules.errors import Outdated
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import Moved, Mover, move, open_tables
from countersink.schedules.jobs.ranges import BucketKey, BucketRange, Wider, next_part
from tests.schedules.tables import DAY, LABEL, MAX, MIN, Tables, spread
from tests.support.entries import says
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.roll_up import roll_up

APRIL = int(datetime(2020, 4, 1, tzinfo=UTC).timestamp())
MARCH = Wider(month_label(date(2020, 3, 1)), APRIL, 0)
WHOLE = BucketRange("v", LABEL, b"", b"\xff" * 255)
LOCKING = says("FOR UPDATE NOWAIT")
ALL_BYTES = [b"", b"\x00", b"'", b"\\", b"%s", b"a", b"a ", b"A", "ä".encode(), b"\xff\xfe"]


@pytest.fixture
def session(mysql_url: str) -> Iterator[Session]:
    with open_tables(mysql_url) as opened:
        yield opened


def roll_up_to_april(tables: Tables) -> None:
    tables.run(
        "INSERT INTO counter (name, rolled_month, created) VALUES ('v', '2020-04-01', '2020-01-01')"
    )


def test_a_range_becomes_one_row_per_key_in_slot_0_which_nobody_posts(
    tables: Tables, session: Session
) -> None:
    tables.plant(spread(ALL_BYTES, (0, 1, 17, 255, 256, 511, 512)))
    tables.plant([("v", DAY, b"declared", 3, 0)])
    before, posted = tables.totals(), tables.run("SELECT * FROM counter_ledger")
    assert move(session, WHOLE) == Moved(71, 11, 61)
    assert [(key, slot) for _, key, slot, _ in tables.slots()] == [
        (key, 0) for key in sorted([*ALL_BYTES, b"declared"])
    ]
    tables.check(before)
    assert tables.run("SELECT * FROM counter_ledger") == posted


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("to", [None, MARCH])
@pytest.mark.parametrize("last", [b"b", b"z"])
def test_only_the_range_moves(
    tables: Tables, session: Session, to: Wider | None, last: bytes
) -> None:
    """Other keys, other counters, and buckets that begin at the same time stay as they are."""
    roll_up_to_april(tables)
    others = [f"{DAY[:-2]} {width}" for width in (1, 2, 3, 5)]
    for bucket in (DAY, *others, "2020-03-05 00:01:00 1"):
        tables.plant(spread([b"a", b"b", b"c"], (0, 1, 2), bucket))
    tables.plant([("w", DAY, b"b", slot, 5) for slot in (1, 2)])
    beside = (
        "SELECT * FROM counter_slot WHERE width <> 4 OR counter = 'w' OR counter_key = 'a'"
        " ORDER BY 1, 2, 3, 4, 5"
    )
    before, totals = tables.run(beside), tables.totals()
    assert next_part(session, "v", LABEL, rows=15) == BucketRange("v", LABEL, b"a", b"a")
    moved = move(session, BucketRange("v", LABEL, b"b", last, to))
    assert moved.moved == (2 if to is None else 3) * (1 if last == b"b" else 2)
    assert {row for row in tables.run(beside) if row[1].day != 1} == set(before)
    tables.check(totals)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("month", [None, MARCH])
def test_sums_beyond_64_bits_move_exactly(
    tables: Tables, session: Session, month: Wider | None
) -> None:
    roll_up_to_april(tables)
    tables.plant(("v", DAY, b"up", slot, MAX) for slot in range(5))
    tables.plant([("v", DAY, b"down", 1, MIN), ("v", DAY, b"down", 2, MIN)])
    tables.plant([("v", DAY, b"down", 3, 1), ("v", DAY, b"a", 1, 7)])
    tables.plant([("v", DAY, b"back", 256, 5), ("v", DAY, b"back", 257, -5)])
    for _ in range(2):
        move(session, BucketRange("v", LABEL, b"a", b"z", month))
        sums = [(b"a", 7), (b"back", 0), (b"down", 2 * MIN + 1), (b"up", 5 * MAX)]
        if month is None:
            assert tables.slots() == [(DAY, key, 0, amount) for key, amount in sums]
        else:
            assert tables.months() == [(date(2020, 3, 1), key, amount) for key, amount in sums]
        tables.check_ledger()


NOT_WHAT_IT_WAS = {
    "deleted": "DELETE FROM counter",
    "made anew": "UPDATE counter SET rolled_month = NULL",
    "made anew, with days that are gone": "UPDATE counter SET rolled_month = '2020-03-01'",
    "catalog": "UPDATE control SET catalog_version = catalog_version + 1",
}


@pytest.mark.parametrize("change", NOT_WHAT_IT_WAS)
def test_nothing_moves_to_a_month_of_a_counter_that_is_not_what_it_was(
    tables: Tables, session: Session, change: str
) -> None:
    roll_up_to_april(tables)
    tables.plant(spread([b"a", b"b"], (0, 1, 300)))
    before = tables.slots()
    tables.run(NOT_WHAT_IT_WAS[change])
    with pytest.raises(Outdated):
        move(session, BucketRange("v", LABEL, b"a", b"z", MARCH))
    assert tables.slots() == before
    assert tables.months() == []
    tables.check_ledger()


@pytest.mark.servers("mariadb", "mysql")
def test_whoever_changes_counters_waits_for_a_move_to_a_month(
    tables: Tables, mysql_url: str
) -> None:
    roll_up_to_april(tables)
    tables.plant(spread([b"a"], (1, 2)))
    refused: list[str] = []

    def change(_request: Request) -> None:
        with connect(mysql_url, lock_wait=1) as other:
            for statement in ("SELECT 1 FROM control FOR UPDATE", "DELETE FROM counter"):
                with pytest.raises(Conflict), other.transaction():
                    other.execute(statement)
                refused.append(statement)

    with MySQLProxy.to(mysql_url) as proxy:
        proxy.when("*", Phase.AFTER, Deed.PASS, call=change, where=LOCKING)
        with open_tables(proxy.url(mysql_url)) as session:
            assert move(session, BucketRange("v", LABEL, b"a", b"a", MARCH)).moved == 2
    assert len(refused) == 2


@pytest.mark.servers("mariadb", "mysql")
def test_a_held_row_is_refused_at_once_and_nothing_stays_locked(
    tables: Tables, session: Session, mysql_url: str
) -> None:
    tables.plant(spread([b"a", b"b", b"c"], (1, 2)))
    with tables.held(b"b"):
        with pytest.raises(Conflict):
            move(session, WHOLE)
        # A writer that would not wait a moment.
        tables.run(
            "SELECT amount FROM counter_slot WHERE counter = 'v' AND bucket = %s"
            " AND counter_key = 'a' AND width = 4 AND slot = 1 FOR UPDATE NOWAIT",
            DAY[:-2],
        )
        tables.plant([("v", DAY, b"a", 9, 1)])
    assert move(session, WHOLE).moved == 7


@pytest.mark.servers("mariadb", "mysql")
def test_a_row_that_comes_between_reading_and_deleting_waits_and_is_counted(
    tables: Tables, mysql_url: str
) -> None:
    tables.plant(spread([b"a", b"c"], (1, 2)))
    insert = (
        "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
        f" VALUES ('v', '{DAY[:-2]}', 'b', 1, 1)"
    )
    refused: list[int] = []

    def refuse(_request: Request) -> None:
        with connect(mysql_url, lock_wait=1) as writer:
            with pytest.raises(Conflict) as waited:
                writer.execute(insert)
            refused.append(waited.value.code)

    with MySQLProxy.to(mysql_url) as proxy:
        proxy.when("*", Phase.AFTER, Deed.PASS, call=refuse, where=LOCKING)
        with open_tables(proxy.url(mysql_url)) as session:
            assert move(session, WHOLE).moved == 4
    assert refused == [1205]
    tables.check_ledger()


@pytest.mark.servers("mariadb", "mysql")
def test_without_gap_locks_a_row_that_comes_between_stops_the_move(
    tables: Tables, mysql_url: str
) -> None:
    tables.plant(spread([b"a", b"c"], (1, 2)))
    insert = [("v", DAY, b"b", 1, 1)]
    with MySQLProxy.to(mysql_url) as proxy:
        rule = proxy.when(
            "*", Phase.AFTER, Deed.PASS, call=lambda _: tables.plant(insert), where=LOCKING
        )
        with connect(proxy.url(mysql_url)) as session, pytest.raises(Conflict, match="in between"):
            move(session, WHOLE)
    assert rule.acted == 1
    assert len(tables.slots()) == 5
    tables.check_ledger()


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("phase", list(Phase))
def test_a_connection_lost_at_commit_is_made_again_and_the_range_with_it(
    tables: Tables, mysql_url: str, phase: Phase
) -> None:
    tables.plant(spread([b"a", b"b"], (1, 2, 300)))
    before = tables.totals()
    with MySQLProxy.to(mysql_url) as proxy:
        rule = proxy.when("commit_other", phase, Deed.CUT, times=1)
        with closing(Mover(lambda: open_tables(proxy.url(mysql_url)), Pace(), 2000)) as mover:
            mover.move(WHOLE)
    assert rule.acted == 1
    assert tables.totals() == before
    assert len(tables.slots()) == 2
    tables.check_ledger()


def test_a_server_that_stays_away_ends_it(mysql_url: str) -> None:
    proxy = MySQLProxy.to(mysql_url)
    url = proxy.url(mysql_url)
    proxy.close()
    mover = Mover(lambda: open_tables(url), Pace(stop=lambda: True), 2000)
    with closing(mover), pytest.raises(Unavailable):
        mover.run(lambda session: session.query("SELECT 1"))


@pytest.mark.servers("mariadb", "mysql")
def test_around_held_keys_everything_else_moves_and_they_in_the_next_pass(tables: Tables) -> None:
    keys = [b"%03d" % number for number in range(40)]
    tables.plant(spread(keys, (1, 2, 3)))
    tables.plant([("v", DAY, b"005x", slot, MAX) for slot in (1, 2)])
    before = tables.totals()
    passing = partial(compact, partial(open_tables, tables.url), CompactOptions(rows=50))
    with tables.held(b"020"):
        done = passing()
        assert done.busy == [BucketKey("v", LABEL, b"020")]
        assert (done.rows_before, done.rows_after) == (39 * 3 + 2, 39 + 1)
        assert done.finished
    assert {key for _, key, slot, _ in tables.slots() if slot} == {b"020"}
    tables.check(before)
    assert [passing().rows_before for _ in range(2)] == [3, 0]
    tables.check(before)


@pytest.mark.servers("mariadb", "mysql")
def test_parts_hold_about_so_many_rows_and_cover_every_key_once(
    tables: Tables, session: Session
) -> None:
    tables.plant(spread(ALL_BYTES, range(1, 8)))
    tables.plant(spread([b"compacted%d" % number for number in range(30)], (0,)))
    seen: list[tuple[bytes, bytes]] = []
    after: bytes | None = None
    while part := next_part(session, "v", LABEL, after=after, rows=20):
        seen.append((part.first, part.last))
        after = part.last
    inside = [[key for key in ALL_BYTES if first <= key <= last] for first, last in seen]
    assert sorted(key for part in inside for key in part) == sorted(ALL_BYTES)
    assert max(map(len, inside)) <= 3
    # What was compacted before is skipped: no part begins with it.
    assert {first for first, _ in seen} <= set(ALL_BYTES)


def test_a_key_with_more_rows_than_a_part_may_have_is_a_part(
    tables: Tables, session: Session
) -> None:
    tables.plant(spread([b"a", b"b"], range(1, 30)))
    assert next_part(session, "v", LABEL, rows=10) == BucketRange("v", LABEL, b"a", b"a")
    assert next_part(session, "v", LABEL, rows=10, above=28) == BucketRange("v", LABEL, b"a", b"a")
    assert next_part(session, "v", LABEL, rows=10, above=29) is None


@pytest.mark.servers("mariadb", "mysql")
def test_every_statement_goes_by_the_primary_key(tables: Tables, mysql_url: str) -> None:
    for day in range(1, 4):
        for number in range(40):
            tables.plant(spread([b"%03d" % number], (1, 2, 3), f"2020-03-{day:02d} 00:00:00 4"))
    tables.plant(spread([b"a"], (1, 2, 3), "9000-01-01 00:00:00 4"))
    tables.run("INSERT INTO counter (name, keep_steps, created) VALUES ('v', 'day=30d', NOW())")
    tables.run("ANALYZE TABLE counter_slot")
    with MySQLProxy.to(mysql_url) as proxy:
        connect_to = partial(open_tables, proxy.url(mysql_url))
        compact(connect_to, CompactOptions(rows=30, threshold=2))
        roll_up(connect_to, rows=30)
        texts = [request.text for request in proxy.seen if "counter_slot" in request.text]
    # Others' rows: what is looked for must not be nearly all there is.
    tables.plant(("a", "9000-01-01 00:00:00 4", b"%04d" % number, 0, 1) for number in range(1000))
    tables.run("ANALYZE TABLE counter_slot")
    explained = {
        re.sub(r"'[^']*'|[0-9]+", "?", text): text
        for text in texts
        if text.startswith(("SELECT", "DELETE"))
    }
    assert len(explained) >= 10
    for text in explained.values():
        plan = explain(tables, text)
        ways = [(row["key"], row["type"]) for row in plan if row["table"] == "counter_slot"]
        # The list of all counters is a loose scan, or, where the table is small, a whole one.
        allowed = ("range", "ref") if "WHERE" in text else ("range", "index")
        # Without a way the index's end was looked up, and that was all.
        assert all(key == "PRIMARY" and way in allowed for key, way in ways), (ways, text)


def explain(tables: Tables, text: str) -> list[dict[str, object]]:
    with tables.connection.cursor(DictCursor) as cursor:
        # MySQL 9 explains as a tree unless told otherwise; MariaDB knows one way.
        cursor.execute("SELECT VERSION() AS version")
        if "mariadb" not in cursor.fetchall()[0]["version"].lower():
            cursor.execute("SET explain_format = TRADITIONAL")
        cursor.execute(f"EXPLAIN {text}")
        return list(cursor.fetchall())
