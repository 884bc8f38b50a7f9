"""Sketches hold all members that were sent, whoever dies."""

from collections.abc import Callable

from tests.faults.scenarios import visitors as scenarios
from tests.faults.scenarios.worker_deaths import POINTS
from tests.faults.stage import Stage


def test_killed_at_each_point_while_members_are_united(stage: Stage) -> None:
    # The soak plays all of them.
    scenarios.killed_with_members(stage, stage.random.sample(POINTS, 5))


def test_backfills_are_killed_while_members_are_united(stage: Stage) -> None:
    scenarios.backfills_killed_with_members(stage, kills=2)


def test_servers_are_killed_while_members_are_united(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_killed_with_members(own_stage())
