"""Breakdowns hold what their counter holds, whoever dies."""

from collections.abc import Callable

from tests.faults.scenarios import breakdowns as scenarios
from tests.faults.stage import Stage


def test_killed_at_each_point_while_breakdowns_are_counted(stage: Stage) -> None:
    scenarios.killed_with_breakdowns(stage)


def test_servers_are_killed_while_breakdowns_are_counted(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_killed_with_breakdowns(own_stage())


def test_killed_while_a_breakdown_is_filled(stage: Stage) -> None:
    scenarios.killed_while_filled(stage, lines=70_000)
