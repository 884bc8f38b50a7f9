"""Breakdowns hold what their counter holds, whoever dies."""

from collections.abc import Callable

import pytest

from tests.faults.scenarios import breakdowns as scenarios
from tests.faults.scenarios.worker_deaths import POINTS
from tests.faults.stage import Stage
from tests.support.examples import MANY


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_killed_at_points_while_breakdowns_are_counted(stage: Stage) -> None:
    scenarios.killed_with_breakdowns(stage, POINTS if MANY else stage.random.sample(POINTS, 4))


@pytest.mark.long("two servers die while one counter more is counted: with members it is short")
def test_servers_are_killed_while_breakdowns_are_counted(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_killed_with_breakdowns(own_stage())


@pytest.mark.random
def test_backfills_are_killed_while_breakdowns_are_counted(stage: Stage) -> None:
    lines, kills = (70_000, 3) if MANY else (5_000, 1)
    scenarios.backfills_killed_with_breakdowns(stage, lines, kills)
