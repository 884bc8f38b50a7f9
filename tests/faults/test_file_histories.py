"""Files that are rotated, copied, cut and put together: each line of them counts once, or is
refused with a reason, whatever is killed, undone, or runs at the same time.
"""

import pytest

from tests.faults.scenarios.file_histories import HISTORIES, RECONCILES, backfills, reconciles
from tests.faults.stage import Stage
from tests.support.examples import MANY

SEED = 5
"""Of the short ones, which are always the same."""

pytestmark = [pytest.mark.random, pytest.mark.servers("mariadb", "mysql")]


def test_lines_of_files_count_once_whatever_becomes_of_the_files(stage: Stage) -> None:
    if not MANY:
        stage.seed = SEED
    backfills(stage, HISTORIES if MANY else 1)


def test_reconciles_beside_live_traffic_set_what_the_logs_say(stage: Stage) -> None:
    if not MANY:
        stage.seed = SEED
    reconciles(stage, RECONCILES if MANY else 1)
