"""Days that a reconcile has set: nothing is added to them until it is undone."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersink.backfill.options import BackfillReport, Progress
from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from tests.backfill.helpers import (
    DAY,
    NOON,
    add,
    day,
    details,
    keys_of,
    line,
    long_log,
    options,
    outcomes,
    query,
    small_chunks,
    totals,
    write,
)
from tests.store.helpers import together

NEXT = NOON + timedelta(days=1)
NEXT_DAY = NEXT.date().isoformat()


def reconcile(mysql_url: str, redis_url: str, *sources: Path, **given: Any) -> BackfillReport:
    asked = options(*sources, mode="reconcile", **given)
    return backfill(mysql_url, asked, redis_url=redis_url)


def test_a_file_that_was_added_reconciled_and_then_grew(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", line("/") + line("/a"))
    assert add(mysql_url, file).amount == 2
    write(file, line("/") + line("/a") + line("/b"))
    done = reconcile(mysql_url, redis_url, file)
    assert done.amount == 1
    for dry_run in True, False:
        refused = add(mysql_url, file, dry_run=dry_run)
        assert (refused.state, outcomes(refused)) == ("failed", ["failed"])
        said = details(refused)
        assert f"backfill {done.run} has set {DAY} of views" in said
        assert f"`countersink backfills undo {done.run}`" in said
        assert "--from and --to" in said
    assert totals(mysql_url) == day("/", "/a", "/b")
    # It goes on with the day after, and with the day itself when that was taken back.
    other = write(tmp_path / "b.log", line("/b") + line("/c", at=NEXT))
    assert add(mysql_url, other, start=NEXT.date()).amount == 1
    assert totals(mysql_url) == day("/", "/a", "/b") | day("/c", on=NEXT_DAY)
    assert done.run is not None
    undo(mysql_url, done.run)
    assert add(mysql_url, file).amount == 1
    assert totals(mysql_url) == day("/", "/a", "/b") | day("/c", on=NEXT_DAY)


def test_an_add_that_was_interrupted_goes_on_after_a_reconcile(
    mysql_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    file = write(tmp_path / "a.log", long_log(300))
    seen: list[Progress] = []
    add(mysql_url, file, on_progress=seen.append, stop=lambda: any(one.lines for one in seen))
    assert 0 < sum(totals(mysql_url).values()) < 300
    reconcile(mysql_url, redis_url, file)
    assert totals(mysql_url) == keys_of(300)
    assert add(mysql_url, file).state == "failed"
    assert totals(mysql_url) == keys_of(300)


def test_chunks_that_were_taken_back_are_not_counted_after_a_reconcile(
    mysql_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    file = write(tmp_path / "a.log", long_log(100))
    first = add(mysql_url, file).run
    assert first is not None
    write(file, long_log(200))
    add(mysql_url, file)
    undo(mysql_url, first)
    assert query(mysql_url, "SELECT state FROM backfill_chunk ORDER BY start_at") == [
        ("undone",),
        ("done",),
    ]
    reconcile(mysql_url, redis_url, file)
    assert add(mysql_url, file).state == "failed"
    assert totals(mysql_url) == keys_of(200)


def test_an_add_that_is_running_counts_nothing_behind_a_reconcile(
    mysql_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    file = write(tmp_path / "a.log", long_log(300))
    corrected: list[BackfillReport] = []

    def beside(progress: Progress) -> None:
        if progress.lines and not corrected:
            corrected.append(reconcile(mysql_url, redis_url, file))

    report = add(mysql_url, file, on_progress=beside)
    assert (report.state, corrected[0].state) == ("failed", "done")
    assert 0 < report.amount < 300
    assert corrected[0].amount == 300 - report.amount
    assert totals(mysql_url) == keys_of(300)


def test_adds_and_reconciles_at_the_same_moment(
    mysql_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 20)
    file = write(tmp_path / "a.log", long_log(300))
    together(
        partial(add, mysql_url, file),
        partial(add, mysql_url, file, name="again"),
        partial(reconcile, mysql_url, redis_url, file),
    )
    assert totals(mysql_url) == keys_of(300)


def test_what_a_reconcile_has_not_set_may_be_added(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    both = write(tmp_path / "a.log", line("/") + line("/", at=NEXT))
    missing = tmp_path / "nothing.log"
    assert reconcile(mysql_url, redis_url, both, dry_run=True).corrections == 2
    assert reconcile(mysql_url, redis_url, both, missing).state == "failed"
    assert reconcile(mysql_url, redis_url, both, grace_s=1e9).corrections == 0
    first = NOON.date()
    assert reconcile(mysql_url, redis_url, both, start=first, end=first).corrections == 1
    assert add(mysql_url, both, start=NEXT.date()).state == "done"
    assert totals(mysql_url) == day("/") | day("/", on=NEXT_DAY)


def test_marks_that_workers_have_forgotten_still_count(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", line("/"))
    reconcile(mysql_url, redis_url, file)
    query(mysql_url, "UPDATE reconciled_bucket SET sent_before = 1")
    query(mysql_url, "UPDATE control SET policy_version = policy_version + 1")
    assert add(mysql_url, file).state == "failed"
    assert totals(mysql_url) == day("/")


def test_lines_that_change_nothing_on_a_day_that_was_set(
    mysql_url: str, redis_url: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.log", line("/").rstrip())
    assert add(mysql_url, file).amount == 1
    reconcile(mysql_url, redis_url, file)
    # What follows of that line says nothing new.
    write(file, line("/") + line("/", at=NEXT))
    assert add(mysql_url, file).state == "done"
    assert totals(mysql_url) == day("/") | day("/", on=NEXT_DAY)


@pytest.mark.parametrize("mode", ["add", "reconcile"])
def test_undoing_what_was_set_over_says_so(
    mysql_url: str, redis_url: str, tmp_path: Path, mode: str
) -> None:
    file = write(tmp_path / "a.log", line("/") + line("/", at=NEXT))
    first = backfill(mysql_url, options(file, mode=mode), redis_url=redis_url).run
    longer = write(tmp_path / "b.log", line("/") + line("/b"))
    later = reconcile(mysql_url, redis_url, longer)
    assert later.corrections == 1
    assert first is not None
    assert later.run is not None
    (notice,) = undo(mysql_url, first).notices
    assert f"backfill {later.run} has set {DAY} after it" in notice
    assert undo(mysql_url, later.run).notices == ()
