"""``KnownDimensions``, a producer's memory of mappings that were checked: how many it holds
(``MOST``), and which are not worth it."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from countersink.runtime.dimensions import MAX_DIMENSIONS, Dimensions
from countersink.runtime.limits import MAX_KEY_BYTES

MOST: Final = 8_192
"""Dimensions that are known at once, some 600 bytes each; beyond that all are forgotten."""

Known = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions]]
"""What takes the values of some names out of a mapping, and the dimensions by these values."""
_NONE: Final[Known] = (len, {})


class KnownDimensions:
    """Mappings that were checked, with their dimensions.

    Checking and sorting a mapping takes several times as long as all the rest of an increment; to
    find it here takes a tenth of that. Two mappings with the same values of the same names are one,
    whatever the order of their items. For all threads: each step is one operation of a dictionary.

    Attributes:
        of: counter → by the number of names → :data:`Known`, of the names that came last.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[Known]] = {}
        self._by_names: dict[tuple[str, ...], Known] = {}
        self._held = 0  # about: threads may add at once

    def add(self, counter: str, dimensions: Dimensions) -> None:
        """Know these dimensions from now on, unless their texts are long."""
        names = tuple([name for name, _ in dimensions])
        text = "".join([value for _, value in dimensions])
        if len(text) > MAX_KEY_BYTES or not text.isascii():
            return  # a value may have been cut; and memory is bounded by their number
        if self._held >= MOST:
            self.of.clear()
            self._by_names.clear()
            self._held = 0
        made = self._by_names.get(names)
        if made is None:
            made = self._by_names.setdefault(names, (itemgetter(*names), {}))
            self._held += 1
        by_number = self.of.get(counter)
        if by_number is None:
            by_number = self.of.setdefault(counter, [_NONE] * (MAX_DIMENSIONS + 1))
            self._held += 1
        by_number[len(names)] = made
        values, known = made
        found = values(dict(dimensions))
        if found not in known:
            known[found] = dimensions
            self._held += 1
