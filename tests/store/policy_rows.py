"""Policies as they are in the table, for tests that need them to have begun in the past."""

from collections.abc import Callable, Sequence
from typing import Any

from countersink.store.connection import Session
from countersink.store.counters.buckets import Resolution
from countersink.store.counters.policies import Policy
from countersink.store.sql import label_time

Change = tuple[int, str, Resolution]
"""(Unix minute from which it is for, time zone, resolution)."""


Put = Callable[[Sequence[Change], Sequence[int]], None]
"""Gives a counter c policies, and counts events of these minutes with the amounts 1, 10, 100, …"""


def policies_of(changes: Sequence[Change]) -> list[Policy]:
    """The policies these changes make, the first of them for all time before too."""
    return [
        Policy(number=number, valid_from=since, time_zone=zone, resolution=resolution)
        for number, (since, zone, resolution) in enumerate(changes)
    ]


def put_policies(session: Session, counter: str, changes: Sequence[Change]) -> None:
    """Give a counter these policies, as changing it one by one would have."""
    policies = policies_of(changes)
    session.execute(
        "INSERT IGNORE INTO counter (name, created) VALUES (%s, UTC_TIMESTAMP(3))", (counter,)
    )
    session.execute("DELETE FROM counter_policy WHERE counter = %s", (counter,))
    for policy, after in zip(policies, [*policies[1:], None], strict=True):
        used_to: Any = None
        if after is not None:
            used_to = label_time(policy.label(after.valid_from - 1))
            ((beyond,),) = session.query(
                "SELECT MAX(bucket) FROM counter_slot WHERE counter = %s AND SECOND(bucket) = %s",
                (counter, policy.number),
            )
            used_to = used_to if beyond is None else max(used_to, beyond)
        session.execute(
            "INSERT INTO counter_policy VALUES (%s, %s, %s, %s, %s, %s, NULL, NULL)",
            (
                counter,
                policy.number,
                label_time(policy.valid_from * 60),
                policy.time_zone,
                policy.resolution,
                used_to,
            ),
        )
    session.execute("UPDATE control SET policy_version = policy_version + 1")


def brute_policy(changes: Sequence[Change], minute: int) -> Change:
    """The policy for an event, found the slow way."""
    found = changes[0]
    for change in changes:
        if change[0] <= minute:
            found = change
    return found
