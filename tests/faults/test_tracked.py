"""Tracked tables are exact at every moment, whoever writes, dies, truncates or meddles."""

import pytest

from tests.faults.scenarios import tracked as scenarios
from tests.faults.stage import Stage
from tests.support.examples import MANY


@pytest.mark.random
def test_counters_equal_count_in_every_snapshot_beside_writers(stage: Stage) -> None:
    if MANY:
        scenarios.tracked_beside_writers(stage)
    else:
        scenarios.tracked_beside_writers(stage, 0.5, writers=3, snapshots=5)


@pytest.mark.long("writers beside each damage")
def test_what_fires_no_trigger_is_found_and_mended_beside_writers(stage: Stage) -> None:
    scenarios.damage_is_found_and_mended(stage)
