"""Ranges of days as callers give them, and ranges of labels as queries need them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from countersink.store.buckets import label_time, policy_number


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRange:
    """Buckets of one policy, from one label to another.

    Attributes:
        first: the first label; None for where they begin.
        until: the label before which they end; None for where they end.
        number: of the policy they were counted under.
        step: seconds from one label to the next.
        mixed: the counter has buckets of other policies, which may lie in between.
    """

    first: int | None
    until: int | None
    number: int
    step: int
    mixed: bool

    def __contains__(self, label: int) -> bool:
        return (
            (self.first is None or label >= self.first)
            and (self.until is None or label < self.until)
            and (not self.mixed or policy_number(label) == self.number)
        )

    @property
    def empty(self) -> bool:
        """Whether it can hold no bucket."""
        return self.first is not None and self.until is not None and self.first >= self.until

    @property
    def only(self) -> int | None:
        """Its label, if it can hold just one."""
        if self.first is None or self.until is None:
            return None
        label = self.first + (self.number - self.first) % self.step
        return label if label < self.until <= label + self.step else None


Ranges = Sequence[LabelRange] | None
"""Buckets in any of these; None for all of the counter's."""


def condition(ranges: Ranges) -> tuple[str, tuple[object, ...]]:
    """The rest of a WHERE clause, from AND on, and its values.

    Columns stand alone wherever an index is to be used; the number of a policy only picks among the
    rows of a range.
    """
    if ranges is None:
        return "", ()
    if not ranges:
        return " AND FALSE", ()
    parts, args = [], []
    for one in ranges:
        terms = []
        if one.only is not None:
            # Not as a range: the rows of one bucket come in the order of their keys, which spares
            # grouping by key a temporary table (a tenth of the time, for 100,000 keys on MariaDB).
            terms.append("bucket = %s")
            args.append(label_time(one.only))
        else:
            if one.first is not None:
                terms.append("bucket >= %s")
                args.append(label_time(one.first))
            if one.until is not None:
                terms.append("bucket < %s")
                args.append(label_time(one.until))
            if one.mixed:
                terms.append(f"SECOND(bucket) = {one.number:d}")
        parts.append(" AND ".join(terms))
    if not all(parts):
        return "", ()
    joined = parts[0] if len(parts) == 1 else f"(({') OR ('.join(parts)}))"
    return f" AND {joined}", tuple(args)


def check_days(start: date | None, end: date | None) -> None:
    """Refuse what is no range of days.

    Raises:
        TypeError: not a ``date`` (a ``datetime`` is none).
        ValueError: it ends before it begins.
    """
    for day in (start, end):
        if isinstance(day, datetime) or not isinstance(day, date | None):
            raise TypeError(f"a range is given in days, as datetime.date, not {type(day).__name__}")
    if start is not None and end is not None and end < start:
        raise ValueError(f"the range ends ({end}) before it begins ({start})")
