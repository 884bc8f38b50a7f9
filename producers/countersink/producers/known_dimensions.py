"""``KnownDimensions``, a producer's memory of mappings that were checked: how many it holds
(``MOST``), and which are not worth it."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from countersink.runtime.dimensions import MAX_DIMENSIONS, Dimensions, RowKey, check_row_key
from countersink.runtime.limits import MAX_KEY_BYTES

MOST: Final = 8_192
"""Dimensions that are known at once, some 600 bytes each; beyond that all are forgotten."""

Known = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], tuple[str, ...]]
"""What takes the values of some names out of a mapping (a value alone, if there is one name), the
dimensions by what it takes, and the names, sorted."""
_NONE: Final[Known] = (len, {}, ())


class KnownDimensions:
    """Names that were checked, and the dimensions that were made of them.

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

    def row_key(self, counter: str, key: str | Mapping[str, str]) -> RowKey:
        """The row key of what a caller gave, remembered if its texts are short and ASCII.

        Args:
            counter: checked.

        Raises:
            TypeError, ValueError: as :func:`countersink.runtime.dimensions.check_row_key`.
        """
        by_number = self.of.get(counter)
        if type(key) is dict and by_number is not None and 0 < len(key) <= MAX_DIMENSIONS:
            take, known, names = by_number[len(key)]
            if key.keys() == set(names):
                found = take(key)
                values = (found,) if len(names) == 1 else found
                if set(map(type, values)) == {str} and _is_short(values):
                    dimensions = tuple(zip(names, values, strict=True))
                    self._count()
                    known[found] = dimensions
                    return dimensions
        row_key = check_row_key(key)
        if not isinstance(row_key, str):
            self._add(counter, tuple([name for name, _ in row_key]))
        return row_key

    def _add(self, counter: str, names: tuple[str, ...]) -> None:
        known = self._by_names.get(names)
        if known is None:
            known = self._by_names.setdefault(names, (itemgetter(*names), {}, names))
            self._count()
        by_number = self.of.get(counter)
        if by_number is None:
            by_number = self.of.setdefault(counter, [_NONE] * (MAX_DIMENSIONS + 1))
            self._count()
        by_number[len(names)] = known

    def _count(self) -> None:
        self._held += 1
        if self._held > MOST:
            self.of.clear()
            self._by_names.clear()
            self._held = 0


def _is_short(values: tuple[str, ...]) -> bool:
    """Whether none was cut; and memory is bounded by their number alone."""
    text = "".join(values)
    return len(text) <= MAX_KEY_BYTES and text.isascii()
