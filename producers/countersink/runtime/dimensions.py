"""Dimensions of increments and keys of breakdowns: limits and checks, the composite key of several
values (separator, escapes, longest value), its parser, and a producer's cache of checked mappings
(``MOST_KNOWN``).

A breakdown's key is ``value 00 value 00 …``, in the breakdown's order of dimensions. In a value,
byte 00 is written as 01 01, and byte 01 as 01 02. So a key is valid UTF-8, can be split again, and
keys sort as their lists of values do; all keys that begin with a value and 00 have that value
first.

The longest value depends on the number of dimensions alone: 255 bytes for one dimension, 127 for
two, 84 for three, 63, 50, 41, 35, and 31 for eight. :func:`countersink.runtime.limits.cut_bytes`
cuts longer values. If a value could use the bytes that other values leave free, one value would
have several forms, and a total could not be selected by it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from countersink.runtime.limits import MAX_KEY_BYTES, check_key, cut_bytes, key_text, text_bytes

Dimensions = tuple[tuple[str, str], ...]
"""(name, value) pairs, sorted by name; names are unique, and there is at least one pair."""
RowKey = str | Dimensions
"""The key of a row: a text, or the values of dimensions."""

MAX_DIMENSIONS: Final = 8
"""Dimensions of one counter, and of one increment."""
UNIQUE_COLUMNS: Final = ("estimate", "low", "high")
"""Columns beside ``total`` in an answer about different members."""
RESERVED: Final = frozenset(
    (
        *("quarter", "minute", "hour", "day", "week", "month", "year"),
        *("key", "counter", "total", "previous", "change", "also", *UNIQUE_COLUMNS),
    )
)
"""Values of ``--by``, and columns beside the dimensions in answers."""
SEPARATOR: Final = "\0"
"""The separator of values in a composite key."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_ESCAPED = re.compile("[\0\1]")
_ESCAPES: Final = {"\0": "\1\1", "\1": "\1\2"}
_ESCAPE = re.compile("\1[\1\2]")
_UNESCAPED: Final = {escape: char for char, escape in _ESCAPES.items()}

_sorted_names: dict[tuple[object, ...], tuple[str, ...]] = {}
"""Checked names in the caller's order → the same names, sorted."""
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
            f"dimension {name!r}: this name is reserved for --by or for a column of answers; use"
            " another name"
        )
    return name


def check_dimensions(dimensions: object) -> RowKey:
    """The row key of a mapping of names to values: its pairs sorted by name, each value as
    :func:`countersink.runtime.limits.check_key` returns it; an empty mapping is the key ``''``.

    The value ``''`` counts as a missing value does, but the counter must declare its name.

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
    """The row key of a caller's key: :func:`countersink.runtime.limits.check_key` of a ``str``,
    :func:`check_dimensions` of a mapping.

    Raises:
        TypeError: neither, or a name or a value that is no ``str``.
        ValueError: as these functions.
    """
    if isinstance(key, str):
        return check_key(key)
    if isinstance(key, Mapping):
        return check_dimensions(key)
    raise TypeError(f"a key is a str or a mapping of dimensions, not {type(key).__name__}")


def width(dimensions: int) -> int:
    """Most bytes of an escaped value in a composite key of ``dimensions`` values."""
    return (MAX_KEY_BYTES + 1 - dimensions) // dimensions


def part(value: str, dimensions: int) -> str:
    """``value`` in the form of a composite key of ``dimensions`` values: escaped, and cut to
    :func:`width`. A second call changes nothing.
    """
    room = width(dimensions)
    if len(value) <= room and value.isascii() and "\0" not in value and "\1" not in value:
        return value
    as_sent = cut_bytes(text_bytes(value))  # the producer cuts so, a reader may pass it uncut
    escaped = escape(key_text(as_sent))
    most = room
    while len(text_bytes(escaped)) > room:  # escapes may make it too long again
        escaped = escape(key_text(cut_bytes(as_sent, most)))
        most -= 1
    return escaped


def composite(values: Sequence[str]) -> str:
    """The key of a breakdown's row, at most 255 bytes.

    Args:
        values: 1 to 8 values, in the breakdown's order of dimensions.
    """
    count = len(values)
    return SEPARATOR.join([part(value, count) for value in values])


def values_of(key: str) -> tuple[str, ...]:
    """The values of a composite key, in the breakdown's order, as :func:`composite` cut them. Never
    raises: any text is split at its separators.
    """
    return tuple([unescape(value) for value in key.split(SEPARATOR)])


def escape(value: str) -> str:
    """``value`` with bytes 00 and 01 escaped."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)


def unescape(value: str) -> str:
    """The text that :func:`escape` escaped."""
    return _ESCAPE.sub(lambda found: _UNESCAPED[found[0]], value)


def _checked_names(dimensions: Mapping[str, str]) -> tuple[str, ...]:
    """The names of a mapping, checked and sorted."""
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
"""Most entries of the cache, some 600 bytes each; beyond that the cache is emptied."""

Known = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], tuple[str, ...]]
"""A getter of the values of some names from a mapping (of one name: the bare value), the dimensions
by the getter's result, and the names, sorted."""
_NONE: Final[Known] = (len, {}, ())


@dataclass(eq=False)
class KnownDimensions:
    """Cache of checked mappings: names and values → dimensions.

    Checking and sorting a mapping takes several times as long as the rest of an increment, a hit of
    the cache a tenth of that. The order of a mapping's items does not matter. A value that equals a
    cached one is counted as that, also an instance of a subclass of ``str``, which is refused
    otherwise. Thread-safe: each step is one operation of a dictionary.

    Attributes:
        forget: called when the cache is emptied, for holders of tables in ``by_counter``.
        by_counter: counter → number of names → :data:`Known` of the latest names.
    """

    forget: Callable[[], None] = lambda: None
    by_counter: dict[str, list[Known]] = field(default_factory=dict)
    _by_names: dict[tuple[str, ...], Known] = field(default_factory=dict)
    _held: int = 0  # approximate: threads may add at the same time

    def row_key(self, counter: str, key: str | Mapping[str, str]) -> RowKey:
        """The row key of a caller's key, cached if its texts are short and ASCII.

        Args:
            counter: a valid name.

        Raises:
            TypeError, ValueError: as :func:`countersink.runtime.dimensions.check_row_key`.
        """
        by_number = self.by_counter.get(counter)
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
        by_number = self.by_counter.get(counter)
        if by_number is None:
            by_number = self.by_counter.setdefault(counter, [_NONE] * (MAX_DIMENSIONS + 1))
            self._count()
        by_number[len(names)] = known

    def _count(self) -> None:
        self._held += 1
        if self._held > MOST_KNOWN:
            self.by_counter.clear()
            self._by_names.clear()
            self._held = 0
            self.forget()


def _is_short(values: tuple[str, ...]) -> bool:
    """Whether no value was cut; so the number of entries alone bounds the cache's memory."""
    text = "".join(values)
    return len(text) <= MAX_KEY_BYTES and text.isascii()
