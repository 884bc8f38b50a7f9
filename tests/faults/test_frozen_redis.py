"""An app counts on while Redis is frozen, and what was accepted, or stored, counts once."""

from collections.abc import Callable

import pytest

from tests.faults.scenarios import frozen_redis as scenarios
from tests.faults.stage import Stage


@pytest.mark.long("frozen for 30 seconds")
def test_an_app_counts_on_through_a_freeze_of_thirty_seconds(
    own_stage: Callable[[], Stage],
) -> None:
    scenarios.app_outlives_a_freeze(own_stage(), seconds=30)


@pytest.mark.long("an app's memory, full")
def test_memory_is_bounded_and_what_does_not_fit_is_said(own_stage: Callable[[], Stage]) -> None:
    scenarios.memory_is_bounded(own_stage())


@pytest.mark.long("a spool of 6 seconds")
def test_an_app_with_a_spool_is_killed_and_another_replays(own_stage: Callable[[], Stage]) -> None:
    scenarios.app_killed_with_a_spool(own_stage(), seconds=6)


@pytest.mark.long("apps killed again and again")
def test_apps_that_share_a_spool_are_killed_again_and_again(
    own_stage: Callable[[], Stage],
) -> None:
    scenarios.app_killed_again_and_again(own_stage())
