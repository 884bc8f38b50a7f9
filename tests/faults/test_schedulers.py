"""Jobs every second while the scheduler in charge dies, and is frozen: each run once."""

import pytest

from tests.faults.scenarios import schedulers as scenarios
from tests.faults.stage import Stage


@pytest.mark.long("jobs every second, for many seconds")
def test_each_run_starts_once_while_the_scheduler_in_charge_dies_and_is_frozen(
    stage: Stage,
) -> None:
    scenarios.killed_and_frozen_in_charge(stage)
