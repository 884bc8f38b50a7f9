"""Series of hours, out of the sums of buckets."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter
from typing import Final

from countersink.store import buckets, periods
from countersink.store.buckets import WIDTH
from countersink.store.errors import InexactZone
from countersink.store.periods import ONE_DAY
from countersink.store.policies import Policy
from countersink.store.views import View, advice

_FIRST_DAY: Final = date(2, 1, 1)
_LAST_DAY: Final = date(9999, 12, 29)
"""Days beyond these have no begin or end in some zones; no series is so long."""

Series = list[tuple[datetime, int]]


def by_hour(view: View, amounts: Mapping[int, int], start: date | None, end: date | None) -> Series:
    """(begin of the hour, total) for each hour of the days, 0 where ``amounts`` has no bucket.

    Args:
        view: in whose zone, or zones: an hour is shown in that of the policy it was counted under.
        amounts: the sums of the range, by label.
        start, end: days; None: from, or to, the hour that has the first, or the last, bucket.

    Raises:
        InexactZone: an hour of the range begins within a bucket.
        ValueError: there are too many.
    """
    if not amounts and (start is None or end is None):
        return []
    totals: dict[tuple[int, int], int] = {}  # by (begin, offset), in the order they come
    for policy, since, until in _terms(view):
        zone = view.zone_of(policy)
        begin = (
            _first(view, amounts)
            if start is None
            else buckets.day_begins(zone, max(start, _FIRST_DAY))
        )
        stop = _last(view, amounts) if end is None else buckets.day_begins(zone, _after(end))
        begin = begin if since is None else max(begin, since)
        last_event = view.until(policy)
        _require(view, policy, begin, stop if last_event is None else min(stop, last_event))
        stop = stop if until is None else min(stop, until)
        periods.require_length((stop - begin) // 3600, "hours", _utc(begin), _utc(stop))
        totals |= dict.fromkeys(periods.hours(zone, begin, stop), 0)
    for label, amount in amounts.items():
        hour = periods.hour_at(view.zone_of(view.policy(label)), view.moment(label))
        totals[hour] = totals.get(hour, 0) + amount
    return [
        (datetime.fromtimestamp(hour, timezone(timedelta(seconds=offset))), totals[hour, offset])
        for hour, offset in sorted(totals, key=itemgetter(0))
    ]


def _terms(view: View) -> list[tuple[Policy, int | None, int | None]]:
    """Each policy with the time, in Unix seconds, from which and until which it is in force."""
    begins = [view.since(policy) for policy in view.policies]
    return list(zip(view.policies, begins, [*begins[1:], None], strict=True))


def _first(view: View, amounts: Mapping[int, int]) -> int:
    return min(view.moment(label) for label in amounts)


def _last(view: View, amounts: Mapping[int, int]) -> int:
    return max(view.policy(label).ends_at(label) for label in amounts)


def _after(end: date) -> date:
    return min(end, _LAST_DAY) + ONE_DAY


def _require(view: View, policy: Policy, begin: int, stop: int) -> None:
    """Check that every hour of [begin, stop) begins where a bucket of the policy does."""
    if begin >= stop:
        return
    counter = view.counter
    if policy.resolution == "day":
        rest = ""
        if policy.used_to is not None:
            after = policy.local_day(policy.used_to) + ONE_DAY
            rest = f" until its policy changed: ask from {after} on, or"
        raise InexactZone(
            f"{counter!r} is counted by day, which has no hours{rest}; `countersink counter set"
            f" {counter} --resolution hour --from …` counts hours from a time to come on"
        )
    zone = view.zone_of(policy)
    width = WIDTH[policy.resolution] * 60
    for since, _, offset in periods.offsets(zone, begin, stop):
        if offset % width or (since != begin and since % width):
            behind = "behind" if offset < 0 else "ahead of"
            raise InexactZone(
                f"{counter!r} is counted by {policy.resolution} of UTC, but hours of {zone},"
                f" from {_utc(since)} on {timedelta(seconds=abs(offset))} {behind} UTC, begin in"
                f" the middle of one: {advice(counter, policy)}"
            )


def _utc(instant: int) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")
