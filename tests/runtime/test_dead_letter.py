"""The reasons of dead letters, which are stored, and told to people."""

import pytest

from countersink.runtime.dead_letter import MAYBE_COUNTED, DeadReason


@pytest.mark.parametrize("reason", DeadReason)
def test_a_reason_fits_its_column_and_says_what_to_do(reason: DeadReason) -> None:
    assert reason == reason.name.lower()
    assert reason.isascii()
    assert len(reason) <= 64
    headline, explanation, remedy, _ = reason.document().values()
    assert headline
    assert not headline.endswith(".")
    assert explanation.endswith(".")
    assert remedy.endswith(".")


def test_what_may_have_been_counted_is_retried_only_when_asked_for() -> None:
    assert MAYBE_COUNTED == ("too_old", "reconciled")
