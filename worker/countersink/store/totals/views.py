"""Buckets as days, months and hours of another time zone, and the errors and advice where a
counter's buckets do not add up to them.

Without a time zone, buckets that are days are shown as what they are, so there is always an answer.
Everything else needs every day, month or hour to begin where a bucket does, be it in the zone that
was asked for or in the counter's own: hours may be of a zone that was once, or will be, other than
whole hours from UTC. Whether there is an answer follows from the policies and the zone alone, not
from the rows that happen to be there; but for series of hours and minutes, which are zeros where no
row was rolled up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from countersink.store.counters import buckets
from countersink.store.counters.buckets import WIDTH, policy_number
from countersink.store.counters.policies import Policy
from countersink.store.errors import InexactZone, Refused
from countersink.store.sql import day_label, label_text, label_time


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


class View:
    """How the buckets of one counter add up to days, months and hours of a time zone.

    Args:
        counter: its name, for messages.
        policies: its policies, the earliest first; at least one. Of one that rolls another and was
            never used there are no buckets.
        time_zone: whose days, months and hours; None for the zone each bucket was counted in.

    Raises:
        ValueError: there is no such time zone.
    """

    def __init__(self, counter: str, policies: Sequence[Policy], time_zone: str | None) -> None:
        if time_zone is not None:
            buckets.zone(time_zone)
        self.counter = counter
        self.policies = tuple(policy for policy in policies if policy.rolled_to != 0)
        self.time_zone = time_zone
        self._numbered = {policy.number: policy for policy in policies}
        self._days: dict[int, date] = {}

    @property
    def own(self) -> bool:
        """Whether its days are those of the counter's own zones."""
        return self.time_zone is None or all(
            policy.time_zone == self.time_zone for policy in self.policies
        )

    def policy(self, label: int) -> Policy:
        """The policy that a bucket was counted under.

        Raises:
            Refused: there was none; the row is not countersink's.
        """
        if len(self.policies) == 1:
            return self.policies[0]
        found = self._numbered.get(policy_number(label))
        if found is None:
            raise Refused(
                f"{self.counter!r} has a bucket {label_text(label)}, but never had time"
                f" zone and resolution number {policy_number(label)}: `countersink verify` shows"
                " what else is wrong"
            )
        return found

    def zone_of(self, policy: Policy) -> str:
        """The time zone in which the buckets of a policy are shown."""
        return self.time_zone or policy.known_zone()

    def since(self, policy: Policy) -> int | None:
        """Unix seconds of the first event a policy can have; None for the first policy, and what
        rolls it.
        """
        first = self.policies[0].valid_from
        return None if policy.valid_from == first else policy.valid_from * 60

    def until(self, policy: Policy) -> int | None:
        """Unix seconds before which all events of a policy are; None while it is in force."""
        if policy.rolls is not None:
            rolled_to = None if policy.rolled_to is None else policy.rolled_to * 60
            rolled = self._numbered.get(policy.rolls)
            if rolled is None:
                raise Refused(
                    f"{self.counter!r} has lost the time zone and resolution number"
                    f" {policy.rolls}, whose buckets are rolled up: `countersink verify` shows what"
                    " else is wrong"
                )
            return buckets.earlier(rolled_to, self.until(rolled))
        return None if policy.used_to is None else policy.ends_at(policy.used_to)

    def moment(self, label: int) -> int:
        """Unix seconds of the first event that a bucket can hold."""
        policy = self.policy(label)
        begins = policy.starts_at(label)
        since = self.since(policy)
        return begins if since is None else max(begins, since)

    def day(self, label: int) -> date:
        """The date of a bucket; of its first event where it lies in several."""
        day = self._days.get(label)
        if day is None:
            policy = self.policy(label)
            if self._plain(policy):
                day = policy.local_day(label)
            else:
                day = buckets.date_at(self.zone_of(policy), self.moment(label))
            self._days[label] = day
        return day

    def last_day(self, label: int) -> date:
        """The date of the last event that a bucket can hold."""
        policy = self.policy(label)
        if self._plain(policy):
            return self.day(label)
        return buckets.date_at(self.zone_of(policy), policy.ends_at(label) - 60)

    def ranges(self, start: date | None, end: date | None) -> Ranges:
        """The buckets of the days from ``start`` to ``end``, both inclusive, or from one time to
        before another.

        Where days and buckets do not fit together it is the buckets that begin in them: ask
        :meth:`require_range` first.
        """
        if start is None and end is None:
            return None
        found = []
        for policy, all_of_it in zip(self.policies, self.possible(), strict=True):
            for first, until in self._labels(policy, start, end):
                one = replace(
                    all_of_it,
                    first=buckets.later(first, all_of_it.first),
                    until=buckets.earlier(until, all_of_it.until),
                )
                if not one.empty:
                    found.append(one)
        return tuple(found)

    def possible(self) -> list[LabelRange]:
        """The buckets that each policy can have, in the order of the policies."""
        return [
            LabelRange(
                first=None if self.since(policy) is None else policy.label(policy.valid_from),
                until=self._last_label(policy),
                number=policy.number,
                step=WIDTH[policy.resolution] * 60,
                mixed=len(self.policies) > 1,
            )
            for policy in self.policies
        ]

    def _last_label(self, policy: Policy) -> int | None:
        """The label before which all of a policy are; None: there is none."""
        if policy.rolls is None:
            return None if policy.used_to is None else policy.used_to + 1
        until = self.until(policy)
        # The bucket in which the last minute before it lies is the last one.
        return None if until is None else policy.label(-(-until // 60) - 1) + 1

    def require_days(self, days: Iterable[date]) -> None:
        """Check that each of these days begins where no bucket goes on.

        Raises:
            InexactZone: one does not.
        """
        wanted = tuple(days)
        for policy in self.policies:
            if self._plain(policy):
                continue
            for day in wanted:
                for change in buckets.date_changes(self.zone_of(policy), day):
                    if self._cuts(policy, change):
                        raise self._inexact(policy, day, change)

    def require_range(self, start: date | None, end: date | None) -> None:
        """Check that the range begins and ends where no bucket goes on.

        Raises:
            InexactZone: it does not.
        """
        ends = [] if start is None else [start]
        if isinstance(end, datetime):
            ends.append(end)
        elif end is not None and (following := buckets.after(end)) is not None:
            ends.append(following)
        self.require_days(each for each in ends if not isinstance(each, datetime))
        for moment in ends:
            if isinstance(moment, datetime):
                self._require_instant(buckets.unix(moment))

    def first_day(self, start: date) -> date:
        """The earliest date that events of a range which begins so can have: a policy that begins
        later may be behind, and clocks may go back to the day before.
        """
        if not isinstance(start, datetime):
            return start
        instant = buckets.unix(start)
        found = []
        for policy in self.policies:
            until = self.until(policy)
            if until is None or until > instant:
                at = buckets.later(instant, self.since(policy)) or instant
                zone = self.zone_of(policy)
                day = buckets.date_at(zone, at)
                back = any(change > at for change in buckets.date_changes(zone, day)[1::2])
                found.append(day - buckets.ONE_DAY if back else day)
        return min(found)

    def final_day(self, end: date) -> date:
        """The latest date that events of a range which ends so can have."""
        if not isinstance(end, datetime):
            return end
        instant = buckets.unix(end)
        found = []
        for policy in self.policies:
            since = self.since(policy)
            if since is None or since < instant:
                before = buckets.earlier(instant, self.until(policy)) or instant
                zone = self.zone_of(policy)
                day = buckets.date_at(zone, before - 60)
                following = day + buckets.ONE_DAY
                reached = buckets.date_changes(zone, following)[::2]
                found.append(following if any(each < before for each in reached) else day)
        return max(found)

    def _require_instant(self, instant: int) -> None:
        for policy in self.policies:
            if self._cuts(policy, instant):
                raise InexactZone(
                    f"{self.counter!r} {_counted_by(policy)}, and {moment_text(instant)} is in the"
                    f" middle of one: {_finer(self.counter, policy, instant)}"
                )

    def _cuts(self, policy: Policy, instant: int) -> bool:
        """Whether an instant lies within one of a policy's buckets."""
        since, until = self.since(policy), self.until(policy)
        if (since is not None and instant <= since) or (until is not None and instant >= until):
            return False
        return not _begins_bucket(policy, instant)

    def _plain(self, policy: Policy) -> bool:
        """Whether its buckets are the days that are shown."""
        return policy.resolution == "day" and self.time_zone in (None, policy.time_zone)

    def _labels(
        self, policy: Policy, start: date | None, end: date | None
    ) -> list[tuple[int | None, int | None]]:
        """[first, until) of the policy's labels whose buckets are of these days."""
        times = isinstance(start, datetime) or isinstance(end, datetime)
        if self._plain(policy) and not times:
            following = None if end is None else buckets.after(end)
            return [
                (
                    None if start is None else day_label(start),
                    None if following is None else day_label(following),
                )
            ]
        found: list[tuple[int | None, int | None]] = []
        since, until = self.since(policy), self.until(policy)
        for begin, stop in buckets.intervals(self.zone_of(policy), start, end):
            if stop is not None and since is not None and stop <= since:
                continue
            if begin is not None and until is not None and begin >= until:
                continue
            # Beyond what the policy can hold nothing need be said, nor do its buckets begin there.
            if begin is not None and since is not None and begin <= since:
                begin = None
            if stop is not None and until is not None and stop >= until:
                stop = None
            found.append((_first_label(policy, begin), _first_label(policy, stop)))
        return found

    def _inexact(self, policy: Policy, day: date, change: int) -> InexactZone:
        zone = self.zone_of(policy)
        begins = (
            datetime.fromtimestamp(change, UTC).strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")
        )
        return InexactZone(
            f"{self.counter!r} {_counted_by(policy)} in {policy.time_zone}, and"
            f" {begins} UTC, when the date in {zone} changes to or from {day}, is in the"
            f" middle of one: {advice(self.counter, policy, zone)}"
        )


def _begins_bucket(policy: Policy, instant: int) -> bool:
    """Whether a bucket of the policy begins at this instant, and none goes on."""
    if policy.resolution != "day":
        return instant % (WIDTH[policy.resolution] * 60) == 0
    # A day that comes in two pieces goes on after the next one has begun.
    zone = policy.known_zone()
    return buckets.date_changes(zone, buckets.date_at(zone, instant)) == (instant,)


def _first_label(policy: Policy, instant: int | None) -> int | None:
    """The label, without its number, of the first bucket that begins at this instant or later."""
    if instant is None:
        return None
    if policy.resolution == "day":
        label = policy.label(-(-instant // 60))
        day = label - policy_number(label)
        return day if policy.starts_at(label) >= instant else day + 86_400
    width = WIDTH[policy.resolution] * 60
    return -(-instant // width) * width


def _counted_by(policy: Policy) -> str:
    if policy.rolls is None:
        return f"is counted by {policy.resolution}"
    assert policy.rolled_to is not None
    return f"is rolled up, before {moment_text(policy.rolled_to * 60)}, to each {policy.resolution}"


def _finer(counter: str, policy: Policy, instant: int) -> str:
    """What to ask instead of a time that lies within a bucket, and which buckets would tell."""
    if policy.rolls is not None:
        assert policy.rolled_to is not None
        return (
            f"ask for a time at which one begins, or from {moment_text(policy.rolled_to * 60)} on"
        )
    answering = buckets.widest(instant // 60)
    return (
        "ask for a time at which one begins;"
        f" `countersink counter set {counter} --resolution {answering} --from …` counts so that"
        " this one can be told, from a time to come on"
    )


def moment_text(instant: int) -> str:
    """Unix seconds for people: ``2026-11-21 08:00Z``."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%MZ")


def advice(counter: str, policy: Policy, refused: str) -> str:
    """What to ask instead of a time zone for which the buckets of a policy do not tell."""
    if policy.rolls is not None:
        assert policy.rolled_to is not None
        return (
            f"ask for the time zone {policy.time_zone}, or from"
            f" {moment_text(policy.rolled_to * 60)} on"
        )
    if policy.resolution in ("quarter", "minute"):
        return "ask for a range without it, or for another time zone, such as UTC"
    # Of hours UTC's days can always be told; days of their own zone are never refused.
    other = "UTC" if refused == policy.time_zone else policy.time_zone
    return (
        f"ask for the time zone {other};"
        f" `countersink counter set {counter} --resolution quarter --from …` counts so that the"
        " days of every zone add up, from then on"
    )


def intersected(one: Ranges, other: Ranges) -> Ranges:
    """The buckets that are in both."""
    if one is None or other is None:
        return other if one is None else one
    both = (
        replace(
            each,
            first=buckets.later(each.first, its.first),
            until=buckets.earlier(each.until, its.until),
        )
        for each in one
        for its in other
        if each.number == its.number
    )
    return tuple(each for each in both if not each.empty)


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
