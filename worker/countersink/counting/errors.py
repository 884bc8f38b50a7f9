"""Errors of counting and of totals.

::

    StoreError
    ├── RefusedMembers   members that cannot be united with those in a cell: roll back, and run
    │                    again without the rows that bring them
    ├── TrackedCounter   a counter that a table's triggers count: nobody else may; also a ValueError
    ├── UnknownCounter   a counter under whose name nothing was ever counted; also a LookupError
    ├── RolledUp         days that were rolled up into months; also a ValueError
    ├── UnknownDimension  a dimension that a counter has not declared, or a question that no
    │                    breakdown of it answers; also a ValueError
    ├── IncompleteBreakdown  a range that begins before the breakdown that answers; also a
    │                    ValueError
    ├── InexactZone      buckets that do not add up to the time asked for; also a ValueError
    ├── DamagedSketch    bytes that are no sketch, or not those that were written
    ├── NoSketches       a library for sketches that is not installed
    └── NotUnique        different members of a counter that counts none, or by several salts; also
                         a ValueError

    SeriesTooLong        a ValueError: a series of too many days, hours or months
    AnswerTooLarge       a ValueError: an answer of more rows than the caller accepts
    RowsMissing          rows of counter_keys that the caller makes before it runs again
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

from countersink.database.errors import StoreError
from countersink.runtime.dead_letter import DeadReason, RowRefusal


class RefusedMembers(StoreError):
    """Members of some rows cannot be united with those of their cells.

    Attributes:
        refused: what brings them, and why not.
    """

    def __init__(self, refused: Mapping[Any, RowRefusal]) -> None:
        super().__init__(next(iter(refused.values())).detail)
        self.refused = refused


class TrackedCounter(StoreError, ValueError):
    """The counter is that of a tracked table: its triggers count, and nobody else does."""


class UnknownCounter(StoreError, LookupError):
    """Nothing was ever counted under this name."""

    advice = "countersink totals --all lists what was counted"


class UnknownDimension(StoreError, ValueError):
    """A counter has not declared a dimension, or no breakdown that holds those asked for."""


class IncompleteBreakdown(StoreError, ValueError):
    """The range begins before the breakdown that answers holds the events.

    Attributes:
        since: the time from which on it holds them; ``start`` may be this time, or, where the
            counter is counted by day, the day after.
    """

    def __init__(self, message: str, *, since: datetime) -> None:
        super().__init__(message)
        self.since = since


class RolledUp(StoreError, ValueError):
    """What was asked for cuts through months into which retention has rolled up the days.

    Attributes:
        rolled_up_to: the first day that still has totals of its own.
    """

    def __init__(self, message: str, *, rolled_up_to: date) -> None:
        super().__init__(message)
        self.rolled_up_to = rolled_up_to


class InexactZone(StoreError, ValueError):
    """The counter's buckets cannot be added up to the days, hours or months asked for."""


class DamagedSketch(StoreError):
    """A sketch of different members is not what was written."""

    reason: Final = DeadReason.BAD_SKETCH


class NoSketches(StoreError):
    """It takes datasketches (the extra ``[sketches]``), which is not installed."""

    reason: Final = DeadReason.NO_SKETCHES


class NotUnique(StoreError, ValueError):
    """How many different members there are cannot be told of what was asked for: the counter counts
    none, or they were hashed with several salts."""


class AnswerTooLarge(ValueError):
    """The answer would have more rows than were wanted at most."""


class SeriesTooLong(ValueError):
    """A series would have more members than there may be: days, hours or months.

    Attributes:
        whole_days: how many days a range can have.
        fits_from, fits_to: the part of it that is short enough and has the most days with counts,
            of several the latest; both ends have counts. None where only the range is known.
    """

    def __init__(
        self, message: str, *, whole_days: int, part: tuple[date, date] | None = None
    ) -> None:
        hint = f"; {part[0]} to {part[1]} has most of what was counted" if part else ""
        super().__init__(message + hint)
        self._message = message
        self.whole_days = whole_days
        self.fits_from = part[0] if part else None
        self.fits_to = part[1] if part else None

    def fitting(self, counted: Iterable[date]) -> "SeriesTooLong":
        """This error, when these are the days with counts."""
        days = sorted(counted)
        first, best = 0, (0, -1)
        for last, day in enumerate(days):
            while (day - days[first]).days >= self.whole_days:
                first += 1
            if last - first >= best[1] - best[0]:
                best = first, last
        part = (days[best[0]], days[best[1]]) if days else None
        return SeriesTooLong(self._message, whole_days=self.whole_days, part=part)


class RowsMissing(Exception):
    """Rows of ``counter_keys`` have to be made first: roll back, make them, and run again.

    Attributes:
        places: the (counter, day) of each.
    """

    def __init__(self, places: Iterable[tuple[str, date]]) -> None:
        self.places = tuple(places)
        super().__init__(f"{len(self.places)} rows of counter_keys are missing")
