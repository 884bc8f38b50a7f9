"""Errors of counting and of totals.

::

    StoreError
    ├── RefusedMembers   members of rows cannot be united with those of a cell: roll back, and run
    │                    the transaction again without these rows
    ├── TrackedCounter   the counter belongs to a tracked table; also a ValueError
    ├── UnknownCounter   nothing was ever counted under this name; also a LookupError
    ├── RolledUp         the days were rolled up into months; also a ValueError
    ├── UnknownDimension  the counter has not declared the dimension, or has no breakdown by these
    │                    dimensions; also a ValueError
    ├── IncompleteBreakdown  the range begins before the breakdown was declared; also a ValueError
    ├── InexactZone      the buckets do not add up to the days asked for; also a ValueError
    ├── DamagedSketch    the bytes of a stored sketch are damaged
    ├── NoSketches       datasketches is not installed
    └── NotUnique        the counter does not count different members, or several salts were used;
                         also a ValueError

    SeriesTooLong        a ValueError: the series has too many days, hours or months
    AnswerTooLarge       a ValueError: the answer has more rows than the caller accepts
    RowsMissing          rows of counter_keys are missing: make them and run the transaction again
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

from countersink.database.errors import StoreError
from countersink.runtime.dead_letter import DeadReason, RowRefusal


class RefusedMembers(StoreError):
    """Members of some rows cannot be united with those of their cells.

    Attributes:
        refused: the reason for each refused row or cell.
    """

    def __init__(self, refused: Mapping[Any, RowRefusal]) -> None:
        super().__init__(next(iter(refused.values())).detail)
        self.refused = refused


class TrackedCounter(StoreError, ValueError):
    """The counter belongs to a tracked table: only the table's triggers count it."""


class UnknownCounter(StoreError, LookupError):
    """Nothing was ever counted under this name."""

    advice = "countersink totals --all lists what was counted"


class UnknownDimension(StoreError, ValueError):
    """The counter has not declared the dimension, or has no breakdown by these dimensions."""


class IncompleteBreakdown(StoreError, ValueError):
    """The range begins before the breakdown counts events.

    Attributes:
        since: time from which on the breakdown counts events. ``start`` may be this time or, where
            the counter is counted by day, the day after.
    """

    def __init__(self, message: str, *, since: datetime) -> None:
        super().__init__(message)
        self.since = since


class RolledUp(StoreError, ValueError):
    """The range cuts through months into which retention has rolled up the days.

    Attributes:
        rolled_up_to: first day that still has buckets of its own.
    """

    def __init__(self, message: str, *, rolled_up_to: date) -> None:
        super().__init__(message)
        self.rolled_up_to = rolled_up_to


class InexactZone(StoreError, ValueError):
    """The counter's buckets do not add up to the days, hours or months asked for."""


class DamagedSketch(StoreError):
    """The bytes of a stored sketch are damaged."""

    reason: Final = DeadReason.BAD_SKETCH


class NoSketches(StoreError):
    """The library datasketches (the extra ``[sketches]``) is not installed."""

    reason: Final = DeadReason.NO_SKETCHES


class NotUnique(StoreError, ValueError):
    """The number of different members is unknown: the counter does not count them, or they were
    hashed with several salts."""


class AnswerTooLarge(ValueError):
    """The answer has more rows than the caller accepts."""


class SeriesTooLong(ValueError):
    """A series has more days, hours or months than are allowed.

    Attributes:
        whole_days: maximum number of days of a range.
        fits_from, fits_to: first and last day of the allowed part that has the most days with
            counts (the latest of several); both have counts. None where only the range is known.
    """

    def __init__(
        self, message: str, *, whole_days: int, part: tuple[date, date] | None = None
    ) -> None:
        hint = f"; {part[0]} to {part[1]} has the most days with counts" if part else ""
        super().__init__(message + hint)
        self._message = message
        self.whole_days = whole_days
        self.fits_from = part[0] if part else None
        self.fits_to = part[1] if part else None

    def fitting(self, counted: Iterable[date]) -> "SeriesTooLong":
        """This error with ``fits_from`` and ``fits_to``, given the days with counts."""
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
    """Rows of ``counter_keys`` are missing: roll back, make them, and run the transaction again.

    Attributes:
        places: (counter, day) of each row.
    """

    def __init__(self, places: Iterable[tuple[str, date]]) -> None:
        self.places = tuple(places)
        super().__init__(f"{len(self.places)} rows of counter_keys are missing")
