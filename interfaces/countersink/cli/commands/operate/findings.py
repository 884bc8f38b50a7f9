"""The result of one check of ``countersink doctor`` (``Finding``), and the check of a server's
clock."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from countersink.runtime.texts import ago

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        status: ``ok``; ``warn`` if the installation works, but counts can be lost or delayed;
            ``fail`` if it does not work, or counts would be wrong.
        found: text that says what the check found.
        advice: text that says what to do; empty where the status is ``ok``.
        check: the name of the check, which is the same in every release; empty until :func:`named`
            sets it.
    """

    status: Status
    found: str
    advice: str = ""
    check: str = ""


ok: Final = partial(Finding, "ok")
warn: Final = partial(Finding, "warn")
fail: Final = partial(Finding, "fail")


def named(check: str, *findings: Finding) -> Iterator[Finding]:
    """Yield copies of the findings, with the argument ``check`` as their attribute ``check``."""
    return (replace(each, check=check) for each in findings)


CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000
"""Difference of two clocks, in milliseconds, from which on ``doctor`` fails: five minutes. With
such a difference, increments near midnight count for the wrong day."""


def clock(server: str, ahead_ms: int) -> Finding:
    """Return the finding on a server's clock that is ``ahead_ms`` milliseconds ahead of this
    machine's clock. A negative number means that it is behind. In either direction, the finding is
    a warning from ``CLOCK_WARN_MS`` on, and a failure from ``CLOCK_FAIL_MS`` on; below, it is
    ``ok``. ``server`` is the server's name in the text."""
    apart = abs(ahead_ms)
    relation = "ahead of" if ahead_ms > 0 else "behind"
    found = f"{server} is {ago(apart / 1000)} {relation} this machine"
    if apart < CLOCK_WARN_MS:
        return ok(found)
    advice = "let NTP set the clocks: increments without a time count at the time of Redis"
    return (fail if apart >= CLOCK_FAIL_MS else warn)(found, advice)
