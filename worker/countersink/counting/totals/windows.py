"""Windows that end now (``--last 24h``), the windows before them, and the errors where a counter's
buckets do not tell.

A window of minutes or hours is made of whole buckets: that which is open now is the last one, and
the first begins so long before its end. So there is no guess in it, and it moves with the buckets:
by the minute, the quarter or the hour. Where it begins among buckets that are rolled up to wider
ones, it is made of quarters or hours, if no bucket goes beyond them. A window of days is of whole
days, today's included.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from countersink.counting.counters import buckets
from countersink.counting.counters.buckets import FINER, MINUTES, ONE_DAY
from countersink.counting.counters.catalog import Scheme
from countersink.counting.errors import InexactZone, RolledUp
from countersink.counting.totals.selection import Last, Selection
from countersink.counting.totals.snapshot import Snapshot
from countersink.counting.totals.views import View
from countersink.runtime.times import iso

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A range as it was settled.

    Attributes:
        start, end: days, both inclusive, or times, from the one to before the other.
    """

    start: date
    end: date

    def document(self) -> dict[str, str]:
        """Both ends as JSON has them: days, or times in UTC."""
        return {
            name: iso(each, "minutes") for name, each in (("from", self.start), ("to", self.end))
        }

    @property
    def before(self) -> "TimeWindow | None":
        """That of the same length which ends where this one begins; None: it would begin before
        all times that can be asked for.
        """
        start, end = self.start, self.end
        if isinstance(start, datetime) and isinstance(end, datetime):
            length = end - start
            return TimeWindow(start - length, start) if start - _FIRST >= length else None
        days = end - start + ONE_DAY
        return TimeWindow(start - days, start - ONE_DAY) if start - date.min >= days else None


def settled(
    snapshot: Snapshot, selection: Selection, last: Last, *, before: bool = False
) -> Selection:
    """The selection of one counter, with the range that its ``last`` means instead.

    Args:
        snapshot: that is asked; now is the time of its server.
        selection: of one counter.
        last: its window.
        before: the window before it is asked for, too.

    Raises:
        UnknownCounter: there is no such counter.
        InexactZone: its buckets do not make up such a window.
        Refused: this machine does not know its time zone, and days are asked for.
    """
    view = snapshot.selected(selection)
    window = _last(view, last, snapshot.now_ms // 60_000, before=before)
    return replace(selection, last=None, start=window.start, end=window.end)


def window_of(selection: Selection) -> TimeWindow | None:
    """The range of a selection that was settled, if it has both ends of one kind."""
    start, end = selection.start, selection.end
    if start is None or end is None or isinstance(start, datetime) != isinstance(end, datetime):
        return None
    return TimeWindow(start, end)


def _last(view: View, last: Last, minute: int, *, before: bool) -> TimeWindow:
    if last.days:
        today = buckets.date_at(view.zone, minute * 60)
        return TimeWindow(today - timedelta(days=last.minutes // 1440 - 1), today)
    narrowest = MINUTES[view.scheme.resolution]
    if view.scheme.resolution == "day" or last.minutes % narrowest:
        raise _inexact(view.scheme, last)
    windows = []
    for width in (MINUTES[resolution] for resolution in FINER):
        if width >= narrowest and last.minutes % width == 0:
            end = (minute // width + 1) * width  # the bucket that is open is included
            windows.append(TimeWindow(_time(end - last.minutes), _time(end)))
    if before:
        for window in windows:
            if _tells(view, window) and (window.before is None or _tells(view, window.before)):
                return window
    # Whoever reads one that is not told is told why not.
    return next((window for window in windows if _tells(view, window)), windows[0])


def _tells(view: View, window: TimeWindow) -> bool:
    """Whether a window begins and ends where no bucket goes on."""
    with suppress(InexactZone, RolledUp):
        view.require_range(window.start, window.end)
        return True
    return False


def _inexact(scheme: Scheme, last: Last) -> InexactZone:
    answering = buckets.widest(last.minutes)
    width = MINUTES[scheme.resolution]
    other = Last(-(-last.minutes // width) * width, days=scheme.resolution == "day")
    return InexactZone(
        f"{scheme.counter!r} is counted by {scheme.resolution}, so the last {last} cannot be told:"
        f" ask for the last {other}; `countersink counter set {scheme.counter} --resolution"
        f" {answering}` counts so that it can, from now on"
    )


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)
