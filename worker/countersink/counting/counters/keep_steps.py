"""Steps (``--keep minute=2d,hour=90d,day=400d``): for how long a counter keeps buckets finer than
months; their syntax with its errors, and to which wider buckets they are rolled up, and up to when.
"""

import re
from itertools import pairwise
from typing import Final

from countersink.counting.counters.buckets import MINUTES, UNITS, Resolution, Width, is_wider
from countersink.counting.counters.catalog import Scheme

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
        if MINUTES[one] >= MINUTES[other]:
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
    width = next((each for each in MINUTES if each == name), None)
    if width is None:
        raise ValueError(f"{name!r} is none of {', '.join(reversed(MINUTES))}: {_EXAMPLE}")
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


def targets(steps: Steps) -> dict[Width, int]:
    """The widths that finer buckets are rolled up to, with the minutes after which they are."""
    if not steps:
        return {}
    last: Width = "month" if steps[-1][0] == "day" else "day"
    wider: list[Width] = [*(width for width, _ in steps[1:]), last]
    return dict(zip(wider, (age for _, age in steps), strict=True))


def due(scheme: Scheme, steps: Steps, now: int) -> dict[Width, int]:
    """Up to which Unix second finer buckets are rolled up to those of each width, where that is
    later than it was: always the start of such a bucket.

    Args:
        scheme: of the counter.
        steps: of the counter.
        now: Unix minutes.

    Raises:
        UnknownZone: the time zone is unknown on this machine.
    """
    found: dict[Width, int] = {}
    for width, age in targets(steps).items():
        if is_wider(width, scheme.widths[0]):
            # Where one of its buckets begins: events are in one or not, never half of them.
            begin = scheme.starts_at(scheme.label_in(width, max(0, now - age)))
            if begin > max(0, scheme.rolled_to(width) or 0):
                found[width] = begin
    return found
