"""Steps of retention, such as ``--keep minute=2d,hour=90d,day=400d``: for how long a counter keeps
buckets of each width that is finer than a month.

Parses and checks steps, and tells which wider buckets the finer ones become, and when.
"""

import re
from itertools import pairwise
from typing import Final

from countersink.counting.counters.buckets import MINUTES, UNITS, Resolution, Width, is_wider
from countersink.counting.counters.catalog import Scheme

Steps = tuple[tuple[Resolution, int], ...]
"""(width of buckets, minutes for which they are kept) of each step, the finest width first. An
empty tuple keeps all buckets for ever."""

FOREVER: Final = "forever"
"""The text for no steps: buckets are never rolled up."""
MAX_AGE: Final = 100_000 * 1440
"""Maximum number of minutes for which a step can keep buckets."""
_EXAMPLE: Final = "give steps such as minute=2d,hour=90d, or forever"


def parse(text: str) -> Steps:
    """Parse the text of ``--keep``, such as ``minute=2d,hour=90d``, into steps: pairs of a width
    and the minutes for which its buckets are kept. ``forever`` gives no steps.

    Raises:
        TypeError: the text is not a ``str``.
        ValueError: the steps are invalid; the message says why.
    """
    if not isinstance(text, str):
        raise TypeError(f"steps to keep are a str, not {type(text).__name__}")
    if text == FOREVER:
        return ()
    steps = tuple(_step(part) for part in text.split(","))
    for (fine, kept), (wide, longer) in pairwise(steps):
        if MINUTES[fine] >= MINUTES[wide]:
            raise ValueError(f"{fine} comes before {wide}: name each width once, the finest first")
        if kept >= longer:
            raise ValueError(
                f"{fine}={_age(kept)} is not shorter than {wide}={_age(longer)}: finer buckets"
                " become wider ones, which must be kept longer"
            )
    return steps


def _step(text: str) -> tuple[Resolution, int]:
    found = re.fullmatch(r"([a-z]+)=([0-9]{1,9})([mhd])", text)
    if found is None:
        raise ValueError(
            f"{text[:80]!r} is not WIDTH=TIME with m, h or d (minutes, hours, days): {_EXAMPLE}"
        )
    name, number, unit = found.groups()
    width = next((each for each in MINUTES if each == name), None)
    if width is None:
        raise ValueError(f"{name!r} is not one of {', '.join(reversed(MINUTES))}: {_EXAMPLE}")
    age = int(number) * UNITS[unit]
    if not 1 <= age <= MAX_AGE:
        raise ValueError(f"{text}: buckets can be kept for 1m to {_age(MAX_AGE)}")
    return width, age


def stored(text: str | None) -> Steps:
    """Parse the text of the column ``keep_steps``. NULL gives no steps. An invalid text gives no
    steps either, so that nothing is rolled up by mistake.
    """
    try:
        return () if text is None else parse(text)
    except ValueError:
        return ()


def by_width(steps: Steps) -> dict[str, str]:
    """Return the time for which buckets of each step's width are kept, as text, for JSON:
    ``{"minute": "2d"}``. It is empty if there are no steps.
    """
    return {width: _age(age) for width, age in steps}


def text_of(steps: Steps) -> str:
    """Return the standard text of some steps, from which :func:`parse` reads the same steps."""
    return ",".join(f"{width}={age}" for width, age in by_width(steps).items()) or FOREVER


def _age(minutes: int) -> str:
    unit = next(each for each in reversed(UNITS) if minutes % UNITS[each] == 0)
    return f"{minutes // UNITS[unit]}{unit}"


def targets(steps: Steps) -> dict[Width, int]:
    """Return the widths to which finer buckets are rolled up, each with the age in minutes at which
    this is done: for ``minute=2d,hour=90d`` these are ``{"hour": 2880, "day": 129600}``.
    """
    if not steps:
        return {}
    last: Width = "month" if steps[-1][0] == "day" else "day"
    wider: list[Width] = [*(width for width, _ in steps[1:]), last]
    return dict(zip(wider, (age for _, age in steps), strict=True))


def due(scheme: Scheme, steps: Steps, now: int) -> dict[Width, int]:
    """Return, for each width to which the steps roll up, the Unix seconds before which finer
    buckets are due to be rolled up to it; retention stores these times, then rolls up. Each is the
    start of a bucket of this width, so that no bucket is rolled up in part. A width is left out if
    finer buckets are rolled up that far already, or are about to be. It is also left out if it is
    not wider than the counter's finest buckets.

    Args:
        scheme: the counter's scheme.
        steps: the counter's steps.
        now: current time in Unix minutes.

    Raises:
        UnknownZone: this machine does not know the counter's time zone, which days and months need.
    """
    found: dict[Width, int] = {}
    for width, age in targets(steps).items():
        if is_wider(width, scheme.widths[0]):
            # The start of a bucket of the width, so that no bucket is rolled up in part.
            begin = scheme.starts_at(scheme.label_in(width, max(0, now - age)))
            if begin > max(0, scheme.rolled_to(width) or 0):
                found[width] = begin
    return found
