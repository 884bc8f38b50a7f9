"""Keys and buckets that a pass left as they are, and how people are told of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersink.store.buckets import label_text

BUSY: Final = "keys left for the next run, as others held them"
OVERFLOWING: Final = "keys left as they are, as their sum does not fit 64 bits"
UNKNOWN: Final = "buckets left as they are, as no policy of their counter made them"
ASTRIDE: Final = "buckets left as they are, as they lie in two months"
_LONGEST: Final = 80
"""Characters of a key in a sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """A key of a bucket, or with None a whole bucket.

    Attributes:
        counter: the counter.
        bucket: the bucket's label.
        key: the key.
    """

    counter: str
    bucket: int
    key: bytes | None = None

    def __str__(self) -> str:
        bucket = f"{self.counter} {label_text(self.bucket)}"
        if self.key is None:
            return bucket
        key = self.key.decode("utf-8", "backslashreplace")
        shown = key if key.isprintable() else repr(key)[1:-1]
        return f"{bucket} '{shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '…'}'"


def mention(places: Sequence[Place], what: str) -> str:
    """What a sentence goes on with: how many and the first of them; empty where there are none."""
    return f"; {what}: {len(places):,}, first {places[0]}" if places else ""
