"""Verification of what backfills wrote down: it fits the ledger and what was read."""

from functools import partial
from pathlib import Path

import pytest

from countersink.backfill.count import task
from countersink.backfill.undo import undo
from countersink.store.connection import Session
from countersink.store.ledger import Difference
from countersink.store.verify import verify
from tests.backfill.helpers import COUNTER, add, log, long_log, write
from tests.backfill.truths import new_run
from tests.store.helpers import again_and_again
from tests.store.width_rows import plant
from tests.support.examples import MANY
from tests.support.ledger import post_planted


@pytest.fixture
def added(mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A run of five chunks, of 100 lines each."""
    monkeypatch.setattr(task, "LINES", 100)
    run = add(mysql_url, write(tmp_path / "a.log", long_log(500))).run
    assert run is not None
    return run


def found(session: Session) -> list[tuple[str, int, int]]:
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
            "the ledger of slots 512 to 1023 holds +10 against what backfills wrote down;"
            f" the chunks of 1 sources, such as {source}, do not cover what was read of them",
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
    assert found(verifying) == [("backfill", 3, 0)]
    session.execute("INSERT INTO counter_ledger VALUES (%s, 600, 4, 0, NULL)", (COUNTER,))
    assert found(verifying) == [("backfill", 3, 4), ("sum", 0, 4)][::-1]
    session.execute("UPDATE counter_ledger SET amount = 3")
    assert [problem for problem, _, _ in found(verifying)] == ["sum"]


def test_slots_of_a_counter_without_backfills_are_not_looked_at(
    session: Session, verifying: Session
) -> None:
    plant(session, ("old", "2026-03-14", "", 700, 2))
    post_planted(session)
    assert found(verifying) == []


def test_a_source_of_which_nothing_was_counted_is_right(
    mysql_url: str, session: Session, verifying: Session, tmp_path: Path
) -> None:
    add(mysql_url, write(tmp_path / "a.log", b"nonsense\n"))
    assert verify(verifying).differences == []
    assert verify(verifying, COUNTER).counters == 1
    session.execute("UPDATE backfill_source SET read_to = 1")
    assert found(verifying) == [("backfill", 0, 0)]


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
    assert found(verifying) == [("backfill", 0, 1)]
