"""Selections, which tell what a question for totals is about: the counter, the keys (exact ones, by
prefix or by a part, with exclusions), and the range (days, times, or a window that ends now).
Checks them, with messages. Keys are compared byte by byte, as in the table.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from countersink.counting.counters.buckets import MAX_MINUTE, UNITS, unix
from countersink.database.sql import day_label, marks, parts
from countersink.runtime.dimensions import check_dimensions
from countersink.runtime.limits import key_bytes, text_bytes
from countersink.runtime.texts import NamedRange

MAX_PARTS: Final = 1_000
"""Maximum number of keys and prefixes of a match: for more, the server would not use an index."""


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,) if given else ()
    return tuple(dict.fromkeys(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """A rule that tells which keys of a counter to add up. Case and accents matter, and no
    character is special.

    A key matches if it fulfils all conditions: it is one of ``keys`` or begins with one of
    ``prefix`` (if any of these are given), it contains ``contains`` and has ``values``, and it is
    not excluded.

    Attributes:
        keys: exact keys.
        prefix: one prefix, or several; an empty one is ignored.
        contains: text that a key must contain; an empty text allows any key.
        exclude_keys: keys that do not match.
        exclude_prefix: one prefix, or several; keys that begin with one do not match.
        values: (position from 0, value at this position) that a breakdown's key must have.

    Raises:
        ValueError: an empty prefix is excluded; or there are more than :data:`MAX_PARTS` prefixes,
            excluded keys and excluded prefixes (and ``keys``, if there are prefixes) together.
        TypeError: ``keys`` or ``exclude_keys`` is a single text.
    """

    keys: Sequence[str] = ()
    prefix: str | Sequence[str] = ()
    contains: str = ""
    exclude_keys: Sequence[str] = ()
    exclude_prefix: str | Sequence[str] = ()
    values: Sequence[tuple[int, str]] = ()
    _keys: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _begins: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    _not_keys: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _not_begins: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the attributes, and make tuples without duplicates of them."""
        for name in ("keys", "exclude_keys"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a sequence of str")
        prefixes = tuple(filter(None, _texts(self.prefix)))
        excluded = _texts(self.exclude_prefix)
        if "" in excluded:
            raise ValueError("an empty prefix would exclude all keys")
        self._set(
            keys=tuple(dict.fromkeys(self.keys)),
            prefix=prefixes,
            exclude_keys=tuple(dict.fromkeys(self.exclude_keys)),
            exclude_prefix=excluded,
        )
        self._set(
            _keys=frozenset(map(key_bytes, self.keys)),
            _begins=tuple(map(text_bytes, prefixes)),
            _not_keys=frozenset(map(key_bytes, self.exclude_keys)),
            _not_begins=tuple(map(text_bytes, excluded)),
        )
        parts = (self._begins, self._not_keys, self._not_begins)
        # Keys without prefixes are queried in parts.
        if sum(map(len, parts)) + (len(self._keys) if self._begins else 0) > MAX_PARTS:
            raise ValueError(f"choose by at most {MAX_PARTS:,} keys and prefixes")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __contains__(self, key: str) -> bool:
        """Return whether a key matches."""
        stored = key_bytes(key)
        return (
            (not self.bounded or stored in self._keys or stored.startswith(self._begins))
            and text_bytes(self.contains) in stored
            and stored not in self._not_keys
            and not stored.startswith(self._not_begins)
            and all(_part(stored, place) == text_bytes(value) for place, value in self.values)
        )

    @property
    def bounded(self) -> bool:
        """True if exact keys or prefixes are given, so that an index by key finds the rows."""
        return bool(self._keys or self._begins)

    @property
    def indexes(self) -> str:
        """Names for FORCE INDEX, divided by commas: ``PRIMARY``, and ``by_key`` if ``bounded``."""
        return "PRIMARY, by_key" if self.bounded else "PRIMARY"

    def condition(self) -> tuple[str, tuple[object, ...]]:
        """Return SQL conditions on ``counter_key``, each beginning with AND, and their values."""
        terms: list[str] = []
        args: list[object] = []
        if self.bounded:
            terms.append(f" AND ({_any_of(self._keys, self._begins, args)})")
        if self.contains:
            # Not LIKE, for which %, _ and \ are special: they are ordinary characters of URLs.
            terms.append(" AND LOCATE(%s, counter_key) > 0")
            args.append(text_bytes(self.contains))
        for place, value in self.values:
            head = f"SUBSTRING_INDEX(counter_key, X'00', {place + 1:d})"
            terms.append(f" AND SUBSTRING_INDEX({head}, X'00', -1) = %s")
            args.append(text_bytes(value))
        if self._not_keys or self._not_begins:
            terms.append(f" AND NOT ({_any_of(self._not_keys, self._not_begins, args)})")
        return "".join(terms), tuple(args)


def _part(key: bytes, place: int) -> bytes:
    """Return the value at a position in a breakdown's key; the last value if the key has fewer
    values. (SUBSTRING_INDEX does the same.)"""
    return b"\0".join(key.split(b"\0")[: place + 1]).rpartition(b"\0")[2]


ANY = KeyMatch()
"""The match of all keys."""

Keys = Sequence[str] | KeyMatch | None
"""The keys that a question is about: named keys, a match, or None for all keys."""

ChosenKeys = KeyMatch | tuple[bytes, ...]
"""A match of keys, or named keys in the form that the table has."""


@dataclass(frozen=True, slots=True)
class PickedKeys:
    """SQL conditions that pick some keys.

    Attributes:
        where, args: the conditions, each beginning with AND, and their values.
        indexes: names of the indexes that the server may use, with commas between.
        ranges: number of ranges of the index ``by_key``, for each counter; 0 if it is not used.
        ordered: False if the server may choose between two indexes; see ``sums.grouping``.
    """

    where: str
    args: tuple[object, ...]
    indexes: str
    ranges: int
    ordered: bool


def chosen_keys(keys: Keys) -> ChosenKeys:
    """Return the keys of a question as a match (``ANY`` for all keys), or as the sorted bytes of
    the named keys."""
    if keys is None or isinstance(keys, KeyMatch):
        return keys or ANY
    return tuple(sorted({key_bytes(key) for key in keys}))


def picked_keys(chosen: ChosenKeys, size: int) -> list[PickedKeys]:
    """Return the conditions of a match (one item) or of named keys (one item per ``size`` keys)."""
    if isinstance(chosen, KeyMatch):
        ranges = len(chosen.keys) + len(chosen.prefix)
        return [PickedKeys(*chosen.condition(), chosen.indexes, ranges, not ranges)]
    return [
        PickedKeys(f" AND counter_key IN ({marks(part)})", tuple(part), "by_key", len(part), True)
        for part in parts(chosen, size)
    ]


MAX_LAST_DAYS: Final = 36_500
_LAST: Final = re.compile(r"([0-9]{1,9})([mhdw])")
_MINUTES: Final = UNITS | {"w": 10_080}


@dataclass(frozen=True, slots=True)
class Last:
    """The length of a window that ends now.

    A window of days or weeks has whole days or ISO weeks of the time zone; the last one is today or
    this week. Any other window has whole buckets; the last one is open now.

    Attributes:
        minutes: the length in minutes; a day has 1440.
        days: True for a window of days and for a window of weeks.
        weeks: True for a window of weeks.
    """

    minutes: int
    days: bool = False
    weeks: bool = False

    @classmethod
    def of(cls, given: "str | timedelta | Last") -> "Last":
        """Parse the length of a window, such as ``90m``, ``24h``, ``7d`` or ``2w``. A timedelta
        gives a window of minutes, never of days; a :class:`Last` is returned as it is.

        Raises:
            ValueError: it is no such length, no whole minutes, 0, or longer than 36,500 days.
        """
        if isinstance(given, Last):
            return given
        if isinstance(given, timedelta):
            minutes, rest = divmod(given, timedelta(minutes=1))
            if rest or not 0 < minutes <= MAX_LAST_DAYS * 1440:
                raise ValueError(f"the last {given}: give whole minutes, at least 1")
            return cls(minutes)
        found = _LAST.fullmatch(given)
        minutes = int(found[1]) * _MINUTES[found[2]] if found else 0
        if found is None or not 0 < minutes <= MAX_LAST_DAYS * 1440:
            raise ValueError(
                f"{given[:40]!r} is no window: give minutes, hours, days or weeks, such as 90m,"
                f" 24h, 7d or 2w, of at most {MAX_LAST_DAYS:,} days"
            )
        return cls(minutes, found[2] in "dw", found[2] == "w")

    def __str__(self) -> str:
        unit = "w" if self.weeks else "d" if self.days else "m" if self.minutes % 60 else "h"
        return f"{self.minutes // _MINUTES[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The scope of a question: counter, keys and range. None means all counters, all keys or, for
    ``start`` and ``end``, no limit.

    Attributes:
        counter: the name of one counter.
        keys: named keys (an empty list: no key), or a match.
        start, end: each a day, included; or a time (aware, whole minute), excluded as ``end``.
        last: length of a window that ends now, or a range with names of days, instead of ``start``
            and ``end``; see :func:`countersink.counting.totals.query.with_window`.
        time_zone: time zone of the days; None for the counter's own.
        where: (dimension, value) that events must have, instead of ``keys``.
        visible: returns whether to include a counter, by name; for questions about all counters.

    Raises:
        TypeError: a day is not a ``datetime.date``.
        ValueError: the range is invalid; or both a range and ``last`` are given.
    """

    counter: str | None = None
    _: KW_ONLY
    keys: Keys = None
    start: date | None = None
    end: date | None = None
    last: Last | NamedRange | None = None
    time_zone: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    visible: Callable[[str], bool] = field(default=lambda _: True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the range, and convert times to UTC."""
        check_range(self.start, self.end)
        for name, edge in (("start", self.start), ("end", self.end)):
            if isinstance(edge, datetime):
                # In other zones the difference of two times is that of clocks.
                object.__setattr__(self, name, edge.astimezone(UTC))
        if self.last is not None and (self.start is not None or self.end is not None):
            raise ValueError("give a range (from, to) or a window (last), not both")

    @property
    def everything(self) -> bool:
        """Whether the range is all times."""
        return self.start is None and self.end is None and self.last is None

    @property
    def named(self) -> Sequence[str] | None:
        """The named keys; None for all keys. Use it only if ``keys`` is no :class:`KeyMatch`."""
        assert not isinstance(self.keys, KeyMatch)
        return self.keys


def check_days(start: date | None, end: date | None) -> None:
    """Raise an error if a range of days is invalid.

    Raises:
        TypeError: one end is not a ``date``, or is a ``datetime``.
        ValueError: it ends before it begins.
    """
    for day in (start, end):
        if isinstance(day, datetime) or not isinstance(day, date | None):
            raise TypeError(f"a range is given in days, as datetime.date, not {type(day).__name__}")
    if start is not None and end is not None and end < start:
        raise ValueError(f"the range ends ({end}) before it begins ({start})")


def check_range(start: date | None, end: date | None) -> None:
    """Raise an error if a range of days or times is invalid.

    Raises:
        TypeError: one end is neither a ``date`` nor a ``datetime``.
        ValueError: it ends before it begins (two times: or when it begins); or a time is naive, not
            a whole minute, or out of range. A range from a day to a time, or from a time to a day,
            is refused only if it ends before it begins in every time zone.
    """
    for moment in (start, end):
        if isinstance(moment, datetime):
            _check_time(moment)
    times = isinstance(start, datetime), isinstance(end, datetime)
    if times == (False, False):
        check_days(start, end)
    elif start is not None and end is not None:
        # A local day may begin 14 hours before the day in UTC, and end 12 hours after it.
        first = unix(start) if isinstance(start, datetime) else day_label(start) - 14 * 3600
        until = unix(end) if isinstance(end, datetime) else day_label(end) + (24 + 12) * 3600
        if until <= first:
            raise ValueError(f"the range ends ({end}) before it begins ({start})")


def _check_time(moment: datetime) -> None:
    if moment.utcoffset() is None:
        raise ValueError(
            f"{moment} has no time zone, and guessing one would be wrong by hours:"
            " datetime(…, tzinfo=ZoneInfo(…))"
        )
    minute, rest = divmod(unix(moment), 60)
    if rest or moment.microsecond:
        raise ValueError(f"{moment} is not a whole minute")
    if not 0 <= minute <= MAX_MINUTE:
        raise ValueError(f"{moment}: no event has such a time; give one from 1970-01-01 on, in UTC")


def wanted_keys(key: str | None, keys: Sequence[str] | None, match: KeyMatch = ANY) -> Keys:
    """Return the keys that a question is about: a list of named keys (empty: no key), a match, or
    None for all keys. ``key`` or ``keys`` are added to ``match.keys``. If the match then has keys
    and no prefix, the result is the list of those of its keys that match. The list is empty if
    ``keys`` is empty and the match has neither keys nor a prefix.

    Raises:
        ValueError: both ``key`` and ``keys`` are given.
        TypeError: ``keys`` is a single text.
    """
    if key is not None and keys is not None:
        raise ValueError("give key or keys, not both")
    if isinstance(keys, str):
        raise TypeError("keys is a sequence of str; for a single key use key=")
    chosen = keys if key is None else [key]
    if match == ANY:
        return chosen
    if chosen is None and not match.keys:
        return match
    if chosen is not None:
        if not chosen and not match.bounded:
            return chosen  # no keys
        match = replace(match, keys=(*match.keys, *chosen))
    # With named keys only, exclusions are applied here.
    return match if match.prefix else [each for each in match.keys if each in match]


def checked_where(
    where: Mapping[str, str] | Sequence[tuple[str, str]] | None,
) -> tuple[tuple[str, str], ...]:
    """Check values of dimensions, and return them as (dimension, value), sorted by dimension.
    Values of more than 255 bytes are cut.

    Raises:
        TypeError, ValueError: a name or a value is invalid, or a dimension is given twice.
    """
    if not where:
        return ()
    values = dict(where)
    if len(values) < len(where):
        raise ValueError("give each dimension once")
    checked = check_dimensions(values)
    return () if isinstance(checked, str) else checked


def _any_of(keys: Iterable[bytes], prefixes: Iterable[bytes], args: list[object]) -> str:
    """Return an SQL condition for keys that are in ``keys`` or begin with a prefix. Append its
    values to ``args``."""
    terms = []
    if named := sorted(keys):
        terms.append(f"counter_key IN ({marks(named)})")
        args += named
    for prefix in prefixes:
        beyond = _after_all(prefix)
        terms.append("counter_key >= %s" + (" AND counter_key < %s" if beyond else ""))
        args += [prefix, beyond] if beyond else [prefix]
    return terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)


def _after_all(prefix: bytes) -> bytes | None:
    """Return the least bytes that come after all bytes with this prefix; None if nothing does."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
