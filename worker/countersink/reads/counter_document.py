"""A counter's settings as a document, for the command line and for HTTP."""

from countersink.store import buckets
from countersink.store.counters import Counter
from countersink.store.policies import Policy


def document(counter: Counter) -> dict[str, object]:
    """A counter as JSON."""
    return {
        "counter": counter.name,
        "time_zone": counter.in_force.time_zone,
        "resolution": counter.in_force.resolution,
        "keep_days": counter.keep_days,
        "max_keys": counter.max_keys,
        "most_keys": counter.most_keys,
        "overflown": counter.overflown,
        "app_slots": counter.app_slots,
        "rolled_up_to": None if counter.rolled_up_to is None else str(counter.rolled_up_to),
        "made": counter.made,
        "policies": [
            {
                "from": begins(policy),
                "time_zone": policy.time_zone,
                "resolution": policy.resolution,
                "in_force": policy == counter.in_force,
            }
            for policy in counter.policies
        ],
    }


def begins(policy: Policy) -> str | None:
    """The first event time that a policy is for, in UTC; None for the beginning of time."""
    if policy.valid_from <= 0:
        return None
    return f"{buckets.label_time(policy.valid_from * 60).isoformat(timespec='minutes')}Z"
