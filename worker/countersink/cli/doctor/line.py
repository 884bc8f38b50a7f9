"""One line of the doctor's report."""

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Line:
    """What one check found.

    Attributes:
        status: ``ok``; ``warn``: it works, and something can be lost or will get slow; ``fail``: it
            does not work, or counts would be wrong.
        check: what was looked at, a name that does not change.
        found: what was found, for people.
        advice: what to do; empty when ok.
    """

    status: Status
    check: str
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        """Every line that is not ok says what to do."""
        assert self.status == "ok" or self.advice

    def as_json(self) -> dict[str, str]:
        """For ``--format json``."""
        return asdict(self)
