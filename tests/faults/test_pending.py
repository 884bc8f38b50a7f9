"""Whoever asks for what is still in the queue, too, reads what was sent: no less and no more."""

from tests.faults.scenarios import pending as scenarios
from tests.faults.stage import Stage


def test_readers_read_what_they_sent_beside_workers_that_are_killed(stage: Stage) -> None:
    scenarios.read_beside_killed_workers(stage, kills=1, rounds=1)
