"""Entries that fall out of the group's hands are found again, and counted once."""

import pytest

from tests.faults.scenarios import recovered_entries as scenarios
from tests.faults.stage import Stage


@pytest.mark.long("the same as the stream deleted, which is played in `make test`")
def test_the_group_is_deleted_while_a_reader_blocks(stage: Stage) -> None:
    scenarios.group_deleted_while_a_reader_blocks(stage)


def test_the_group_is_deleted_with_entries_pending(stage: Stage) -> None:
    scenarios.group_deleted_with_entries_pending(stage)


def test_the_stream_is_deleted_while_a_reader_blocks(stage: Stage) -> None:
    scenarios.stream_deleted_while_a_reader_blocks(stage)


def test_entries_old_and_pending_with_a_dead_consumer(stage: Stage) -> None:
    scenarios.pending_with_a_dead_consumer(stage)


def test_entries_old_and_pending_with_nobody(stage: Stage) -> None:
    scenarios.pending_with_nobody(stage)


def test_the_group_is_set_ahead_of_unread_entries(stage: Stage) -> None:
    scenarios.group_position_ahead(stage)


def test_the_group_goes_back_over_entries_in_hand(stage: Stage) -> None:
    scenarios.group_position_behind(stage)
