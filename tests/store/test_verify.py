"""Verification: what is wrong is found, and nothing else, whatever goes on meanwhile."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.count import task
from countersink.backfill.undo import undo
from countersink.counting.apply.applier import Applier
from countersink.counting.ledger import Difference
from countersink.database.connection import connect
from countersink.database.errors import Refused
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.store import Store, UnknownCounter
from countersink.store.verify import Verified, open_session, verify
from tests.backfill.helpers import COUNTER, add, log, long_log, write
from tests.backfill.truths import new_run
from tests.support.entries import Database, again_and_again, entry, row
from tests.support.examples import MANY
from tests.support.ledger import post_planted
from tests.support.width_rows import plant

SLOTS = "counter_slot (counter, bucket, counter_key, width, slot, amount)"


def roll_up_to_february(session: Session, counter: str) -> None:
    session.execute(
        "INSERT INTO counter (name, rolled_month, created) VALUES (%s, '2026-02-01', '2020-01-01')",
        (counter,),
    )


def asked(session: Session) -> int:
    """Statements that the server has answered so far."""
    return int(session.query("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def reads(session: Session) -> int:
    """Rows of tables that were read on a session so far."""
    found = session.query(
        "SHOW SESSION STATUS WHERE Variable_name IN"
        " ('Handler_read_key', 'Handler_read_next', 'Handler_read_rnd_next')"
    )
    return sum(int(number) for _, number in found)


def found(session: Session) -> list[tuple[str, str, int, int, int]]:
    """What is wrong, without the sentences."""
    return [
        (one.counter, one.problem, one.in_tables, one.in_ledger, one.difference)
        for one in verify(session).differences
    ]


def test_nothing_is_wrong_with_nothing(verifying: Session) -> None:
    assert verify(verifying) == Verified()


def test_rows_agree_with_the_ledger_in_whatever_slot_they_are(
    db: Database, verifying: Session
) -> None:
    for slot in (0, 1, 255, 512, 1023):
        db.applier.slot = slot
        db.count(("/a", 3), ("/b", -7))
    for slot in (256, 511, 1024, 65_535):
        plant(db.session, ("views", "2026-11-21", "", slot, 99))
    roll_up_to_february(db.session, "views")
    plant(db.session, ("views", "2026-01-01", "/a", 0, 5), width=5)
    plant(db.session, ("app", "2026-11-21", "", 300, 1))
    post_planted(db.session)
    assert verify(verifying) == Verified(counters=2, rows=5 * 2 + 4 + 1 + 1)
    db.store.counters.set("made")
    assert verify(verifying, "made") == Verified(counters=1, rows=0)
    for name in ("other", "", "views "):
        with pytest.raises(UnknownCounter):
            verify(verifying, name)
    with pytest.raises(ValueError, match="not both"):
        verify(verifying, "made", table="orders")


def test_a_difference_says_how_much_is_where(db: Database, verifying: Session) -> None:
    plant(db.session, ("planted", "2026-11-21", "", 0, 0), post=False)
    db.count(("/a", 10), ("/b", 1))
    db.session.execute("UPDATE counter_slot SET amount = amount + 2 WHERE amount = 10")
    db.session.execute("DELETE FROM counter_slot WHERE counter = 'views' AND amount = 1")
    roll_up_to_february(db.session, "planted too")
    plant(db.session, ("planted too", "2026-01-01", "", 0, 3), width=5, post=False)
    assert found(verifying) == [
        ("planted", "no_ledger", 0, 0, 0),
        ("planted too", "no_ledger", 3, 0, 3),
        ("views", "sum", 12, 11, 1),
    ]


def test_what_agrees_is_read_but_a_few_times_in_few_statements(
    session: Session, verifying: Session
) -> None:
    names = [f"c{number:04d}" for number in range(1000)]
    days = ("2026-11-20", "2026-11-21")
    session.insert_rows(SLOTS, [(name, day, b"", 4, 0, 4) for name in names for day in days], 1000)
    session.insert_rows(SLOTS, [("d", days[0], b"%d" % n, 4, 0, 1) for n in range(2000)], 1000)
    post_planted(session)
    before, questions = reads(verifying), asked(session)
    assert verify(verifying) == Verified(counters=1001, rows=4000)
    # The end of each window; the rows, and each counter's sums as they are put together.
    assert reads(verifying) - before < 4 * (4000 + 1001)
    assert asked(session) - questions < 90


@pytest.mark.servers("mariadb", "mysql")
def test_all_at_once_and_one_by_one_the_same_is_found(session: Session, verifying: Session) -> None:
    day = "2026-11-21"
    slots = [
        ("agrees", day, b"", 4, 0, 5),
        ("agrees_with_application", day, b"", 4, 0, 5),
        ("agrees_with_application", day, b"", 4, 300, 7),
        ("application_alone", day, b"", 4, 2000, 7),
        ("changed_resolution", day, b"", 3, 1, 2),
        ("less", day, b"", 4, 0, 5),
        ("more_as_much", day, b"", 4, 600, 15),
        ("no_ledger", day, b"", 4, 0, 0),
        ("rolled_up", day, b"", 4, 0, 3),
        ("rolled_up_wrong", day, b"", 4, 0, 3),
    ]
    months = [
        (name, "2026-01-01", b"", 5, 0, 4)
        for name in ("months", "months_wrong", "months_alone", "rolled_up", "rolled_up_wrong")
    ]
    wrong = [
        (name, day, 4, 1, amount, 0, None)
        for name, amount in (
            *(("less", 5), ("months_wrong", 1), ("more_as_much", -5)),
            *(("ledger_alone", 5), ("rolled_up_wrong", 1)),
        )
    ]
    zero = [
        ("ledger_alone_zero", day, 4, slot, amount, 0, None) for slot, amount in ((1, 5), (2, -5))
    ]
    slots += [("exchanged", day, key, 4, 1, amount) for key, amount in ((b"a", 1), (b"b", 2))]
    session.insert_rows(SLOTS, [*slots, *months], 1000)
    post_planted(session)
    session.execute("UPDATE counter_slot SET amount = 3 - amount WHERE counter = 'exchanged'")
    session.execute("DELETE FROM counter_ledger WHERE counter IN ('months_alone', 'no_ledger')")
    session.insert_rows("counter_ledger", [*wrong, *zero], 1000)
    for name in {name for name, *_ in months} | {"changed_resolution"}:
        roll_up_to_february(session, name)
    session.execute("UPDATE counter SET resolution = 'hour' WHERE name = 'changed_resolution'")
    session.execute(
        "INSERT INTO backfill_source (counter, head, options, path)"
        " VALUES ('sourced', '', '{}', '')"
    )
    names = sorted({str(columns[0]) for columns in (*slots, *months, *wrong, *zero)} | {"sourced"})
    alone = [verify(verifying, name) for name in names]
    done = verify(verifying)
    assert done.differences == [found for each in alone for found in each.differences]
    found = " ".join(found.counter for found in done.differences)
    assert found == (
        "exchanged ledger_alone less months_alone months_wrong more_as_much no_ledger"
        " rolled_up_wrong"
    )
    assert done.counters == len(names) - 1  # "sourced" has rows in neither table
    assert done.rows == sum(each.rows for each in alone) == len(slots) + len(months)


def test_it_stops_between_two_groups_when_told_to(
    applier: Applier, verifying: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("countersink.store.verify._ROWS", 20)
    applier.apply([entry([row("/a", counter=f"c{n:02}", position=n) for n in range(30)])])
    answers = iter([False, True])
    done = verify(verifying, stop=lambda: next(answers))
    assert (done.counters, done.finished) == (20, False)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_there_is_no_false_alarm_beside_whoever_counts(mysql_url: str, verifying: Session) -> None:
    batches = [0, 0]
    appliers = [Applier(mysql_url, slot) for slot in (1, 2)]

    def count(number: int) -> None:
        rows = [row(f"/{key}", key - 9, position=key) for key in range(40)]
        appliers[number].apply([entry(rows)])
        batches[number] += 1

    with again_and_again(partial(count, 0), partial(count, 1)) as going:
        looks = 0
        while min(batches) < (20 if MANY else 10) or looks < (50 if MANY else 15):
            assert verify(verifying).differences == []
            looks += 1
            assert going()
    for applier in appliers:
        applier.close()
    assert verify(verifying) == Verified(counters=1, rows=80)


@pytest.fixture
def orders(mysql_url: str, app_database_url: str) -> Iterator[tuple[Store, Session, str]]:
    """A store, a session of the application's, and its table of three rows, which is tracked."""
    with Store(mysql_url) as store, connect(app_database_url) as app:
        app.execute("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(9), placed DATE)")
        app.execute(
            "INSERT INTO orders VALUES (1, 'a', '2026-11-20'), (2, 'b', NULL), (3, 'b', NULL)"
        )
        name = f"{Settings.parse(app_database_url).database}.orders"
        store.tracked.track(name, counter="orders", by=["status"], day="placed")
        yield store, app, name


