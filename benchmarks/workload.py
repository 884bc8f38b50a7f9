"""The events that all rows count: the same names, the same distribution, the same order."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import accumulate
from typing import Final, Literal

COUNTER: Final = "page_views"
NAMES: Final = 5_000
EXPONENT: Final = 1.1
"""Of Zipf's law: the name of rank r is drawn with a weight of r ** -EXPONENT."""
SEQUENCE: Final = 100_000
"""Events until the sequence repeats."""
_SEED: Final = 20_261_121
VISITORS: Final = 1_000
"""Different members of the sightings that repeat."""

Members = Literal["repeated", "new"]
"""Of sightings: drawn from 1,000 by the same law, or each of them another one."""


@cache
def zipf_keys(names: int = NAMES) -> list[str]:
    """The sequence of 100,000 keys: references to ``names`` strings."""
    known = [f"/articles/{number:04d}" for number in range(names)]
    draw = random.Random(_SEED)
    draw.shuffle(known)
    weights = list(accumulate(rank**-EXPONENT for rank in range(1, names + 1)))
    return draw.choices(known, cum_weights=weights, k=SEQUENCE)


@cache
def zipf_counts() -> Counter[str]:
    """How often each key occurs in one pass through `zipf_keys`."""
    return Counter(zipf_keys())


def distinct_keys(count: int) -> list[str]:
    """``count`` different keys in a random order (but the same at every call), so that a table gets
    them all over its primary key."""
    keys = [f"/visitors/{number:09d}" for number in range(count)]
    random.Random(_SEED).shuffle(keys)
    return keys


@cache
def sightings(members: Members, count: int) -> tuple[list[str], list[str]]:
    """The keys and the members of ``count`` sightings: keys as in `zipf_keys`, members independent
    of them."""
    known = zipf_keys()
    keys = (known * -(-count // len(known)))[:count]
    if members == "new":
        return keys, [f"visitor-{number:08d}" for number in range(count)]
    visitors = [f"visitor-{number:08d}" for number in range(VISITORS)]
    weights = list(accumulate(rank**-EXPONENT for rank in range(1, VISITORS + 1)))
    return keys, random.Random(_SEED + 1).choices(visitors, cum_weights=weights, k=count)


def pages_of(number: int, keys: list[str], tail: str) -> list[str]:
    """The same keys of another site, so that each pass through the sightings is of its own sets;
    with what follows each key."""
    named = {key: f"/{number}{key}{tail}" for key in set(keys)}
    return [named[key] for key in keys]


@cache
def members_by_key(members: Members, count: int) -> dict[str, int]:
    """How many different members each key of the `sightings` has."""
    found: dict[str, set[str]] = {}
    for key, member in zip(*sightings(members, count), strict=True):
        found.setdefault(key, set()).add(member)
    return {key: len(each) for key, each in found.items()}
