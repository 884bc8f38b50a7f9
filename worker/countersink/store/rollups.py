"""Which months of a counter hold days that retention has rolled up, and what can still be told.

The row of a month holds the days of it before :attr:`RolledUpDays.up_to`, all of them and no other;
late events for such days lie among the buckets until they are moved. So both are added up, and a
range of days has an answer unless it takes one part of such a month and leaves another.
"""

from dataclasses import dataclass
from datetime import date

from countersink.store import buckets, periods
from countersink.store.errors import RolledUp
from countersink.store.periods import ONE_DAY, month_ends, month_of
from countersink.store.views import View

Months = tuple[date, date]
"""The first days of the first and of the last month, both inclusive."""


@dataclass(frozen=True, slots=True)
class RolledUpDays:
    """What of a counter is in months.

    Attributes:
        up_to: the first day that is not.
        first: the first day of the first month that has rows.
        last: the first day of the last one.
    """

    up_to: date
    first: date
    last: date

    @property
    def last_day(self) -> date:
        """The last day that can be in a month."""
        return min(month_ends(self.last), self.up_to - ONE_DAY)

    def months(self, view: View, start: date | None, end: date | None) -> Months | None:
        """The months that a range holds whole; None for none.

        Raises:
            RolledUp: the range cuts through one.
        """
        if start is None and end is None:
            return self.first, self.last
        if not view.own:
            return self._months_elsewhere(view, start, end)
        low, high = self.first, self.last
        if start is not None and start > low:
            if start > self.last_day:
                return None
            if start != month_of(start):
                raise self._cut(view)
            low = start
        if end is not None and end < self.last_day:
            if end < low:
                return None
            if end != month_ends(end):
                raise self._cut(view)
            high = month_of(end)
        return low, high

    def require_days(self, view: View, start: date | None, end: date | None) -> date | None:
        """Where a series of single days, or hours, may begin: ``start``, or a day when all are
        there.

        Raises:
            RolledUp: the range was meant to begin, or ends, among days that are rolled up.
        """
        begins = self.days_from(view)
        gone = start is not None and start < begins and not self._before(view, start, end)
        if gone or (end is not None and end < begins and start is None):
            raise RolledUp(
                f"the days of {view.counter!r} before {begins} are rolled up to months: ask from"
                " that day on, or for months",
                rolled_up_to=self.up_to,
            )
        return begins if start is None else start

    def require_own(self, view: View) -> None:
        """Check that the view's days and months are those of the counter's own zones.

        Raises:
            RolledUp: they are not.
        """
        if not view.own:
            raise self._elsewhere(view)

    def days_from(self, view: View) -> date:
        """The first day in the view's zone of which nothing is in months."""
        if view.own:
            return self.up_to
        zone = view.time_zone
        assert zone is not None
        _, highest = self._instants(view)
        day = buckets.date_at(zone, highest)
        return day if buckets.day_begins(zone, day) >= highest else day + ONE_DAY

    def _before(self, view: View, start: date, end: date | None) -> bool:
        """Whether a range lies before or behind all that months hold."""
        try:
            return self.months(view, start, end) is None
        except RolledUp:
            return False

    def _months_elsewhere(self, view: View, start: date | None, end: date | None) -> Months | None:
        """For a zone that is not the counter's: all of the months, or none."""
        zone = view.time_zone
        assert zone is not None
        if start is not None and not self._all_after(view, periods.date_changes(zone, start)):
            return None
        following = None if end is None else periods.after(end)
        if following is None:
            return self.first, self.last
        after = self._all_after(view, periods.date_changes(zone, following))
        return None if after else (self.first, self.last)

    def _all_after(self, view: View, changes: tuple[int, ...]) -> bool:
        """Whether all that is in months comes after these instants, or all of it before.

        Raises:
            RolledUp: some before, some after.
        """
        lowest, highest = self._instants(view)
        if any(lowest < change < highest for change in changes):
            raise self._elsewhere(view)
        return changes[0] <= lowest

    def _instants(self, view: View) -> tuple[int, int]:
        """Unix seconds between which everything in the months lies."""
        zones = {policy.known_zone() for policy in view.policies}
        return (
            min(buckets.day_begins(zone, self.first) for zone in zones),
            max(buckets.day_begins(zone, self.last_day + ONE_DAY) for zone in zones),
        )

    def _elsewhere(self, view: View) -> RolledUp:
        return RolledUp(
            f"the days of {view.counter!r} before {self.up_to} are rolled up to months of its own"
            f" time zone: ask for {view.time_zone} from {self.days_from(view)} on, or without a"
            " time zone",
            rolled_up_to=self.up_to,
        )

    def _cut(self, view: View) -> RolledUp:
        return RolledUp(
            f"the days of {view.counter!r} before {self.up_to} are rolled up to months: ask for"
            f" whole months, or from {self.up_to} on",
            rolled_up_to=self.up_to,
        )