def row_problems(done: Verified) -> list[tuple[str, str, str | None, int, int]]:
    return [
        (one.problem, str(one.day), one.key, one.in_counter, one.in_table)
        for one in done.row_differences
    ]


@pytest.mark.servers("mariadb", "mysql")
def test_a_tracked_table_is_held_against_its_counter(
    orders: tuple[Store, Session, str], verifying: Session, applier: Applier
) -> None:
    store, app, name = orders
    applier.apply([entry([row("/a")])])
    app.execute("INSERT INTO orders VALUES (4, 'a', '2026-11-20')")
    done = verify(verifying)
    assert (done.counters, done.tables, done.agrees) == (2, 1, True)
    for one in (verify(verifying, table=name), verify(verifying, table="orders")):
        assert (one.counters, one.tables, one.agrees) == (1, 1, True)
    assert verify(verifying, "orders").tables == 1
    assert verify(verifying, "views").tables == 0
    for wrong in ("views", "other", "", f"{name}s"):
        with pytest.raises(UnknownCounter, match="is tracked; --counter verifies any other"):
            verify(verifying, table=wrong)
    app.execute("TRUNCATE TABLE orders")
    assert row_problems(verify(verifying)) == [
        ("row_count", "1969-12-31", "b", 2, 0),
        ("row_count", "2026-11-20", "a", 2, 0),
    ]
    store.tracked.repair("orders")
    assert verify(verifying).agrees


