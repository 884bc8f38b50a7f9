"""The events that all rows count: the same names, the same distribution, the same order."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import accumulate
from typing import Final

COUNTER: Final = "page_views"
NAMES: Final = 5_000
EXPONENT: Final = 1.1
"""Of Zipf's law: the name of rank r is drawn with a weight of r ** -EXPONENT."""
SEQUENCE: Final = 100_000
"""Events until the sequence repeats."""
_SEED: Final = 20_261_121


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
