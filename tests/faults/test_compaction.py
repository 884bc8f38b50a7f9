"""Compaction and retention cost no count, whatever dies and whoever writes and reads meanwhile."""

from tests.faults.scenarios import compaction as scenarios
from tests.faults.scenarios import compaction_beside
from tests.faults.stage import Stage


def test_compaction_killed_at_each_point(stage: Stage) -> None:
    scenarios.killed_at_each_point(stage)


def test_retention_killed_at_each_point(stage: Stage) -> None:
    scenarios.retention_killed_at_each_point(stage)


def test_retention_into_wider_buckets_killed_at_each_point(stage: Stage) -> None:
    scenarios.steps_killed_at_each_point(stage)


def test_retention_into_wider_buckets_killed_beside_workers_with_late_rows(stage: Stage) -> None:
    scenarios.steps_killed_beside_workers(stage)


def test_no_total_goes_down_and_no_count_is_lost_beside_writers(stage: Stage) -> None:
    compaction_beside.compacted_beside_writers_and_readers(stage)
