"""How a counter's policies may change: never for the past, once it has been counted."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from countersink.store import buckets
from countersink.store.buckets import MAX_MINUTE, MAX_POLICIES, RESOLUTIONS, Resolution
from countersink.store.keys import is_name
from countersink.store.periods import offset_at
from countersink.store.policies import Policy

FOREVER: Final = "forever"
"""As ``keep_days``: days are never rolled up to months."""
KeepDays = int | Literal["forever"]
MAX_KEEP_DAYS: Final = 100_000
MAX_APP_SLOTS: Final = 256
NO_CAP: Final = "none"
"""As ``max_keys`` of a counter: as for all counters without a cap of their own."""
MaxKeys = int | Literal["none"]
MOST_MAX_KEYS: Final = 100_000_000
NOTICE_MS: Final = 60_000
"""Milliseconds ahead, at the least, at which another policy begins."""

_LOOK_AHEAD: Final = 2 * 365 * 1440
"""Minutes from its begin on in which a zone's UTC offsets are looked at."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_name(counter: str) -> str:
    """``counter``, if it can be a counter's name.

    Raises:
        TypeError: not a ``str``. ValueError: it cannot.
    """
    if not isinstance(counter, str):
        raise TypeError(f"a counter name is a str, not {type(counter).__name__}")
    if not is_name(counter):
        raise ValueError(
            f"counter name {counter[:80]!r}: use 1 to 64 characters of A-Z a-z 0-9 _ . : -"
        )
    return counter


def check_resolution(resolution: str) -> Resolution:
    """``resolution``, if it is one.

    Raises:
        ValueError: it is none.
    """
    if resolution not in RESOLUTIONS:
        raise ValueError(f"resolution {resolution!r}: one of {', '.join(RESOLUTIONS)}")
    return resolution


def check_keep_days(keep_days: KeepDays) -> int | None:
    """Days as the table has them, None for ever.

    Raises:
        ValueError: not a number from 1 to 100,000, nor ``forever``.
    """
    if keep_days == FOREVER:
        return None
    if type(keep_days) is not int or not 1 <= keep_days <= MAX_KEEP_DAYS:
        raise ValueError(
            f"keep_days is {keep_days!r}: a number of days from 1 to {MAX_KEEP_DAYS:,},"
            f" or {FOREVER!r}"
        )
    return keep_days


def check_max_keys(max_keys: MaxKeys | None) -> int | None:
    """Keys as the tables have them, None for no cap.

    Raises:
        ValueError: not a number from 1 to 100,000,000, nor ``none``.
    """
    if max_keys is None or max_keys == NO_CAP:
        return None
    if type(max_keys) is not int or not 1 <= max_keys <= MOST_MAX_KEYS:
        raise ValueError(
            f"max_keys is {max_keys!r}: a number of keys from 1 to {MOST_MAX_KEYS:,}, or {NO_CAP!r}"
        )
    return max_keys


def check_app_slots(app_slots: int) -> int:
    """``app_slots``, if there are so many.

    Raises:
        ValueError: there are not.
    """
    if type(app_slots) is not int or not 1 <= app_slots <= MAX_APP_SLOTS:
        raise ValueError(f"app_slots is {app_slots!r}: a number from 1 to {MAX_APP_SLOTS}")
    return app_slots


def start_minute(start: datetime) -> int:
    """The Unix minute at which ``start`` is.

    Raises:
        TypeError: not a ``datetime``.
        ValueError: naive, not a whole minute, or behind the last event there can be.
    """
    if not isinstance(start, datetime):
        raise TypeError(f"a start is an aware datetime, not {type(start).__name__}")
    if start.utcoffset() is None:
        raise ValueError(
            "the start has no time zone, and guessing one would begin at the wrong hour: "
            "datetime(…, tzinfo=ZoneInfo(…))"
        )
    minute, rest = divmod(start - _EPOCH, timedelta(minutes=1))
    if rest:
        raise ValueError(f"the start {start} is not a whole minute")
    if minute > MAX_MINUTE:
        raise ValueError(f"the start {start} is after the last possible event, {_text(MAX_MINUTE)}")
    return minute


def next_policy(
    counter: str,
    own: Sequence[Policy],
    *,
    time_zone: str | None,
    resolution: Resolution | None,
    start: int | None,
    used: bool,
    now_ms: int,
) -> Policy | None:
    """The policy that comes after ``own``, by what was asked for; what was not stays.

    Args:
        counter: its name, for the messages.
        own: its policies, the earliest first; at least one.
        time_zone: IANA name.
        resolution: of its buckets.
        start: Unix minute from which the policy is for.
        used: whether anything was ever counted.
        now_ms: Unix ms on the server's clock.

    Returns:
        None if there is nothing to change. A policy with number 0 is for all time and takes the
        place of all others; any other one follows on the last.

    Raises:
        ValueError: it may not change so; the message says what is possible.
    """
    if time_zone is None and resolution is None:
        if start is not None:
            raise ValueError(
                "a start is for another time zone or resolution: give one, or leave out the start"
            )
        return None
    last = own[-1]
    wanted = Policy(
        counter=counter,
        number=0 if start is None else max(policy.number for policy in own) + 1,
        valid_from=0 if start is None else start,
        time_zone=time_zone or last.time_zone,
        resolution=resolution or last.resolution,
    )
    if (wanted.time_zone, wanted.resolution) == (last.time_zone, last.resolution) and (
        used or start is not None or len(own) == 1
    ):
        return None
    earliest = max(-(-(now_ms + NOTICE_MS) // 60_000), last.valid_from + 1)
    if start is None and used:
        raise ValueError(
            f"{counter} has been counted, so its time zone and resolution can only change from"
            f" a time to come: give a start (--from), {_text(earliest)} or later"
        )
    if start is not None and start < earliest:
        raise ValueError(
            f"{_text(start)} is too early: what was counted stays as it is, so another time zone"
            f" or resolution starts (--from) at {_text(earliest)} or later"
        )
    if wanted.number >= MAX_POLICIES:
        raise ValueError(
            f"{counter} has had {MAX_POLICIES} time zones and resolutions, and there is no room for"
            " more: count on under another name"
        )
    _check_hours(wanted, max(now_ms // 60_000, wanted.valid_from))
    return wanted


def _check_hours(policy: Policy, since: int) -> None:
    """Refuse hours for a zone whose midnights are not on the hour in UTC, from ``since`` on."""
    buckets.zone(policy.time_zone)
    if policy.resolution != "hour":
        return
    for minute in range(since, min(since + _LOOK_AHEAD, MAX_MINUTE + 1), 1440):
        offset = offset_at(policy.time_zone, minute * 60)
        if offset % 3600:
            raise ValueError(
                f"{policy.time_zone} is not whole hours from UTC ({timedelta(seconds=offset)} on"
                f" {buckets.label_time(minute * 60):%Y-%m-%d}), so hours do not add up to its days:"
                " use the resolution quarter"
            )


def _text(minute: int) -> str:
    return f"{buckets.label_time(minute * 60).isoformat(timespec='minutes')}Z"
