"""Dimensions of increments (names with values, such as ``country=de``), and keys of breakdowns,
which join several values. The module has the limits and checks of dimensions, builds and splits the
joined keys, and has a producer's cache of checked mappings (``KnownDimensions``).

A breakdown counts a counter by some of its dimensions, in a fixed order. Its keys have the values
in this order, with byte 00 between two values. Inside a value, byte 00 is written as 01 01, and
byte 01 as 01 02. So a key is valid UTF-8 and can be split again, and keys sort as their lists of
values do. If there are two values or more, all keys with the same first value begin with this value
and byte 00.

The longest escaped value depends only on the number of dimensions: 255 bytes for one dimension, 127
for two, 84 for three, then 63, 50, 41, 35, and 31 for eight.
:func:`countersink.runtime.limits.cut_bytes` cuts longer values. A value gets no bytes that other
values of its key leave free. Otherwise it would be cut at different places in different keys, and a
total could not be selected by it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from countersink.runtime.limits import MAX_KEY_BYTES, check_key, cut_bytes, key_text, text_bytes

Dimensions = tuple[tuple[str, str], ...]
"""The (name, value) pairs of an increment, at least one, sorted by name; each name occurs once."""
RowKey = str | Dimensions
"""The key of a row: a text, or dimensions."""

MAX_DIMENSIONS: Final = 8
"""Most dimensions of one counter, and of one increment."""
UNIQUE_COLUMNS: Final = ("estimate", "low", "high")
"""Columns, beside ``total``, in answers about the number of different members."""
RESERVED: Final = frozenset(
    (
        *("quarter", "minute", "hour", "day", "week", "month", "year"),
        *("key", "counter", "total", "previous", "change", "also", "none", *UNIQUE_COLUMNS),
    )
)
"""Names that no dimension may have: values of ``--by``, the other columns of answers, and ``none``,
which stands for no dimensions."""
SEPARATOR: Final = "\0"
"""The character between two values of a breakdown's key."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_ESCAPED = re.compile("[\0\1]")
_ESCAPES: Final = {"\0": "\1\1", "\1": "\1\2"}
_ESCAPE = re.compile("\1[\1\2]")
_UNESCAPED: Final = {escape: char for char, escape in _ESCAPES.items()}

_sorted_names: dict[tuple[object, ...], tuple[str, ...]] = {}
"""Maps the names of a mapping, in its own order, to the same names sorted. All are checked."""
_NAMES_LIMIT: Final = 10_000


def check_name(name: object) -> str:
    """Return ``name`` if it is a valid name of a dimension.

    Raises:
        TypeError: ``name`` is not a ``str`` (an instance of a subclass is refused, too).
        ValueError: it is not 1 to 32 characters of ``a-z 0-9 _`` with a letter at the beginning, or
            it is in :data:`RESERVED`.
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
            f"dimension {name!r}: this name is reserved for --by, for --dimensions or for a column"
            " of answers; use another name"
        )
    return name


def check_dimensions(dimensions: object) -> RowKey:
    """Return the row key of a mapping of names to values: its pairs sorted by name. A value of more
    than 255 bytes in UTF-8 is cut; see :func:`countersink.runtime.limits.cut_key`. An empty mapping
    gives the key ``''``.

    A dimension with the value ``''`` is counted as if it were missing. The difference is that the
    counter must declare its name.

    Raises:
        TypeError: ``dimensions`` is not a mapping, or a name or a value is not a ``str``.
        ValueError: there are more than 8 pairs, a name is invalid, or a value has a lone surrogate.
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
    """Return the row key for the key that a caller gives: a ``str``, cut if it has more than 255
    bytes (see :func:`countersink.runtime.limits.check_key`); or the pairs of a mapping, sorted by
    name (see :func:`check_dimensions`).

    Raises:
        TypeError: ``key`` is neither a ``str`` nor a mapping, or is an instance of a subclass of
            ``str``; or a name or a value in the mapping is not a ``str``.
        ValueError: the ``str`` or the mapping is invalid; see these functions.
    """
    if isinstance(key, str):
        return check_key(key)
    if isinstance(key, Mapping):
        return check_dimensions(key)
    raise TypeError(f"a key is a str or a mapping of dimensions, not {type(key).__name__}")


def width(dimensions: int) -> int:
    """Return the most bytes that one escaped value may have in a key that joins ``dimensions``
    values (1 to 8).
    """
    return (MAX_KEY_BYTES + 1 - dimensions) // dimensions


