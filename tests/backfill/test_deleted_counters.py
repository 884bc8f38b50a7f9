"""Deleting a counter takes along what its backfills wrote down, whoever is at work."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from countersink.backfill.count import task
from countersink.backfill.errors import BackfillError
from countersink.counting.counters import deletion_sql
from countersink.counting.counters.buckets import ONE_DAY
from countersink.counting.counters.deletion import delete_counter
from countersink.database.connection import connect
from countersink.store import Store
from tests.backfill.helpers import (
    COUNTER,
    NOON,
    Logs,
    keys_of,
    line,
    log,
    long_log,
)
from tests.backfill.truths import new_run
from tests.support.entries import Killed, again_and_again, die_at, killed_anywhere

TABLES = ("source", "chunk", "journal", "correction")


deleting = partial(connect, isolation="REPEATABLE READ")
"""A session to delete a counter on."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 lines a chunk, and two chunks a transaction of the deletion."""
    monkeypatch.setattr(task, "LINES", 100)
    monkeypatch.setattr(deletion_sql, "_ROWS_PER_CHUNK", 500)


def everything(logs: Logs, counter: str) -> dict[str, int]:
    """Rows in the tables of backfill, of the sources and runs of a counter."""
    by_run = "run IN (SELECT id FROM backfill_run WHERE counter = %s)"
    by_source = "source IN (SELECT id FROM backfill_source WHERE counter = %s)"
    where = {"source": "counter = %s", "correction": by_run}
    return {
        table: logs.query(
            f"SELECT COUNT(*) FROM backfill_{table} WHERE {where.get(table, by_source)}",
            counter,
        )[0][0]
        for table in TABLES
    }


def fill(logs: Logs) -> None:
    """Two counters with sources, rejected lines and corrections; one is being reconciled."""
    for counter in (COUNTER, "other"):
        content = long_log(500) + b"nonsense\n" * 3
        logs.add(logs.write("a.log", content), counter=counter)
        logs.add(logs.write("b.log", log("/b")), counter=counter)
        logs.reconcile(logs.write("c.log", line("/c", at=NOON + ONE_DAY)), counter=counter)
    with connect(logs.url) as session:
        run = new_run(session)
    logs.query(
        "INSERT INTO backfill_correction (run, bucket, width, counter_key, had, should_be)"
        " VALUES (%s, '2026-03-14', 4, '/2', NULL, 10)",
        run,
    )


def test_a_counter_goes_with_its_backfills_and_no_other_is_touched(
    logs: Logs, store: Store
) -> None:
    fill(logs)
    others = everything(logs, "other")
    assert others == {
        **dict.fromkeys(TABLES, 0),
        "source": 3,
        "chunk": 8,
        "journal": 6,
        "correction": 1,
    }
    assert everything(logs, COUNTER) == {**others, "correction": 2}
    amounts = logs.totals("other")
    store.counters.delete(COUNTER)
    assert everything(logs, COUNTER) == dict.fromkeys(TABLES, 0)
    assert everything(logs, "other") == others
    assert logs.totals("other") == amounts
    assert logs.query("SELECT DISTINCT counter FROM reconciled_day") == [("other",)]
    assert logs.query(
        "SELECT counter, state, COUNT(*), COUNT(rejects) FROM backfill_run GROUP BY 1, 2 ORDER BY 1"
    ) == [("other", "done", 3, 1), (COUNTER, "deleted", 4, 0)]
    # It begins anew, and knows no source.
    assert logs.add(logs.directory / "a.log").counted == 500
    assert logs.totals() == keys_of(500)


def test_killed_anywhere_all_is_right_and_it_can_be_run_again(logs: Logs) -> None:
    fill(logs)

    def delete(reached: Callable[[str], None]) -> None:
        with deleting(logs.url) as dying:
            delete_counter(dying, COUNTER, reached=reached)

    assert killed_anywhere(delete, logs.require_verified) >= 6
    logs.require_verified()
    assert everything(logs, COUNTER) == dict.fromkeys(TABLES, 0)


def test_what_was_deleted_halfway_is_no_source_to_go_on_with(logs: Logs) -> None:
    source = logs.write("a.log", long_log(500))
    logs.add(source)
    with deleting(logs.url) as dying, pytest.raises(Killed):
        delete_counter(dying, COUNTER, reached=die_at(4))
    assert 0 < logs.rows("backfill_chunk") < 5
    report = logs.add(source)
    assert (report.state, report.counted) == ("failed", 0)
    logs.require_verified()
    with deleting(logs.url) as session:
        delete_counter(session, COUNTER)
    assert everything(logs, COUNTER) == dict.fromkeys(TABLES, 0)
    assert logs.add(source).counted == 500


def test_a_backfill_that_is_at_work_ends_and_says_why(logs: Logs, store: Store) -> None:
    source = logs.write("a.log", long_log(2000))
    deleted: list[object] = []

    def between_two_chunks() -> bool:
        if not deleted and everything(logs, COUNTER)["chunk"]:
            deleted.append(store.counters.delete(COUNTER))
        return False

    with pytest.raises(
        BackfillError, match="is deleted now, so it counts and corrects nothing more"
    ):
        logs.add(source, stop=between_two_chunks)
    # It may have come to know the file anew before it saw that: a source of which nothing was read.
    assert everything(logs, COUNTER) | {"source": 0} == dict.fromkeys(TABLES, 0)
    assert logs.rows("counter_ledger") == 0
    assert logs.add(source).lines == 2000
    assert logs.totals() == keys_of(2000)


def test_deleted_again_and_again_beside_backfills_and_their_undoing(
    logs: Logs, store: Store
) -> None:
    source = logs.write("a.log", long_log(300))
    logs.add(source)

    def fill_and_undo() -> None:
        with suppress(BackfillError):  # deleted meanwhile
            logs.undo(logs.add(source))

    with again_and_again(fill_and_undo), suppress(BackfillError):
        for _ in range(5):
            store.counters.delete(COUNTER)
            logs.add(logs.write("b.log", log("/b")))
    logs.require_verified()
    logs.add(source)
    store.counters.delete(COUNTER)
    logs.add(source)
    assert logs.totals() == keys_of(300)
