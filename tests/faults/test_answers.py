"""Replies that are lost and errors in their place, at every request of a batch."""

import pytest

from tests.faults.scenarios import answers as scenarios
from tests.faults.stage import Stage
from tests.support.examples import MANY


@pytest.mark.random
def test_1205_1213_or_1020_at_every_statement(stage: Stage) -> None:
    scenarios.conflicts_at_every_statement(stage, one_of_them=not MANY)


@pytest.mark.random
def test_the_connection_is_lost_before_or_after_every_statement(stage: Stage) -> None:
    scenarios.connection_lost_at_every_statement(stage, one_of_them=not MANY)


def test_the_reply_of_commit_is_lost(stage: Stage) -> None:
    scenarios.commit_replies_lost(stage)


def test_the_reply_of_the_acknowledgement_is_lost(stage: Stage) -> None:
    scenarios.acknowledgement_replies_lost(stage)


def test_the_reply_of_xadd_is_lost(stage: Stage) -> None:
    scenarios.add_replies_lost(stage)


@pytest.mark.random
def test_read_only_full_disk_and_denied_wait_and_go_on(stage: Stage) -> None:
    scenarios.waiting_errors(stage, errors=6 if MANY else 1)


def test_a_revoked_grant_waits_and_goes_on(stage: Stage) -> None:
    scenarios.grant_revoked(stage)