def test_a_tracked_counter_that_was_changed_by_hand_is_found(
    orders: tuple[Store, Session, str], verifying: Session, session: Session
) -> None:
    store, app, _ = orders
    session.execute("UPDATE counter_slot SET amount = amount + 1 WHERE counter_key = 'a'")
    done = verify(verifying)
    assert row_problems(done) == [("row_count", "2026-11-20", "a", 2, 1)]
    assert done.differences == []  # the table is what it is held against, not the ledger
    store.tracked.repair("orders")
    assert verify(verifying).agrees
    app.execute("INSERT INTO orders VALUES (7, 'a', '2026-11-20')")
    assert store.row_count("orders", status="A") == 2
    assert verify(verifying).agrees


def test_what_is_just_being_tracked_or_is_tracked_no_more_is_no_alarm(
    orders: tuple[Store, Session, str], verifying: Session, session: Session
) -> None:
    store, app, _ = orders
    (before,) = store.tracked.list()
    session.execute("UPDATE tracked_table SET counted = NULL")
    assert row_problems(verify(verifying)) == [("not_counted", "None", None, 0, 0)]
    with session.transaction():
        session.query("SELECT 1 FROM tracked_table WHERE counter = 'orders' FOR UPDATE")
        assert verify(verifying).agrees
        # Nor if that has begun since the list of tables was read: it is counted in the end.
        app.execute("TRUNCATE TABLE orders")
        assert store.tracked.check(verifying, before) == []
    assert store.tracked.check(verifying, before)
    assert not verify(verifying).agrees


@pytest.mark.parametrize("counter", [None, "views"])
def test_a_lost_row_of_control_is_named(mysql_url: str, counter: str | None) -> None:
    with connect(mysql_url) as session:
        session.execute(
            "INSERT INTO counter_ledger VALUES ('views', '2026-11-21', 4, 0, 0, 0, NULL)"
        )
        session.execute("DELETE FROM control")
    with open_session(mysql_url) as session, pytest.raises(Refused, match="control is missing"):
        verify(session, counter)


