"""A cap on the keys of a day is kept whoever dies, and an attack of new keys leaves no trace."""

import pytest

from tests.faults.scenarios import key_caps as scenarios
from tests.faults.stage import Stage

pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_killed_while_taking_room(stage: Stage) -> None:
    scenarios.killed_with_a_cap(stage, stage.random.sample(scenarios.OWN_POINTS, 1))


@pytest.mark.long("thousands of new keys")
def test_an_attack_of_new_keys(stage: Stage) -> None:
    scenarios.attacked_with_new_keys(stage, 20)
