"""Dimensions of an increment and keys of breakdowns: their limits and checks, the composite key of
several values (its separator, its escapes, how long a value may be in it), how it is read, and a
producer's memory of mappings that were checked (``MOST_KNOWN``).

A breakdown's key is ``value 00 value 00 …``, in the breakdown's order of dimensions. In a value,
byte 00 is written as 01 01, and byte 01 as 01 02. So a key is valid UTF-8, can be read back, and
keys sort as their values do, one after another; all keys that begin with a value and 00 have it as
their first value.

Each value has a width that depends on the number of dimensions alone: 255 bytes for one dimension,
127 for two, 84 for three, 63, 50, 41, 35, and 31 for eight. A longer one is cut to it as
:func:`countersink.runtime.limits.cut_bytes` cuts keys. The width is not what the other values
leave, because one value would then have several forms, and no total could be asked for by it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from countersink.runtime.limits import MAX_KEY_BYTES, check_key, cut_bytes, key_text, text_bytes

Dimensions = tuple[tuple[str, str], ...]
"""(name, value) pairs, sorted by name; names are unique, and there is at least one pair."""
RowKey = str | Dimensions
"""What a row is counted under: a key, or the values of dimensions."""

MAX_DIMENSIONS: Final = 8
"""Dimensions of one counter, and of one increment."""
UNIQUE_COLUMNS: Final = ("estimate", "low", "high")
"""Columns of an answer about different members, beside ``total``."""
RESERVED: Final = frozenset(
    (
        *("quarter", "minute", "hour", "day", "week", "month", "year"),
        *("key", "counter", "total", "previous", "change", "also", *UNIQUE_COLUMNS),
    )
)
"""Words of questions (``--by``), and columns that stand beside dimensions in answers."""
SEPARATOR: Final = "\0"
"""Stands between the values of a composite key."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_ESCAPED = re.compile("[\0\1]")
_ESCAPES: Final = {"\0": "\1\1", "\1": "\1\2"}
_ESCAPE = re.compile("\1[\1\2]")
_UNESCAPED: Final = {escape: char for char, escape in _ESCAPES.items()}

_sorted_names: dict[tuple[object, ...], tuple[str, ...]] = {}
"""Names in the order in which they were given → sorted, for those that were checked."""
_NAMES_LIMIT: Final = 10_000


def check_name(name: object) -> str:
    """Return ``name`` if it is a valid name of a dimension.

    Raises:
        TypeError: not a ``str``.
        ValueError: not 1 to 32 characters of ``a-z 0-9 _`` that begin with a letter, or one of
            :data:`RESERVED`.
    """
    if type(name) is not str:
        raise TypeError(f"a dimension's name is a str, not {type(name).__name__}")
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"dimension {name[:80]!r}: a name has 1 to 32 characters of a-z 0-9 _ and begins with a"
            " letter"
        )
    if name in RESERVED:
        raise ValueError(
            f"dimension {name!r}: this word means something else in --by or in answers; use"
            " another name"
        )
    return name


def check_dimensions(dimensions: object) -> RowKey:
    """The row key of a mapping of names to values: its pairs sorted by name, each value as
    :func:`countersink.runtime.limits.check_key` returns it; of an empty mapping, the key ``''``.

    A value of ``''`` counts where a missing one does, and its name must be declared as well.

    Raises:
        TypeError: not a mapping, or a name or a value that is no ``str``.
        ValueError: more than 8 pairs, a bad name, or a value with a lone surrogate.
    """
    if type(dimensions) is not dict and not isinstance(dimensions, Mapping):
        raise TypeError(
            f"dimensions are a mapping of names to values, not {type(dimensions).__name__}"
        )
    if len(dimensions) > MAX_DIMENSIONS:
        raise ValueError(
            f"an increment has at most {MAX_DIMENSIONS} dimensions, not {len(dimensions)}"
        )
    names = _sorted_names.get(tuple(dimensions)) or _checked_names(dimensions)
    pairs = []
    for name in names:
        value = dimensions[name]
        if not (type(value) is str and len(value) <= MAX_KEY_BYTES and value.isascii()):
            value = _value(name, value)
        pairs.append((name, value))
    return tuple(pairs) if pairs else ""


