"""Sketches hold all members that were sent, whoever dies."""

from collections.abc import Callable

import pytest

from tests.faults.scenarios import visitors as scenarios
from tests.faults.scenarios.worker_deaths import POINTS
from tests.faults.stage import Stage
from tests.support.examples import MANY

LINES = 70_000 if MANY else 5_000


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_killed_at_points_while_members_are_united(stage: Stage) -> None:
    scenarios.killed_with_members(stage, POINTS if MANY else stage.random.sample(POINTS, 4))


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_backfills_are_killed_while_members_are_united(stage: Stage) -> None:
    scenarios.backfills_killed_with_members(stage, kills=3 if MANY else 1, lines=LINES)


def test_servers_are_killed_while_members_are_united(own_stage: Callable[[], Stage]) -> None:
    scenarios.servers_killed_with_members(own_stage())
