"""Making and changing a counter, in a transaction that holds control alone."""

from dataclasses import dataclass

from countersink.store import buckets, fence
from countersink.store.buckets import Resolution
from countersink.store.connection import Session
from countersink.store.control import Control
from countersink.store.control import bump as bump
from countersink.store.counter_reads import DEFAULT_APP_SLOTS, Counter, is_used, read
from countersink.store.policies import Policy, load
from countersink.store.policy_changes import next_policy


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, checked; None: leave it. What can be NULL is wrapped."""

    name: str
    time_zone: str | None
    resolution: Resolution | None
    keep_days: tuple[int | None] | None
    max_keys: tuple[int | None] | None
    app_slots: int | None
    start: int | None


def change(wanted: Wanted, session: Session, control: Control) -> Counter:
    """Do what is wanted, while nobody is counting by what was before; the counter as it is then.

    In :func:`countersink.store.fence.alone`.

    Raises:
        ValueError: it may not be changed so; roll back.
        TrackedCounter: it is that of a tracked table.
    """
    fence.refuse_tracked(session, wanted.name)
    changed = _set_options(session, wanted)
    name = wanted.name
    own = load(session).of(name)
    policy = next_policy(
        name,
        own,
        time_zone=wanted.time_zone,
        resolution=wanted.resolution,
        start=wanted.start,
        used=is_used(session, name),
        now_ms=control.now,
    )
    if policy is not None:
        changed = True
        if policy.number == 0:
            session.execute("DELETE FROM counter_policy WHERE counter = %s", (name,))
        else:
            _supersede(session, name, own[-1], policy.valid_from)
        _write(session, name, policy)
    if changed:
        bump(session)
    return read(session, name)[0]


def _set_options(session: Session, wanted: Wanted) -> bool:
    """Make the row of ``counter`` as asked for; whether that changed anything."""
    rows = session.query(
        "SELECT keep_days, max_keys, app_slots FROM counter WHERE name = %s FOR UPDATE",
        (wanted.name,),
    )
    before = rows[0] if rows else (None, None, DEFAULT_APP_SLOTS)
    after = (
        before[0] if wanted.keep_days is None else wanted.keep_days[0],
        before[1] if wanted.max_keys is None else wanted.max_keys[0],
        before[2] if wanted.app_slots is None else wanted.app_slots,
    )
    if not rows:
        session.execute(
            "INSERT INTO counter (name, keep_days, max_keys, app_slots, created)"
            " VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(3))",
            (wanted.name, *after),
        )
        return True
    if after == before:
        return False
    session.execute(
        "UPDATE counter SET keep_days = %s, max_keys = %s, app_slots = %s WHERE name = %s",
        (*after, wanted.name),
    )
    return True


def _supersede(session: Session, name: str, last: Policy, start: int) -> None:
    """Note the largest label that ``last`` will ever have, now that another one starts."""
    used_to = last.label(start - 1)
    # Events dated beyond the start, counted before anybody knew of it, stay where they are.
    beyond = session.query(
        "SELECT bucket FROM counter_slot FORCE INDEX (PRIMARY)"
        " WHERE counter = %s AND bucket > %s AND SECOND(bucket) = %s"
        " ORDER BY bucket DESC LIMIT 1",
        (name, buckets.label_time(used_to), last.number),
    )
    if beyond:
        used_to = buckets.label_of(beyond[0][0])
    found = session.query(
        "SELECT 1 FROM counter_policy WHERE counter = %s AND number = %s", (name, last.number)
    )
    if not found:
        _write(session, name, last)
    session.execute(
        "UPDATE counter_policy SET used_to = %s WHERE counter = %s AND number = %s",
        (buckets.label_time(used_to), name, last.number),
    )


def _write(session: Session, name: str, policy: Policy) -> None:
    session.execute(
        "INSERT INTO counter_policy (counter, number, valid_from, time_zone, resolution)"
        " VALUES (%s, %s, %s, %s, %s)",
        (
            name,
            policy.number,
            buckets.label_time(policy.valid_from * 60),
            policy.time_zone,
            policy.resolution,
        ),
    )
