"""Replies that are lost and errors in their place, at every request of a batch."""

from tests.faults.scenarios import answers as scenarios
from tests.faults.stage import Stage


def test_1205_1213_and_1020_at_every_statement(stage: Stage) -> None:
    scenarios.conflicts_at_every_statement(stage)


def test_the_connection_is_lost_before_and_after_every_statement(stage: Stage) -> None:
    scenarios.connection_lost_at_every_statement(stage)


def test_the_reply_of_commit_is_lost(stage: Stage) -> None:
    scenarios.commit_replies_lost(stage)


def test_the_reply_of_the_acknowledgement_is_lost(stage: Stage) -> None:
    scenarios.acknowledgement_replies_lost(stage)


def test_the_reply_of_xadd_is_lost(stage: Stage) -> None:
    scenarios.add_replies_lost(stage)


def test_read_only_full_disk_and_denied_wait_and_go_on(stage: Stage) -> None:
    scenarios.waiting_errors(stage)


def test_a_revoked_grant_waits_and_goes_on(stage: Stage) -> None:
    scenarios.grant_revoked(stage)
