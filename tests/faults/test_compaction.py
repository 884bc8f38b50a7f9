"""Compaction and retention cost no count, whatever dies and whoever writes and reads meanwhile."""

from tests.faults.scenarios import compaction as scenarios
from tests.faults.stage import Stage


def test_compaction_killed_at_each_point(stage: Stage) -> None:
    scenarios.killed_at_each_point(stage)


def test_retention_killed_at_each_point(stage: Stage) -> None:
    scenarios.retention_killed_at_each_point(stage)


def test_no_total_goes_down_and_no_count_is_lost_beside_writers(stage: Stage) -> None:
    scenarios.compacted_beside_writers_and_readers(stage)
