"""A big log counted by job processes, some of which die: each line counts once."""

from __future__ import annotations

from tests.faults.scenarios import backfill_jobs as scenarios
from tests.faults.stage import Stage


def test_two_job_processes_count_a_log(stage: Stage) -> None:
    scenarios.counted_by_jobs(stage)


def test_whoever_counts_is_killed(stage: Stage) -> None:
    scenarios.killed_at_random(stage, kills=2)
