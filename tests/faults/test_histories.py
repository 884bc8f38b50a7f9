"""Counters of many time zones tell what dictionaries tell, whatever is set, rolled up or undone."""

import pytest

from tests.faults.scenarios.histories import OPERATIONS, histories
from tests.faults.stage import Stage
from tests.support.examples import MANY

SEED = 3
"""Of the short one, which is always the same."""


@pytest.mark.random
def test_all_answers_are_those_of_dictionaries(stage: Stage) -> None:
    if not MANY:
        stage.seed = SEED
    histories(stage, OPERATIONS if MANY else 30)
