"""A worker that dies, hangs or is told to stop, at any point of a batch, costs no count."""

from collections.abc import Callable

import pytest

from tests.faults.scenarios import worker_deaths as scenarios
from tests.faults.stage import Stage


def test_killed_at_each_point_in_random_order(stage: Stage) -> None:
    scenarios.killed_at_each_point(stage)


def test_killed_while_entries_come_in_and_another_works(stage: Stage) -> None:
    scenarios.killed_under_load(stage)


def test_a_slow_owner_whose_entries_others_took(stage: Stage) -> None:
    scenarios.paused_while_others_take_over(stage)


def test_one_that_is_gone_is_found_by_its_silence(stage: Stage) -> None:
    scenarios.found_dead(stage)


def test_one_that_waits_for_mysql_is_not_gone(stage: Stage) -> None:
    scenarios.not_found_dead(stage)


def test_sigterm_finishes_the_batch_and_leaves_nothing_pending(stage: Stage) -> None:
    scenarios.terminated_in_the_midst(stage)


def test_two_workers_given_the_same_entries_at_the_same_moment(stage: Stage) -> None:
    scenarios.two_workers_at_the_same_moment(stage)


@pytest.mark.long("MySQL is frozen until the worker gives up waiting")
def test_sigterm_ends_a_worker_whose_mysql_is_frozen(own_stage: Callable[[], Stage]) -> None:
    scenarios.terminated_while_mysql_is_frozen(own_stage())