def part(value: str, dimensions: int) -> str:
    """Return ``value`` as it stands in a key that joins ``dimensions`` values: escaped, and cut to
    at most :func:`width` bytes. If a producer has cut the value to 255 bytes before, the result is
    the same as for the uncut value. If ``value`` is an earlier result for the same ``dimensions``,
    unescaped, the result is the same as before.

    Raises:
        ValueError: the value holds a lone surrogate other than U+DC80 to U+DCFF.
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
    """Return the key of a breakdown's row for the values of its dimensions. Each value is escaped,
    and cut to at most :func:`width` bytes, so the key has at most 255 bytes.

    Args:
        values: 1 to 8 values, in the breakdown's order.

    Raises:
        ValueError: a value holds a lone surrogate other than those that stand for bytes which are
            not UTF-8, U+DC80 to U+DCFF (see :func:`countersink.runtime.limits.key_text`).
    """
    count = len(values)
    return SEPARATOR.join([part(value, count) for value in values])


def values_of(key: str) -> tuple[str, ...]:
    """Return the values in a key of :func:`composite`, unescaped, in the breakdown's order. A value
    that was cut stays cut. Never raises: any text is split at its separators; ``''`` gives one
    value ``''``.
    """
    return tuple([unescape(value) for value in key.split(SEPARATOR)])


def escape(value: str) -> str:
    """Return ``value`` with its bytes 00 and 01 written as 01 01 and 01 02."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)


def unescape(value: str) -> str:
    """Return the text from which :func:`escape` made ``value``. In any other text, a byte 01
    that neither 01 nor 02 follows stays.
    """
    return _ESCAPE.sub(lambda found: _UNESCAPED[found[0]], value)


def _checked_names(dimensions: Mapping[str, str]) -> tuple[str, ...]:
    """Check the names of a mapping; return them sorted. They are cached in ``_sorted_names``, until
    it has ``_NAMES_LIMIT`` items. Raises what :func:`check_name` raises for an invalid name:
    TypeError or ValueError.
    """
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
"""Most items in the cache, of some 600 bytes each. The cache is emptied when it would have more."""

Known = tuple[Callable[[Mapping[str, str]], Any], dict[Any, Dimensions], tuple[str, ...]]
"""A cache entry for a set of names: a getter that takes the values of these names from a
mapping (the bare value if there is one name), a dictionary from the getter's result to the
dimensions, and the names, sorted.
"""
_NONE: Final[Known] = (len, {}, ())


@dataclass(eq=False)
class KnownDimensions:
    """A cache from mappings of names to values, as a caller gives them, to checked dimensions.

    Checking and sorting a mapping takes several times as long as the rest of an increment. Finding
    it in the cache takes a tenth of the time of checking it. The order of a mapping's items
    does not matter. Thread-safe, because each step is one operation of a dictionary.

    A producer's calls look values up in ``by_counter`` themselves, before they call
    :meth:`row_key`, and find them by equality. So they may accept a value that is an instance of a
    subclass of ``str``; :meth:`row_key` refuses this value.

    Attributes:
        forget: a function to call when the cache is emptied because it is full
            (:data:`MOST_KNOWN`). In it, callers drop the parts of ``by_counter`` that they keep.
        by_counter: maps a counter to a list. Item n of the list is the :data:`Known` for the names
            of the counter's latest increment with n dimensions. If the cache knows no such
            increment, the item is a :data:`Known` without names.
    """

    forget: Callable[[], None] = lambda: None
    by_counter: dict[str, list[Known]] = field(default_factory=dict)
    _by_names: dict[tuple[str, ...], Known] = field(default_factory=dict)
    _held: int = 0  # approximate: threads may add at the same time

    def row_key(self, counter: str, key: str | Mapping[str, str]) -> RowKey:
        """Return a caller's key, checked, in the form of :data:`RowKey`: a text, or pairs sorted by
        name. A ``dict`` with ASCII values (255 characters in all at most) is looked up in the
        cache, or added to it, if the counter's latest increment with as many dimensions had the
        same names. Otherwise the key is checked, and the names of its dimensions are remembered for
        the next increment.

        Args:
            counter: a valid counter name.
            key: a text, or a mapping of dimensions.

        Raises:
            TypeError, ValueError: the key is invalid; see :func:`check_row_key`.
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
    """Return whether the values are ASCII and have at most 255 characters in all, so that none is
    cut. Only such values are cached, so that the number of items bounds the cache's memory.
    """
    text = "".join(values)
    return len(text) <= MAX_KEY_BYTES and text.isascii()
