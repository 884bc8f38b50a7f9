"""Days and hours of access logs that are in one bucket with all of their minutes.

Where the lines of a window are of one such period, as nearly all are of a log that was written in
order, they need not be told apart by their times.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from countersink.producers.access_line import Malformed, minute_of
from countersink.store.errors import Refused

_LINE: Final = re.compile(
    rb"[^ \n]++ [^ \n]++ [^ \n]++ \[(\d\d/[A-Z][a-z][a-z]/\d{4}:)(\d\d:)\d\d:\d\d ([+-]\d{4})\]"
)
_HOUR: Final = rb"(?:[01]\d|2[0-3]):"
_IN_HOUR: Final = rb"[0-5]\d:(?:[0-5]\d|60) "
_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Period:
    """A day or an hour.

    Attributes:
        time: the pattern of its times, all of which can be.
        label: of the bucket that they are in.
    """

    time: bytes
    label: int


class Periods:
    """Finds the period of a window by its first and its last line.

    Args:
        bucket: the label of the bucket of a Unix minute. Raises Refused where it cannot be told.
        within: whether a Unix minute is one of those that are counted.
    """

    def __init__(self, bucket: Callable[[int], int], within: Callable[[int], bool]) -> None:
        self._bucket = bucket
        self._within = within
        self._known: dict[tuple[bytes, ...], Period | None] = {}

    def of(self, data: bytes) -> Period | None:
        """The period that ``data``, whole lines, begins and ends in; None: its times have to be
        looked at one by one.
        """
        period = self._at(data, 0)
        if period is None or period != self._at(data, data.rfind(b"\n", 0, -1) + 1):
            return None
        return period

    def _at(self, data: bytes, start: int) -> Period | None:
        """The period of the line that begins there."""
        line = _LINE.match(data, start)
        if line is None:
            return None
        found = line.groups()
        if found not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[found] = self._work_out(*found)
        return self._known[found]

    def _work_out(self, day: bytes, hour: bytes, zone: bytes) -> Period | None:
        label = self._label(day + b"00:00" + zone, day + b"23:59" + zone)
        if label is not None:
            return Period(day + _HOUR + _IN_HOUR + re.escape(zone), label)
        label = self._label(day + hour + b"00" + zone, day + hour + b"59" + zone)
        if label is not None:
            return Period(day + hour + _IN_HOUR + re.escape(zone), label)
        return None

    def _label(self, first: bytes, last: bytes) -> int | None:
        """The only label of the minutes from first to last, if all are to be counted."""
        try:
            minutes = range(minute_of(first), minute_of(last) + 1)
            if not all(map(self._within, minutes)):
                return None
            labels = set(map(self._bucket, minutes))
        except (Malformed, Refused):
            return None
        return labels.pop() if len(labels) == 1 else None
