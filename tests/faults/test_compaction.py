"""Compaction and retention cost no count, whatever dies and whoever writes and reads meanwhile."""

import pytest

from tests.faults.scenarios import compaction as scenarios
from tests.faults.scenarios import compaction_beside
from tests.faults.stage import Stage
from tests.support.examples import MANY


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
@pytest.mark.parametrize("what", ["compact", "retention", "steps"])
def test_killed_at_points_of_a_move(stage: Stage, what: scenarios.What) -> None:
    scenarios.killed_at_each_point(stage, what, kills=None if MANY else 3)


@pytest.mark.random
def test_retention_into_wider_buckets_killed_beside_workers_with_late_rows(stage: Stage) -> None:
    scenarios.steps_killed_beside_workers(stage, kills=6 if MANY else 1)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_no_total_goes_down_and_no_count_is_lost_beside_writers(stage: Stage) -> None:
    compaction_beside.compacted_beside_writers_and_readers(stage, seconds=5 if MANY else 1.5)
