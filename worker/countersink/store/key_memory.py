"""Which keys a counter's day is known to have, so that they need not be looked up again."""

from collections.abc import Collection, Set
from datetime import date
from typing import Final

MOST: Final = 200_000
"""Keys that are remembered at once, of all days together: some 30 MB, 70 MB of the longest."""

_NONE: Final[Set[str]] = frozenset()


class KeyMemory:
    """Keys by (counter, day), up to :data:`MOST`; days that were asked for longest ago go first.

    To forget a key is always safe.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held = 0
        self._keys: dict[tuple[str, date], set[str]] = {}

    def of(self, counter: str, day: date) -> Set[str]:
        """The keys that are remembered of a day."""
        place = counter, day
        found = self._keys.pop(place, None)
        if found is None:
            return _NONE
        self._keys[place] = found
        return found

    def add(self, counter: str, day: date, keys: Collection[str]) -> None:
        """Remember keys of a day, as many of them as there is room for."""
        if not keys:
            return
        own = self._keys.pop((counter, day), set())
        self._held -= len(own)
        while self._keys and self._held + len(own) + len(keys) > self._most:
            self._held -= len(self._keys.pop(next(iter(self._keys))))
        if len(own) + len(keys) <= self._most:
            own.update(keys)
        self._held += len(own)
        self._keys[counter, day] = own
