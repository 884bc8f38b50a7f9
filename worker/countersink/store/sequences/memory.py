"""What a process remembers: when sequences begin anew, their steps, what the server's clock says.

Nothing here has to be true. A statement that was made from it does its work only where it is, and
otherwise changes nothing, so that it is looked up again.
"""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from countersink.store.connection import Session
from countersink.store.errors import Refused
from countersink.store.sequences.boundaries import (
    WITHOUT_PERIODS,
    PeriodLength,
    Place,
    Scheme,
    place_at,
)

REMEMBERED: Final = 10_000
"""Sequences remembered; then all are forgotten. Each takes about 150 bytes."""
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (naive, as DATETIME is)


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a sequence.

    Attributes:
        scheme: when it begins anew.
        step: the configured one.
    """

    scheme: Scheme = WITHOUT_PERIODS
    step: int = 1


_ORDINARY: Final = Known()


def seconds_of(moment: datetime) -> float:
    """Unix seconds of a DATETIME in UTC."""
    return (moment - _EPOCH).total_seconds()


class Memory:
    """The sequences that were looked up lately, and the server's clock. Thread-safe."""

    def __init__(self) -> None:
        # No lock, which a fork could leave locked: each access is a single one.
        self._known: dict[bytes, Known] = {}
        # How far the server's clock is ahead of this process's monotonic one. The machine's own
        # clock may be wrong, and may be set. Known as soon as any sequence is.
        self._ahead = 0.0

    def knows(self, name: bytes) -> bool:
        """Whether the sequence was seen to have options."""
        return name in self._known

    def place(self, name: bytes) -> Place:
        """The period of a statement for this sequence, as far as is known.

        Raises:
            Refused: the sequence's time zone is unknown on this machine.
        """
        scheme = self._known.get(name, _ORDINARY).scheme
        try:
            return place_at(scheme, time.monotonic() + self._ahead)
        except Refused:
            self.forget(name)  # it may be configured anew meanwhile, or tzdata be installed
            raise

    def step(self, name: bytes) -> int:
        """The sequence's configured step, as far as is known."""
        return self._known.get(name, _ORDINARY).step

    def look_up(self, session: Session, name: bytes) -> bool:
        """Learn it anew; False if the sequence has no options."""
        rows = session.query(
            "SELECT UTC_TIMESTAMP(6), o.period, o.time_zone, o.step FROM (SELECT 1) AS one"
            " LEFT JOIN sequence_option AS o ON o.name = %s",
            (name,),
        )
        ((moment, period, time_zone, step),) = rows
        self._ahead = seconds_of(moment) - time.monotonic()
        if period is None:
            self.forget(name)
            return False
        self._remember(name, Known(Scheme(cast(PeriodLength, period), time_zone), int(step)))
        return True

    def made(self, name: bytes) -> None:
        """The sequence was given the options of one that nobody has configured."""
        self._remember(name, _ORDINARY)

    def forget(self, name: bytes) -> None:
        """The sequence is not known any more."""
        self._known.pop(name, None)

    def _remember(self, name: bytes, known: Known) -> None:
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[name] = known
