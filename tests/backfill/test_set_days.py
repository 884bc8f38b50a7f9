"""Days that a reconcile has set: nothing is added to them until it is undone."""

from datetime import timedelta
from functools import partial

import pytest

from countersink.backfill.options import BackfillReport, Progress
from tests.backfill.helpers import (
    DAY,
    NOON,
    Logs,
    day,
    details,
    keys_of,
    line,
    long_log,
    outcomes,
    write,
)
from tests.support.entries import together
from tests.support.examples import MANY

NEXT = NOON + timedelta(days=1)
NEXT_DAY = NEXT.date().isoformat()


def test_a_file_that_was_added_reconciled_and_then_grew(logs: Logs) -> None:
    file = logs.write("a.log", line("/") + line("/a"))
    assert logs.add(file).amount == 2
    write(file, line("/") + line("/a") + line("/b"))
    done = logs.reconcile(file)
    assert done.amount == 1
    for dry_run in True, False:
        refused = logs.add(file, dry_run=dry_run)
        assert (refused.state, outcomes(refused)) == ("failed", ["failed"])
        said = details(refused)
        assert f"backfill {done.run} has set {DAY} of views" in said
        assert f"`countersink backfills undo {done.run}`" in said
        assert "--from and --to" in said
    assert logs.totals() == day("/", "/a", "/b")
    # It goes on with the day after, and with the day itself when that was taken back.
    other = logs.write("b.log", line("/b") + line("/c", at=NEXT))
    assert logs.add(other, start=NEXT.date()).amount == 1
    assert logs.totals() == day("/", "/a", "/b") | day("/c", on=NEXT_DAY)
    logs.undo(done)
    assert logs.add(file).amount == 1
    assert logs.totals() == day("/", "/a", "/b") | day("/c", on=NEXT_DAY)


def test_an_add_that_is_running_counts_nothing_behind_a_reconcile(logs: Logs) -> None:
    logs.small_chunks()
    file = logs.write("a.log", long_log(300))
    corrected: list[BackfillReport] = []

    def beside(progress: Progress) -> None:
        if progress.lines and not corrected:
            corrected.append(logs.reconcile(file))

    report = logs.add(file, on_progress=beside)
    assert (report.state, corrected[0].state) == ("failed", "done")
    assert 0 < report.amount < 300
    assert corrected[0].amount == 300 - report.amount
    assert logs.totals() == keys_of(300)


@pytest.mark.random
def test_adds_and_reconciles_at_the_same_moment(logs: Logs) -> None:
    logs.small_chunks(20)
    for number in range(3 if MANY else 1):
        file = logs.write(f"{number}.log", long_log(300))
        counter = f"views{number}"
        together(
            partial(logs.add, file, counter=counter),
            partial(logs.add, file, counter=counter, name="again"),
            partial(logs.reconcile, file, counter=counter),
        )
        assert logs.totals(counter) == keys_of(300)


def test_what_a_reconcile_has_not_set_may_be_added(logs: Logs) -> None:
    both = logs.write("a.log", line("/") + line("/", at=NEXT))
    missing = logs.directory / "nothing.log"
    assert logs.reconcile(both, dry_run=True).corrections == 2
    assert logs.reconcile(both, missing).state == "failed"
    assert logs.reconcile(both, grace_s=1e9).corrections == 0
    first = NOON.date()
    assert logs.reconcile(both, start=first, end=first).corrections == 1
    assert logs.add(both, start=NEXT.date()).state == "done"
    assert logs.totals() == day("/") | day("/", on=NEXT_DAY)


def test_marks_that_workers_have_forgotten_still_count(logs: Logs) -> None:
    file = logs.write("a.log", line("/"))
    logs.reconcile(file)
    logs.query("UPDATE reconciled_day SET sent_before = 1")
    logs.query("UPDATE control SET catalog_version = catalog_version + 1")
    assert logs.add(file).state == "failed"
    assert logs.totals() == day("/")


def test_nothing_is_added_to_a_day_that_was_set_in_other_buckets(logs: Logs) -> None:
    logs.set_counter(time_zone="Asia/Kathmandu", resolution="minute")
    logs.reconcile(logs.write("a.log", line("/")))
    logs.set_counter(resolution="quarter")
    first = line("/", minutes=-18 * 60 + 14)  # the last minute of the day before, and the first one
    assert logs.add(logs.write("b.log", first)).state == "done"
    refused = logs.add(logs.write("c.log", line("/", minutes=-18 * 60 + 15)))
    assert f"has set {DAY} of views" in details(refused)
    assert sorted(logs.totals().values()) == [1, 1]
    # Nor to an hour that is in part of it, as only SQL can set it.
    logs.query("UPDATE counter SET resolution = 'hour', counted_minute = '2030-01-01'")
    for minutes in -18 * 60 + 14, -18 * 60 + 15:
        refused = logs.add(logs.write(f"{minutes}.log", line("/new", minutes=minutes)))
        assert f"has set {DAY} of views" in details(refused)
