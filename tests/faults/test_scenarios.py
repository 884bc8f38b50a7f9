"""Scenarios among faults, each in a short form: whatever dies, breaks or meets, nothing is missing
and nothing counts twice. In `make test-long` the random ones are played with many faults; the soak
plays them harder still.
"""

from collections.abc import Callable

import pytest

from tests.faults.repertoire import SCENARIOS, Scenario, Where
from tests.faults.stage import Stage


def cases(where: Where) -> pytest.MarkDecorator:
    """The scenarios that are played there."""
    chosen = [each for each in SCENARIOS if each.where == where]
    return pytest.mark.parametrize(
        "scenario", [pytest.param(each, id=each.name, marks=each.marks) for each in chosen]
    )


@cases("shared")
def test_it_is_exact(stage: Stage, scenario: Scenario) -> None:
    scenario.test(stage)


@pytest.mark.servers("mariadb", "mysql")
@cases("both")
def test_it_is_exact_on_both_databases(stage: Stage, scenario: Scenario) -> None:
    scenario.test(stage)


@cases("own")
def test_it_is_exact_when_servers_die(own_stage: Callable[[], Stage], scenario: Scenario) -> None:
    scenario.test(own_stage())
