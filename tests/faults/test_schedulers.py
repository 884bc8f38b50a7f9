"""Jobs every second while schedulers die and are frozen: each run once, none left out."""

import pytest

from tests.faults.scenarios import schedulers as scenarios
from tests.faults.stage import Stage


@pytest.mark.long("jobs every second, for many seconds")
def test_each_run_starts_once_while_schedulers_die_and_are_frozen(stage: Stage) -> None:
    scenarios.killed_and_frozen(stage)
