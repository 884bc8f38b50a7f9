"""Series of hours, out of the sums of buckets."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from operator import itemgetter

from countersink.store import buckets, periods
from countersink.store.buckets import LAST_DAY, WIDTH
from countersink.store.errors import InexactZone
from countersink.store.periods import ONE_DAY
from countersink.store.policies import Policy
from countersink.store.views import View, advice

Series = list[tuple[datetime, int]]


def by_hour(view: View, amounts: Mapping[int, int], start: date | None, end: date | None) -> Series:
    """(begin of the hour, total) for each hour of the days, 0 where ``amounts`` has no bucket.

    Args:
        view: in whose zone, or zones: an hour is shown in that of the policy it was counted under.
        amounts: the sums of the range, by label.
        start, end: days; None: from, or to, the hour that has the first, or the last, bucket.

    Raises:
        InexactZone: an hour of the range begins within a bucket.
        SeriesTooLong: there are too many.
    """
    if not amounts and (start is None or end is None):
        return []
    totals: dict[tuple[int, int], int] = {}  # by (begin, offset), in the order they come
    stretches: list[tuple[Policy, int, int, int]] = []
    for policy, since, until in _terms(view):
        zone = view.zone_of(policy)
        begin = _first(view, amounts) if start is None else buckets.day_begins(zone, start)
        begin = begin if since is None else max(begin, since)
        last = _last(view, amounts) if end is None else buckets.day_begins(zone, _after(end))
        last_event = view.until(policy)
        last_event = last if last_event is None else min(last, last_event)
        if begin < last_event and policy.resolution == "day":
            raise _no_hours(view, policy)
        stop = last if until is None else min(last, until)
        periods.require_length(
            (stop - begin) // 3600,
            "hours",
            _utc(begin),
            _utc(stop),
            last_day=buckets.date_at("UTC", stop),
            per_day=24,
        )
        stretches.append((policy, begin, stop, last_event))
    # Only now, that all of them are known to be short: it looks at every day.
    for policy, begin, stop, last_event in stretches:
        _require(view, policy, begin, last_event)
        totals |= dict.fromkeys(periods.hours(view.zone_of(policy), begin, stop), 0)
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
    return min(end, LAST_DAY) + ONE_DAY


def _no_hours(view: View, policy: Policy) -> InexactZone:
    rest = ""
    if policy.used_to is not None:
        following = periods.after(policy.local_day(policy.used_to))
        rest = f" until its policy changed: ask from {following} on, or"
    return InexactZone(
        f"{view.counter!r} is counted by day, which has no hours{rest}; `countersink counter set"
        f" {view.counter} --resolution hour --from …` counts hours from a time to come on"
    )


def _require(view: View, policy: Policy, begin: int, stop: int) -> None:
    """Check that every hour of [begin, stop) begins where a bucket of the policy does."""
    zone = view.zone_of(policy)
    width = WIDTH[policy.resolution] * 60
    for since, _, offset in periods.offsets(zone, begin, stop):
        if offset % width or (since != begin and since % width):
            behind = "behind" if offset < 0 else "ahead of"
            raise InexactZone(
                f"{view.counter!r} is counted by {policy.resolution} of UTC, but hours of {zone},"
                f" from {_utc(since)} on {timedelta(seconds=abs(offset))} {behind} UTC, begin in"
                f" the middle of one: {advice(view.counter, policy, zone)}"
            )


def _utc(instant: int) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")
