"""Sketches hold all members that were sent, whoever dies."""

from collections.abc import Callable

from tests.faults.scenarios import visitors as scenarios
from tests.faults.stage import Stage


def test_killed_at_each_point_while_members_are_united(stage: Stage) -> None:
    scenarios.killed_with_members(stage)


def test_servers_are_killed_while_members_are_united(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_killed_with_members(own_stage())
