"""Compares breakdowns with their counters for ``verify``: of each day the sum of a breakdown, and
that of the events with dimensions in its counter, which are under the key ``''``.

Days that are in months of either are left out, and those before the first whole day that a
breakdown holds. Buckets of a day may have been rolled up to wider ones in the one and not in the
other, so days are compared, and not buckets.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date

from countersink.store.connection import Session
from countersink.store.counters import buckets
from countersink.store.counters.breakdowns import Breakdown
from countersink.store.counters.policies import Policies
from countersink.store.ledger import Difference
from countersink.store.sql import label_of, marks

_BREAKDOWN = "SELECT bucket, SUM(amount) FROM counter_slot FORCE INDEX (PRIMARY) WHERE counter = %s"
_COUNTER = (
    "SELECT bucket, SUM(amount) FROM counter_slot FORCE INDEX (by_key) WHERE counter = %s"
    " AND counter_key = ''"
)


def mismatches(session: Session, policies: Policies, counter: str) -> Iterator[Difference]:
    """The breakdowns of a counter that differ from it, in the snapshot that the caller began.

    Raises:
        Refused: this machine does not know the counter's time zone.
        LookupError, ValueError, OverflowError: there are buckets that cannot be.
        StoreError: as any query.
    """
    own = policies.dimensioned.get(counter)
    if own is None or not own.breakdowns:
        return
    rolled = _rolled_up_to(session, [counter, *(each.name for each in own.breakdowns)])
    whole = _days(session, _COUNTER, counter, policies)
    for each in own.breakdowns:
        first = _first_day(policies, counter, each)
        since = max(filter(None, (rolled[counter], rolled[each.name], first)), default=date.min)
        days = _days(session, _BREAKDOWN, each.name, policies)
        wrong = sorted(day for day in {*whole, *days} if day >= since and whole[day] != days[day])
        if wrong:
            detail = (
                f"its breakdown {each.text} ({each.name}) differs from its key '' on {len(wrong):,}"
                f" days, the first of which is {wrong[0]}: {days[wrong[0]]:,} against"
                f" {whole[wrong[0]]:,}"
            )
            held, there = (sum(found[day] for day in wrong) for found in (days, whole))
            yield Difference(counter, "breakdown", held, there, detail, day=wrong[0])


def _rolled_up_to(session: Session, names: Sequence[str]) -> dict[str, date | None]:
    found = session.query(
        f"SELECT name, rolled_up_to FROM counter WHERE name IN ({marks(names)})", names
    )
    return dict.fromkeys(names) | dict(found)


def _days(session: Session, query: str, name: str, policies: Policies) -> Counter[date]:
    """The sums of the days of a counter, in its own time zones."""
    days: Counter[date] = Counter()
    for bucket, amount in session.query(f"{query} GROUP BY bucket", (name,)):
        days[policies.day(name, label_of(bucket))] += int(amount)
    return days


def _first_day(policies: Policies, counter: str, breakdown: Breakdown) -> date | None:
    """The first day of which a breakdown holds everything; None for all days."""
    if not breakdown.since:
        return None
    zone = policies.at(counter, breakdown.since).known_zone()
    day = buckets.date_at(zone, breakdown.since * 60)
    begun = buckets.day_begins(zone, day) >= breakdown.since * 60
    return day if begun else buckets.after(day)
