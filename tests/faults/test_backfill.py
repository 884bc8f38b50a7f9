"""Backfills whose processes die at any moment, beside others and beside live traffic: exact."""

import pytest

from tests.faults.scenarios import backfill as scenarios
from tests.faults.scenarios import backfill_changes as changes
from tests.faults.scenarios import backfill_jobs as jobs
from tests.faults.scenarios import backfill_reconcile as reconciling
from tests.faults.stage import Stage
from tests.support import logs
from tests.support.examples import MANY

LINES = 70_000 if MANY else 5_000
"""Two chunks, or three that are shorter."""


@pytest.mark.long("a real log of 10,000 lines, each line in the tables")
@pytest.mark.skipif(not logs.REAL.exists(), reason=f"the real log is not at {logs.REAL}")
def test_a_real_log_gives_its_published_figures_however_often_it_is_read(stage: Stage) -> None:
    scenarios.killed_again_and_again(stage, kills=2, book=logs.real())


@pytest.mark.random
def test_a_log_of_several_chunks_killed_and_read_again(stage: Stage) -> None:
    scenarios.killed_again_and_again(stage, kills=4 if MANY else 1, lines=LINES)


@pytest.mark.random
def test_a_log_counted_by_child_processes_that_are_killed(stage: Stage) -> None:
    jobs.killed_at_random(stage, kills=4 if MANY else 2, lines=LINES)


@pytest.mark.random
def test_a_log_that_is_the_truth_read_by_child_processes_that_are_killed(stage: Stage) -> None:
    jobs.reconciled_by_children(stage, kills=4 if MANY else 1, lines=LINES)


@pytest.mark.random
def test_replies_to_commit_are_lost(stage: Stage) -> None:
    scenarios.commits_cut(stage, LINES)


@pytest.mark.random
def test_deadlocks_and_lock_waits(stage: Stage) -> None:
    scenarios.conflicts_while_adding(stage, LINES)


@pytest.mark.long("live traffic beside a backfill, which `reconciled` has in a short form")
def test_beside_live_traffic_and_compaction(stage: Stage) -> None:
    scenarios.beside_live_traffic(stage, kills=1, lines=70_000)


@pytest.mark.random
def test_undone_after_live_traffic(stage: Stage) -> None:
    scenarios.undone_after_live_traffic(stage, kills=1, lines=LINES)


@pytest.mark.long("the same as the one before, through months")
def test_undone_after_roll_up(stage: Stage) -> None:
    scenarios.undone_after_roll_up(stage, kills=1, lines=LINES)


@pytest.mark.random
def test_logs_that_are_rotated_between_runs(stage: Stage) -> None:
    changes.rotated_in_between(stage, steps=25 if MANY else 6)


@pytest.mark.long("a run that is slow enough to be undone in its midst")
def test_undone_while_it_goes_on(stage: Stage) -> None:
    changes.undone_while_it_goes_on(stage, rounds=1, lines=70_000)


@pytest.mark.random
def test_two_processes_at_one_log(stage: Stage) -> None:
    scenarios.two_at_once(stage, rounds=1, lines=LINES)


@pytest.mark.random
def test_a_log_is_the_truth_beside_live_traffic(stage: Stage) -> None:
    book = logs.real() if MANY and logs.REAL.exists() else None
    reconciling.made_exact_beside_live_traffic(stage, book)


@pytest.mark.random
def test_two_reconcile_at_once(stage: Stage) -> None:
    reconciling.two_at_once(stage)


@pytest.mark.random
def test_reconciling_is_killed(stage: Stage) -> None:
    reconciling.killed_again_and_again(stage, kills=1)


@pytest.mark.random
def test_reconciling_is_undone(stage: Stage) -> None:
    reconciling.undone(stage)
