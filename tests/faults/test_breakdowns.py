"""Breakdowns hold what their counter holds, whoever dies."""

from tests.faults.scenarios import breakdowns as scenarios
from tests.faults.stage import Stage


def test_killed_at_each_point_while_breakdowns_are_counted(stage: Stage) -> None:
    scenarios.killed_with_breakdowns(stage)
