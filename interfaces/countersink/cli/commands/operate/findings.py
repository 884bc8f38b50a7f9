"""``Finding``: the result of one check of ``countersink doctor``, and the finding on a clock."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from countersink.cli import output

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        status: ``ok``; ``warn``: it works, but counts can be lost or delayed; ``fail``: it does not
            work, or counts would be wrong.
        found: the state that the check found, as text.
        advice: text that says what to do; empty if ok.
        check: the name of the check, which is the same in every release.
    """

    status: Status
    found: str
    advice: str = ""
    check: str = ""


ok: Final = partial(Finding, "ok")
warn: Final = partial(Finding, "warn")
fail: Final = partial(Finding, "fail")


def named(check: str, *findings: Finding) -> Iterator[Finding]:
    """The findings, with the name of their check."""
    return (replace(each, check=check) for each in findings)


CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000
"""Five minutes; from then on, increments near midnight count for the wrong day."""


def clock(server: str, ahead_ms: int) -> Finding:
    """The finding on a server's clock that is ``ahead_ms`` milliseconds ahead of this machine's."""
    apart = abs(ahead_ms)
    relation = "ahead of" if ahead_ms > 0 else "behind"
    found = f"{server} is {output.ago(apart / 1000)} {relation} this machine"
    if apart < CLOCK_WARN_MS:
        return ok(found)
    advice = "let NTP set the clocks: increments without a time count at the time of Redis"
    return (fail if apart >= CLOCK_FAIL_MS else warn)(found, advice)