def check_row_key(key: object) -> RowKey:
    """The row key of what a caller gave: of a ``str`` as
    :func:`countersink.runtime.limits.check_key` has it, of a mapping as :func:`check_dimensions`.

    Raises:
        TypeError: neither, or a name or a value that is no ``str``.
        ValueError: as those functions.
    """
    if isinstance(key, str):
        return check_key(key)
    if isinstance(key, Mapping):
        return check_dimensions(key)
    raise TypeError(f"a key is a str or a mapping of dimensions, not {type(key).__name__}")


def width(dimensions: int) -> int:
    """Bytes that each value may have, escaped, in a composite key of as many dimensions."""
    return (MAX_KEY_BYTES + 1 - dimensions) // dimensions


def part(value: str, dimensions: int) -> str:
    """``value`` as it stands in a composite key of as many dimensions: escaped, and cut to its
    width. What is cut once is cut no further.
    """
    room = width(dimensions)
    if len(value) <= room and value.isascii() and "\0" not in value and "\1" not in value:
        return value
    whole = cut_bytes(text_bytes(value))  # as a producer cuts it: a reader may not have done so
    escaped = escape(key_text(whole))
    most = room
    while len(text_bytes(escaped)) > room:  # again only where escapes need room as well
        escaped = escape(key_text(cut_bytes(whole, most)))
        most -= 1
    return escaped


def composite(values: Sequence[str]) -> str:
    """The key of a breakdown's row: ``values`` in the breakdown's order of dimensions, at most 255
    bytes.

    Args:
        values: 1 to 8 of them.
    """
    count = len(values)
    return SEPARATOR.join([part(value, count) for value in values])


def values_of(key: str) -> tuple[str, ...]:
    """The values of a composite key, in the breakdown's order: what :func:`composite` was given,
    cut where it cut. Of any other text, what is nearest: never an error.
    """
    return tuple([unescape(value) for value in key.split(SEPARATOR)])


def escape(value: str) -> str:
    """``value`` without byte 00."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)


def unescape(value: str) -> str:
    """What :func:`escape` was given."""
    return _ESCAPE.sub(lambda found: _UNESCAPED[found[0]], value)


def _checked_names(dimensions: Mapping[str, str]) -> tuple[str, ...]:
    """The names of a mapping, sorted."""
    given = tuple(dimensions)
    names = tuple(sorted([check_name(name) for name in given]))
    if len(_sorted_names) < _NAMES_LIMIT:
        _sorted_names[given] = names
    return names


def _value(name: str, value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"dimension {name!r}: a value is a str, not {type(value).__name__}")
    return check_key(value)


MOST_KNOWN: Final = 8_192
"""Dimensions that are known at once, some 600 bytes each; beyond that all are forgotten."""

Known = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], tuple[str, ...]]
"""What takes the values of some names out of a mapping (a value alone, if there is one name), the
dimensions by what it takes, and the names, sorted."""
_NONE: Final[Known] = (len, {}, ())


class KnownDimensions:
    """Names that were checked, and the dimensions that were made of them.

    Checking and sorting a mapping takes several times as long as all the rest of an increment; to
    find it here takes a tenth of that. Two mappings with the same values of the same names are one,
    whatever the order of their items; a value that equals a known one is counted as that, also if
    it is of a subclass of ``str``, which is refused otherwise. For all threads: each step is one
    operation of a dictionary.

    Args:
        forget: called when all are forgotten, for whoever holds tables of ``of``.

    Attributes:
        of: counter → by the number of names → :data:`Known`, of the names that came last.
    """

    def __init__(self, forget: Callable[[], None] = lambda: None) -> None:
        self.of: dict[str, list[Known]] = {}
        self._forget = forget
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
                    if found not in known:
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
        if self._held > MOST_KNOWN:
            self.of.clear()
            self._by_names.clear()
            self._held = 0
            self._forget()


def _is_short(values: tuple[str, ...]) -> bool:
    """Whether none was cut; and memory is bounded by their number alone."""
    text = "".join(values)
    return len(text) <= MAX_KEY_BYTES and text.isascii()
