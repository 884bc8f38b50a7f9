"""Number of examples of a random test: few in `make test`, many in `make test-long`."""

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., Any])

MANY: Final = os.environ.get("COUNTERSINK_TEST_EXAMPLES") == "many"
"""Set by `make test-long`, which runs the long tests and the random ones again."""


def examples(few: int, many: int, **more: Any) -> Callable[[Test], Test]:
    """Decorate a random test (outside its ``@given``): ``few`` examples, or ``many`` where
    $COUNTERSINK_TEST_EXAMPLES is "many".

    ``more`` are further settings of Hypothesis.
    """

    def decorate(test: Test) -> Test:
        chosen: Test = settings(max_examples=many if MANY else few, **more)(test)
        marked: Test = pytest.mark.random(chosen)
        return marked

    return decorate
