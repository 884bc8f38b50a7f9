"""Waiting for a condition, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.01
"""Between two looks at the condition."""


def eventually(
    check: Callable[[], T], timeout: float = 20.0, *, message: str | Callable[[], str] = ""
) -> T:
    """Call ``check`` until it returns something true, and return that.

    An ``AssertionError`` counts as "not yet", so a check may assert; any other exception is a
    failure at once. After ``timeout`` seconds raises ``AssertionError`` with the last reason.
    """
    deadline = time.monotonic() + timeout
    while True:
        reason: AssertionError | None = None
        try:
            result = check()
        except AssertionError as not_yet:
            reason = not_yet
        else:
            if result:
                return result
        if time.monotonic() >= deadline:
            said = message() if callable(message) else message
            raise AssertionError(
                f"not within {timeout:g} s: {said or reason or 'the condition stayed false'}"
            ) from reason
        time.sleep(PAUSE_SECONDS)