@pytest.fixture
def added(mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A run of five chunks, of 100 lines each."""
    monkeypatch.setattr(task, "LINES", 100)
    run = add(mysql_url, write(tmp_path / "a.log", long_log(500))).run
    assert run is not None
    return run


def in_short(session: Session) -> list[tuple[str, int, int]]:
    return [(one.problem, one.in_tables, one.in_ledger) for one in verify(session).differences]


def test_it_is_said_what_is_wrong(added: int, session: Session, verifying: Session) -> None:
    session.execute("UPDATE backfill_chunk SET amount = 90 WHERE start_at = 0")
    session.execute("UPDATE backfill_source SET read_to = 7")
    ((source,),) = session.query("SELECT id FROM backfill_source")
    assert verify(verifying, COUNTER).differences == [
        Difference(
            COUNTER,
            "backfill",
            490,
            500,
            "the ledger of slots 512 to 1023 differs by +10 from the records of backfills;"
            f" chunks do not cover all that was read of 1 source ({source})",
        )
    ]


def test_corrections_belong_to_the_ledger_too(session: Session, verifying: Session) -> None:
    run = new_run(session)
    session.execute(
        "INSERT INTO backfill_correction (run, bucket, width, counter_key, had, should_be)"
        " VALUES (%s, '2026-03-14', 4, '/a', 3, 10),"
        " (%s, '2026-03-14', 4, '/b', 5, 1), (%s, '2026-03-14', 4, '/c', NULL, 7)",
        (run, run, new_run(session)),
    )
    assert in_short(verifying) == [("backfill", 3, 0)]
    posted = f"INSERT INTO counter_ledger VALUES ('{COUNTER}', '2026-03-14', 4, 600, 4, 0, NULL)"
    session.execute(posted)
    assert in_short(verifying) == [("backfill", 3, 4), ("sum", 0, 4)][::-1]
    session.execute("UPDATE counter_ledger SET amount = 3")
    assert [problem for problem, _, _ in in_short(verifying)] == ["sum"]


def test_slots_of_a_counter_without_backfills_are_not_looked_at(
    session: Session, verifying: Session
) -> None:
    plant(session, ("old", "2026-03-14", "", 700, 2))
    post_planted(session)
    assert in_short(verifying) == []


def test_a_source_of_which_nothing_was_counted_is_right(
    mysql_url: str, session: Session, verifying: Session, tmp_path: Path
) -> None:
    add(mysql_url, write(tmp_path / "a.log", b"nonsense\n"))
    assert verify(verifying).differences == []
    assert verify(verifying, COUNTER).counters == 1
    session.execute("UPDATE backfill_source SET read_to = 1")
    assert in_short(verifying) == [("backfill", 0, 0)]


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_there_is_no_false_alarm_beside_backfills_and_undoing(
    mysql_url: str, verifying: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "LINES", 20)
    rounds = [0, 0]
    sources = [write(tmp_path / f"{n}.log", long_log(100, first=1000 * n)) for n in range(2)]

    def work(number: int) -> None:
        run = add(mysql_url, sources[number]).run
        assert run is not None
        undo(mysql_url, run)
        rounds[number] += 1

    with again_and_again(partial(work, 0), partial(work, 1)) as going:
        looks = 0
        while min(rounds) < (3 if MANY else 2) or looks < (20 if MANY else 10):
            assert verify(verifying).differences == []
            looks += 1
            assert going()
    assert verify(verifying).differences == []


def test_one_source_that_was_added_and_is_a_truth_elsewhere(
    mysql_url: str, session: Session, verifying: Session, tmp_path: Path
) -> None:
    add(mysql_url, write(tmp_path / "a.log", log("/a")))
    # A truth's chunks say what was read, and add nothing.
    session.execute("UPDATE backfill_source SET truth_of = 7")
    assert in_short(verifying) == [("backfill", 0, 1)]
