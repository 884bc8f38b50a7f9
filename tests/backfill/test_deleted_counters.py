"""Deleting a counter takes along what its backfills wrote down, whoever is at work."""

import threading
from collections.abc import Iterator

import pytest

from countersink.backfill.count import task
from countersink.backfill.errors import BackfillError
from countersink.backfill.run import backfill
from countersink.store import Store
from countersink.store.connection import Session, connect
from countersink.store.counters import deletion_sql
from countersink.store.counters.deletion import delete_counter
from countersink.store.verify import verify
from tests.backfill.helpers import (
    COUNTER,
    Killed,
    Logs,
    die_at,
    keys_of,
    log,
    long_log,
    options,
    query,
    run_of,
)
from tests.backfill.truths import new_run
from tests.store.helpers import together
from tests.support.ledger import post_planted

TABLES = ("source", "chunk", "journal", "correction")


@pytest.fixture
def deleting(mysql_url: str) -> Iterator[Session]:
    with connect(mysql_url, isolation="REPEATABLE READ") as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 lines a chunk, and two chunks a transaction of the deletion."""
    monkeypatch.setattr(task, "LINES", 100)
    monkeypatch.setattr(deletion_sql, "_ROWS_PER_CHUNK", 500)


def everything(mysql_url: str, counter: str) -> dict[str, int]:
    """Rows in the tables of backfill, of the sources and runs of a counter."""
    by_run = "run IN (SELECT id FROM backfill_run WHERE counter = %s)"
    by_source = "source IN (SELECT id FROM backfill_source WHERE counter = %s)"
    where = {"source": "counter = %s", "correction": by_run}
    return {
        table: query(
            mysql_url,
            f"SELECT COUNT(*) FROM backfill_{table} WHERE {where.get(table, by_source)}",
            counter,
        )[0][0]
        for table in TABLES
    }


def fill(logs: Logs) -> None:
    """Two counters with sources, rejected lines and corrections."""
    for counter in (COUNTER, "other"):
        content = long_log(500) + b"nonsense\n" * 3
        logs.add(logs.write("a.log", content), counter=counter)
        logs.add(logs.write("b.log", log("/b")), counter=counter)
    with connect(logs.url) as session:
        run = new_run(session)
        session.execute(
            "INSERT INTO backfill_correction (run, bucket, width, counter_key, had, should_be)"
            " VALUES (%s, '2026-03-14', 4, '/0', 0, 10),"
            " (%s, '2026-03-14', 4, '/1', 5, 1), (%s, '2026-03-14', 4, '/2', NULL, 10)",
            (run, run, run),
        )
        session.execute(
            "INSERT INTO counter_slot (counter, bucket, counter_key, slot, amount)"
            " VALUES (%s, '2026-03-14', '/', 600, 6)",
            (COUNTER,),
        )
        # On the row of the ledger that a backfill would have posted it to.
        session.execute("INSERT INTO counter_ledger VALUES (%s, 700, 6, 0, NULL)", (COUNTER,))
        post_planted(session)
        session.execute(
            "INSERT INTO reconciled_day VALUES (%s, '2026-03-14', %s, 1),"
            " ('other', '2026-03-14', 1, 1)",
            (COUNTER, run),
        )


def test_a_counter_goes_with_its_backfills_and_no_other_is_touched(
    logs: Logs, store: Store
) -> None:
    fill(logs)
    others = everything(logs.url, "other")
    assert others == {
        **dict.fromkeys(TABLES, 0),
        "source": 2,
        "chunk": 7,
        "journal": 6,
    }
    assert everything(logs.url, COUNTER) == {**others, "correction": 3}
    amounts = logs.totals("other")
    store.counters.delete(COUNTER)
    assert everything(logs.url, COUNTER) == dict.fromkeys(TABLES, 0)
    assert everything(logs.url, "other") == others
    assert logs.totals("other") == amounts
    assert logs.query("SELECT DISTINCT counter FROM reconciled_day") == [("other",)]
    assert logs.query(
        "SELECT counter, state, COUNT(*), COUNT(rejects) FROM backfill_run GROUP BY 1, 2 ORDER BY 1"
    ) == [("other", "done", 2, 1), (COUNTER, "deleted", 3, 0)]
    # It begins anew, and knows no source.
    assert logs.add(logs.directory / "a.log").counted == 500
    assert logs.totals() == keys_of(500)


def test_killed_anywhere_all_is_right_and_it_can_be_run_again(
    logs: Logs, deleting: Session
) -> None:
    fill(logs)
    deaths = 0
    while True:
        with connect(logs.url, isolation="REPEATABLE READ") as dying:
            try:
                delete_counter(dying, COUNTER, reached=die_at(deaths + 1))
                break
            except Killed:
                deaths += 1
        assert verify(deleting).differences == []
        assert deaths < 40
    assert deaths >= 6
    assert verify(deleting).differences == []
    assert everything(logs.url, COUNTER) == dict.fromkeys(TABLES, 0)


def test_what_was_deleted_halfway_is_no_source_to_go_on_with(logs: Logs, deleting: Session) -> None:
    source = logs.write("a.log", long_log(500))
    logs.add(source)
    with (
        connect(logs.url, isolation="REPEATABLE READ") as dying,
        pytest.raises(Killed),
    ):
        delete_counter(dying, COUNTER, reached=die_at(4))
    assert 0 < logs.query("SELECT COUNT(*) FROM backfill_chunk")[0][0] < 5
    report = logs.add(source)
    assert (report.state, report.counted) == ("failed", 0)
    assert verify(deleting).differences == []
    delete_counter(deleting, COUNTER)
    assert everything(logs.url, COUNTER) == dict.fromkeys(TABLES, 0)
    assert logs.add(source).counted == 500


def test_a_backfill_that_is_at_work_ends_and_says_why(logs: Logs, store: Store) -> None:
    source = logs.write("a.log", long_log(2000))
    reading, deleted = threading.Event(), threading.Event()

    def between_two_chunks() -> bool:
        if not reading.is_set() and everything(logs.url, COUNTER)["chunk"]:
            reading.set()
            assert deleted.wait(60)
        return False

    def run() -> str:
        with pytest.raises(BackfillError) as raised:
            backfill(logs.url, options(source), stop=between_two_chunks)
        return str(raised.value)

    def delete() -> str:
        assert reading.wait(60)
        try:
            store.counters.delete(COUNTER)
        finally:
            deleted.set()
        return ""

    said, _ = together(run, delete)
    assert "is deleted by now, so nothing more is counted" in said
    # It may have come to know the file anew before it saw that: a source of which nothing was read.
    assert everything(logs.url, COUNTER) | {"source": 0} == dict.fromkeys(TABLES, 0)
    assert logs.query("SELECT * FROM counter_ledger") == []
    assert logs.add(source).lines == 2000
    assert logs.totals() == keys_of(2000)


def test_deleted_again_and_again_beside_backfills_and_their_undoing(
    logs: Logs, store: Store
) -> None:
    source = logs.write("a.log", long_log(300))
    logs.add(source)
    done = threading.Event()

    def fill_and_undo() -> int:
        rounds = 0
        while not done.is_set():
            try:
                run = run_of(logs.add(source))
                logs.undo(run)
            except BackfillError:
                rounds += 1  # deleted meanwhile
        return rounds

    def delete() -> int:
        try:
            for _ in range(5):
                store.counters.delete(COUNTER)
                logs.add(logs.write("b.log", log("/b")))
        except BackfillError:
            pass
        finally:
            done.set()
        return 0

    together(fill_and_undo, delete)
    with connect(logs.url, isolation="REPEATABLE READ") as verifying:
        assert verify(verifying).differences == []
    logs.add(source)
    store.counters.delete(COUNTER)
    logs.add(source)
    assert logs.totals() == keys_of(300)
