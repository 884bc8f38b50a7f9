"""Counts of an application's own transactions, whatever becomes of its processes."""

import pytest

from tests.faults.scenarios import app_transactions
from tests.faults.stage import Stage

pytestmark = pytest.mark.servers("mariadb", "mysql")


def test_counts_are_those_of_the_rows_though_the_processes_are_killed(stage: Stage) -> None:
    app_transactions.sold_among_kills(stage, kills=2)
