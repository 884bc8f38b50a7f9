"""Days of tracked rows: which bucket of the counter a row is in.

The bucket is the midnight of the row's own day: of a DATE or DATETIME the date as it is written, of
a TIMESTAMP its date in UTC, whatever the session's time zone. What has no day between 1970-01-01
and 9999-12-25, the days that a counter has, is on the day before or after all of them: NULL, a zero
date (in whole or in part) and dates before 1970 on 1969-12-31, later ones on 9999-12-26. A date
that the calendar does not have (2026-02-31, under ALLOW_INVALID_DATES) is that of so many days
later (2026-03-03). Without a day column all rows are on 1970-01-01.
"""

from datetime import date
from typing import Final

from countersink.store.buckets import day_label
from countersink.store.names import quoted
from countersink.store.tracked.columns import Column

NO_DAY: Final = date(1969, 12, 31)
"""The day of rows that have none, or one before 1970."""
LATE_DAY: Final = date(9999, 12, 26)
"""The day of rows that are later than any event can be."""
ONLY_DAY: Final = date(1970, 1, 1)
"""The day of all rows where no column is the day."""

_YEAR_0: Final = 365
"""Days by which MySQL's day numbers, which begin with the year 0, are ahead of Python's."""
_FIRST: Final = ONLY_DAY.toordinal() + _YEAR_0
_NONE: Final = NO_DAY.toordinal() + _YEAR_0
_LATE: Final = LATE_DAY.toordinal() + _YEAR_0
_DAY_SECONDS: Final = 86_400


def number_sql(day: Column | None, prefix: str = "") -> str:
    """MySQL's number of a row's day (as TO_DAYS counts) as an SQL expression, never NULL.

    Args:
        day: the column; None: there is none.
        prefix: what stands before it: ``NEW.``, ``OLD.`` or a table's name and a dot.
    """
    if day is None:
        return f"{_FIRST}"
    column = f"{prefix}{quoted(day.name)}"
    if day.type == "timestamp":
        # Not by way of a date, which would be that of the session's time zone. 0: a zero date.
        number = f"NULLIF(UNIX_TIMESTAMP({column}), 0) DIV {_DAY_SECONDS} + {_FIRST}"
    else:
        number = f"TO_DAYS({column})"
    return f"LEAST(GREATEST(COALESCE({number}, {_NONE}), {_NONE}), {_LATE})"


def bucket_sql(day: Column | None, prefix: str = "") -> str:
    """The bucket of a row as an SQL expression; as :func:`number_sql`."""
    return f"'{ONLY_DAY}'" if day is None else f"FROM_DAYS({number_sql(day, prefix)})"


def label_of_number(number: int) -> int:
    """The bucket's label for a day's number."""
    return (number - _FIRST) * _DAY_SECONDS


def is_day(label: int) -> bool:
    """Whether a bucket of this label is one that a trigger writes."""
    return label % _DAY_SECONDS == 0 and day_label(NO_DAY) <= label <= day_label(LATE_DAY)
