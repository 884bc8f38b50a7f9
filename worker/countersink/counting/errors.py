"""Errors that counting, row counts, and reading totals can raise.

::

    StoreError
    ├── RefusedMembers   members of some rows cannot be added to the sketches of their cells: roll
    │                    back, and run the transaction again without these rows
    ├── TrackedCounter   the counter belongs to a tracked table; also a ValueError
    ├── UnknownCounter   no counter, or no tracked table, has this name; also a LookupError
    ├── RolledUp         the range cuts a month that is a single bucket, or needs buckets that are
    │                    rolled up to wider ones; also a ValueError
    ├── UnknownDimension  the counter has not declared the dimension, has no breakdown by these
    │                    dimensions, or has dimensions in place of keys; also a ValueError
    ├── IncompleteBreakdown  the range begins before the breakdown counts; also a ValueError
    ├── InexactZone      the buckets do not add up to what was asked for; also a ValueError
    ├── DamagedSketch    a stored sketch is damaged or missing
    ├── NoSketches       the library datasketches is needed, and not installed
    ├── NotUnique        the number of different members is unknown: the counter does not count
    │                    them, or several salts were used; also a ValueError
    ├── TableChanged     a Conflict: a tracked table was truncated or altered: count its rows again
    └── HiddenTriggers   a Refused: this user may not see the triggers of a tracked table

    SeriesTooLong        a ValueError: the series has too many days, weeks, hours, minutes or months
    AnswerTooLarge       a ValueError: the answer has more rows than the caller accepts
    TotalTooLarge        a ValueError: a file format cannot hold a total
    RowsMissing          rows of counter_keys are missing: insert them, and try again
    CatalogChanged       internal: the catalog changed between two reads: begin with the first again
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final

from countersink.database.errors import Conflict, Refused, StoreError
from countersink.runtime.dead_letter import DeadReason, RowRefusal


class RefusedMembers(StoreError):
    """Members of some rows cannot be added to the sketches of their cells. (A member is a visitor,
    say; a sketch keeps the hashes of members.) Roll back, and run the transaction again without
    these rows.

    Attributes:
        refused: the refused rows (in a backfill, bucket's label and key of the lines), each with
            the reason. If a function that writes cells raises the error, it has the refused cells
            instead.
    """

    def __init__(self, refused: Mapping[Any, RowRefusal]) -> None:
        super().__init__(next(iter(refused.values())).detail)
        self.refused = refused


class TrackedCounter(StoreError, ValueError):
    """The counter belongs to a tracked table: only the table's triggers count it."""


class UnknownCounter(StoreError, LookupError):
    """No counter has this name: it was neither created nor ever counted. Also raised if no tracked
    table has this name.
    """

    advice = "countersink totals --all lists what was counted"


class UnknownDimension(StoreError, ValueError):
    """The counter has not declared the dimension, or it has no breakdown (totals by values of
    dimensions) with all dimensions of the question. Or it has dimensions, and a question names only
    keys that it never counted.
    """


class IncompleteBreakdown(StoreError, ValueError):
    """The range of a question begins before the breakdown that answers it began to count events.

    Attributes:
        since: time from which on the breakdown counts events, a midnight of the counter's time
            zone. A new question can have this time as ``start``.
    """

    def __init__(self, message: str, *, since: datetime) -> None:
        super().__init__(message)
        self.since = since


class RolledUp(StoreError, ValueError):
    """The range begins or ends within a month whose days retention has rolled up into one bucket.
    Or a series was asked for, and some of its days, weeks, hours or minutes are rolled up to wider
    buckets.

    Attributes:
        rolled_up_to: the first day from which on nothing that was asked for is rolled up. A
            range that begins on this day can be answered.
    """

    def __init__(self, message: str, *, rolled_up_to: date) -> None:
        super().__init__(message)
        self.rolled_up_to = rolled_up_to


class InexactZone(StoreError, ValueError):
    """The range, or a day, week, hour, minute or month of a series, begins or ends within a bucket,
    so the counter's buckets do not add up to what was asked for.
    """


class DamagedSketch(StoreError):
    """A stored sketch (which keeps the members of one cell) is damaged or missing."""

    reason: Final = DeadReason.BAD_SKETCH


class NoSketches(StoreError):
    """The library datasketches is needed, and not installed. (The extra ``[sketches]`` has it.)"""

    reason: Final = DeadReason.NO_SKETCHES


class NotUnique(StoreError, ValueError):
    """The number of different members is unknown: the counter does not count them, or their hashes
    were made with several salts.
    """


class TableChanged(Conflict):
    """A tracked table was truncated or altered while its rows were counted."""


class HiddenTriggers(Refused):
    """A tracked table has countersink's triggers, but this user may not see them."""


class AnswerTooLarge(ValueError):
    """The answer has more rows than the caller accepts."""


class TotalTooLarge(ValueError):
    """A total does not fit into the 64 bits of a Parquet column."""


class SeriesTooLong(ValueError):
    """A series has more days, weeks, hours, minutes or months than are allowed.

    Attributes:
        whole_days: number of days of a range that is surely short enough, wherever it begins.
        fits_from, fits_to: first and last day of the part of the range that a caller may show
            instead. It has ``whole_days`` days at most, and the most days with counts; if several
            such parts have equally many, it is the latest. Its first and its last day have counts.
            None if :meth:`fitting` did not make this error, or if no day has counts.
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
        """Find the part of the series that is short enough and has the most days with counts.
        Return a copy of this error that has the part in ``fits_from``, ``fits_to`` and the message.

        Args:
            counted: all days with counts, in any order. If there are none, ``fits_from`` and
                ``fits_to`` of the copy are None.
        """
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
    """Rows of ``counter_keys``, which a counter with a cap on its keys needs, are missing: roll
    back, insert them, and run the transaction again.

    Attributes:
        places: (counter, day) of each missing row; the day is in the counter's time zone.
    """

    def __init__(self, places: Iterable[tuple[str, date]]) -> None:
        self.places = tuple(places)
        super().__init__(f"{len(self.places)} rows of counter_keys are missing")


class CatalogChanged(Exception):
    """The catalog changed between the read of the queue and the MySQL snapshot. Internal: ``Reads``
    reads the queue again."""
