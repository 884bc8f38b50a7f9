"""Running a transaction again that met another one."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from countersink.store.errors import Conflict

ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5

Result = TypeVar("Result")


def rerun(
    work: Callable[[], Result],
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> Result:
    """Call ``work``, a whole transaction that undoes itself if it raises, until it has its way.

    The pauses, up to half a second, are random, so that two that met do not meet again.

    Raises:
        Conflict: the last of ``attempts``.
    """
    longest = _FIRST_PAUSE
    for _ in range(attempts - 1):
        try:
            return work()
        except Conflict:
            pause(random.uniform(0.0, longest))
            longest = min(2.0 * longest, _LONGEST_PAUSE)
    return work()
