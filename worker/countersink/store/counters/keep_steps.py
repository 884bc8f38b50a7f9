"""Steps (``--keep minute=2d,hour=90d``): for how long a counter keeps buckets finer than days;
their syntax with its errors, and to which wider buckets a policy's are rolled up, and up to when.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from countersink.store.counters.buckets import FINER, UNITS, WIDTH, Resolution
from countersink.store.counters.policies import Policy

Steps = tuple[tuple[Resolution, int], ...]
"""(width of buckets, minutes for which they are kept), the finest first; () for ever."""

FOREVER: Final = "forever"
"""As steps: buckets are never rolled up to wider ones."""
MAX_AGE: Final = 100_000 * 1440
"""Minutes that a step may be kept for."""
_EXAMPLE: Final = "give steps such as minute=2d,hour=90d, or forever"


def parse(text: str) -> Steps:
    """The steps that are meant by a text.

    Raises:
        TypeError: not a ``str``.
        ValueError: it means none; says why.
    """
    if not isinstance(text, str):
        raise TypeError(f"steps to keep are a str, not {type(text).__name__}")
    if text == FOREVER:
        return ()
    steps = tuple(_step(part) for part in text.split(","))
    for (one, kept), (other, longer) in pairwise(steps):
        if WIDTH[one] >= WIDTH[other]:
            raise ValueError(f"{one} comes before {other}: name each width once, the finest first")
        if kept >= longer:
            raise ValueError(
                f"{one}={_age(kept)} is not shorter than {other}={_age(longer)}: wider buckets are"
                " what finer ones become, so they are kept longer"
            )
    return steps


def _step(text: str) -> tuple[Resolution, int]:
    found = re.fullmatch(r"([a-z]+)=([0-9]{1,9})([mhd])", text)
    if found is None:
        raise ValueError(
            f"{text[:80]!r} is no width with a time in m, h or d (minutes, hours, days): {_EXAMPLE}"
        )
    name, number, unit = found.groups()
    if name == "day":
        raise ValueError("how long days are kept is said by keep_days (--keep-days), not as a step")
    width = next((each for each in FINER if each == name), None)
    if width is None:
        raise ValueError(f"{name!r} is none of {', '.join(FINER)}: {_EXAMPLE}")
    age = int(number) * UNITS[unit]
    if not 1 <= age <= MAX_AGE:
        raise ValueError(f"{text}: buckets are kept for 1m to {_age(MAX_AGE)}")
    return width, age


def stored(text: str | None) -> Steps:
    """The steps in a column of the table. What somebody has garbled there rolls nothing up."""
    try:
        return () if text is None else parse(text)
    except ValueError:
        return ()


def by_width(steps: Steps) -> dict[str, str]:
    """By width for how long it is kept: ``{"minute": "2d"}``."""
    return {width: _age(age) for width, age in steps}


def text_of(steps: Steps) -> str:
    """Steps as :func:`parse` takes them, written in one way only."""
    return ",".join(f"{width}={age}" for width, age in by_width(steps).items()) or FOREVER


def _age(minutes: int) -> str:
    unit = next(each for each in reversed(UNITS) if minutes % UNITS[each] == 0)
    return f"{minutes // UNITS[unit]}{unit}"


def targets(steps: Steps, resolution: Resolution) -> dict[Resolution, int]:
    """The wider resolutions that buckets get, each with the minutes after which they do."""
    wider: list[Resolution] = [*(width for width, _ in steps[1:]), "day"]
    return {
        to: age
        for (_, age), to in zip(steps, wider, strict=bool(steps))
        if WIDTH[to] > WIDTH[resolution]
    }


def due(policies: Iterable[Policy], steps: Steps, now: int) -> dict[int, int]:
    """Up to which Unix minute buckets are rolled up to those of which policy, by its number, where
    that is later than it was.

    Args:
        policies: all of a counter.
        steps: of the counter.
        now: Unix minutes.

    Raises:
        Refused: a time zone is unknown on this machine.
    """
    numbered = {policy.number: policy for policy in policies}
    found: dict[int, int] = {}
    for policy in numbered.values():
        if policy.rolls is None:
            continue
        age = targets(steps, numbered[policy.rolls].resolution).get(policy.resolution)
        if age is not None:
            # Where one of its buckets begins: events are in one or not, never half of them.
            minute = -(-policy.starts_at(policy.label(now - age)) // 60)
            if minute > max(policy.valid_from, policy.rolled_to or 0):
                found[policy.number] = minute
    return found
